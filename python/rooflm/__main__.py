# SPDX-License-Identifier: Apache-2.0
"""The `rooflm` command, also as `python -m rooflm`."""

from __future__ import annotations

import sys
from typing import Optional, Sequence


def main(argv: Optional[Sequence[str]] = None) -> int:
    try:
        from rooflm import cli

        return cli.main(argv)
    except KeyboardInterrupt:  # at any time, also while modules are imported
        print("rooflm: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
