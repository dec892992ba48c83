# SPDX-License-Identifier: Apache-2.0
"""The rules of a diagnosis: each judges one cause from the facts (facts.py), with its evidence and the next step.

`factor` is by how much the cause slows the model down, 1 for not at all, None where the system does not show what
would be needed. It is measured where the setting can be put back and tried, else estimated as the docstrings say.
A rule names its cause from direct evidence alone, never because a run was slow: a slow run without evidence is a gap
that is left unexplained, and said to be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Optional

from rooflm._output import megabytes

NAMED = 1.1  # a cause that costs less is not worth a step
ANSWER_TOKENS = 64  # of the answer beside which a slow start is judged
BITS_SLACK = 1.5  # mixtures keep some matrices finer; beyond this a file is not what it says
COLD = 0.9  # of the file resident: below, the first pass waits for the disk
OTHERS = 0.1  # of all CPUs taken by other processes
STEAL = 0.05
SLOWER = 0.95  # of the clock the hardware can do
LONG = 1.25  # bytes per token with the context over those of the weights


@dataclass(frozen=True)
class Finding:
    cause: str
    factor: Optional[float]
    evidence: str
    next_step: str
    #: "speed" is part of the gap to the ceiling; "ceiling" lowers the ceiling itself; "start" delays the first token
    where: str

    @property
    def named(self) -> bool:
        return self.factor is not None and self.factor >= NAMED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "named": self.named}


Rule = Callable[[dict[str, Any]], Finding]


def file_claim(f: dict[str, Any]) -> Finding:
    """Bits per weight of the layers over those of the type that the name or the metadata states."""
    file, held = f["file"], f["file"]["bits_per_weight_layers"]
    if not file["claims"] or not held:
        return Finding("file claim", None, "neither the name nor the metadata states a type", "", "ceiling")
    claim = min(file["claims"], key=lambda c: float(c["bits_per_weight"]))
    ratio = held / claim["bits_per_weight"]
    most = ", ".join(f"{r['type']} {r['share']:.0%}" for r in file["types"][:3])
    evidence = (
        f"{claim['source']} says {claim['claim']} (about {claim['bits_per_weight']:.2g} bits), the layers hold "
        f"{held:.2f} bits per weight; bytes by type: {most}"
    )
    step = f"quantize it to {claim['claim']} or get another file: `rooflm info` shows each type"
    return Finding("file claim", ratio if ratio >= BITS_SLACK else 1.0, evidence, step, "ceiling")


def loading(f: dict[str, Any]) -> Finding:
    """Time of the start that a warm mapped file would not need, beside an answer of ANSWER_TOKENS."""
    load, speed = f["load"], f["speed"]
    answer_s = load["again_s"] + ANSWER_TOKENS / speed["decode_tps"]
    if not load["mapped"]:
        lost = max(0.0, (load["open_s"] or 0.0) - (load["open_mapped_s"] or 0.0))
        evidence = (
            f"the whole file, {megabytes(f['file']['file_bytes'])}, was read into private memory"
            + (f" in {load['open_s']:.2f} s" if load["open_s"] is not None else "")
            + (f"; mapping it takes {load['open_mapped_s']:.3f} s" if load["open_mapped_s"] is not None else "")
        )
        step = 'load it mapped (load="auto"); where mapping was refused, keep the file on a local file system'
        return Finding("loading", max(NAMED, 1 + lost / answer_s), evidence, step, "start")
    share = load["resident_share"]
    if share is None:
        return Finding("loading", None, "the system does not tell which pages of this file are resident", "", "start")
    lost = max(0.0, load["first_s"] - load["again_s"])
    evidence = (
        f"{share:.0%} of the file was in memory before; first tokens took {load['first_s']:.3f} s, "
        f"the same again {load['again_s']:.3f} s"
    )
    step = "read the file once before it is needed, or keep the process; free memory if it does not stay resident"
    return Finding("loading", max(NAMED, 1 + lost / answer_s) if share < COLD else 1.0, evidence, step, "start")


def _trial(f: dict[str, Any], name: str) -> Optional[float]:
    tried = f["tried"].get(name)
    return tried["default_tps"] / tried["given_tps"] if tried else None


def kernel(f: dict[str, Any]) -> Finding:
    """Measured: the speed with the default kernels over the speed with those asked for."""
    slow = [k for k in f["ran"]["kernels"] if k["isa"] != k["best_isa"]]
    ratios = {n: r for n in ("kernel", "compute") if (r := _trial(f, n)) is not None}
    if not slow and not ratios:
        names = ", ".join(k["kernel"] for k in f["ran"]["kernels"][:2])
        return Finding("kernel", 1.0, f"the best tier of this CPU runs: {names}", "", "speed")
    shown = slow or f["ran"]["kernels"]
    evidence = ", ".join(f"{k['kernel']} ran ({k['best_isa']} is the best tier here)" for k in shown[:2])
    for name in ratios:
        tried = f["tried"][name]
        evidence += f"; default {name}: {tried['default_tps']:.1f} instead of {tried['given_tps']:.1f} tok/s"
    if not slow and max(ratios.values()) < NAMED:
        return Finding("kernel", 1.0, evidence, "", "speed")
    # Without a trial (ROOFLM_ISA or ROOFLM_KERNELS is set) at least the threshold: it is no guess that it runs.
    factor = max([NAMED, *ratios.values()]) if slow else max(ratios.values())
    step = "leave out kernel=, isa=, compute=, ROOFLM_ISA and ROOFLM_KERNELS; `rooflm kernels` shows what can run"
    return Finding("kernel", factor, evidence, step, "speed")


def threads(f: dict[str, Any]) -> Finding:
    """Measured where a number was asked for; more threads than CPUs cost at least that ratio."""
    m, n = f["machine"], f["ran"]["threads"]
    room = min(len(m["allowed_cpus"]), max(1, int(m["quota"])) if m["quota"] else len(m["allowed_cpus"]))
    tried, ratio = f["tried"].get("threads"), _trial(f, "threads") or 1.0
    measured = (
        f"; with the default {m['default_threads']}: {tried['default_tps']:.1f} instead of "
        f"{tried['given_tps']:.1f} tok/s"
        if tried
        else ""
    )
    step = f"leave out threads= ({m['default_threads']} is the default here: {m['default_threads_reason']})"
    if n > room:
        evidence = f"{n} threads on {room} CPUs: they wait for each other at every barrier{measured}"
        return Finding("threads", max(ratio, n / room), evidence, step, "speed")
    if n < m["default_threads"] and ratio >= NAMED:
        return Finding("threads", ratio, f"{n} of {m['default_threads']} threads used{measured}", step, "speed")
    return Finding("threads", 1.0, f"{n} threads on {room} CPUs{measured}", "", "speed")


def cores(f: dict[str, Any]) -> Finding:
    """Capacity (else clock) of the fastest class over that of the slowest core used: barriers wait for it."""
    classes, used = f["machine"]["classes"], f["ran"]["pinned"] or f["ran"]["ran_on"]
    if len(classes) < 2:
        return Finding("cores", 1.0, "all cores are of one class", "", "speed")
    if not used:
        return Finding("cores", None, "the system does not tell on which cores the threads ran", "", "speed")
    by_cpu = {cpu: c for c in classes for cpu in c["cpus"]}
    slowest = min(
        (by_cpu[c] for c in used if c in by_cpu), key=lambda c: c["capacity"] or c["max_khz"] or 0, default=classes[0]
    )
    little = [c for c in used if c in by_cpu and not by_cpu[c]["big"]]
    key = "capacity" if classes[0]["capacity"] and slowest["capacity"] else "max_khz"
    ratio = classes[0][key] / slowest[key] if classes[0][key] and slowest[key] else 1.0
    big = [c for k in classes if k["big"] for c in k["cpus"]]
    evidence = f"threads ran on CPUs {_list(used)}; the big ones are {_list(big)}"
    if not little:
        return Finding("cores", 1.0, evidence, "", "speed")
    free = [c for c in big if c in f["machine"]["allowed_cpus"]]
    if not free:
        return Finding("cores", max(NAMED, ratio), evidence + ", which this process may not use",
                       "widen the CPU affinity or the cpuset of this process (taskset, cgroup)", "speed")  # fmt: skip
    step = f'pin the threads to big cores: cpus="{",".join(map(str, free))}"'
    return Finding("cores", max(NAMED, ratio), evidence, step, "speed")


def frequency(f: dict[str, Any]) -> Finding:
    """The clock the hardware can do over the limit set for it; heat is named where something says that it throttled."""
    rows, s = f["frequency"], f["system"]
    clock = max(s["clock_ghz"].values()) if s["clock_ghz"] else None
    measured = f"measured clock {clock:.2f} GHz" if clock else "clock not measured"
    if s["throttled"]:
        ratio = max([1.0, *(r["max_khz"] / (clock * 1e6) for r in rows if clock)])
        hot = f" at {s['temperature_c']['max']:.0f} °C" if s["temperature_c"] else ""
        evidence = f"throttled{hot} during the run, says {', '.join(s['throttled_by'])}; {measured}"
        return Finding("frequency", max(NAMED, ratio), evidence, "cool it, or pace the work", "speed")
    if not rows:
        return Finding("frequency", None, f"no cpufreq in /sys; {measured}", "", "speed")

    def share(r: dict[str, Any]) -> float:
        return float((r["limit_khz"] or r["max_khz"]) / r["max_khz"])

    worst = min(rows, key=share)
    evidence = (
        f"CPU {worst['cpu']} is limited to {share(worst) * worst['max_khz'] / 1e6:.2f} of "
        f"{worst['max_khz'] / 1e6:.2f} GHz, governor {worst['governor'] or 'unknown'}; {measured}"
    )
    if share(worst) >= SLOWER:
        return Finding("frequency", 1.0, evidence, "", "speed")
    step = "raise scaling_max_freq (power profile, battery saver, cpupower), then measure again"
    return Finding("frequency", max(NAMED, 1 / share(worst)), evidence, step, "speed")


def background(f: dict[str, Any]) -> Finding:
    """Time the threads waited for a CPU, or else what others took of the CPUs that the threads need, as lost time.
    Others on CPUs that no thread needs take their share of the memory, so they are named as well, at the least cost."""
    s, n = f["system"], f["ran"]["threads"]
    room = len(f["machine"]["allowed_cpus"])
    other, steal, wait = s["others_busy"], s["steal"], s["wait_share"]
    if other is None and (wait is None or n > room):
        return Finding("background", None, s["unavailable"].get("others_busy", "/proc/stat says nothing"), "", "speed")
    if other is None:
        busy, evidence = wait >= 2 * OTHERS, f"the threads waited {wait:.0%} of the time for a CPU"
    else:
        busy = other >= OTHERS or (steal or 0.0) >= STEAL
        evidence = f"other processes took {other:.0%} of all CPUs, the host {steal or 0:.0%}"
        if wait is not None:
            evidence += f"; the threads waited {wait:.0%} of the time for a CPU"
    if not busy:
        return Finding("background", 1.0, evidence, "", "speed")
    if s.get("running"):
        evidence += f"; running: {', '.join(s['running'])}"
    left = room * (1 - (other or 0.0) - (steal or 0.0)) / min(n, room)
    lost = max(1 - left, wait or 0.0 if n <= room else 0.0)
    step = "stop what else runs, or leave it a core (threads=), then measure again"
    return Finding("background", max(NAMED, 1 / (1 - min(lost, 0.9))), evidence, step, "speed")


def swap(f: dict[str, Any]) -> Finding:
    """Time stalled for memory where the kernel counts it; else the whole gap, since one token then waits for a disk."""
    m, s, speed = f["memory"], f["system"], f["speed"]
    swapped, came_in = m["process_swap_bytes"], s["swapped_bytes"]
    if swapped is None and came_in is None:
        return Finding("swap", None, "the system does not show what is in swap", "", "speed")
    evidence = f"{megabytes(swapped or 0)} of this process in swap, {megabytes(came_in or 0)} swapped while decoding"
    if s["stall_share"]:
        evidence += f", {s['stall_share']:.0%} of the time stalled for memory"
    share = (swapped or 0) / max(1, (swapped or 0) + (m["process_resident_bytes"] or 0))
    if share < 0.05 and not came_in:
        return Finding("swap", 1.0, evidence, "", "speed")
    gap = 1 / max(speed["share"], 1e-6)
    ratio = 1 / (1 - min(s["stall_share"], 0.95)) if s["stall_share"] else gap
    step = "a smaller model, fewer bits or kv=q8_0; close what else needs memory (`rooflm forecast` says how much)"
    return Finding("swap", max(NAMED, ratio, 1 + share), evidence, step, "speed")


def context(f: dict[str, Any]) -> Finding:
    """Bytes per token with the keys and values in use over those of the weights alone."""
    s, depth = f["speed"], f["settings"]["depth"]
    ratio = s["bytes_per_token"] / s["weight_bytes_per_token"]
    evidence = (
        f"a token reads {megabytes(s['weight_bytes_per_token'])} of weights and {megabytes(s['kv_bytes_per_token'])} "
        f"of keys and values ({f['ran']['kv']}) at depth {depth}"
    )
    step = "a shorter context" + ("" if f["ran"]["kv"] == "q8_0" else ', or kv="q8_0"')
    return Finding("context", ratio if ratio >= LONG else 1.0, evidence, step, "ceiling")


RULES: tuple[Rule, ...] = (file_claim, loading, kernel, cores, threads, frequency, background, swap, context)


def judge(facts: dict[str, Any]) -> list[Finding]:
    """Every cause, the costliest first; those that the system does not show last."""
    found = [rule(facts) for rule in RULES]
    return sorted(found, key=lambda x: -(x.factor or 0.0))


def _list(cpus: list[int]) -> str:
    return ", ".join(map(str, cpus)) or "none"
