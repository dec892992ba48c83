# SPDX-License-Identifier: Apache-2.0
"""An unknown keyword is a TypeError that suggests the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Iterable, Optional, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# What users of other engines type, where likeness of spelling does not lead to our name.
OTHER_NAMES = {
    "ctx": "n_ctx",
    "context": "n_ctx",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "temp": "temperature",
    "repetition_penalty": "repeat_penalty",
    "cache_type_k": "kv",
    "kv_type": "kv",
    "type_k": "kv",
    "nthreads": "n_threads",
    "num_threads": "n_threads",
    "batch_size": "n_batch",
    "chunk": "ctx",
    "chunks": "windows",
    "windows": "chunks",
    "seconds": "budget_s",
    "dtype": "compute",
}


def suggestion(name: str, known: Iterable[str]) -> Optional[str]:
    known = list(known)
    if OTHER_NAMES.get(name) in known:
        return OTHER_NAMES[name]
    # n_threads for threads and the other way round, then likeness.
    for candidate in known:
        if name in (candidate.replace("n_", "", 1), "n_" + candidate):
            return candidate
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_keyword(function: str, name: str, known: Iterable[str]) -> TypeError:
    known = list(known)
    near = suggestion(name, known)
    hint = f"did you mean {near!r}?" if near else f"it takes {', '.join(known)}"
    return TypeError(f"{function}() has no keyword {name!r}; {hint}")


def unknown_key(kind: str, key: object, known: Iterable[str]) -> str:
    """The message of a KeyError: what is not there, and the nearest that is."""
    near = difflib.get_close_matches(key, list(known), n=1) if isinstance(key, str) else []
    return f"there is no {kind} {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def checked_keywords(function: F) -> F:
    """Decorator: checks the names of keywords before the call, so that the message can suggest one."""
    parameters = inspect.signature(function).parameters.values()
    names = [
        p.name
        for p in parameters
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in ("self", "cls")
    ]
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        raise AssertionError(f"{function.__qualname__} takes any keyword, so none is unknown")
    accepted = frozenset(names)
    shown = function.__qualname__.replace(".__init__", "")

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in accepted:
                raise unknown_keyword(shown, name, names)
        return function(*args, **kwargs)

    return cast(F, wrapper)
