# SPDX-License-Identifier: Apache-2.0
"""Making, mixing, comparing and explaining quantizations."""
