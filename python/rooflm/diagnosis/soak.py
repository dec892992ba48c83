# SPDX-License-Identifier: Apache-2.0
"""Load over minutes to days: memory, descriptors, temperature and speed over time, and whether anything leaks. Ends by
itself."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from rooflm._keywords import checked_keywords
from rooflm._labels import from_zero
from rooflm._optional import axes
from rooflm._output import html_table, show, table
from rooflm.device.files import Files
from rooflm.device.sensors import Sensors
from rooflm.measuring.recording import RecordFile
from rooflm.model import Model
from rooflm.session import Session
from rooflm.stats import median_and_mad

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_SAMPLES = 8
LEAK_BYTES = 2 << 20  # growth below this is allocators' play
SLOWER = 0.1  # of the first quarter's speed lost at the end

# key of a sample -> (label of the axis, divisor)
SHOWN = {
    "anonymous_bytes": ("anonymous memory (MB)", 1e6),
    "descriptors": ("open descriptors", 1.0),
    "temperature_c": ("temperature (°C)", 1.0),
    "decode_tps": ("decode (tok/s)", 1.0),
}


class Soak:
    """Samples over time, each a dict with time_s, cycles, anonymous_bytes, rss_bytes, descriptors, threads,
    temperature_c and decode_tps (median over the tokens since the sample before)."""

    def __init__(self, samples: list[dict[str, Any]], asked_minutes: float, model: str) -> None:
        self.samples = samples
        self.asked_minutes = asked_minutes
        self.model = model

    def _quarters(self, key: str) -> tuple[list[float], list[float]]:
        """Known values of the second quarter (the first warms up) and of the last one."""
        n = len(self.samples)
        parts = self.samples[n // 4 : n // 2], self.samples[3 * n // 4 :]
        before, after = ([s[key] for s in part if s[key] is not None] for part in parts)
        return before, after

    @property
    def growth(self) -> dict[str, Optional[float]]:
        """By key the median of the last quarter minus that of the second; None where too little is known."""
        out: dict[str, Optional[float]] = {}
        for key in ("anonymous_bytes", "descriptors", "threads"):
            before, after = self._quarters(key)
            known = len(self.samples) >= LEAST_SAMPLES and before and after
            out[key] = statistics.median(after) - statistics.median(before) if known else None
        return out

    @property
    def leaks(self) -> Optional[list[str]]:
        """What grew: "memory", "descriptors", "threads"; None with fewer than 8 samples, or where nothing is shown."""
        if len(self.samples) < LEAST_SAMPLES or all(v is None for v in self.growth.values()):
            return None
        found = []
        before, after = self._quarters("anonymous_bytes")
        if before and after:
            spread = 3 * median_and_mad(before)[1]
            # Memory that leaks never comes back: even the least of the end lies above the most of the beginning.
            if min(after) > max(before) and (self.growth["anonymous_bytes"] or 0) > max(LEAK_BYTES, spread):
                found.append("memory")
        for key in ("descriptors", "threads"):
            before, after = self._quarters(key)
            if before and after and min(after) > max(before):
                found.append(key)
        return found

    @property
    def sustained(self) -> Optional[float]:
        """Speed of the last quarter over that of the first, below 1 where heat or anything else slowed it down."""
        n = len(self.samples) // 4
        first, last = ([s["decode_tps"] for s in part if s["decode_tps"]] for part in
                       (self.samples[: max(n, 1)], self.samples[-max(n, 1) :]))  # fmt: skip
        return statistics.median(last) / statistics.median(first) if first and last else None

    @property
    def verdict(self) -> str:
        leaks = self.leaks
        if leaks is None and len(self.samples) >= LEAST_SAMPLES:
            return "this system shows neither memory nor descriptors"
        if leaks is None:
            return f"too few samples for a verdict ({len(self.samples)}, {LEAST_SAMPLES} needed)"
        text = f"{' and '.join(leaks)} leak" if leaks else "nothing leaks"
        if self.sustained is not None and self.sustained < 1 - SLOWER:
            text += f", speed fell to {self.sustained:.0%}"
        return text

    def to_dict(self) -> dict[str, Any]:
        return {"schema": 1, "kind": "soak", "model": self.model, "asked_minutes": self.asked_minutes,
                "verdict": self.verdict, "leaks": self.leaks, "growth": self.growth, "sustained": self.sustained,
                "samples": self.samples}  # fmt: skip

    def plot(self, what: str = "decode_tps", ax: Optional[Axes] = None) -> Axes:
        """One quantity over time: "decode_tps", "anonymous_bytes", "descriptors" or "temperature_c"."""
        if what not in SHOWN:
            raise ValueError(f"what must be one of {', '.join(SHOWN)}, not {what!r}")
        label, divisor = SHOWN[what]
        known = [(s["time_s"] / 60, s[what] / divisor) for s in self.samples if s[what] is not None]
        ax = axes(ax, figsize=(7, 3))
        ax.plot([t for t, _ in known], [v for _, v in known], ".-", color="tab:blue")
        ax.set_xlabel("time (min)")
        ax.set_ylabel(label)
        from_zero(ax)
        ax.set_title(f"soak of {self.model}: n = {len(known)} samples\n{self.verdict}", fontsize="medium")
        if not known:
            ax.text(0.5, 0.5, f"no {label} on this machine", ha="center", transform=ax.transAxes)
        return ax

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for key, (label, divisor) in SHOWN.items():
            values = [s[key] / divisor for s in self.samples if s[key] is not None]
            ends = {"first": values[0], "median": statistics.median(values), "last": values[-1]} if values else {}
            rows.append({"": label, **ends})
        return rows

    def __repr__(self) -> str:
        cycles = self.samples[-1]["cycles"] if self.samples else 0
        minutes = self.samples[-1]["time_s"] / 60 if self.samples else 0.0
        head = f"{self.verdict}: {show(minutes)} of {show(self.asked_minutes)} minutes, {cycles} cycles of {self.model}"
        return head + "\n" + table(self._rows(), ("", "first", "median", "last"))

    def _repr_html_(self) -> str:
        return f"<p>{self.verdict}</p>{html_table(self._rows(), ('', 'first', 'median', 'last'))}"


@checked_keywords
def soak(
    model: Union[str, os.PathLike[str]],
    *,
    minutes: float,
    prompt: int = 32,
    gen: int = 64,
    threads: Optional[int] = None,
    kv: str = "f16",
    each: Optional[Callable[[Session], Any]] = None,
    interval_s: Optional[float] = None,
    out: Union[None, str, os.PathLike[str]] = None,
    root: str = "/",
    progress: Optional[Callable[[str], None]] = None,
) -> Soak:
    """Loads the model, evaluates `prompt` tokens, decodes `gen`, frees everything, and again, for this many minutes.

    each: called with the session at the end of each cycle, for your own code under load. interval_s: time between
    samples, default a 400th of the run, at least 0.1 s and at most a minute. out: a file that takes each sample as it
    is taken, one line of JSON. root: another directory to read sensors from.

    Ends by itself, at most one cycle late. Ctrl-C raises KeyboardInterrupt with what was seen as its `.results`.
    A leak is memory or descriptors of the last quarter that are above all of the second one.
    """
    if not minutes > 0 or not np.isfinite(minutes):
        raise ValueError(f"minutes={minutes}: must be more than 0")
    interval = interval_s if interval_s is not None else min(60.0, max(0.1, minutes * 60 / 400))
    name = os.path.basename(os.fspath(model))
    files, sensors = Files(root), Sensors(root)
    result = Soak([], minutes, name)
    file = RecordFile(out, resumable=False) if out is not None else None
    start = last = time.monotonic()
    cycles, times = 0, []
    sample: dict[str, Any]
    try:
        while True:
            times += _cycle(model, prompt, gen, threads, kv, each)
            cycles += 1
            now = time.monotonic()
            over = now - start >= minutes * 60
            if over or now - last >= interval:
                sample = {"time_s": now - start, "cycles": cycles, **_usage(files)}
                sample["temperature_c"] = sensors.temperature()
                sample["decode_tps"] = 1 / statistics.median(times)
                result.samples.append(sample)
                if file:
                    file.append({"schema": 1, "kind": "soak", "model": name, **sample})
                if progress:
                    progress(f"{(now - start) / 60:.1f} of {minutes:g} minutes, {sample['decode_tps']:.1f} tok/s")
                last, times = now, []
            if over:
                return result
    except KeyboardInterrupt as e:
        e.results = result  # type: ignore[attr-defined]
        raise
    finally:
        if file:
            file.close()


def _cycle(
    path: Union[str, os.PathLike[str]], prompt: int, gen: int, threads: Optional[int], kv: str, each: Any
) -> list[float]:
    """Seconds of each token decoded in one cycle from loading to closing."""
    model = Model(path)
    times = []
    with model.session(n_ctx=prompt + gen + 1, n_threads=threads, kv=kv) as session:
        session.eval(np.arange(prompt, dtype=np.int32) % model.n_vocab, logits="none")
        one, logits = np.ones(1, np.int32), None
        for _ in range(gen):
            start = time.perf_counter()
            logits = session.eval(one, out=logits)
            times.append(time.perf_counter() - start)
        if each:
            each(session)
    return times


def _usage(files: Files) -> dict[str, Optional[int]]:
    """Memory, descriptors and threads of this process; what the system does not show is None."""
    threads: Sequence[str] = [v for k, v in files.fields("proc/self/status") if k == "Threads"]
    descriptors = files.names("proc/self/fd")
    return {
        "anonymous_bytes": files.kilobytes("proc/self/status", "RssAnon"),
        "rss_bytes": files.kilobytes("proc/self/status", "VmRSS"),
        "descriptors": len(descriptors) or None,
        "threads": int(threads[0]) if threads else None,
    }
