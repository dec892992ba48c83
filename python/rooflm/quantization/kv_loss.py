# SPDX-License-Identifier: Apache-2.0
"""What a smaller KV cache costs: types, eviction and compressed pages against the full one: quality, bytes, speed.

Quality is that of rooflm.compare: windows of a text, the second half of each scored, KL(full || setting). Pages are
compressed once, when half of a window has been read. Bytes and speed are those of sessions that hold a window, one
token at a time, the settings by turns.
"""

from __future__ import annotations

import html
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

import numpy as np

from rooflm._keywords import at_least, checked_keywords, unknown_keyword
from rooflm._optional import axes
from rooflm._output import html_table, megabytes, plain, table
from rooflm._progress import Progress, ProgressArg
from rooflm._text import TextOrTokens
from rooflm.compression import parse_rank
from rooflm.session import Session
from rooflm.quantization.compare import Contrast
from rooflm.quantization.settings import DEFAULTS, ModelArg, Opener, Setting, Windows, stream, windows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEYS = ("kv", "evict", "window", "rank", "recent", "name")
RECENT = 256
COLUMNS = ("cache", "size", "of full", "KL mean", "KL 95 %", "ppl", "top1", "tok/s", "of full speed")


class _Cache:
    """One setting: a session's options, and the ranks to which its old pages are compressed."""

    def __init__(self, base: Setting, given: Mapping[str, Any]) -> None:
        for key in given:
            if key not in KEYS:
                raise unknown_keyword("kv_loss: a setting", key, list(KEYS))
        self.rank, self.recent = given.get("rank"), given.get("recent", RECENT)
        if self.rank is not None:
            parse_rank(self.rank)
        elif "recent" in given:
            raise ValueError("recent= goes with rank=: what evict keeps stands in evict=")
        options = {**base.options, **{k: given[k] for k in ("kv", "evict", "window") if k in given}}
        words = [f"{k} {given[k]}" for k in ("kv", "evict", "window") if given.get(k) is not None]
        if self.rank is not None:
            words.append(f"rank {self.rank} but for the last {self.recent}")
        self.setting = Setting(base.model, options, given.get("name") or ", ".join(words) or "full")

    def compress(self, session: Session) -> Optional[dict[str, Any]]:
        """What Session.compress() says of it; None where nothing is to be compressed."""
        return None if self.rank is None else session.compress(rank=self.rank, recent=self.recent)


class KvLoss:
    """What rooflm.kv_loss measured: `records`, one per setting, and `contrasts` with the single tokens."""

    def __init__(self, contrasts: Sequence[Contrast], records: list[dict[str, Any]], full: dict[str, Any]) -> None:
        self.contrasts, self.records, self.full = list(contrasts), records, full

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "kind": "kv_loss", "full": self.full, "records": self.records}

    def to_json(self) -> str:
        return json.dumps(plain(self.to_dict()), allow_nan=False)

    def to_pandas(self) -> Any:
        """A pandas DataFrame with one row per setting."""
        from rooflm._optional import need

        return need("pandas").DataFrame(self.records)

    def _rows(self) -> list[dict[str, Any]]:
        full = {"cache": f"full, {self.full['settings']['kv']}", "ppl": self.full["ppl"]}
        rows = [{**full, "size": megabytes(self.full["kv_nbytes"]), "tok/s": f"{self.full['decode_tps']:.1f}"}]
        for r in self.records:
            ci = r["kl_ci95"]
            rows.append(
                {
                    "cache": r["name"],
                    "size": megabytes(r["kv_nbytes"]),
                    "of full": f"{r['kv_share']:.2f}",
                    "KL mean": r["kl_mean"],
                    "KL 95 %": "-" if ci is None else f"[{ci[0]:.3g}, {ci[1]:.3g}]",
                    "ppl": r["ppl"],
                    "top1": f"{r['top1']:.3f}",
                    "tok/s": f"{r['decode_tps']:.1f}",
                    "of full speed": f"{r['decode_ratio']:.2f}",
                }
            )
        return rows

    def _head(self) -> str:
        w = self.contrasts[0].windows
        return (
            f"{self.full['model']}: {len(w)} windows of {w.ctx} tokens, {len(w) * w.scored} scored; KL in nats against "
            f"the full cache with 95 % intervals of the window means; size and speed with {w.ctx} tokens in use, "
            f"medians of {self.full['n_times']} tokens"
        )

    def __repr__(self) -> str:
        return f"{self._head()}\n{table(self._rows(), COLUMNS)}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._head())}</p>{html_table(self._rows(), COLUMNS)}"

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Mean KL over the bytes of the cache, with its 95 % interval over windows."""
        a = axes(ax, figsize=(7, 4.5))
        for c, r in zip(self.contrasts, self.records):
            mean, interval = r["kl_mean"], r["kl_ci95"]
            error = None if interval is None else [[mean - interval[0]], [interval[1] - mean]]
            a.errorbar(r["kv_nbytes"] / 1e6, mean, yerr=error, fmt="o", capsize=3, label=c.name)
        full = f"full, {self.full['settings']['kv']}"
        a.axvline(self.full["kv_nbytes"] / 1e6, color="gray", linestyle=":", label=full)
        if any(r["kl_mean"] > 0 for r in self.records):
            a.set_yscale("log")
        a.set_xlim(left=0)
        a.set_xlabel("KV cache, MB")
        a.set_ylabel("mean KL(full || setting), nats")
        w = self.contrasts[0].windows
        scored = f"{len(w)} windows, {len(w) * w.scored} tokens; bars: 95 % interval"
        a.set_title(f"{self.full['model']}, {w.ctx} tokens in use\n{scored}")
        a.legend(fontsize="small")
        return a


@checked_keywords
def kv_loss(
    model: ModelArg,
    text: TextOrTokens,
    settings: Optional[Sequence[Mapping[str, Any]]] = None,
    *,
    ctx: int = 2048,
    windows: Optional[int] = None,
    kv: str = "f16",
    compute: str = "int16",
    gen: int = 16,
    repeats: int = 5,
    seed: int = 0,
    n_threads: Optional[int] = None,
    progress: ProgressArg = None,
) -> KvLoss:
    """What each setting of the KV cache costs against the full one, and what it saves.

        rooflm.kv_loss("m.gguf", Path("text.txt"), [{"kv": "q8_0"}, {"evict": "64+960"}, {"rank": "48/32"}])

    settings   dicts with kv, evict and window as in Model.session(); rank and recent (default 256) as in
               Session.compress(), done once in the middle of each window; name. Default: q8_0, half of ctx by eviction,
               three quarters of the rank, and half of it
    ctx        tokens per window, of which the second half is scored; windows: how many from the start, default all
    kv         type of the full cache, and of settings that name no other
    compute    as in Model.session(), for all
    gen        tokens timed in each of `repeats` turns of each setting, in an order drawn from seed

    Each record has name, settings, rank, recent, kl_mean with kl_ci95, kl_median, kl_max, ppl, ppl_ref, ppl_ratio,
    top1 with top1_ci95, top5, dp_rms (see rooflm.compare), kv_nbytes and its share of the full cache's (kv_share),
    decode_tps (1 / median time of a token), decode_ratio to the full cache, k_error and v_error of what was compressed.
    """
    loaded = Opener().model(model)
    base = Setting(loaded, {**DEFAULTS, "kv": kv, "compute": compute}, "full")
    hp = loaded.hparams
    if settings is None:
        k, v = hp["head_dim_k"], hp["head_dim_v"]
        half = max((ctx // 2 - 128) // 64 * 64, 64)
        settings = [
            {"kv": "q8_0"},
            {"evict": f"64+{half}"},
            *({"rank": f"{max(k * n // 4, 1)}/{max(v * n // 4, 1)}"} for n in (3, 2)),
        ]
    if isinstance(settings, Mapping):
        settings = [settings]
    if not settings:
        raise ValueError("settings=[] leaves nothing to measure")
    at_least(1, gen=gen, repeats=repeats)
    at_least(0, seed=seed)
    caches = [_Cache(base, s) for s in settings]
    cut = windows_of(loaded, text, ctx, windows, "kv_loss")
    contrasts = _quality(base, caches, cut, n_threads, progress)
    speeds = _speeds([_Cache(base, {}), *caches], cut, gen, repeats, seed, n_threads)
    first = contrasts[0].to_dict()
    about = {"model": base.file, "settings": dict(base.options), "ppl": first["ppl_ref"], **cut.record()}
    full = {**about, **speeds[0], "n_times": gen * repeats}
    return KvLoss(contrasts, [_record(*x, full) for x in zip(caches, contrasts, speeds[1:])], full)


def _quality(
    base: Setting, caches: Sequence[_Cache], cut: Windows, n_threads: Optional[int], progress: ProgressArg
) -> list[Contrast]:
    begin, sessions = time.perf_counter(), []
    bar = Progress(len(cut), progress)
    try:
        for setting in (base, *(c.setting for c in caches)):
            sessions.append(setting.session(n_ctx=cut.ctx, n_threads=n_threads))

        def before(i: int) -> None:
            bar.show(f"window {i + 1} of {len(cut)}")
            if i:
                bar.step()

        def halfway() -> None:
            for cache, session in zip(caches, sessions[1:]):
                cache.compress(session)

        arrays = stream(sessions[0], sessions[1:], cut, before, halfway)
    finally:
        bar.close()
        for session in sessions:
            session.close()
    seconds = time.perf_counter() - begin
    return [Contrast(base, c.setting, cut, a, seconds) for c, a in zip(caches, arrays)]


def _speeds(
    caches: Sequence[_Cache], cut: Windows, gen: int, repeats: int, seed: int, n_threads: Optional[int]
) -> list[dict[str, Any]]:
    """Bytes of a cache with a window in use, and the median time of the tokens behind it, by turns."""
    sessions: list[Session] = []
    out: list[dict[str, Any]] = []
    times: list[list[float]] = [[] for _ in caches]
    one, order = np.ones(1, np.int32), list(range(len(caches)))
    rng = random.Random(seed)
    try:
        for cache in caches:
            session = cache.setting.session(n_ctx=cut.ctx + (gen + 1) * repeats, n_threads=n_threads)
            sessions.append(session)
            session.eval(cut.ids[0], logits="none")
            done = cache.compress(session) or {"k_error": None, "v_error": None}
            out.append({"kv_nbytes": session.kv_nbytes, "k_error": done["k_error"], "v_error": done["v_error"]})
        for _ in range(repeats):
            rng.shuffle(order)
            for i in order:
                logits = sessions[i].eval(one)  # not timed: what others did to the caches of the processor
                for _ in range(gen):
                    start = time.perf_counter()
                    logits = sessions[i].eval(one, out=logits)
                    times[i].append(time.perf_counter() - start)
    finally:
        for session in sessions:
            session.close()
    return [{**o, "decode_tps": 1 / statistics.median(t), "token_times_s": t} for o, t in zip(out, times)]


def _record(cache: _Cache, contrast: Contrast, speed: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    d = contrast.to_dict()
    quality = ("kl_mean", "kl_ci95", "kl_median", "kl_max", "ppl", "ppl_ci95", "ppl_ref", "ppl_ratio", "ppl_ratio_ci95",
               "top1", "top1_ci95", "top5", "dp_rms", "windows", "ctx", "verdict")  # fmt: skip
    return {
        "schema": 1,
        "name": contrast.name,
        "settings": d["settings"],
        "rank": None if cache.rank is None else "/".join(map(str, parse_rank(cache.rank))),
        "recent": cache.recent if cache.rank is not None else None,
        **{key: d[key] for key in quality},
        **speed,
        "kv_share": speed["kv_nbytes"] / full["kv_nbytes"],
        "decode_ratio": speed["decode_tps"] / full["decode_tps"],
    }
