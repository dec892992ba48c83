# SPDX-License-Identifier: Apache-2.0
"""Writes python/rooflm/quantization/items.jsonl: small questions with four answers each, made here and given to the
public domain (CC0). Answers are computed wherever a computer can; facts are plain school knowledge.

    python tools/make_task_items.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Callable, Sequence

OUT = Path(__file__).resolve().parent.parent / "python" / "rooflm" / "quantization" / "items.jsonl"
N_CHOICES = 4

CAPITALS = """France Paris|Spain Madrid|Italy Rome|Germany Berlin|Japan Tokyo|Egypt Cairo|Greece Athens|Russia Moscow
Austria Vienna|Portugal Lisbon|Poland Warsaw|Norway Oslo|Sweden Stockholm|Finland Helsinki|Denmark Copenhagen
Ireland Dublin|Hungary Budapest
Canada Ottawa|Cuba Havana|Peru Lima|Kenya Nairobi|India Delhi|China Beijing|Iran Tehran|Iraq Baghdad"""
SCIENCE = {
    "the planet closest to the Sun": ("Mercury", "Venus", "Jupiter", "Saturn"),
    "the largest planet of the solar system": ("Jupiter", "Mars", "Earth", "Venus"),
    "the gas that plants take from the air": ("carbon dioxide", "helium", "argon", "methane"),
    "the metal that is liquid at room temperature": ("mercury", "iron", "gold", "tin"),
    "the chemical symbol of gold": ("Au", "Fe", "Ag", "Pb"),
    "the chemical symbol of iron": ("Fe", "Au", "Na", "Cu"),
    "the organ that pumps blood through the body": ("the heart", "the liver", "the lung", "the stomach"),
    "the hardest natural material": ("diamond", "chalk", "wood", "copper"),
    "the force that makes an apple fall": ("gravity", "magnetism", "friction", "electricity"),
    "the largest ocean": ("the Pacific", "the Atlantic", "the Arctic", "the Indian Ocean"),
    "the star nearest to the Earth": ("the Sun", "Sirius", "Polaris", "Vega"),
    "the animal that gives us wool": ("the sheep", "the hen", "the pig", "the bee"),
    "the insect that makes honey": ("the bee", "the ant", "the moth", "the fly"),
    "frozen water": ("ice", "steam", "sand", "salt"),
    "a baby dog": ("a puppy", "a kitten", "a calf", "a foal"),
    "a baby cat": ("a kitten", "a puppy", "a lamb", "a chick"),
    "the opposite of hot": ("cold", "warm", "red", "fast"),
    "the opposite of up": ("down", "over", "left", "near"),
    "the color of grass": ("green", "blue", "white", "pink"),
    "the color of a ripe banana": ("yellow", "blue", "black", "purple"),
    "the season after winter": ("spring", "autumn", "night", "noon"),
    "the month after June": ("July", "May", "March", "October"),
    "the day after Monday": ("Tuesday", "Sunday", "Friday", "Saturday"),
    "the first month of the year": ("January", "March", "August", "December"),
    "the author of Hamlet": ("Shakespeare", "Newton", "Mozart", "Columbus"),
    "the language spoken in Brazil": ("Portuguese", "Dutch", "Greek", "Polish"),
    "the number of days in a week": ("seven", "five", "ten", "twelve"),
    "the number of legs of a spider": ("eight", "two", "four", "three"),
    "the number of sides of a triangle": ("three", "five", "six", "nine"),
    "the number of minutes in an hour": ("sixty", "twelve", "thirty", "ninety"),
    "the currency of Japan": ("the yen", "the peso", "the pound", "the rupee"),
    "the continent where Egypt lies": ("Africa", "Europe", "Asia", "America"),
}
MONTHS = "January February March April May June July August September October November December".split()
WORDS = "apple river stone cloud paper table green winter bread light music ocean garden silver window forest".split()

Item = dict[str, Any]


def item(rng: random.Random, domain: str, prompt: str, right: str, wrong: Sequence[str]) -> Item:
    others = [w for w in dict.fromkeys(wrong) if w != right][: N_CHOICES - 1]
    if len(others) < N_CHOICES - 1:
        raise ValueError(f"{prompt!r}: too few wrong answers {wrong}")
    choices = [right, *others]
    rng.shuffle(choices)
    return {
        "domain": domain,
        "prompt": prompt,
        "choices": [f" {c}" for c in choices],
        "answer": choices.index(right),
    }


def near(rng: random.Random, n: int) -> list[str]:
    """Wrong numbers close to n, none negative unless n is."""
    pool = [n + d for d in (-10, -3, -2, -1, 1, 2, 3, 10) if n < 0 or n + d >= 0]
    return [str(v) for v in rng.sample(pool, N_CHOICES - 1)]


def arithmetic(rng: random.Random) -> list[Item]:
    found = []
    kinds: list[tuple[str, Callable[[int, int], int], int, int]] = [
        ("+", lambda a, b: a + b, 2, 60),
        ("-", lambda a, b: a - b, 2, 60),
        ("*", lambda a, b: a * b, 2, 12),
    ]
    while len(found) < 60:
        sign, compute, low, high = kinds[len(found) % 3]
        a, b = sorted((rng.randint(low, high), rng.randint(low, high)), reverse=True)
        shots = []
        for _ in range(2):
            x, y = sorted((rng.randint(low, high), rng.randint(low, high)), reverse=True)
            shots.append(f"{x} {sign} {y} = {compute(x, y)}\n")
        right = compute(a, b)
        found.append(item(rng, "arithmetic", "".join(shots) + f"{a} {sign} {b} =", str(right), near(rng, right)))
    return found


def code(rng: random.Random) -> list[Item]:
    """What a Python expression evaluates to: the answer is what Python says."""
    found = []
    while len(found) < 55:
        w, v = rng.sample(WORDS, 2)
        numbers = rng.sample(range(1, 20), 4)
        n = rng.randint(0, 3)
        expression, wrong = [
            (f"len('{w}')", near(rng, len(w))),
            (f"'{w}'[{n}]", [repr(c) for c in w + "xyz" if c != w[n]]),
            (f"'{w}'.upper()", [repr(w), repr(w.title()), repr(v.upper())]),
            (f"'{w}' + '{v}'", [repr(v + w), repr(f"{w} {v}"), repr(w)]),
            (f"max({numbers})", [str(x) for x in numbers if x != max(numbers)]),
            (f"min({numbers})", [str(x) for x in numbers if x != min(numbers)]),
            (f"sorted({numbers[:3]})", [str(sorted(numbers[:3], reverse=True)), str(sorted(numbers[:2])), "None"]),
            (f"{numbers}[{n}]", [str(x) for x in numbers if x != numbers[n]]),
            (f"'{w}'[::-1]", [repr(w), repr(w[1:]), repr(v[::-1])]),
            (f"sum({numbers[:3]})", near(rng, sum(numbers[:3]))),
            (f"{numbers[0]} > {numbers[1]}", [str(numbers[0] <= numbers[1]), "None", "0"]),
        ][len(found) % 11]
        found.append(item(rng, "code", f">>> 1 + 1\n2\n>>> {expression}\n", repr(eval(expression)), wrong))
    for i in found:  # the prompt ends a line: no space in front of the answer
        i["choices"] = [c[1:] for c in i["choices"]]
    return found


def facts(rng: random.Random) -> list[Item]:
    pairs = [p.split() for line in CAPITALS.splitlines() for p in line.split("|")]
    found = []
    for country, capital in pairs:
        wrong = rng.sample([c for _, c in pairs if c != capital], N_CHOICES - 1)
        found.append(item(rng, "facts", f"Question: What is the capital of {country}?\nAnswer:", capital, wrong))
    for what, (right, *wrong) in SCIENCE.items():
        found.append(item(rng, "facts", f"Question: What is {what}?\nAnswer:", right, wrong))
    return found


def roman(n: int) -> str:
    out = ""
    for value, letters in ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while n >= value:
            out, n = out + letters, n - value
    return out


def format_of(rng: random.Random) -> list[Item]:
    """One pattern, shown once or twice, to be kept."""
    found = []
    while len(found) < 55:
        w, v, u = rng.sample(WORDS, 3)
        day, month, year, n = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1950, 2020), rng.randint(4, 39)
        iso = f"{year}-{month:02d}-{day:02d}"
        kind = len(found) % 5
        if kind == 0:
            found.append(
                item(
                    rng,
                    "format",
                    f"4 July 1999 -> 1999-07-04\n{day} {MONTHS[month - 1]} {year} ->",
                    iso,
                    [f"{day:02d}-{month:02d}-{year}", f"{year}/{month}/{day}", f"{month:02d}/{day:02d}/{year}"],
                )
            )
        elif kind == 1:
            right = f'{{"{w}": {n}}}'
            wrong = [f"{{{w}: {n}}}", f'["{w}": {n}]', f'{{"{w}" = {n}}}']
            found.append(item(rng, "format", f'cat 3 -> {{"cat": 3}}\n{w} {n} ->', right, wrong))
        elif kind == 2:
            wrong = [f"{w};{v};{u}", f"{w} {v} {u}", f"{u},{v}"]
            found.append(item(rng, "format", f"one two three -> one,two,three\n{w} {v} {u} ->", f"{w},{v},{u}", wrong))
        elif kind == 3:
            wrong = [roman(n + 1), roman(n - 1), roman(n + 10)]
            found.append(item(rng, "format", f"3 -> III\n7 -> VII\n{n} ->", roman(n), wrong))
        else:
            wrong = [f"<{v}>{w}</{w}>", f"{w}<{v}>", f"<{v}>{w}<{v}>"]
            found.append(item(rng, "format", f"cat in b -> <b>cat</b>\n{w} in {v} ->", f"<{v}>{w}</{v}>", wrong))
    return found


def main() -> None:
    rng = random.Random(1)
    rows = [*arithmetic(rng), *code(rng), *facts(rng), *format_of(rng)]
    seen = set()
    with open(OUT, "w", encoding="utf-8") as f:
        for row in rows:
            if row["prompt"] in seen:
                continue
            seen.add(row["prompt"])
            f.write(json.dumps({"id": f"{row['domain']}-{len(seen)}", **row}, ensure_ascii=False) + "\n")
    print(f"{len(seen)} items")


if __name__ == "__main__":
    main()
