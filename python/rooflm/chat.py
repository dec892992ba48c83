# SPDX-License-Identifier: Apache-2.0
"""Chat templates: a conversation becomes the text that a model was trained on.

A template is a Jinja program inside a model file, so it is code from a stranger. It runs in jinja2's immutable sandbox
with what templates need and no more, and with budgets for steps, text and numbers, so that one that never ends or
fills the memory ends in a ChatTemplateError. The environment is the one that templates are written for: trim_blocks
and lstrip_blocks, loop controls, raise_exception, strftime_now, a tojson without HTML escapes, and the
{% generation %} block, whose body is kept as it is.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from rooflm._core import Error

MAX_STEPS = 100_000  # passes through loop bodies and macros in one rendering
MAX_SECONDS = 10.0
MAX_TEXT = 16_000_000  # characters of any one string and of the result
MAX_NUMBER = 1_000_000  # as an argument of a method or filter: widths, counts, repetitions
WIDTH_FILTERS = ("center", "indent", "batch", "slice", "wordwrap", "truncate", "format", "replace", "join")

Message = Mapping[str, Any]


class ChatTemplateError(Error, ValueError):
    """The chat template is missing or wrong, refuses the messages, or went beyond its budget."""


class _Budget(threading.local):
    steps = 0
    end = 0.0


_budget = _Budget()


def _tick() -> str:
    _budget.steps += 1
    if _budget.steps > MAX_STEPS:
        raise ChatTemplateError(f"the chat template did not end within {MAX_STEPS} steps")
    if time.thread_time() > _budget.end:
        raise ChatTemplateError(f"the chat template did not end within {MAX_SECONDS:g} seconds")
    return ""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _check_text(n: int) -> None:
    if n > MAX_TEXT:
        raise ChatTemplateError(f"the chat template makes a text of more than {MAX_TEXT} characters")


def _check_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ChatTemplateError(f"the chat template uses a number above {MAX_NUMBER} as a width or count")


def _check_format(text: Any, args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None) -> None:
    """A width in a format string is a number like any other: %999999999d, or %*d and {:{}} with the number beside."""
    if not isinstance(text, str):
        return
    if any(int(run) > MAX_NUMBER for run in re.findall(r"[0-9]+", text)):
        raise ChatTemplateError("the chat template formats text with a huge width")
    if "*" in text or re.search(r"{[^}]*{", text):
        _check_numbers(args, kwargs or {})


def _joined(*parts: Any) -> str:
    texts = [str(p) for p in parts]
    _check_text(sum(map(len, texts)))
    return "".join(texts)


def _raise_exception(message: Any) -> None:
    raise ChatTemplateError(f"the chat template refuses the messages: {message}")


def _strftime_now(format: str) -> str:
    _check_format(format)
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    _check_numbers((indent,), {})
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _guarded(function: Any) -> Any:
    """A filter whose result can be much larger than what it is given."""
    value_at = 1 if hasattr(function, "jinja_pass_arg") else 0  # behind the environment, where jinja2 passes it

    @functools.wraps(function)  # keeps what jinja2 marks its filters with
    def call(*args: Any, **kwargs: Any) -> Any:
        value, rest = args[value_at], args[value_at + 1 :]
        if function.__name__ == "do_format":
            _check_format(value, rest, kwargs)
        else:
            _check_numbers(rest, kwargs)
            texts = [_size(v) for v in (*rest, *kwargs.values())]
            _check_text((_size(value) + 1) * max(texts, default=1))
        return function(*args, **kwargs)

    return call


@functools.lru_cache(maxsize=1)
def _environment() -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.nodes as nodes
        import jinja2.sandbox
        import jinja2.utils
    except ImportError:
        raise ChatTemplateError("chat templates need jinja2: pip install jinja2") from None
    if tuple(int(p) for p in jinja2.__version__.split(".")[:3] if p.isdigit()) < (3, 1, 6):
        raise ChatTemplateError(
            f"jinja2 {jinja2.__version__} lets templates out of its sandbox: pip install -U jinja2"
        )

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Namespace(jinja2.utils.Namespace):
        # No underscored attributes: they would reach Python's own.
        def __init__(*args: Any, **kwargs: Any) -> None:
            self, rest = args[0], args[1:]
            for name in dict(*rest, **kwargs):
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, *rest, **kwargs)

        def __setitem__(self, name: str, value: Any) -> None:
            Namespace.check(name)
            super().__setitem__(name, value)

        @staticmethod
        def check(name: Any) -> None:
            if str(name).startswith("_"):
                raise jinja2.sandbox.SecurityError(f"a namespace may not hold {name!r}")

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])
        tick = staticmethod(_tick)
        joined = staticmethod(_joined)

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            """Counts passes through loops and macros, and puts `~` under the text budget."""
            tree = super()._parse(source, name, filename)
            node: Any
            for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
                tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
                node.body.insert(0, nodes.Output([tick]).set_lineno(node.lineno))
                if isinstance(node, nodes.For) and node.test is not None:
                    keep = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
                    node.test = nodes.And(nodes.Not(keep), node.test).set_lineno(node.lineno)
            return _Concat(nodes).visit(tree)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "+":
                _check_text(_size(left) + _size(right))
            elif operator == "*":
                counts = [v for v in (left, right) if isinstance(v, int)]
                _check_text(max(_size(left), _size(right)) * max([abs(c) for c in counts], default=0))
                if len(counts) == 2 and left.bit_length() + right.bit_length() > 4096:
                    raise ChatTemplateError("the chat template multiplies huge numbers")
            elif operator == "**":
                _check_numbers((left, right), {})
                if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > 4096:
                    raise ChatTemplateError("the chat template raises a number to a huge power")
            elif isinstance(left, str):
                _check_format(left, right if isinstance(right, tuple) else (right,))
            return super().call_binop(context, operator, left, right)

        def wrap_str_format(self, value: Any) -> Any:
            formatted = super().wrap_str_format(value)
            if formatted is None:
                return None

            def checked(*args: Any, **kwargs: Any) -> Any:
                _check_format(value.__self__, args, kwargs)
                return formatted(*args, **kwargs)

            return checked

        def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(function, "__self__", None)
            if isinstance(owner, (str, bytes, list, tuple)):
                _check_numbers(args, kwargs)
                name = getattr(function, "__name__", "")
                if name == "replace" and args and _size(args[1:2] and args[1]) > 1:
                    _check_text((len(owner) + 1) * len(args[1]))
                if name == "join" and args:
                    _check_text(len(owner) * _size(args[0]))
                if name == "expandtabs":
                    _check_text(len(owner) * max([v for v in args if isinstance(v, int)], default=8))
            return super().call(context, function, *args, **kwargs)

    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    for name in WIDTH_FILTERS:
        if name in env.filters:
            env.filters[name] = _guarded(env.filters[name])
    env.filters["tojson"] = _to_json
    for name in ("lipsum", "cycler", "joiner"):
        env.globals.pop(name, None)
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=Namespace)
    return env


def _Concat(nodes: Any) -> Any:
    from jinja2.visitor import NodeTransformer

    class Concat(NodeTransformer):
        def visit_Concat(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            self.generic_visit(node, *args, **kwargs)
            call = nodes.Call(nodes.EnvironmentAttribute("joined"), node.nodes, [], None, None)
            return call.set_lineno(node.lineno).set_environment(node.environment)

    return Concat()


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


def _plain(value: Any) -> Any:
    """A copy of plain data: a template sees no object whose methods could reach beyond it."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return value.item()
    raise TypeError(f"messages and tools hold str, numbers, None, lists and dicts, not {type(value).__name__}")


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    tools: Optional[Sequence[Mapping[str, Any]]] = None,
    documents: Optional[Sequence[Mapping[str, Any]]] = None,
    **extra: Any,
) -> str:
    """The text of a conversation by a chat template.

    messages: dicts with "role" and "content"; tools: JSON schemas; extra: further variables of the template, such as
    enable_thinking=False. The text contains control tokens by name: encode it with special=True. ChatTemplateError
    when the template is wrong, refuses the messages or does not end; TypeError for messages that are no plain data.
    """
    if isinstance(messages, (str, bytes, Mapping)):
        raise TypeError('messages is a list of dicts such as [{"role": "user", "content": "Hi"}]')
    chat = _plain(list(messages))
    for m in chat:
        if not isinstance(m, dict) or "role" not in m:
            raise TypeError(f'each message is a dict with "role" and "content", not {m!r:.80}')
    _environment()  # says what to install before jinja2's names are needed
    exceptions = importlib.import_module("jinja2.exceptions")
    variables = {
        **_plain(extra),
        "messages": chat,
        "tools": _plain(list(tools)) if tools is not None else None,
        "documents": _plain(list(documents)) if documents is not None else None,
        "add_generation_prompt": bool(add_generation_prompt),
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    parts, length = [], 0
    _budget.steps = 0
    _budget.end = time.thread_time() + MAX_SECONDS
    try:
        for part in _compiled(template).generate(**variables):
            length += len(part)
            _check_text(length)
            parts.append(part)
    except ChatTemplateError:
        raise
    except exceptions.TemplateSyntaxError as e:
        raise ChatTemplateError(f"the chat template is no valid Jinja, line {e.lineno}: {e.message}") from e
    except exceptions.TemplateError as e:
        raise ChatTemplateError(f"the chat template failed: {e}") from e
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as e:
        raise ChatTemplateError(f"the chat template failed: {type(e).__name__}: {e}") from e
    return "".join(parts)


def choose(tokenizer: Any, name: Optional[str] = None, *, tools: bool = False) -> str:
    """The chat template of a tokenizer: the named one, the one for tools where there are tools, or the main one."""
    named = tokenizer.chat_templates
    if name is not None:
        if name == "default" and name not in named and tokenizer.chat_template is not None:
            return str(tokenizer.chat_template)
        if name not in named:
            known = ", ".join(sorted(named)) or "none"
            raise ChatTemplateError(f"the file has no chat template named {name!r}; named ones: {known}")
        return str(named[name])
    if tools and "tool_use" in named:
        return str(named["tool_use"])
    if tokenizer.chat_template is not None:
        return str(tokenizer.chat_template)
    if "default" in named:
        return str(named["default"])
    raise ChatTemplateError(
        "the file has no tokenizer.chat_template: give one by template= (--template FILE), or continue raw text "
        "by generate() (rooflm run) instead of a chat"
    )


def check_ready(tokenizer: Any, template: Optional[str] = None) -> None:
    """ChatTemplateError unless there is a template and what renders it, before there is anything to render."""
    _environment()
    if template is None:
        choose(tokenizer)


def prompt(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    template: Optional[str] = None,
    name: Optional[str] = None,
    tools: Optional[Sequence[Mapping[str, Any]]] = None,
    **options: Any,
) -> str:
    """The text of a conversation for the model of this tokenizer; `template` instead of the file's own, `name` one of
    its further templates, options as for render(). Encode it with special=True."""

    def text(id: Optional[int]) -> str:
        return "" if id is None else tokenizer.piece(id).decode("utf-8", "replace")

    source = choose(tokenizer, name, tools=bool(tools)) if template is None else template
    options.setdefault("bos_token", text(tokenizer.bos_id))
    options.setdefault("eos_token", text(tokenizer.eos_id))
    return render(source, messages, tools=tools, **options)
