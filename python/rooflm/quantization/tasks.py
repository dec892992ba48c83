# SPDX-License-Identifier: Apache-2.0
"""The real task on several files or settings: multiple choice by log-likelihood, and greedy texts side by side.

An item with "choices" is answered by the choice of the largest log-likelihood behind the prompt (acc), or of the
largest per byte (acc_norm, which does not favour short answers). An item without is continued greedily; it is right
when the text, stripped, equals "answer", or as a `score` function says. All models answer the same items, so they are
compared in pairs: McNemar's exact test, beside the smallest difference that so many items could have shown.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from rooflm._keywords import at_least, checked_keywords
from rooflm._optional import axes
from rooflm._output import html_table, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm.session import Session, _common_length
from rooflm.quantization.settings import DEFAULTS, Candidate, Opener, Setting
from rooflm.stats import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUNDLED = Path(__file__).with_name("items.jsonl")
Items = Union[None, "os.PathLike[str]", Sequence[Mapping[str, Any]]]
Score = Callable[[Mapping[str, Any], str], float]
ALPHA = 0.05  # of the tests
POWER_Z = 1.96 + 0.84  # two-sided 5 %, power 80 %


# ---- statistics ----


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of as unequal a split of the items on which two models differ, when each was as likely."""
    n, k = only_a + only_b, min(only_a, only_b)
    if n == 0:
        return 1.0
    return min(1.0, 2.0 * sum(math.comb(n, i) for i in range(k + 1)) / 2.0**n)


def detectable(n: int, differing: int) -> Optional[float]:
    """Smallest difference of accuracy that n paired items show in 4 of 5 cases at the 5 % level, when the share of
    items on which the two differ is what it was here: z sqrt(share / n) with z = 1.96 + 0.84; and never below 6 / n,
    because five items that all point one way have p = 0.0625."""
    if n == 0:
        return None
    return min(1.0, max(6.0 / n, POWER_Z * math.sqrt(max(differing, 1) / n / n)))


def above_chance(right: int, chances: Sequence[float]) -> float:
    """Exact one-sided p of at least so many right answers by guessing, each item with a chance of its own."""
    p = np.ones(1)
    for c in chances:
        p = np.convolve(p, [1 - c, c])
    return float(p[right:].sum())


# ---- items ----


def load_items(items: Items = None) -> list[dict[str, Any]]:
    """Items of a JSONL file, a list of dicts, or None for the bundled set (arithmetic, code, facts, format). Each has a
    "prompt"; with "choices" also the number of the right one as "answer". "id" and "domain" are optional. ValueError
    names the item that is wrong."""
    if items is None:
        items = BUNDLED
    if isinstance(items, (str, bytes)) or not isinstance(items, (os.PathLike, Iterable)):
        raise TypeError(f"items is a list of dicts or a pathlib.Path to a JSONL file, not {type(items).__name__}")
    rows: list[dict[str, Any]] = []
    if isinstance(items, os.PathLike):
        with open(items, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as e:
                    raise ValueError(f"{os.fspath(items)}, line {number} is no JSON: {e}") from None
    else:
        rows = [dict(i) for i in items]
    if not rows:
        raise ValueError("there are no items to evaluate")
    return [_checked(i, row) for i, row in enumerate(rows)]


def _checked(number: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"]:
        raise ValueError(f"item {number} has no prompt (a text that is not empty)")
    name = str(row.get("id", number))
    if "choices" in row:
        choices, answer = row["choices"], row.get("answer")
        if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
            raise ValueError(f"item {name}: choices must be at least two texts")
        if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
            raise ValueError(f"item {name}: answer is {answer!r}, it must be a number from 0 to {len(choices) - 1}")
    return {**row, "id": name, "domain": str(row.get("domain", "all"))}


# ---- one item ----


def choice_logprobs(session: Session, prompt: str, choices: Sequence[str]) -> list[float]:
    """Log-likelihood in nats of each choice behind the prompt. Prompt and choice are encoded as one text, so that a
    token which spans both counts to the choice; what all have in common is evaluated once."""
    tokenizer = session.model.tokenizer
    base = tokenizer.encode(prompt)
    whole = [tokenizer.encode(prompt + c) for c in choices]
    session.rewind(0)
    held = np.zeros(0, np.int32)
    out = []
    for ids in whole:
        n = min(_common_length(base, ids), len(ids) - 1)  # at least one token is scored
        if n == 0:
            raise ValueError(f"a model without BOS cannot score a choice behind the empty prompt {prompt!r}")
        keep = min(_common_length(held, ids), n - 1)
        session.rewind(keep)
        lp = session.logprobs(ids[keep:], start=n - 1 - keep).logprobs
        held = ids
        out.append(float(lp.sum()))
    return out


@dataclass
class Answer:
    """What one model said to one item: of choices picked and picked_norm (their numbers) and logprobs, of texts text
    and ids. right and right_norm are from 0 to 1, None where nothing says what is right."""

    right: Optional[float]
    right_norm: Optional[float]
    picked: Optional[int] = None
    picked_norm: Optional[int] = None
    logprobs: Optional[list[float]] = None
    text: Optional[str] = None
    ids: Optional[list[int]] = None


def _answer(session: Session, item: Mapping[str, Any], score: Optional[Score], max_tokens: int, chat: bool) -> Answer:
    if "choices" in item:
        lp = choice_logprobs(session, item["prompt"], item["choices"])
        per_byte = [v / len(c.encode()) for v, c in zip(lp, item["choices"])]
        best, best_norm = int(np.argmax(lp)), int(np.argmax(per_byte))
        return Answer(float(best == item["answer"]), float(best_norm == item["answer"]), best, best_norm, lp)
    session.rewind(0)
    stop = item.get("stop", ())
    if chat:
        made = session.chat([{"role": "user", "content": item["prompt"]}], max_tokens=max_tokens, stop=stop)
    else:
        made = session.generate(item["prompt"], max_tokens=max_tokens, stop=stop)
    for _ in made:
        pass
    right = None
    if score is not None:
        right = float(score(item, made.text))
        if not 0.0 <= right <= 1.0:
            raise ValueError(f"item {item['id']}: score() gave {right}, it must be from 0 to 1")
    elif isinstance(item.get("answer"), str):
        right = float(made.text.strip() == item["answer"].strip())
    return Answer(right, None, text=made.text, ids=list(made.ids))


# ---- results ----

COLUMNS = ("name", "domain", "n", "acc", "acc 95 %", "acc_norm", "chance", "lost", "won", "p", "detectable", "verdict")


class Evaluation:
    """Answers of every model to every item: answers[m][i] is an Answer, and the first model the reference of pairs."""

    def __init__(
        self, settings: list[Setting], items: list[dict[str, Any]], answers: list[list[Answer]], seconds: float
    ):
        self.settings, self.items, self.answers, self.seconds = settings, items, answers, seconds
        self.names = [s.name or (s.file if i == 0 else s.label(settings[0])) for i, s in enumerate(settings)]

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(i["domain"] for i in self.items))

    def summary(self) -> list[dict[str, Any]]:
        """One record per model and domain, and one over all where there are several: n, acc, acc_ci95 (Wilson),
        acc_norm, chance, chance_p; against the first model lost and won (items that only the reference, only this model
        has right), p (McNemar, exact), smallest_detectable; verdict, None where the reference is not above chance."""
        groups = [d for d in self.domains if d != "all"]  # which items have that say none
        if len(groups) != 1 or "all" in self.domains:
            groups.append("all")
        return [self._summary(m, g) for g in groups for m in range(len(self.settings))]

    def _summary(self, m: int, domain: str) -> dict[str, Any]:
        chosen = [i for i, item in enumerate(self.items) if domain in ("all", item["domain"])]
        scored = [i for i in chosen if self.answers[m][i].right is not None]
        own = [float(self.answers[m][i].right or 0) for i in scored]
        norm = [v for v in (self.answers[m][i].right_norm for i in scored) if v is not None]
        choice = [i for i in scored if "choices" in self.items[i]]
        chances = [1.0 / len(self.items[i]["choices"]) for i in choice]
        row: dict[str, Any] = {
            "name": self.names[m],
            "domain": domain,
            "n": len(scored),
            "acc": sum(own) / len(own) if own else None,
            "acc_ci95": wilson(sum(own), len(own)),
            "acc_norm": sum(norm) / len(norm) if norm else None,
            "chance": float(np.mean(chances)) if chances else None,
            "chance_p": above_chance(round(sum(float(self.answers[m][i].right or 0) for i in choice)), chances)
            if chances
            else None,
        }
        row.update(self._paired(m, scored, chances))
        return row

    def _paired(self, m: int, scored: list[int], chances: list[float]) -> dict[str, Any]:
        names = ("lost", "won", "p", "smallest_detectable", "verdict", "no_verdict")
        nothing: dict[str, Any] = dict.fromkeys(names)
        if m == 0 or not scored:
            return nothing
        a = [(self.answers[0][i].right or 0) >= 0.5 for i in scored]
        b = [(self.answers[m][i].right or 0) >= 0.5 for i in scored]
        lost, won = sum(x and not y for x, y in zip(a, b)), sum(y and not x for x, y in zip(a, b))
        p = mcnemar(lost, won)
        out: dict[str, Any] = {
            **nothing,
            "lost": lost,
            "won": won,
            "p": p,
            "smallest_detectable": detectable(len(scored), lost + won),
        }
        choice = [x for x, i in zip(a, scored) if "choices" in self.items[i]]
        if chances and len(chances) == len(scored) and above_chance(sum(choice), chances) >= ALPHA:
            out["no_verdict"] = "the reference is not above chance here"
        elif not any(a):
            out["no_verdict"] = "the reference has nothing right here"
        elif p < ALPHA:
            out["verdict"] = "worse" if lost > won else "better"
        else:
            out["verdict"] = "no difference shown"
        return out

    def side_by_side(self) -> list[dict[str, Any]]:
        """Generated texts: per item id, prompt, texts by name, and against the first model per other one: same, the
        first token and the first character that differ (None when none does)."""
        rows = []
        for i, item in enumerate(self.items):
            first = self.answers[0][i]
            if first.text is None or first.ids is None:
                continue
            others = {}
            for m in range(1, len(self.settings)):
                other = self.answers[m][i]
                assert other.text is not None and other.ids is not None
                others[self.names[m]] = {
                    "same": other.ids == first.ids,
                    "first_token": _first_difference(first.ids, other.ids),
                    "first_char": _first_difference(first.text, other.text),
                }
            texts = {n: a[i].text for n, a in zip(self.names, self.answers)}
            rows.append({"id": item["id"], "prompt": item["prompt"], "texts": texts, "against_first": others})
        return rows

    def exact_match(self) -> dict[str, Optional[float]]:
        """Share of generated texts that are the first model's to the token, by name of the other models."""
        rows = self.side_by_side()
        return {
            n: float(np.mean([r["against_first"][n]["same"] for r in rows])) if rows else None for n in self.names[1:]
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "names": self.names,
            "models": [s.file for s in self.settings],
            "settings": [dict(s.options) for s in self.settings],
            "n_items": len(self.items),
            "summary": self.summary(),
            "exact_match": self.exact_match(),
            "side_by_side": self.side_by_side(),
            "items": [
                {"id": item["id"], "domain": item["domain"], "answers": [_shown(a[i]) for a in self.answers]}
                for i, item in enumerate(self.items)
            ],
            "seconds": self.seconds,
        }

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def to_pandas(self) -> Any:
        """A pandas DataFrame of summary()."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.summary())

    def _rows(self) -> list[dict[str, Any]]:
        def short(v: Optional[float]) -> str:
            return "-" if v is None else f"{v:.3f}"

        return [
            {
                "name": r["name"],
                "domain": r["domain"],
                "n": r["n"],
                "acc": short(r["acc"]),
                "acc 95 %": "-" if r["acc_ci95"] is None else "[{:.2f}, {:.2f}]".format(*r["acc_ci95"]),
                "acc_norm": short(r["acc_norm"]),
                "chance": short(r["chance"]),
                "lost": r["lost"],
                "won": r["won"],
                "p": short(r["p"]),
                "detectable": short(r["smallest_detectable"]),
                "verdict": r["verdict"] or r["no_verdict"] or "-",
            }
            for r in self.summary()
        ]

    def __repr__(self) -> str:
        lines = [table(self._rows(), COLUMNS)]
        for name, share in self.exact_match().items():
            if share is not None:
                lines.append(f"{name}: {share:.0%} of the texts are those of {self.names[0]} to the token")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        texts = self.side_by_side()
        out = html_table(self._rows(), COLUMNS)
        if texts:
            rows = [{"prompt": r["prompt"], **r["texts"]} for r in texts]
            out += html_table(rows, ("prompt", *self.names))
        return out

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Accuracy by domain and model with 95 % intervals; dotted lines are chance."""
        a = axes(ax, figsize=(7, 4))
        rows = [r for r in self.summary() if r["acc"] is not None]
        groups = list(dict.fromkeys(r["domain"] for r in rows))
        width = 0.8 / len(self.names)
        for m, name in enumerate(self.names):
            own = [r for r in rows if r["name"] == name]
            x = [groups.index(r["domain"]) + (m - (len(self.names) - 1) / 2) * width for r in own]
            error = [[r["acc"] - r["acc_ci95"][0] for r in own], [r["acc_ci95"][1] - r["acc"] for r in own]]
            a.bar(x, [r["acc"] for r in own], width, yerr=error, capsize=3, label=name)
        for g, domain in enumerate(groups):
            chance = next(r["chance"] for r in rows if r["domain"] == domain)
            if chance is not None:
                a.hlines(chance, g - 0.45, g + 0.45, linestyles=":", color="black")
        n = {r["domain"]: r["n"] for r in rows}
        a.set_xticks(range(len(groups)), [f"{g}\nn = {n[g]}" for g in groups])
        a.set(xlabel="domain", ylabel="share right", ylim=(0, 1.05))
        a.set_title("bars: 95 % interval (Wilson); dotted: chance")
        a.legend(fontsize="small")
        return a


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> Optional[int]:
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def _shown(answer: Answer) -> dict[str, Any]:
    return {k: v for k, v in answer.__dict__.items() if v is not None}


# ---- running ----


@checked_keywords
def evaluate(
    models: Union[Candidate, Sequence[Candidate]],
    items: Items = None,
    *,
    score: Optional[Score] = None,
    domains: Union[None, str, Sequence[str]] = None,
    limit: Optional[int] = None,
    max_tokens: int = 64,
    chat: bool = False,
    compute: str = "auto",
    kv: str = "f16",
    n_ctx: int = 1024,
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> Evaluation:
    """Gives the same items to several models or settings; see this module's docstring for how they are judged.

        rooflm.evaluate(["q8.gguf", "q4.gguf"])                                  # the bundled multiple choice
        rooflm.evaluate(["q8.gguf", "q4.gguf"], [{"prompt": "Once upon"}])       # greedy texts side by side
        rooflm.evaluate("m.gguf", Path("mine.jsonl"), score=lambda item, text: item["answer"] in text)

    models      one or a list; the first is the reference. A dict has "model" (default the first's), "name" and options
                of the session
    items       None for the bundled set, a Path to JSONL, or a list of dicts, see load_items()
    score       score(item, text) from 0 to 1 for items without choices; default: equal to "answer", stripped
    domains     only these; limit: at most so many of each domain
    max_tokens  of a text; chat: through the model's chat template
    compute, kv, n_ctx, n_threads
                as in Model.session(), for models that say nothing else
    """
    at_least(1, limit=limit, max_tokens=max_tokens, n_ctx=n_ctx)
    given: Sequence[Candidate] = models if isinstance(models, (list, tuple)) else [models]  # type: ignore[list-item]
    if not given:
        raise ValueError("models=[] leaves nothing to evaluate")
    opener = Opener()
    options = {**DEFAULTS, "compute": compute, "kv": kv}
    head = given[0]
    if isinstance(head, Mapping):
        if "model" not in head:
            raise ValueError('the first of the models needs a "model": a path or a rooflm.Model')
        first = opener.model(head["model"])
    else:
        first = opener.model(head)
    settings = [opener.setting(c, Setting(first, dict(options)), "evaluate") for c in given]
    chosen = list(_chosen(load_items(items), domains, limit))
    start = time.perf_counter()
    bar = Progress(len(chosen) * len(settings), progress)
    answers: list[list[Answer]] = []
    try:
        for s in settings:
            room = min(n_ctx, s.model.n_ctx_train or n_ctx)
            with s.session(n_ctx=room, n_threads=n_threads) as session:
                row = []
                for item in chosen:
                    bar.show(f"{s.file}: {item['domain']}")
                    row.append(_answer(session, item, score, max_tokens, chat))
                    bar.step()
            answers.append(row)
    finally:
        bar.close()
    return Evaluation(settings, chosen, answers, time.perf_counter() - start)


def _chosen(
    items: list[dict[str, Any]], domains: Union[None, str, Sequence[str]], limit: Optional[int]
) -> Iterator[dict[str, Any]]:
    wanted = None if domains is None else {domains} if isinstance(domains, str) else set(domains)
    have = {i["domain"] for i in items}
    if wanted is not None and wanted - have:
        raise ValueError(f"no item of domain {sorted(wanted - have)}; there are {', '.join(sorted(have))}")
    taken: dict[str, int] = {}
    for item in items:
        domain = item["domain"]
        if wanted is not None and domain not in wanted:
            continue
        taken[domain] = taken.get(domain, 0) + 1
        if limit is None or taken[domain] <= limit:
            yield item
