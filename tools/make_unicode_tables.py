# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/model/unicode_tables.c: a class mask for every code point, as a two-level table.

The masks hold what pre-tokenizers ask of a character: its general category, white space, and the literal
ranges that some of them spell out. Run it after changing CLASSES or for a new Unicode version:

    pip install unicodedata2==16.0.0 && python tools/make_unicode_tables.py

Unicode 16 on purpose: it is what the regex engine of the `tokenizers` package knows, and letters that are
assigned later would split other words than the models were trained on.

The bit names are mirrored in csrc/model/unicode.h; tests/test_tokenizer_unicode.py compares the table with
the running Python's own data.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

ROOT = Path(__file__).resolve().parent.parent
PAGE = 128

# \s of the regex engines: the White_Space property (str.isspace() also has U+001C..U+001F).
WHITE = {
    0x20,
    0x85,
    0xA0,
    0x1680,
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
    *range(9, 14),
    *range(0x2000, 0x200B),
}

# Cased letters as the deepseek-llm pre-tokenizer lists them, one Unicode version frozen in its file.
CASED = """41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77
1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE
1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124
2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3
A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F
104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"""


def ranges(text):
    pairs = (part.split("-") for part in text.split())
    return {c for lo, *hi in pairs for c in range(int(lo, 16), int((hi or [lo])[0], 16) + 1)}


def category(*prefixes):
    return lambda c: unicodedata.category(chr(c)).startswith(prefixes)


def one_of(chars):
    members = {ord(c) for c in chars} if isinstance(chars, str) else chars
    return members.__contains__


ASCII_PUNCT = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
CLASSES = [  # (name, membership); the order gives the bit
    ("UPPER", category("Lu", "Lt")),
    ("LOWER", category("Ll")),
    ("CASELESS", category("Lm", "Lo")),
    ("MARK", category("M")),
    ("NUMBER", category("N")),
    ("PUNCT", category("P")),
    ("SYMBOL", category("S")),
    ("WHITE", one_of(WHITE)),
    ("CRLF", one_of("\r\n")),
    ("SPACE", one_of(" ")),
    ("SLASH", one_of("/")),
    ("AZ", one_of(ranges("41-5A 61-7A"))),
    ("ASCII_PUNCT", one_of(ASCII_PUNCT)),
    ("ASCII_DIGIT", one_of(ranges("30-39"))),
    ("DECIMAL", category("Nd")),
    ("LF", one_of("\n")),
    ("CASED", one_of(ranges(CASED))),
    ("WIDE_PUNCT", one_of(ranges("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002"))),
    ("CJK", one_of(ranges("800-9FA5 AC00-D7FF"))),
    ("HAN_KANA", one_of(ranges("4E00-9FA5 3040-30FF"))),
    ("SENTENCE", one_of("(|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)")),
    ("MATH", one_of("$+<=>^~|")),
    ("BACKTICK", one_of("`")),
    ("OTHER", category("C")),
]


def main():
    masks, index = {}, []
    for c in range(0x110000):
        mask = sum(1 << bit for bit, (_, member) in enumerate(CLASSES) if member(c))
        index.append(masks.setdefault(mask, len(masks)))
    assert len(masks) <= 256, len(masks)
    pages, page_of = {}, []
    for start in range(0, len(index), PAGE):
        page_of.append(pages.setdefault(tuple(index[start : start + PAGE]), len(pages)))
    assert len(pages) <= 65536
    check_header()

    out = [
        "// SPDX-License-Identifier: Apache-2.0",
        f"// Made by tools/make_unicode_tables.py from Unicode {unicodedata.unidata_version}. Do not edit.",
        "// clang-format off",
        '#include "model/unicode.h"',
        "",
        f'const char rl_unicode_version[] = "{unicodedata.unidata_version}";',
        "",
        array("uint32_t", "rl_cp_ascii", [list(masks)[i] for i in index[:128]], hexa=True),
        array("uint32_t", "rl_cp_masks", list(masks), hexa=True),
        array("uint16_t", "rl_cp_page", page_of),
        array("uint8_t", "rl_cp_kind", [k for page in pages for k in page]),
    ]
    target = ROOT / "csrc" / "model" / "unicode_tables.c"
    target.write_text("\n".join(out))
    print(f"{target.name}: {len(masks)} masks, {len(pages)} pages, Unicode {unicodedata.unidata_version}")


def array(ctype, name, values, hexa=False):
    words = [f"0x{v:X}" if hexa else str(v) for v in values]
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return f"const {ctype} {name}[{len(values)}] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


def check_header():
    """The bits in the header must be the bits written here."""
    text = (ROOT / "csrc" / "model" / "unicode.h").read_text()
    found = re.findall(r"RL_CP_(\w+) = 1u << (\d+)", text)
    expected = [(name, str(bit)) for bit, (name, _) in enumerate(CLASSES)]
    if found != expected:
        sys.exit(f"csrc/model/unicode.h disagrees:\n{found}\n{expected}")


if __name__ == "__main__":
    main()
