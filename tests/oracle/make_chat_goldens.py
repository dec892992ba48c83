# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/chat/goldens.json: what transformers makes of the templates and conversations of test_chat.py.

    python tests/oracle/make_chat_goldens.py            # needs transformers

A conversation that a template refuses has null in place of its text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from chat_cases import DATA, OPTIONS, conversations, templates


def main():
    goldens = {}
    for name, source in templates().items():
        for label, case in conversations().items():
            case = {"add_generation_prompt": True, **OPTIONS, **case}
            messages = case.pop("messages")
            try:
                rendered, _ = render_jinja_template([messages], chat_template=source, **case)
                text = rendered[0]
            except (TemplateError, TypeError):
                text = None
            goldens.setdefault(name, {})[label] = text
    (DATA / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
