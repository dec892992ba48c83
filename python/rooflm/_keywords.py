# SPDX-License-Identifier: Apache-2.0
"""Arguments checked before a call: an unknown keyword is a TypeError that suggests the right one, a count that is no
whole number one that names it."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from typing import Any, Callable, Iterable, Optional, Sequence, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Annotations of counts: whether None may stand for one, and what may hold several.
COUNTS: dict[str, tuple[bool, tuple[type[Sequence[Any]], ...]]] = {
    "int": (False, ()),
    "Optional[int]": (True, ()),
    "Union[int, list[int]]": (False, (list,)),
    "Union[None, int, list[int]]": (True, (list,)),
    "Union[None, int, list[Optional[int]]]": (True, (list,)),
    "Union[None, int, Sequence[Optional[int]]]": (True, (list, tuple)),
}

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


def whole(name: str, value: Any, *, none: bool = False, many: tuple[type[Sequence[Any]], ...] = ()) -> Any:
    """The value as int, or a list of them from one of `many`; NumPy's integers are taken, and None where it may stand.
    TypeError for floats, bools and text: 1.5 tokens are a mistake, and so is True."""
    if none and value is None:
        return None
    if isinstance(value, many):
        return [whole(name, v, none=none) for v in value]
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    also = ", or a list of them" if many else ""
    raise TypeError(f"{name}={value!r}: must be a whole number{' or None' if none else ''}{also}")


def at_least(least: int, **counts: Any) -> None:
    """ValueError that names the first of the counts, or of a list of them, that is less; None is not."""
    for name, value in counts.items():
        numbers: list[Any] = value if isinstance(value, list) else [value]
        for n in numbers:
            if n is not None and n < least:
                raise ValueError(f"{name}={n}: must be at least {least}")


def checked_keywords(function: F) -> F:
    """Decorator: checks names of keywords before the call, so that the message can suggest one, and that counts (what
    is annotated as one of COUNTS) are whole numbers; the function gets them as int."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [
        p.name
        for p in parameters
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in ("self", "cls")
    ]
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        raise AssertionError(f"{function.__qualname__} takes any keyword, so none is unknown")
    accepted = frozenset(names)
    counts = [(i, p.name, *COUNTS[p.annotation]) for i, p in enumerate(parameters) if p.annotation in COUNTS]
    shown = function.__qualname__.replace(".__init__", "")

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in accepted:
                raise unknown_keyword(shown, name, names)
        for i, name, none, many in counts:
            if name in kwargs:
                kwargs[name] = whole(name, kwargs[name], none=none, many=many)
            elif i < len(args):
                args = (*args[:i], whole(name, args[i], none=none, many=many), *args[i + 1 :])
        return function(*args, **kwargs)

    return cast(F, wrapper)
