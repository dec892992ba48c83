# SPDX-License-Identifier: Apache-2.0
"""_core.pyi and the extension agree: every public name both ways, and every signature that the module states.

A wrong stub is worse than none: editors and mypy believe it. The module states a signature by the first line of a
docstring, "name($self, a, *, b=1)\\n--\\n\\n"; functions without one are compared by name only.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import rooflm._core as core

STUB = Path(__file__).resolve().parent.parent / "python" / "rooflm" / "_core.pyi"


def definitions(body) -> dict[str, ast.AST]:
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = node
    return found


def public(names) -> set[str]:
    return {n for n in names if not n.startswith("_")}


TREE = definitions(ast.parse(STUB.read_text()).body)
# Names of the stub that exist for typing only.
TYPING_ONLY = {n for n, node in TREE.items() if n.startswith("_") or getattr(node, "decorator_list", None)}


def own_members(cls) -> set[str]:
    return public(vars(cls))


def stub_members(name) -> set[str]:
    """Members in the stub of a class and of its bases that are stub classes of no module type."""
    return public(definitions(TREE[name].body))


CLASSES = sorted(n for n in public(dir(core)) if isinstance(getattr(core, n), type))


def test_module_names():
    module = public(n for n in dir(core) if not inspect.ismodule(getattr(core, n)))
    stub = public(TREE) - TYPING_ONLY
    assert module - stub == set(), "in the module, not in _core.pyi"
    assert stub - module == set(), "in _core.pyi, not in the module"


@pytest.mark.parametrize("name", CLASSES)
def test_class_members(name):
    if name not in TREE:
        pytest.fail(f"class {name} is not in _core.pyi")
    module, stub = own_members(getattr(core, name)), stub_members(name)
    assert module - stub == set(), f"members of {name} in the module, not in _core.pyi"
    assert stub - module == set(), f"members of {name} in _core.pyi, not in the module"


def stub_parameters(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """(name, kind, has a default) in order; self and cls left out."""
    a = node.args
    positional = [(p.arg, "positional") for p in a.posonlyargs] + [(p.arg, "either") for p in a.args]
    defaults = [False] * (len(positional) - len(a.defaults)) + [True] * len(a.defaults)
    out = [(n, k, d) for (n, k), d in zip(positional, defaults)]
    if a.vararg:
        out.append((a.vararg.arg, "var", False))
    out += [(p.arg, "keyword", d is not None) for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    if a.kwarg:
        out.append((a.kwarg.arg, "kwvar", False))
    return out[1:] if out and out[0][0] in ("self", "cls") else out


def module_parameters(f) -> list[tuple[str, str, bool]]:
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
        inspect.Parameter.VAR_POSITIONAL: "var",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
        inspect.Parameter.VAR_KEYWORD: "kwvar",
    }
    parameters = list(inspect.signature(f).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    return [(p.name, kinds[p.kind], p.default is not p.empty) for p in parameters]


def signatures():
    for name, node in TREE.items():
        value = getattr(core, name, None)
        if isinstance(node, ast.FunctionDef):
            yield name, value, node
        elif isinstance(node, ast.ClassDef) and isinstance(value, type):
            for member, sub in definitions(node.body).items():
                if isinstance(sub, ast.FunctionDef) and not sub.decorator_list and member in vars(value):
                    yield f"{name}.{member}", getattr(value, member), sub
            init = definitions(node.body).get("__init__") or definitions(node.body).get("__new__")
            if init is not None:
                yield name, value, init


STATED = [(n, f, node) for n, f, node in signatures() if getattr(f, "__text_signature__", None)]
STATED = [s for s in STATED if not s[0].split(".")[-1].startswith("__")]


def test_signatures():
    wrong = [
        f"{name}: module {module_parameters(function)}, stub {stub_parameters(node)}"
        for name, function, node in STATED
        if module_parameters(function) != stub_parameters(node)
    ]
    assert wrong == []


def test_public_functions_have_docstrings():
    """A public C function states what it takes and gives."""
    bare = [n for n in public(dir(core)) if callable(getattr(core, n)) and not getattr(core, n).__doc__]
    for name in CLASSES:
        bare += [
            f"{name}.{m}"
            for m in own_members(getattr(core, name))
            if callable(vars(getattr(core, name))[m]) and not vars(getattr(core, name))[m].__doc__
        ]
    assert bare == []


def test_checks_see_a_difference():
    """The comparison itself can fail: on a parameter's name, kind and default."""
    f = ast.parse("def f(a, /, b, *, c=1): ...").body[0]
    assert stub_parameters(f) == module_parameters(lambda a, /, b, *, c=1: 0)
    for other in (lambda a, b, *, c=1: 0, lambda a, /, b, *, c: 0, lambda a, /, x, *, c=1: 0):
        assert stub_parameters(f) != module_parameters(other)
