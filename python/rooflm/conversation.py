# SPDX-License-Identifier: Apache-2.0
"""From messages to token ids: the template's control tokens are control tokens, those in a message are plain text.

A template gives one text, in which nobody can tell a control token that the template wrote from one that a user typed.
So what looks like a control token inside a message is fenced, with two characters that no text has, before the
template runs; what comes out between fences is encoded as ordinary text.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from rooflm import chat

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: for internal use only, by the Unicode standard
FENCED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")


def control_texts(tokenizer: Any, text: str) -> list[str]:
    """The control tokens that encode(text, special=True) would take from the text, longest first."""
    found = {int(i) for i in tokenizer.encode(text, special=True, bos=False, eos=False)}
    texts = {tokenizer.piece(i).decode("utf-8", "replace") for i in found if tokenizer.is_special(i)}
    return sorted((t for t in texts if t and t in text), key=len, reverse=True)


def _fence(value: Any, tokenizer: Any) -> Any:
    if isinstance(value, str):
        value = value.replace(OPEN, "\ufffd").replace(CLOSE, "\ufffd")
        controls = control_texts(tokenizer, value)
        if not controls:
            return value
        return re.sub("|".join(map(re.escape, controls)), lambda m: f"{OPEN}{m[0]}{CLOSE}", value)
    if isinstance(value, Mapping):
        return {k: v if k == "role" else _fence(v, tokenizer) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fence(v, tokenizer) for v in value]
    return value


def chat_text(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: Optional[str] = None,
    tools: Optional[Sequence[Mapping[str, Any]]] = None,
    options: Optional[Mapping[str, Any]] = None,
) -> str:
    """The conversation by its template, ready for the model's answer; control tokens of messages between fences."""
    fenced = messages if isinstance(messages, (str, bytes, Mapping)) else [_fence(m, tokenizer) for m in messages]
    return chat.prompt(tokenizer, fenced, template=template, tools=tools, **(options or {}))


def encode_chat(tokenizer: Any, text: str) -> np.ndarray:
    """Token ids of what chat_text() gives."""
    parts = []
    for i, part in enumerate(FENCED.split(text)):
        # Odd parts come from between fences. BOS is the template's business, except that most leave it to the encoder.
        if part:
            parts.append(tokenizer.encode(part, special=not i % 2, bos=None if i == 0 else False, eos=False))
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)
