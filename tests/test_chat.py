# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the text that transformers makes of them, and what a hostile one cannot do."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest
from chat_cases import DATA, OPTIONS, SMOLLM2, conversations, templates
from vocab_files import tokenizer

from rooflm import Error, chat
from rooflm.chat import ChatTemplateError

GOLDENS = json.loads((DATA / "goldens.json").read_text())
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("label", conversations())
@pytest.mark.parametrize("name", templates())
def test_as_transformers(name, label):
    """The kept texts were made by tests/oracle/make_chat_goldens.py; null where the template refuses."""
    case = {**OPTIONS, **conversations()[label]}
    expected = GOLDENS[name][label]
    if expected is None:
        with pytest.raises(ChatTemplateError):
            chat.render(templates()[name], **case)
    else:
        assert chat.render(templates()[name], **case) == expected


def test_smollm2(smollm2):
    tok = tokenizer(smollm2)
    assert tok.chat_template == SMOLLM2
    text = chat.prompt(tok, HI)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tok.encode(text, special=True).tolist()
    assert ids.count(1) == 3 and ids.count(2) == 2 and ids[0] == 1


def test_gemma3_brings_no_template(gemma3):
    tok = tokenizer(gemma3)
    with pytest.raises(ChatTemplateError, match=r"no tokenizer.chat_template"):
        chat.prompt(tok, HI)
    text = chat.prompt(tok, HI, template=templates()["gemma"])
    assert text == "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    ids = tok.encode(text, special=True).tolist()
    assert ids[:2] == [2, 105] and ids.count(2) == 1  # the template's BOS is the only one
    assert tok.decode(ids) == text.removeprefix("<bos>")


def test_named_templates():
    tok = SimpleNamespace(
        chat_template="main", chat_templates={"tool_use": "tools", "rag": "rag"}, bos_id=None, eos_id=None
    )
    assert chat.prompt(tok, HI) == "main"
    assert chat.prompt(tok, HI, tools=[{"type": "function"}]) == "tools"
    assert chat.prompt(tok, HI, name="rag") == "rag" and chat.prompt(tok, HI, name="default") == "main"
    assert chat.prompt(tok, HI, template="own {{ tools }}", name=None) == "own None"
    with pytest.raises(ChatTemplateError, match="'x'; named ones: rag, tool_use"):
        chat.prompt(tok, HI, name="x")


def test_extra_variables_and_data():
    class Text(str):
        pass

    assert (
        chat.render("{{ a.b[0] }}{{ messages[0].content }}", [{"role": "u", "content": Text("x")}], a={"b": (3,)})
        == "3x"
    )
    for bad in ("Hi", {"role": "user"}, [{"content": "x"}], ["x"], [{"role": "user", "content": object()}]):
        with pytest.raises(TypeError):
            chat.render("", bad)
    assert issubclass(ChatTemplateError, Error) and issubclass(ChatTemplateError, ValueError)
    messages = [{"role": "user", "content": "x"}]
    chat.render("{% set messages = [] %}", messages)
    assert messages == [{"role": "user", "content": "x"}]


def test_environment():
    assert chat.render("{% if 1 %}\n  a\n  {% endif %}\nb", HI) == "  a\nb"  # trim_blocks, lstrip_blocks
    assert chat.render("{{ {'a': '<\u00e9>'}|tojson }}", HI) == '{"a": "<\u00e9>"}'
    assert chat.render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", HI) == "01"
    assert chat.render("{% generation %}x{% endgeneration %}", HI) == "x"
    assert chat.render("{{ strftime_now('%Y') }}", HI) == time.strftime("%Y")
    big = (
        "{{ 1700000000|tojson }} {{ '%d' % 1700000000 }} {{ '{:,}'.format(1700000000) }} {{ '%d'|format(1700000000) }}"
    )
    assert chat.render(big, HI) == "1700000000 1700000000 1,700,000,000 1700000000"
    assert chat.render("{{ 'a' ~ 1 ~ none ~ ['x'] }}", HI) == "a1None['x']"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("a\n{% for", "line 2"),
        ("{{ 1/0 }}", "ZeroDivisionError"),
        ("{{ messages[7].x }}", "no element 7"),
    ],
)
def test_what_is_wrong_is_said(template, says):
    with pytest.raises(ChatTemplateError, match=says):
        chat.render(template, HI)


NEST = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "never ends": NEST,
    "never ends in a condition": NEST.replace("%}{% for b", "if 1 %}{% for b"),
    "huge range": "{% for a in range(10**9) %}x{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "exponential recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "repeated text": "{{ 'a' * 10**9 }}",
    "repeated list": "{{ ([0] * 10**9)|length }}",
    "doubled text": "{% set n=namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "added text": "{% set n=namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "much output": "{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
    "power": "{{ 9**9**9 }}",
    "product": "{% set x = 7**999 %}{{ x*x*x }}",
    "width": "{{ '%999999999d' % 1 }}",
    "starred width": "{{ '%*d' % (999999999, 1) }}",
    "format width": "{{ '{:>999999999}'.format(1) }}",
    "nested format width": "{{ '{:>{}}'.format(1, 999999999) }}",
    "filter format": "{{ '%999999999d'|format(1) }}",
    "method width": "{{ 'a'.center(999999999) }}",
    "filter width": "{{ 'a'|center(999999999) }}",
    "filter indent": "{{ 'a\\nb'|indent(999999999) }}",
    "json indent": "{{ messages|tojson(indent=999999999) }}",
    "replace": "{{ ('a'*9999999).replace('a', 'b'*9999999) }}",
    "replace filter": "{{ ('a'*9999999)|replace('a', 'b'*9999999) }}",
    "join": "{{ ('b'*9999999).join('a'*9999999) }}",
    "join filter": "{{ ('a'*9999999)|join('b'*9999999) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "item": "{{ raise_exception['__globals__'].x }}",
    "attr filter": "{{ (''|attr('__class__')).x }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "mutation": "{{ messages.append(1) }}",
    "namespace": "{{ namespace(__class__=1) }}",
    "set namespace": "{% set n=namespace() %}{% set n.__class__ = 1 %}",
    "include": "{% include 'x' %}",
    "import": "{% import 'os' as os %}",
}


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_templates(label):
    with pytest.raises(ChatTemplateError):
        chat.render(HOSTILE[label], HI)
    assert chat.render("{{ messages[0].content }}", HI) == "Hi"  # the next one starts anew


def test_steps_are_counted_per_rendering():
    loop = "{% for a in range(60000) %}{% endfor %}ok"
    assert [chat.render(loop, HI) for _ in range(3)] == ["ok"] * 3
    with pytest.raises(ChatTemplateError, match="100000 steps"):
        chat.render(loop + loop, HI)


def test_without_jinja2(monkeypatch):
    chat._environment.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ChatTemplateError, match="pip install jinja2"):
        chat.render("x", HI)
    monkeypatch.undo()
    chat._environment.cache_clear()
    assert chat.render("y", HI) == "y"
