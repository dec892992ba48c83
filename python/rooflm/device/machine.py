# SPDX-License-Identifier: Apache-2.0
"""What this machine is: processor, cores by class, caches, memory, limits, system; measured only when asked."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from statistics import median as _median
from typing import TYPE_CHECKING, Any, Callable, Optional

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm._optional import axes
from rooflm.device.files import Files
from rooflm.device.kept import keep, kept
from rooflm.device.latency import Ladder
from rooflm.device.sensors import Sensors
from rooflm._output import megabytes
from rooflm.device.sizes import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = 2

# (implementer, part) of /proc/cpuinfo on AArch64, where there is no model name.
ARM_PARTS = {
    0x41: {
        0xD03: "Cortex-A53", 0xD04: "Cortex-A35", 0xD05: "Cortex-A55", 0xD07: "Cortex-A57", 0xD08: "Cortex-A72",
        0xD09: "Cortex-A73", 0xD0A: "Cortex-A75", 0xD0B: "Cortex-A76", 0xD0C: "Neoverse-N1", 0xD0D: "Cortex-A77",
        0xD40: "Neoverse-V1", 0xD41: "Cortex-A78", 0xD44: "Cortex-X1", 0xD46: "Cortex-A510", 0xD47: "Cortex-A710",
        0xD48: "Cortex-X2", 0xD49: "Neoverse-N2", 0xD4D: "Cortex-A715", 0xD4E: "Cortex-X3", 0xD4F: "Neoverse-V2",
        0xD80: "Cortex-A520", 0xD81: "Cortex-A720", 0xD82: "Cortex-X4", 0xD85: "Cortex-X925", 0xD87: "Cortex-A725",
    },
    0x51: {
        0x001: "Oryon", 0x800: "Kryo 2xx Gold", 0x801: "Kryo 2xx Silver", 0x802: "Kryo 3xx Gold",
        0x803: "Kryo 3xx Silver", 0x804: "Kryo 4xx Gold", 0x805: "Kryo 4xx Silver",
    },
}  # fmt: skip


class Machine(dict[str, Any]):
    """A dict whose keys are attributes too, so that it goes into JSON as it is and reads well in a notebook."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self)
            raise AttributeError(f"a Machine has no {name!r}; it has {known}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def plot(self, ax: Optional[Axes] = None, *, kind: str = "latency") -> Axes:
        """What was measured. kind "latency": the ladder over working sets; "strides": over strides; "read": bandwidth
        by number of threads and kind of pages, and per cache level."""
        measured = self["measured"]
        if not measured:
            raise ValueError(f"nothing to plot: {self['not_measured']}")
        if kind in ("latency", "strides"):
            ladder = measured[kind]
            return Ladder(ladder["records"], ladder["by"], ladder["capped"]).plot(ax)
        if kind != "read":
            raise ValueError(f"kind={kind!r}: must be 'latency', 'strides' or 'read'")
        return _read_plot(measured["read"], ax)

    def __repr__(self) -> str:
        rows = _rows(self)
        width = max(len(k) for k, _ in rows)
        return "\n".join(f"{k.ljust(width)}  {v}" for k, v in rows)

    def _repr_html_(self) -> str:
        cell = "<td style='text-align:left'>"
        return (
            "<table>"
            + "".join(f"<tr>{cell}{escape(k)}</td>{cell}{escape(v)}</td></tr>" for k, v in _rows(self))
            + "</table>"
        )


def _read_plot(read: list[dict[str, Any]], ax: Optional[Axes]) -> Axes:
    ax = axes(ax, figsize=(8, 0.8 + 0.4 * len(read)))
    names = [f"{r['where']}, {r['threads']} thread(s), {r['pages']} pages" for r in read]
    rates = [[r["size_bytes"] / s for s in r["passes_s"]] for r in read]
    # Passes over a cache go over it many times: their rates are scaled so that the median is the bandwidth.
    spread = [(r["gbs"] * (1 - min(x) / _median(x)), r["gbs"] * (max(x) / _median(x) - 1)) for r, x in zip(read, rates)]
    ax.barh(range(len(read)), [r["gbs"] for r in read], xerr=list(zip(*spread)), capsize=3)
    ax.set_yticks(range(len(read)), names, fontsize="small")
    ax.invert_yaxis()
    ax.set(xlabel="GB/s", ylabel="read")
    ax.set_title(f"Read bandwidth, median and range of n = {len(read[0]['passes_s'])} passes", fontsize="medium")
    return ax


def _class_text(c: dict[str, Any]) -> str:
    text = f"{len(c['cpus'])} {'big' if c['big'] else 'little'}"
    facts = [f"{c['max_khz'] / 1e6:.2f} GHz"] if c["max_khz"] else []
    facts += [f"capacity {c['capacity']}"] if c["capacity"] else []
    return text + (f" ({', '.join(facts)})" if facts else "")


def _rows(m: Machine) -> list[tuple[str, str]]:
    cores = f"{m['n_cpus']} online" + (f" of {m['n_present']}" if m["n_present"] != m["n_cpus"] else "")
    if len(m["classes"]) > 1:
        cores += ": " + ", ".join(_class_text(c) for c in m["classes"])
    limits = [f"{m['cgroup']['quota']:g} CPUs"] if m["cgroup"]["quota"] else []
    limits += [megabytes(m["cgroup"]["memory_limit_bytes"])] if m["cgroup"]["memory_limit_bytes"] else []
    memory, available = (megabytes(n) if n else "unknown" for n in (m["memory_bytes"], m["memory_available_bytes"]))
    caches = [
        f"L{c['level']}{'' if c['type'] == 'Unified' else c['type'][0].lower()} {size_text(c['size_bytes'])}"
        + (f" x {c['count']}" if c["count"] > 1 else "")
        for c in m["caches"]
    ]
    huge = m["huge_pages"]
    rows = [
        ("cpu", m["cpu"] or "unknown"),
        ("board", m["board"]),
        ("isa", f"{m['isa']['in_use']} in use of {', '.join(m['isa']['available'])}" if m["isa"] else ""),
        ("cpus", cores),
        ("threads", f"{m['default_threads']} by default ({m['default_threads_reason']})"),
        ("caches", ", ".join(caches)),
        ("memory", f"{memory}, {available} available"),  # as forecast() counts it: 1e9 bytes are a GB
        (
            "pages",
            f"{size_text(m['page_bytes'])}, huge {size_text(huge['size_bytes'])} ({huge['transparent'] or 'none'})",
        ),
        ("limits", ", ".join(limits)),
        ("system", ", ".join(filter(None, (m["os"], m["kernel"], m["libc"])))),
    ]
    clocks = [f"{p['governor']} {p['min_mhz']:g} to {p['limit_mhz']:g} MHz" for p in m["cpufreq"]
              if None not in (p["governor"], p["min_mhz"], p["limit_mhz"])]  # fmt: skip
    rows.append(("governor", ", ".join(dict.fromkeys(clocks))))
    rows.append(("firmware", " ".join(filter(None, m["firmware"].values()))))
    rows.append(("sensors", ", ".join(f"{len(names)} {kind}" for kind, names in m["sensors"]["found"].items())))
    rows += _measured_rows(m["measured"]) if m["measured"] else [("measured", m["not_measured"])]
    return [(k, v) for k, v in rows if v]


def _measured_rows(measured: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("measured", f"{measured['date']}, in {measured['took_s']:.0f} s")]
    for r in measured["read"]:
        name = f"read {r['where']}" + ("" if r["where"] == "memory" else " per core")
        text = f"{r['gbs']:.1f} GB/s, {r['threads']} thread(s), {r['pages']} pages, {r['kernel']}"
        rows.append((name, text))
    for c in measured["copy"]:
        rows.append((f"copy, {c['how']}", f"{c['gbs']:.1f} GB/s, {c['threads']} thread(s); counted: {c['counts']}"))
    for p in measured["peak"]:
        rows.append((f"peak {p['isa']} {p['kind']}", f"{p['gops']:.0f} G operations/s, {p['threads']} thread(s)"))
    walks = measured["latency"]["records"]
    for r in walks:
        if r["size_bytes"] == max(w["size_bytes"] for w in walks):
            rows.append((f"latency, {r['order']}", f"{r['ns']:.1f} ns over {size_text(r['size_bytes'])}, "
                         f"{r['pages']} pages of {size_text(r['page_bytes'])}"))  # fmt: skip
    rows.append(("clock", f"{measured['clock_ghz']:.2f} GHz"))
    return rows


def _cpu_name(files: Files) -> Optional[str]:
    fields = files.fields("proc/cpuinfo")
    for wanted in ("model name", "Hardware", "cpu model"):
        names = [v for k, v in fields if k == wanted and v]
        if names and wanted == "model name":
            return names[0]
    counts: dict[str, int] = {}
    implementer = 0
    for k, v in fields:
        try:
            if k == "CPU implementer":
                implementer = int(v, 16)
            elif k == "CPU part":
                name = ARM_PARTS.get(implementer, {}).get(
                    int(v, 16), f"implementer {implementer:#x} part {v}"
                )
                counts[name] = counts.get(name, 0) + 1
        except ValueError:
            continue
    if counts:
        return " + ".join(f"{n} x {name}" for name, n in counts.items())
    return None


def _cache_size(text: Optional[str]) -> Optional[int]:
    if not text:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text.rstrip("KMGkmg")
    return int(digits) * scale if digits.isdigit() else None


def _caches(files: Files, cpus: list[int]) -> list[dict[str, Any]]:
    """One entry per level, type and size, with how many there are."""
    found: dict[tuple[int, str, int], set[str]] = {}
    lines: dict[tuple[int, str, int], Optional[int]] = {}
    for cpu in cpus:
        for i in range(16):
            base = f"sys/devices/system/cpu/cpu{cpu}/cache/index{i}/"
            level, size = files.integer(base + "level"), _cache_size(files.text(base + "size"))
            if level is None:
                break
            if size is None:
                continue
            key = (level, files.text(base + "type") or "Unified", size)
            found.setdefault(key, set()).add(files.text(base + "shared_cpu_list") or str(cpu))
            lines[key] = files.integer(base + "coherency_line_size")
    return [
        {"level": level, "type": kind, "size_bytes": size, "line_bytes": lines[level, kind, size],
         "count": len(shared), "shared_cpus": sorted(shared)}
        for (level, kind, size), shared in sorted(found.items())
    ]  # fmt: skip


def _huge_pages(files: Files) -> dict[str, Any]:
    modes = files.text("sys/kernel/mm/transparent_hugepage/enabled") or ""
    mode = modes[modes.find("[") + 1 : modes.find("]")] if "[" in modes else None
    return {
        "transparent": mode,
        "size_bytes": files.integer("sys/kernel/mm/transparent_hugepage/hpage_pmd_size"),
    }


def _libc() -> Optional[str]:
    if hasattr(sys, "getandroidapilevel"):
        return f"bionic (API {sys.getandroidapilevel()})"
    name, version = platform.libc_ver()
    if name:
        return f"{name} {version}"
    loaders = list(Path("/lib").glob("ld-musl-*")) if Path("/lib").is_dir() else []
    return "musl" if loaders else None


def _firmware(files: Files) -> dict[str, Optional[str]]:
    """Who made what the board boots from, its version and date: BIOS or UEFI, or Android's build."""
    dmi = "sys/class/dmi/id/"
    build = _android_build() if files.here else {}
    return {
        "vendor": files.text(dmi + "bios_vendor") or build.get("ro.product.manufacturer"),
        "version": files.text(dmi + "bios_version") or build.get("ro.build.display.id"),
        "date": files.text(dmi + "bios_date") or build.get("ro.build.version.security_patch"),
    }


def _android_build() -> dict[str, str]:
    """What getprop says, on Android only."""
    tool = shutil.which("getprop")
    if not tool or not os.path.isdir("/system"):
        return {}
    names = ("ro.product.manufacturer", "ro.product.model", "ro.build.display.id", "ro.build.version.security_patch")
    out = {}
    for name in names:
        said = subprocess.run([tool, name], capture_output=True, text=True, timeout=5, check=False).stdout.strip()
        if said:
            out[name] = said
    return out


def _cpufreq(files: Files) -> list[dict[str, Any]]:
    """One entry per policy: the CPUs that share a clock, its governor, and its limits in MHz."""
    base = "sys/devices/system/cpu/cpufreq/"
    out = []
    for name in files.names(base):
        if not name.startswith("policy"):
            continue

        def mhz(key: str, at: str = base + name) -> Optional[float]:
            khz = files.integer(f"{at}/{key}")
            return None if khz is None else khz / 1e3

        out.append(
            {
                "cpus": [int(c) for c in (files.text(f"{base}{name}/related_cpus") or "").split() if c.isdigit()],
                "governor": files.text(f"{base}{name}/scaling_governor"),
                "driver": files.text(f"{base}{name}/scaling_driver"),
                "min_mhz": mhz("cpuinfo_min_freq"),
                "max_mhz": mhz("cpuinfo_max_freq"),
                "limit_mhz": mhz("scaling_max_freq"),
                "now_mhz": mhz("scaling_cur_freq"),
            }
        )
    return out


def _sensors(files: Files) -> dict[str, Any]:
    sensors = Sensors(files.root)
    found: dict[str, list[str]] = {}
    for s in sensors.found:
        found.setdefault(s.kind, []).append(s.name)
    return {"found": found, "unavailable": sensors.unavailable, "passive_trip_c": sensors.passive_trip_c()}


@checked_keywords
def machine(
    measure: bool = False, *, root: str = "/", progress: Optional[Callable[[str], None]] = None
) -> Machine:
    """What this machine is, as a dict with attributes.

    Reads /proc and /sys only; measure=True also loads the machine, for some twenty seconds: read bandwidth of memory by
    number of threads, in huge and small pages, of each cache by one core, copy bandwidth with plain and with streaming
    stores, the ladder of latencies from 4 KB to 1 GB (capped by memory) and over strides, integer and float peaks of
    each tier, and the clock. Bandwidths are in GB/s (1e9 bytes), medians of 5 passes with the best kernel, named.

    A measurement is kept (rooflm.device.kept) and shown as `measured`, with its date, by later calls, while the
    processor, tier, CPUs, kernel, governors, memory and version of the library are the same, and for 30 days; else
    `measured` is None and `not_measured` says why.

    root: another directory to read instead of / (a copy of /proc and /sys). progress: called with a line of text before
    each measurement.
    """
    files = Files(root)
    here = files.root == Path("/")
    if measure and not here:
        raise ValueError("measure=True needs root='/': another machine's files cannot be measured")
    cpus = _core._cpus(str(root))
    memory = dict(files.fields("proc/meminfo"))

    def memory_bytes(key: str) -> Optional[int]:
        number = memory.get(key, "").split()
        return int(number[0]) * 1024 if number and number[0].isdigit() else None

    system = {k: v.strip('"') for k, v in files.fields("etc/os-release", "=")}
    m = Machine(
        schema=SCHEMA,
        cpu=_cpu_name(files) or (platform.processor() or None if here else None),
        board=files.text("proc/device-tree/model") or files.text("sys/class/dmi/id/product_name")
        or (_android_build().get("ro.product.model") if here else None),
        isa=_core._isa() if here else None,
        n_cpus=cpus["n"],
        n_present=cpus["n_present"],
        allowed_cpus=[c["cpu"] for c in cpus["cpus"] if c["allowed"]],
        classes=cpus["classes"],
        default_threads=cpus["default_threads"],
        default_threads_reason=cpus["reason"],
        default_cpus=cpus["default_cpus"],
        caches=_caches(files, [c["cpu"] for c in cpus["cpus"]]),
        memory_bytes=memory_bytes("MemTotal"),
        memory_available_bytes=memory_bytes("MemAvailable"),
        page_bytes=os.sysconf("SC_PAGE_SIZE") if here else None,
        huge_pages=_huge_pages(files),
        cgroup={
            "version": cpus["cgroup"],
            "quota": cpus["quota"],
            "memory_limit_bytes": cpus["memory_limit_bytes"],
        },
        os=system.get("PRETTY_NAME") or (platform.system() if here else None),
        kernel=platform.release() if here else files.text("proc/sys/kernel/osrelease"),
        arch=platform.machine() if here else None,
        libc=_libc() if here else None,
        python=platform.python_version(),
        cpufreq=_cpufreq(files),
        firmware=_firmware(files),
        sensors=_sensors(files),
        measured=None,
        not_measured="of another machine" if not here else "",
    )
    if measure:
        from rooflm.device.measure import measure as measure_all

        m["measured"] = measure_all(m, progress)
        m["not_kept"] = keep(m, m["measured"])
    elif here:
        m["measured"], m["not_measured"] = kept(m)
    return m
