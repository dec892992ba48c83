# SPDX-License-Identifier: Apache-2.0
"""The one-line health check: this machine, its bandwidth, a fixed synthetic model, 20 tokens, and how that compares
with the same check earlier."""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._labels import from_zero
from rooflm._optional import axes
from rooflm._output import html_table, megabytes
from rooflm._synth import SIZES, synth
from rooflm.diagnosis.history import History, curve, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rooflm.model import Model

SEED = 20
TYPE = "Q4_K_M"
TOKENS = 20
BUDGET_S = 40.0  # of decoding: a slow board stops earlier than after TOKENS, and says so
LEAST_LAYERS = 2
ROOM = 0.6  # of the available memory that the model may take
BUSY = 0.1  # of the CPUs taken by others: said, since it costs speed
CLASSES = (5, 10, 20, 40, 80, 160, 320)  # GB/s


def bandwidth_class(gbs: float) -> str:
    """The class of a read bandwidth in GB/s, each twice as wide as the one below: "20-40 GB/s"."""
    below = 0
    for edge in CLASSES:
        if gbs < edge:
            return f"{below}-{edge} GB/s"
        below = edge
    return f"over {below} GB/s"


class Health:
    """What health() found. `record` is what the history keeps; `verdict` how it compares with `earlier` speeds (tok/s)
    of the same machine and model; `saved` is False when the history could not be written."""

    def __init__(self, record: dict[str, Any], earlier: list[dict[str, Any]], saved: bool) -> None:
        self.record = record
        self.earlier = earlier
        self.saved = saved
        self.verdict = verdict([r["decode_tps"] for r in earlier], record["decode_tps"])

    @property
    def changed(self) -> dict[str, list[Any]]:
        """What is different from the run before, of what may explain a change: key -> [before, now]."""
        if not self.earlier:
            return {}
        before, now = self.earlier[-1]["environment"], self.record["environment"]
        return {k: [before.get(k), v] for k, v in now.items() if before.get(k) != v}

    def line(self) -> str:
        r, v = self.record, self.verdict
        smaller = f" ({r['model']['layers']} of {r['model']['full_layers']} layers)" if r["model"]["smaller"] else ""
        parts = [
            f"{r['at'][:16].replace('T', ' ')} {r['manifest']['cpu'] or 'unknown processor'}",
            f"read {r['read_gbs']:.1f} GB/s (class {r['bandwidth_class']})",
            f"{r['model']['size']} {r['model']['type']}{smaller}, {r['manifest']['threads']} threads",
            f"{r['tokens']} tokens at {r['decode_tps']:.2f} tok/s, {r['share']:.0%} of the ceiling",
        ]
        if v["verdict"] == "too few runs":
            parts.append(f"{v['n']} earlier runs, 5 needed for a verdict")
        else:
            word = "REGRESSION" if v["verdict"] == "regression" else "no regression"
            parts.append(
                f"{word}: {v['change']:+.1%} against the median {v['median_tps']:.2f} ± {v['mad_tps']:.2f} (MAD) "
                f"of {v['n']} runs"
            )
        if (r["others_busy"] or 0.0) >= BUSY:
            parts.append(f"other processes took {r['others_busy']:.0%} of the CPUs")
        return " | ".join(parts)

    def curve(self) -> str:
        """The history and this run as a line of text, tok/s."""
        speeds = [*(r["decode_tps"] for r in self.earlier), self.record["decode_tps"]]
        return f"{curve(speeds)} {min(speeds):.2f} to {max(speeds):.2f} tok/s, {len(speeds)} runs"

    def to_dict(self) -> dict[str, Any]:
        return {**self.record, **{k: v for k, v in self.verdict.items() if k != "n"}, "earlier_runs": self.verdict["n"],
                "changed": self.changed, "saved": self.saved}  # fmt: skip

    def plot(self, ax: Optional[Axes] = None) -> Axes:
        """Decode speed of each run in order, with the band inside which a run is no regression."""
        ax = axes(ax, figsize=(7, 3.5))
        speeds = [*(r["decode_tps"] for r in self.earlier), self.record["decode_tps"]]
        runs = range(1, len(speeds) + 1)
        ax.plot(runs, speeds, "o-", color="tab:blue", label="runs")
        v = self.verdict
        if v["median_tps"] is not None and v["verdict"] != "too few runs":
            low = v["median_tps"] - max(0.05 * v["median_tps"], 3 * v["mad_tps"])
            ax.axhline(v["median_tps"], color="tab:gray", linewidth=1, label="median of earlier runs")
            ax.axhspan(low, v["median_tps"], color="tab:gray", alpha=0.15, label="within 5 % or 3 MAD: no regression")
        color = "tab:red" if v["verdict"] == "regression" else "tab:green"
        ax.plot([len(speeds)], speeds[-1:], "o", color=color, label="this run")
        ax.set_xlim(0.5, len(speeds) + 0.5)
        ax.locator_params(axis="x", integer=True)
        ax.set_xlabel("run")
        ax.set_ylabel("decode (tok/s)")
        from_zero(ax)
        m = self.record["model"]
        note = f", {v['verdict']}" if v["verdict"] != "none" else ""
        ax.set_title(f"health, {m['size']} {m['type']}: n = {len(speeds)} runs{note}")
        ax.legend(fontsize="small", loc="lower left")
        return ax

    def __repr__(self) -> str:
        lines = [self.line(), self.curve()]
        if self.verdict["verdict"] == "regression" and self.changed:
            lines.append("changed since the run before: " + ", ".join(
                f"{k} {a} -> {b}" for k, (a, b) in self.changed.items()))  # fmt: skip
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [{"at": r["at"], "decode tok/s": r["decode_tps"], "read GB/s": r["read_gbs"], "share": r["share"]}
                for r in [*self.earlier[-9:], self.record]]  # fmt: skip
        return f"<p>{self.line()}</p>{html_table(rows, ('at', 'decode tok/s', 'read GB/s', 'share'))}"


@checked_keywords
def health(
    *,
    size: str = "3b",
    threads: Optional[int] = None,
    history: Union[None, str, os.PathLike[str], bool] = True,
    keep: Union[None, str, os.PathLike[str]] = None,
    root: str = "/",
    progress: Optional[Callable[[str], None]] = None,
) -> Health:
    """The health check: bandwidth, then 20 tokens of a fixed synthetic Q4_K_M model of a 3B shape, beside its history.

    size: "3b", or another shape of rooflm.synth() for a quicker check with a history of its own. The model is made from
    a seed in memory and gone afterwards; where 60 % of the available memory do not hold it, it has fewer layers, which
    the record says. keep: a file to keep the model in, used again when it is there.
    history: True for `health.sqlite` in rooflm's cache directory, a path, or False for none.
    root: another directory to read /proc and /sys from.

    The record has read_gbs (the best of three reads of the same bytes with the same threads, before and after),
    decode_tps (over all tokens but the first), ceiling_tps, share, token_times_s, temperature and load of others.
    """
    from rooflm import __version__
    from rooflm.device.machine import machine
    from rooflm.device.sampler import Sampler

    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, not {size!r}")
    say = progress or (lambda text: None)
    start = time.perf_counter()
    here = machine(root=root)
    made, model = _fixed_model(size, here.memory_available_bytes, keep, say)
    with model.session(n_ctx=64, n_threads=threads) as session:
        say("reading")
        session.eval([1])
        reads = [_read(model, session.n_threads)]
        say(f"{TOKENS} tokens")
        with Sampler(root=root) as sampler:
            times = _tokens(session)
        reads.append(_read(model, session.n_threads))
        used, isa = session.n_threads, session.isa
    needed = float(model.weight_bytes_per_token)
    decode, read = (len(times) - 1) / (times[-1] - times[0]), max(reads)
    seen = sampler.summary()
    record = {
        "schema": 1,
        "kind": "health",
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        # Equal for runs that may be compared; what may be the reason of a change is in `environment`.
        "manifest": {"cpu": here.cpu, "board": here.board, "memory_bytes": here.memory_bytes, "isa": isa,
                     "threads": used, **{k: made[k] for k in ("size", "type", "seed", "layers")}},  # fmt: skip
        "environment": {"rooflm": __version__, "os": here.os, "kernel": here.kernel, "libc": here.libc,
                        "python": here.python, "governor": _governor(root)},  # fmt: skip
        "model": made,
        "read_gbs": read,
        "bandwidth_class": bandwidth_class(read),
        "bytes_per_token": needed,
        "tokens": len(times),
        "decode_tps": decode,
        "ceiling_tps": read * 1e9 / needed,
        "share": decode * needed / (read * 1e9),
        "token_times_s": times,
        "temperature_c": seen["temperature_c"],
        "throttled": seen["throttled"],
        "others_busy": seen["others_busy"],
        "seconds_s": time.perf_counter() - start,
    }
    return _with_history(record, history)


def _with_history(record: dict[str, Any], history: Union[None, str, os.PathLike[str], bool]) -> Health:
    """A history that fails costs the comparison, never the result."""
    import warnings

    from rooflm.fetching import cache_dir

    if history is None or history is False:
        return Health(record, [], saved=False)
    kept = History(cache_dir() / "health.sqlite" if history is True else history)
    earlier: list[dict[str, Any]] = []
    try:
        earlier = kept.records(record["manifest"])
        kept.add(record)
    except OSError as e:
        text = f"{kept.path}: the history cannot be kept: {e.strerror}" if e.strerror else str(e)
        warnings.warn(f"{text}; history= (--history FILE) names another file", _core.FallbackWarning, stacklevel=3)
        return Health(record, earlier, saved=False)
    return Health(record, earlier, saved=True)


def _fixed_model(
    size: str, available: Optional[int], keep: Union[None, str, os.PathLike[str]], say: Callable[[str], None]
) -> tuple[dict[str, Any], Model]:
    from rooflm.model import Model

    full = SIZES[size]["layers"]
    layers = _layers_that_fit(size, available)
    about = {"size": size, "type": TYPE, "seed": SEED, "layers": layers, "full_layers": full, "smaller": layers < full}
    say(f"making the model ({layers} layers)")
    if keep is not None:
        if not os.path.exists(keep):
            synth(keep, size=size, type=TYPE, seed=SEED, layers=layers)
        model = Model(keep)
        if model.n_layer != layers or model.n_embd != SIZES[size]["width"]:
            raise ValueError(f"{os.fspath(keep)} is another model; remove it or give another name")
    else:
        fd = _nameless_file()
        try:
            synth(fd, size=size, type=TYPE, seed=SEED, layers=layers)
            model = Model(f"/proc/self/fd/{fd}", load="mmap")  # the mapping keeps the pages, until the model is gone
        finally:
            os.close(fd)
    return {**about, "nbytes": model.gguf.nbytes}, model


def _nameless_file() -> int:
    """Memory that looks like a file; without memfd_create a temporary file whose name is gone at once."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("rooflm-health")
        except OSError:
            pass
    fd, path = tempfile.mkstemp(prefix="rooflm-health")
    os.unlink(path)
    return fd


def _layers_that_fit(size: str, available: Optional[int]) -> int:
    """All layers, or as many as ROOM of the available memory holds beside the embedding; about 4.9 bits a weight."""
    s = SIZES[size]
    if available is None:
        return s["layers"]
    kv = s["width"] // s["heads"] * s["kv_heads"]
    layer = (2 * s["width"] + 2 * kv + 3 * s["ffn"]) * s["width"] * 4.9 / 8
    rest = s["vocab"] * s["width"] * 6.6 / 8
    layers = int((ROOM * available - rest) / layer)
    if layers < LEAST_LAYERS:
        raise MemoryError(
            f"{megabytes(available)} of memory are available, {megabytes((rest + LEAST_LAYERS * layer) / ROOM)} needed "
            f"for the smallest model of this check: free memory or take size='smollm2'"
        )
    return min(s["layers"], layers)


def _read(model: Model, threads: int) -> float:
    from rooflm.measuring.ceilings import read_arrays

    return float(_core.read_bandwidth(read_arrays(model), threads=threads, passes=3)["gbs"])


def _tokens(session: Any) -> list[float]:
    """Times at which each of TOKENS tokens was done, fewer where they take longer than BUDGET_S."""
    one, logits, times = np.zeros(1, np.int32), None, []
    start = time.perf_counter()
    for i in range(TOKENS):
        one[0] = i + 1
        logits = session.eval(one, out=logits)
        times.append(time.perf_counter() - start)
        if times[-1] > BUDGET_S and i:
            break
    return times


def _governor(root: str) -> Optional[str]:
    from rooflm.device.files import Files

    return Files(root).text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
