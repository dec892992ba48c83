# SPDX-License-Identifier: Apache-2.0
"""What this machine is: processor, cores by class, caches, memory, limits, system; measured only when asked."""

from __future__ import annotations

import os
import platform
import sys
from html import escape
from pathlib import Path
from typing import Any, Callable, Optional

from rooflm import _core
from rooflm._keywords import checked_keywords
from rooflm.device.files import Files

SCHEMA = 1

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


def _size(n: Optional[int]) -> str:
    if n is None:
        return "unknown"
    for unit, step in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if n >= step:
            return f"{n / step:.4g} {unit}"
    return f"{n} bytes"


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
    limits += [_size(m["cgroup"]["memory_limit_bytes"])] if m["cgroup"]["memory_limit_bytes"] else []
    caches = [
        f"L{c['level']}{'' if c['type'] == 'Unified' else c['type'][0].lower()} {_size(c['size_bytes'])}"
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
        ("memory", f"{_size(m['memory_bytes'])}, {_size(m['memory_available_bytes'])} available"),
        (
            "pages",
            f"{_size(m['page_bytes'])}, huge {_size(huge['size_bytes'])} ({huge['transparent'] or 'none'})",
        ),
        ("limits", ", ".join(limits)),
        ("system", ", ".join(filter(None, (m["os"], m["kernel"], m["libc"])))),
    ]
    for r in m["measured"]["read"] if m["measured"] else ():
        name = f"read {r['where']}" + ("" if r["where"] == "memory" else " per core")
        rows.append(
            (name, f"{r['gbs']:.1f} GB/s, {r['threads']} thread(s), {r['pages']} pages, {r['kernel']}")
        )
    if m["measured"]:
        c = m["measured"]["copy"]
        rows.append(("copy memory", f"{c['gbs']:.1f} GB/s read plus written, {c['threads']} thread(s)"))
        rows.append(("clock", f"{m['measured']['clock_ghz']:.2f} GHz"))
    return [(k, v) for k, v in rows if v]


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


def _measure(m: dict[str, Any], progress: Optional[Callable[[str], None]]) -> dict[str, Any]:
    def say(text: str) -> None:
        if progress:
            progress(text)

    most = m["default_threads"]
    last = max((c["size_bytes"] for c in m["caches"]), default=32 << 20)
    room = (m["memory_available_bytes"] or 1 << 30) // 8
    size = min(max(256 << 20, 4 * last), max(room, 16 << 20))
    counts = sorted({1, *(n for n in (2, 4, 8, 16, 32, 64) if n < most), most})
    read = []
    for huge in (True, False):
        for n in counts:
            say(f"read {_size(size)}, {n} thread(s), {'huge' if huge else 'small'} pages")
            r = _core.memory_bandwidth(size, threads=n, huge=huge, passes=5)
            pages = (
                "small" if not huge else "huge" if r["huge_bytes"] >= 0.9 * size else "small (huge refused)"
            )
            read.append(_read_record("memory", size, pages, r))
    for c in m["caches"]:
        if c["type"] == "Instruction":
            continue
        part = c["size_bytes"] // 2
        say(f"read L{c['level']}")
        r = _core.memory_bandwidth(part, threads=1, repeat=max(2, (64 << 20) // part), passes=5)
        pages = "huge" if r["huge_bytes"] >= 0.9 * part else "small"
        read.append(_read_record(f"L{c['level']}", part, pages, r))
    say("copy")
    copy = _core.memory_bandwidth(size, threads=most, copy="plain")
    return {
        "read": read,
        "copy": {"gbs": copy["gbs"], "threads": most, "bytes": copy["bytes"], "counts": "read plus written"},
        "clock_ghz": _core.core_clock(5.0),
    }


def _read_record(where: str, size: int, pages: str, r: dict[str, Any]) -> dict[str, Any]:
    return {"where": where, "size_bytes": size, "threads": r["threads"], "pages": pages, "gbs": r["gbs"],
            "kernel": r["kernel"], "passes_s": r["passes_s"]}  # fmt: skip


@checked_keywords
def machine(
    measure: bool = False, *, root: str = "/", progress: Optional[Callable[[str], None]] = None
) -> Machine:
    """What this machine is, as a dict with attributes.

    Reads /proc and /sys only; measure=True also loads the machine for some seconds: read bandwidth of memory by number
    of threads, in huge and small pages, of each cache by one core, copy bandwidth, and the clock. Bandwidths are in
    GB/s (1e9 bytes), medians of 5 passes with the best read kernel, which is named.

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
        board=files.text("proc/device-tree/model") or files.text("sys/class/dmi/id/product_name"),
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
        measured=None,
    )
    if measure:
        m["measured"] = _measure(m, progress)
    return m
