# SPDX-License-Identifier: Apache-2.0
"""Sensors of the machine, read from sysfs: temperatures, clocks, power and energy, and signs of throttling.

A sensor that is missing, refused or gone in the middle of a run is a fact of the reading, never an exception: its value
is None, and `unavailable` says why for each kind of which nothing can be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Union

from rooflm._output import html_table, table
from rooflm.device.files import Files

CPU = "sys/devices/system/cpu/"
RASPBERRY = "sys/devices/platform/soc/soc:firmware/get_throttled"
RASPBERRY_THROTTLED = 0b1110  # now: clock capped, throttled, soft temperature limit (bit 0 is low voltage)

# Names of thermal zones and hwmon chips that sit on the processor, in order of preference. Others (battery, disk,
# radio) count for the temperature only where there is none of these.
ON_THE_PROCESSOR = ("x86_pkg_temp", "coretemp", "k10temp", "zenpower", "cpu", "soc", "tsens", "bcm2835", "big")
PLAUSIBLE_C = (-40.0, 150.0)  # zones that are switched off report values outside

KINDS = {
    "temperature_c": "no thermal zone and no hwmon temperature",
    "freq_mhz": "no cpufreq directory: the clock can be timed, not read",
    "power_w": "no INA or hwmon power sensor and no battery that reports it",
    "energy_j": "no RAPL counter under /sys/class/powercap",
    "throttle": "no throttle counter, no cooling device of the processor, no cpufreq limit",
}


@dataclass(frozen=True)
class Sensor:
    """One value below the root. Power that is not reported as such is the product of voltage and current."""

    kind: str  #: a key of KINDS
    name: str
    path: str
    scale: float  #: value in the unit of the kind = number in the file x scale
    times: Optional[str] = None  #: path of a second factor, on the same scale
    only_if: Optional[tuple[str, str]] = None  #: (path, text): no value unless that file says so
    cpu: Optional[int] = None
    wraps_at: Optional[float] = None  #: energy counters start again at 0 here
    base: int = 10  #: the firmware's flags are hexadecimal


@dataclass
class Reading:
    """What the sensors say at one moment; None where one could not be read."""

    temperature_c: dict[str, Optional[float]] = field(default_factory=dict)
    freq_mhz: dict[str, Optional[float]] = field(default_factory=dict)
    power_w: dict[str, Optional[float]] = field(default_factory=dict)
    energy_j: dict[str, Optional[float]] = field(default_factory=dict)
    throttle: dict[str, Optional[float]] = field(default_factory=dict)


class Sensors:
    """The sensors found below root, and their values now.

    found         list of Sensor
    unavailable   {kind: why nothing of that kind can be read}, over the kinds temperature_c, freq_mhz, power_w,
                  energy_j and throttle
    read()        a Reading
    temperature() the temperature of the processor in °C: its hottest sensor, or the hottest of all where no sensor is
                  known to sit on it; None without sensors

    cpus limits clocks and throttle counters to these CPU numbers; default all.
    """

    def __init__(self, root: Union[str, os.PathLike[str]] = "/", *, cpus: Optional[Sequence[int]] = None) -> None:
        self.files = Files(root)
        present = [int(n[3:]) for n in self.files.names(CPU) if n.startswith("cpu") and n[3:].isdigit()]
        self.cpus = sorted(present if cpus is None else set(present) & set(cpus))
        self._failed: dict[str, str] = {}
        self._taken: set[tuple[str, str]] = set()
        self.found = [
            *self._thermal_zones(),
            *self._hwmon(),
            *self._iio(),
            *self._batteries(),
            *self._rapl(),
            *self._clocks(),
            *self._throttling(),
        ]
        self.read()

    @property
    def unavailable(self) -> dict[str, str]:
        out = {}
        for kind, nothing in KINDS.items():
            sensors = [s for s in self.found if s.kind == kind]
            failed = [self._failed[s.path] for s in sensors if s.path in self._failed]
            if not sensors:
                out[kind] = nothing
            elif len(failed) == len(sensors):
                out[kind] = failed[0]
        return out

    def read(self) -> Reading:
        reading = Reading()
        for s in self.found:
            getattr(reading, s.kind)[s.name] = self._value(s)
        return reading

    def temperature(self, reading: Optional[Reading] = None) -> Optional[float]:
        temperatures = (reading or self.read()).temperature_c
        known = {name: t for name, t in temperatures.items() if t is not None}
        on_it = [t for name, t in known.items() if any(k in name.lower() for k in ON_THE_PROCESSOR)]
        return max(on_it or known.values(), default=None)

    def passive_trip_c(self) -> Optional[float]:
        """The lowest temperature at which the kernel begins to slow the processor down, where it says so."""
        trips = []
        for zone in self.files.names("sys/class/thermal"):
            for name in self.files.names(f"sys/class/thermal/{zone}"):
                if name.startswith("trip_point_") and name.endswith("_type"):
                    base = f"sys/class/thermal/{zone}/{name[:-5]}"
                    value = self.files.integer(base + "_temp")
                    if self.files.text(base + "_type") == "passive" and value and value > 0:
                        trips.append(value * 1e-3)
        return min(trips, default=None)

    def _value(self, s: Sensor) -> Optional[float]:
        text, why = self.files.read(s.path)
        value = None if text is None else _number(text, s.base)
        if why is None and value is None:
            why = f"/{s.path}: holds {text!r}, not a number"
        if value is not None:
            value *= s.scale
        if value is not None and s.times:
            text, why = self.files.read(s.times)
            factor = _number(text or "", 10)
            # Batteries sign the current of discharging either way.
            value = None if factor is None else abs(value * factor * s.scale)
        if value is not None and s.only_if and self.files.text(s.only_if[0]) != s.only_if[1]:
            value, why = None, f"/{s.only_if[0]}: not {s.only_if[1]!r}"
        if value is not None and s.kind == "temperature_c" and not PLAUSIBLE_C[0] <= value <= PLAUSIBLE_C[1]:
            value, why = None, f"/{s.path}: {value:g} °C is no temperature"
        if value is None:
            self._failed[s.path] = why or f"/{s.path}: not readable"
        else:
            self._failed.pop(s.path, None)
        return value

    def _sensor(self, kind: str, name: str, path: str, scale: float, **more: Any) -> Sensor:
        """Zones, chips and batteries may share a name; numbers tell them apart."""
        unique, n = name, 2
        while (kind, unique) in self._taken:
            unique, n = f"{name} {n}", n + 1
        self._taken.add((kind, unique))
        return Sensor(kind, unique, path, scale, **more)

    def _thermal_zones(self) -> list[Sensor]:
        out = []
        for zone in self.files.names("sys/class/thermal"):
            if zone.startswith("thermal_zone"):
                base = f"sys/class/thermal/{zone}/"
                name = self.files.text(base + "type") or zone
                out.append(self._sensor("temperature_c", name, base + "temp", 1e-3))
        return out

    def _hwmon(self) -> list[Sensor]:
        out = []
        for chip in self.files.names("sys/class/hwmon"):
            base = f"sys/class/hwmon/{chip}/"
            chip_name = self.files.text(base + "name") or chip
            names = self.files.names(base)

            def label(channel: str, base: str = base, chip_name: str = chip_name) -> str:
                return f"{chip_name} {self.files.text(f'{base}{channel}_label') or channel}"

            for n in names:
                channel, _, what = n.rpartition("_")
                if what == "input" and channel.startswith("temp"):
                    out.append(self._sensor("temperature_c", label(channel), base + n, 1e-3))
                elif what == "input" and channel.startswith("power"):
                    out.append(self._sensor("power_w", label(channel), base + n, 1e-6))
                elif what == "average" and channel.startswith("power") and channel + "_input" not in names:
                    out.append(self._sensor("power_w", label(channel), base + n, 1e-6))
            if not any(n.startswith("power") and n.endswith(("_input", "_average")) for n in names):
                # INA chips without a power register: millivolts of the bus and milliamperes of the same channel.
                for n in names:
                    if n.startswith("curr") and n.endswith("_input") and f"in{n[4:-6]}_input" in names:
                        channel = f"in{n[4:-6]}"
                        volts = f"{base}{channel}_input"
                        out.append(self._sensor("power_w", label(channel), volts, 1e-3, times=base + n))
        return out

    def _iio(self) -> list[Sensor]:
        """INA3221 as boards of the Jetson family show it: milliwatts by rail."""
        out = []
        top = "sys/bus/i2c/drivers/ina3221x"
        for chip in self.files.names(top):
            for device in self.files.names(f"{top}/{chip}"):
                base = f"{top}/{chip}/{device}/"
                for n in self.files.names(base) if device.startswith("iio:device") else ():
                    if n.startswith("in_power") and n.endswith("_input"):
                        rail = self.files.text(f"{base}rail_name_{n[8:-6]}") or n
                        out.append(self._sensor("power_w", f"ina3221 {rail}", base + n, 1e-3))
        return out

    def _batteries(self) -> list[Sensor]:
        out = []
        for name in self.files.names("sys/class/power_supply"):
            base = f"sys/class/power_supply/{name}/"
            if self.files.text(base + "type") != "Battery":
                continue
            here = self.files.names(base)
            if "temp" in here:
                out.append(self._sensor("temperature_c", name, base + "temp", 0.1))
            # While it charges, its current says nothing about what the machine takes.
            only = (base + "status", "Discharging")
            if "power_now" in here:
                out.append(self._sensor("power_w", name, base + "power_now", 1e-6, only_if=only))
            elif "voltage_now" in here and "current_now" in here:
                amperes = base + "current_now"
                out.append(self._sensor("power_w", name, base + "voltage_now", 1e-6, times=amperes, only_if=only))
        return out

    def _rapl(self) -> list[Sensor]:
        out = []
        for zone in self.files.names("sys/class/powercap"):
            base = f"sys/class/powercap/{zone}/"
            if "energy_uj" in self.files.names(base):
                wraps = self.files.integer(base + "max_energy_range_uj")
                name, range_j = self.files.text(base + "name") or zone, wraps * 1e-6 if wraps else None
                out.append(self._sensor("energy_j", name, base + "energy_uj", 1e-6, wraps_at=range_j))
        return out

    def _clocks(self) -> list[Sensor]:
        out = []
        for cpu in self.cpus:
            base = f"{CPU}cpu{cpu}/cpufreq/"
            if "scaling_cur_freq" in self.files.names(base):
                out.append(self._sensor("freq_mhz", f"cpu{cpu}", base + "scaling_cur_freq", 1e-3, cpu=cpu))
        return out

    def _throttling(self) -> list[Sensor]:
        out = []
        for cpu in self.cpus:
            base = f"{CPU}cpu{cpu}/thermal_throttle/"
            for n in ("core_throttle_count", "package_throttle_count"):
                if n in self.files.names(base):
                    out.append(self._sensor("throttle", f"count cpu{cpu} {n[:-15]}", base + n, 1.0, cpu=cpu))
            if "scaling_max_freq" in self.files.names(f"{CPU}cpu{cpu}/cpufreq"):
                path = f"{CPU}cpu{cpu}/cpufreq/scaling_max_freq"
                out.append(self._sensor("throttle", f"limit cpu{cpu} MHz", path, 1e-3, cpu=cpu))
        for name in self.files.names("sys/class/thermal"):
            base = f"sys/class/thermal/{name}/"
            kind = (self.files.text(base + "type") or "").lower() if name.startswith("cooling_device") else ""
            if kind.startswith("processor") or "cpu" in kind:
                out.append(self._sensor("throttle", f"cooling {name[14:]} {kind}", base + "cur_state", 1.0))
        if self.files.text(RASPBERRY) is not None:
            out.append(self._sensor("throttle", "firmware flags", RASPBERRY, 1.0, base=16))
        return out

    def _rows(self) -> list[dict[str, Any]]:
        reading = self.read()
        rows: list[dict[str, Any]] = [
            {"kind": s.kind, "sensor": s.name, "value": getattr(reading, s.kind)[s.name], "from": "/" + s.path}
            for s in self.found
        ]
        return rows + [{"kind": k, "sensor": None, "value": None, "from": why} for k, why in self.unavailable.items()]

    def __repr__(self) -> str:
        return table(self._rows(), ("kind", "sensor", "value", "from"))

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("kind", "sensor", "value", "from"))


def _number(text: str, base: int) -> Optional[float]:
    try:
        return float(int(text, base))
    except ValueError:
        return None


def throttled(start: dict[str, Optional[float]], now: dict[str, Optional[float]]) -> Optional[list[str]]:
    """Which of the signs in Reading.throttle show that the processor was slowed down since `start`: a counter that
    grew, a limit of the clock that fell, a cooling device or a flag of the firmware that is on. None when there are
    none to judge by."""
    judged, signs = False, []
    for name, value in now.items():
        before = start.get(name)
        if value is None:
            continue
        if name.startswith(("count ", "limit ")):
            if before is None:
                continue
            sign = value > before if name.startswith("count ") else value < 0.99 * before
        elif name == "firmware flags":
            sign = bool(int(value) & RASPBERRY_THROTTLED)
        else:
            sign = value > 0
        judged = True
        if sign:
            signs.append(name)
    return signs if judged else None
