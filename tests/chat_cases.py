# SPDX-License-Identifier: Apache-2.0
"""Templates in the styles of nine model families and the conversations that they are tried on."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data" / "chat"
OPTIONS = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 May"}

# As SmolLM2's file has it: the one of the two real models that brings a template.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>'"
    " + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a place & its <region>",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def templates() -> dict[str, str]:
    files = {p.stem: p.read_text(encoding="utf-8") for p in sorted(DATA.glob("*.jinja"))}
    return {**files, "smollm2": SMOLLM2}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def conversations() -> dict[str, dict]:
    user, system = turn("user", " Hi, \u00e9\u4e2d\U0001f999 <b>'\" there \n"), turn("system", "Be brief. /no_think")
    answer = turn("assistant", "\n<think>\nhm\n</think>\n\nHello!")
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"place": "\u00c5"}}}
    used = [user, turn("assistant", "", tool_calls=[call]), turn("tool", json.dumps({"sky": "blue"}), name="weather")]
    parts = [turn("user", [{"type": "image"}, {"type": "text", "text": " look "}])]
    return {
        "one": {"messages": [user]},
        "one, no prompt": {"messages": [user], "add_generation_prompt": False},
        "system": {"messages": [system, user]},
        "three turns": {"messages": [user, answer, turn("user", "Why?\n")]},
        "ends with answer": {"messages": [system, user, answer], "add_generation_prompt": False},
        "tools": {"messages": [system, user], "tools": [TOOL, TOOL]},
        "tool used": {"messages": used, "tools": [TOOL]},
        "no thinking": {"messages": [user], "enable_thinking": False},
        "documents": {"messages": [user], "documents": [{"title": "t", "text": "one"}, {"title": "u", "text": "two"}]},
        "controls": {"messages": [user], "controls": {"length": "short", "n": 1700000000}},
        "parts": {"messages": parts},
        "two users": {"messages": [user, user]},
        "odd role": {"messages": [turn("stop", "x"), user]},
    }
