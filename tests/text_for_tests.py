# SPDX-License-Identifier: Apache-2.0
"""English text that every Python brings along: the help topics, joined in the order of their keys."""

from __future__ import annotations


def topics() -> str:
    from pydoc_data.topics import topics as found

    return "\n\n".join(found[k] for k in sorted(found))
