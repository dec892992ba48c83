# SPDX-License-Identifier: Apache-2.0
"""What the machine did during a run: a thread that reads sensors, clocks, load and memory beside it."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence, Union

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._output import html_table, show, table
from rooflm.device.files import Files, to_integer
from rooflm.device.sensors import Reading, Sensors, throttled

if TYPE_CHECKING:
    import pandas

SCHEMA = 1
SUSPENDED_S = 0.05  # the two clocks drift apart by less than this while the machine is awake
STEPPED_S = 0.5  # slewing by NTP moves the time of day less than this between two samples


class Clocks(NamedTuple):
    """The three clocks at one moment: monotonic stops in suspend, boot goes on, wall may be set."""

    monotonic_s: float
    boot_s: float
    wall_s: float


def read_clocks() -> Clocks:
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return Clocks(time.monotonic(), time.clock_gettime(boot), time.time())


@dataclass
class Sample:
    time_s: float  #: monotonic clock
    boot_s: float  #: the clock that goes on in suspend
    wall_s: float  #: time of day
    sensors: Reading
    cpu_ticks: dict[int, tuple[int, int, int]]  #: by CPU, since boot: busy, stolen, all
    own_ticks: Optional[int]  #: processor time of this process
    memory_available_bytes: Optional[int]
    rss_bytes: Optional[int]
    major_faults: Optional[int]  #: of this process: pages that had to be read
    swapped_pages: Optional[int]  #: of the machine, in and out since boot
    quota_throttled_s: Optional[float]  #: time that the control group was held back by its CPU quota


class Sampler:
    """Samples the machine every interval_s (default 0.1 s) in a thread of its own:

        with Sampler() as sampler:
            session.generate(...)
        sampler.summary()

    samples has one Sample at the start, one at the end and those between; their times are of the monotonic clock.
    root: another directory to read instead of / (a copy of /proc and /sys). cpus: the CPUs whose load and clock count,
    as "0-3,6" or numbers; default those that this process may use. clocks: where the times come from.
    """

    @checked_keywords
    def __init__(
        self,
        interval_s: float = 0.1,
        root: Union[str, os.PathLike[str]] = "/",
        *,
        cpus: Union[None, str, Sequence[int]] = None,
        clocks: Callable[[], Clocks] = read_clocks,
    ) -> None:
        if not 0.005 <= interval_s <= 3600:
            raise ValueError(f"interval_s={interval_s}: must be from 0.005 to 3600 seconds")
        self.interval_s = interval_s
        self.files = Files(root)
        self.cpus = cpu_numbers(cpus) if cpus is not None else _allowed_cpus(self.files)
        self.sensors = Sensors(root, cpus=self.cpus)
        self.samples: list[Sample] = []
        self.core_ghz: list[float] = []  #: the clock timed before and after, where root is this machine
        self._clocks = clocks
        self._quota_file = _quota_file(self.files)
        self._thread: Optional[threading.Thread] = None
        self._enough = threading.Event()
        self._error: Optional[BaseException] = None

    def start(self) -> Sampler:
        if self._thread is not None:
            raise RuntimeError("this sampler is running already; make another one")
        self.samples, self.core_ghz, self._error = [], [], None
        self._enough.clear()
        self._time_the_clock()
        self.sample()
        self._thread = threading.Thread(target=self._run, name="rooflm-sampler", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the thread and takes a last sample; nothing when it does not run."""
        if self._thread is None:
            return
        self._enough.set()
        self._thread.join()
        self._thread = None
        self.sample()
        self._time_the_clock()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Sampler:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._enough.wait(self.interval_s):
                self.sample()
        except BaseException as e:  # shown by stop(): nobody sees what a thread raises
            self._error = e

    def _time_the_clock(self) -> None:
        if self.files.here:
            self.core_ghz.append(_core.core_clock(1.0))

    def sample(self) -> Sample:
        """Takes one sample now and keeps it; what the thread does each interval."""
        clocks = self._clocks()
        process = _process_fields(self.files)
        vmstat = dict(self.files.fields("proc/vmstat", " "))
        swapped = [to_integer(vmstat.get(k)) for k in ("pswpin", "pswpout")]
        sample = Sample(
            time_s=clocks.monotonic_s,
            boot_s=clocks.boot_s,
            wall_s=clocks.wall_s,
            sensors=self.sensors.read(),
            cpu_ticks=_cpu_ticks(self.files, self.cpus),
            own_ticks=process[10] + process[11] if process else None,
            memory_available_bytes=self.files.kilobytes("proc/meminfo", "MemAvailable"),
            rss_bytes=self.files.kilobytes("proc/self/status", "VmRSS"),
            major_faults=process[8] if process else None,
            swapped_pages=sum(n for n in swapped if n is not None) if any(n is not None for n in swapped) else None,
            quota_throttled_s=self._quota_throttled(),
        )
        self.samples.append(sample)
        return sample

    def _quota_throttled(self) -> Optional[float]:
        stat = dict(self.files.fields(self._quota_file, " ")) if self._quota_file else {}
        if "throttled_usec" in stat:  # version 2
            return (to_integer(stat["throttled_usec"]) or 0) * 1e-6
        if "throttled_time" in stat:  # version 1, nanoseconds
            return (to_integer(stat["throttled_time"]) or 0) * 1e-9
        return None

    def summary(self) -> dict[str, Any]:
        """What the samples say, as one plain dict:

        temperature_c           {start, end, max}, of the processor's hottest sensor
        freq_mhz                {min, median}, over all samples and CPUs, as cpufreq says
        clock_ghz               {start, end}: timed with dependent additions on the calling thread
        power_w                 mean power; power_sensor says of what: RAPL packages, battery, INA, hwmon
        others_busy             share of the CPUs' time that other processes took
        steal                   share that the hypervisor gave to others
        cpu_busy                {cpu: share of its time in use by anybody}
        memory_available_bytes  the low-water mark; rss_bytes the high-water mark of this process
        major_faults, swapped_bytes, quota_throttled_s   what was added meanwhile
        throttled               True, False, or None where nothing tells; throttled_by names the signs
        duration_s, n_samples, longest_gap_s, suspended_s, clock_step_s, sensors_lost

        What could not be read is None, with the reason in unavailable[key].
        """
        if not self.samples:
            raise ValueError("there is no sample yet: use the sampler as a context manager, or start() and stop()")
        s, first, last = self.samples, self.samples[0], self.samples[-1]
        why: dict[str, str] = {}
        out: dict[str, Any] = {"schema": SCHEMA, "interval_s": self.interval_s, "n_samples": len(s)}
        out.update(self._times(why))
        temperatures = [self.sensors.temperature(x.sensors) for x in s]
        known = [t for t in temperatures if t is not None]
        out["temperature_c"] = (
            {"start": temperatures[0], "end": temperatures[-1], "max": max(known)} if known else None
        )
        clocks = [f for x in s for f in x.sensors.freq_mhz.values() if f is not None]
        out["freq_mhz"] = {"min": min(clocks), "median": statistics.median(clocks)} if clocks else None
        for key in ("temperature_c", "freq_mhz"):
            if out[key] is None:
                why[key] = self.sensors.unavailable.get(key, "no sample has a value")
        ghz = self.core_ghz
        out["clock_ghz"] = {"start": ghz[0], "end": ghz[-1]} if ghz else None
        if not ghz:
            why["clock_ghz"] = "root is not this machine"
        out["power_w"], out["power_sensor"] = self._power(why)
        out.update(self._load(why))
        available = [x.memory_available_bytes for x in s if x.memory_available_bytes is not None]
        rss = [x.rss_bytes for x in s if x.rss_bytes is not None]
        swapped = _added([x.swapped_pages for x in s])
        out["memory_available_bytes"] = min(available, default=None)
        out["rss_bytes"] = max(rss, default=None)
        out["major_faults"] = _added([x.major_faults for x in s])
        out["swapped_bytes"] = None if swapped is None else swapped * os.sysconf("SC_PAGE_SIZE")
        out["quota_throttled_s"] = _added([x.quota_throttled_s for x in s])
        for key, path in (
            ("memory_available_bytes", "proc/meminfo"),
            ("rss_bytes", "proc/self/status"),
            ("major_faults", "proc/self/stat"),
            ("swapped_bytes", "proc/vmstat"),
            ("quota_throttled_s", self._quota_file or "sys/fs/cgroup/cpu.stat"),
        ):
            if out[key] is None:
                why[key] = self.files.read(path)[1] or f"/{path}: does not say"
        signs = [throttled(first.sensors.throttle, x.sensors.throttle) for x in s]
        judged = [names for names in signs if names is not None]
        out["throttled"] = any(judged) if judged else None
        out["throttled_by"] = sorted({name for names in judged for name in names})
        if not judged:
            why["throttled"] = self.sensors.unavailable.get("throttle", "no sign could be read")
        out["sensors_lost"] = _lost(first.sensors, last.sensors)
        out["unavailable"] = why
        return out

    def _times(self, why: dict[str, str]) -> dict[str, Any]:
        s = self.samples
        gaps = [b.time_s - a.time_s for a, b in zip(s, s[1:])]
        # Only what the two clocks differ by from one sample to the next: their offset is the suspends of the past.
        asleep = [(b.boot_s - b.time_s) - (a.boot_s - a.time_s) for a, b in zip(s, s[1:])]
        steps = [(b.wall_s - b.boot_s) - (a.wall_s - a.boot_s) for a, b in zip(s, s[1:])]
        if any(g < 0 for g in gaps):
            why["duration_s"] = "the monotonic clock went backwards"
        return {
            "duration_s": s[-1].time_s - s[0].time_s if all(g >= 0 for g in gaps) else None,
            "longest_gap_s": max(gaps, default=0.0),
            "suspended_s": sum(d for d in asleep if d > SUSPENDED_S),
            "clock_step_s": sum(d for d in steps if abs(d) > STEPPED_S),
        }

    def _load(self, why: dict[str, str]) -> dict[str, Any]:
        first, last = self.samples[0], self.samples[-1]
        busy, stolen, total = 0, 0, 0
        shares: dict[int, Optional[float]] = {}
        for cpu in sorted(set(first.cpu_ticks) & set(last.cpu_ticks)):
            b, st, t = (y - x for x, y in zip(first.cpu_ticks[cpu], last.cpu_ticks[cpu]))
            busy, stolen, total = busy + b, stolen + st, total + t
            shares[cpu] = b / t if t > 0 else None
        out: dict[str, Any] = {"others_busy": None, "steal": None, "cpu_busy": None}
        if total <= 0:
            reason = self.files.read("proc/stat")[1] or "shorter than a tick of the kernel's clock"
            why.update(dict.fromkeys(out, reason))
            return out
        out["cpu_busy"], out["steal"] = shares, stolen / total
        if first.own_ticks is None or last.own_ticks is None:
            why["others_busy"] = self.files.read("proc/self/stat")[1] or "/proc/self/stat: not understood"
        else:
            others = busy - (last.own_ticks - first.own_ticks)
            out["others_busy"] = min(max(others / total, 0.0), 1.0)  # both are counted in ticks
        return out

    def power_trace(self) -> tuple[list[float], list[Optional[float]], Optional[str]]:
        """Times (monotonic, s), power (W) between each sample and the one before, and the sensor it is of: the energy
        counters of the processor's packages, or else the power sensor that carries the most."""
        s = self.samples
        energy = {x.name: x for x in self.sensors.found if x.kind == "energy_j"}
        packages = [n for n in energy if n.startswith("package")] or [n for n in energy if n.startswith("psys")]
        times = [x.time_s for x in s[1:]]
        watts: list[Optional[float]] = []
        if packages and any(x.sensors.energy_j.get(packages[0]) is not None for x in s):
            for a, b in zip(s, s[1:]):
                joules = [_counted(a.sensors.energy_j, b.sensors.energy_j, n, energy[n].wraps_at) for n in packages]
                known = [j for j in joules if j is not None]
                dt = b.time_s - a.time_s
                watts.append(sum(known) / dt if len(known) == len(packages) and dt > 0 else None)
            return times, watts, " + ".join(packages)
        means = {}
        for name in {n for x in s for n in x.sensors.power_w}:
            values = [v for x in s if (v := x.sensors.power_w.get(name)) is not None]
            if values:
                means[name] = statistics.fmean(values)
        if not means:
            return times, [None] * len(times), None
        # The rail that carries the most is the one that feeds the others.
        most = max(means, key=lambda n: means[n])
        return times, [x.sensors.power_w.get(most) for x in s[1:]], most

    def means(self, stretches: Sequence[tuple[float, float]]) -> dict[str, Optional[float]]:
        """Mean power_w and temperature_c of the samples within these stretches of the monotonic clock (s)."""
        times, watts, _ = self.power_trace()
        power = [w for t, w in zip(times, watts) if w is not None and _within(t, stretches)]
        heat = [self.sensors.temperature(x.sensors) for x in self.samples if _within(x.time_s, stretches)]
        known = [t for t in heat if t is not None]
        return {
            "power_w": statistics.fmean(power) if power else None,
            "temperature_c": statistics.fmean(known) if known else None,
        }

    def _power(self, why: dict[str, str]) -> tuple[Optional[float], Optional[str]]:
        _, watts, sensor = self.power_trace()
        known = [w for w in watts if w is not None]
        if known:
            return statistics.fmean(known), sensor
        missing = self.sensors.unavailable
        reasons = [missing[k] for k in ("energy_j", "power_w") if k in missing]
        why["power_w"] = "; ".join(reasons) or "no sample has a value"
        return None, None

    def to_pandas(self) -> pandas.DataFrame:
        """One row per sample: time_s from the first one on, temperature, clocks, memory, and each sensor."""
        from rooflm._optional import need

        pd = need("pandas")
        start = self.samples[0].time_s if self.samples else 0.0
        rows = []
        for x in self.samples:
            row: dict[str, Any] = {"time_s": x.time_s - start, "temperature_c": self.sensors.temperature(x.sensors)}
            row.update(memory_available_bytes=x.memory_available_bytes, rss_bytes=x.rss_bytes)
            for kind, values in asdict(x.sensors).items():
                row.update({f"{kind} {name}": v for name, v in values.items()})
            rows.append(row)
        return pd.DataFrame(rows)

    def _rows(self) -> list[dict[str, Any]]:
        summary = self.summary()
        missing = summary.pop("unavailable")
        missing["power_sensor"] = missing.get("power_w")
        return [{"": k, "value": f"- ({missing[k]})" if v is None else _shown(v)} for k, v in summary.items()]

    def __repr__(self) -> str:
        return table(self._rows(), ("", "value")) if self.samples else f"Sampler(interval_s={self.interval_s})"

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("", "value")) if self.samples else repr(self)


def _within(t: float, stretches: Sequence[tuple[float, float]]) -> bool:
    return any(a <= t <= b for a, b in stretches)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {show(v)}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list) else show(value)


def cpu_numbers(cpus: Union[str, Sequence[int]]) -> list[int]:
    """[0, 1, 2, 3, 6] of "0-3,6", or numbers in order."""
    if not isinstance(cpus, str):
        return sorted(set(cpus))
    out: set[int] = set()
    for part in cpus.split(","):
        a, dash, b = part.partition("-")
        try:
            out.update(range(int(a), int(b if dash else a) + 1))
        except ValueError:
            raise ValueError(f"cpus must look like '0-3,6', not {cpus!r}") from None
    return sorted(out)


def _allowed_cpus(files: Files) -> list[int]:
    try:
        return [c["cpu"] for c in _core._cpus(str(files.root))["cpus"] if c["allowed"]]
    except OSError:  # neither /sys nor /proc says which CPUs there are
        return sorted(os.sched_getaffinity(0)) if files.here and hasattr(os, "sched_getaffinity") else []


def _cpu_ticks(files: Files, cpus: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    out = {}
    wanted = set(cpus)
    for line in (files.text("proc/stat") or "").splitlines():
        name, *numbers = line.split()
        if not name.startswith("cpu"):
            break  # the lines of the CPUs come first
        n = [int(x) for x in numbers if x.isdigit()]
        # user nice system idle iowait irq softirq steal; what follows is counted in user and nice already.
        if name[3:].isdigit() and (not wanted or int(name[3:]) in wanted) and len(n) >= 8:
            out[int(name[3:])] = (n[0] + n[1] + n[2] + n[5] + n[6], n[7], sum(n[:8]))
    return out


def _process_fields(files: Files) -> Optional[list[int]]:
    """Fields of /proc/self/stat from the fourth on; the second, a name, may hold spaces and brackets."""
    numbers = (files.text("proc/self/stat") or "").rpartition(")")[2].split()[1:]
    try:
        return [int(n) for n in numbers] if len(numbers) > 12 else None
    except ValueError:
        return None


def _quota_file(files: Files) -> Optional[str]:
    """cpu.stat of our control group, version 2 or the cpu controller of version 1; in a container it is at the top."""
    for number, controllers, path in (
        line.split(":", 2) for line in (files.text("proc/self/cgroup") or "").splitlines() if line.count(":") >= 2
    ):
        if number == "0":
            tops = ["sys/fs/cgroup"]
        elif "cpu" in controllers.split(","):
            tops = ["sys/fs/cgroup/cpu", "sys/fs/cgroup/" + controllers]
        else:
            continue
        for candidate in [f"{top}{p}/cpu.stat" for top in tops for p in (path.rstrip("/"), "")]:
            if "throttled" in (files.text(candidate) or ""):
                return candidate
    return None


def _added(values: Sequence[Optional[float]]) -> Any:
    known = [v for v in values if v is not None]
    return known[-1] - known[0] if known else None


def _counted(
    before: dict[str, Optional[float]], after: dict[str, Optional[float]], name: str, wraps_at: Optional[float]
) -> Optional[float]:
    a, b = before.get(name), after.get(name)
    if a is None or b is None:
        return None
    if b >= a:
        return b - a
    return b - a + wraps_at if wraps_at else None


def _lost(first: Reading, last: Reading) -> list[str]:
    """Sensors that had a value at the start and have none any more."""
    before, after = asdict(first), asdict(last)
    had = [(kind, name) for kind, values in before.items() for name, v in values.items() if v is not None]
    return [name for kind, name in had if after[kind].get(name) is None]
