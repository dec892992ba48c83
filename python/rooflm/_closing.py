# SPDX-License-Identifier: Apache-2.0
"""with for whatever has close()."""

from __future__ import annotations

from typing import TypeVar

Self = TypeVar("Self", bound="Closing")


class Closing:
    """A context manager whose end is close()."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
