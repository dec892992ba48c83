# SPDX-License-Identifier: Apache-2.0
"""`python -m rooflm` is the `rooflm` command."""

import sys

from rooflm.cli import main

if __name__ == "__main__":
    sys.exit(main())
