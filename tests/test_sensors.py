# SPDX-License-Identifier: Apache-2.0
"""Sensors and the sampler on fake trees of other machines: values, units, and what is missing, refused or vanishes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rooflm.device.sampler import Clocks, Sampler
from rooflm.device.sensors import Sensors


class Tree:
    """A fake /proc and /sys, and the clock of its machine."""

    def __init__(self, root: Path):
        self.root = root
        self.clocks = [Clocks(100.0 + i, 500.0 + i, 1e9 + i) for i in range(100)]

    def write(self, files):
        for path, text in files.items():
            p = self.root / path
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_text(f"{text}\n")
        return self

    def remove(self, path):
        (self.root / path).unlink()

    def load(self, cpus, own=(0, 0), majflt=0):
        """cpus: (user, idle, steal) ticks by CPU; own: user and system ticks of this process."""
        lines = [f"cpu{i} {user} 0 0 {idle} 0 0 0 {steal} 7 7" for i, (user, idle, steal) in enumerate(cpus)]
        total = [sum(x) for x in zip(*cpus)]
        stat = "\n".join([f"cpu {total[0]} 0 0 {total[1]} 0 0 0 {total[2]} 0 0", *lines, "intr 5 cpu"])
        before = f"9 (a (name) here) R 1 1 1 0 -1 4194304 33 0 {majflt} 0"
        return self.write({"proc/stat": stat, "proc/self/stat": f"{before} {own[0]} {own[1]} 0 0 20"})

    def sampler(self):
        """Without the thread: each call of sample() is one second later."""
        times = iter(self.clocks)
        return Sampler(root=self.root, clocks=lambda: next(times))


@pytest.fixture
def tree(tmp_path):
    t = Tree(tmp_path)
    return t.write({"sys/devices/system/cpu/present": "0-1", "sys/devices/system/cpu/online": "0-1"})


PHONE = {
    "sys/class/thermal/thermal_zone0/type": "battery",
    "sys/class/thermal/thermal_zone0/temp": "61000",
    "sys/class/thermal/thermal_zone1/type": "cpu-0-0",
    "sys/class/thermal/thermal_zone1/temp": "45500",
    "sys/class/thermal/thermal_zone1/trip_point_0_type": "passive",
    "sys/class/thermal/thermal_zone1/trip_point_0_temp": "85000",
    "sys/class/thermal/thermal_zone1/trip_point_1_type": "critical",
    "sys/class/thermal/thermal_zone1/trip_point_1_temp": "70000",
    "sys/class/thermal/thermal_zone2/type": "cpu-0-0",
    "sys/class/thermal/thermal_zone2/temp": "-274000",
    "sys/class/thermal/cooling_device0/type": "thermal-cpufreq-0",
    "sys/class/thermal/cooling_device0/cur_state": "0",
    "sys/class/thermal/cooling_device1/type": "fan",
    "sys/class/thermal/cooling_device1/cur_state": "3",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1800000",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "2800000",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2800000",
    "sys/class/power_supply/battery/type": "Battery",
    "sys/class/power_supply/battery/status": "Discharging",
    "sys/class/power_supply/battery/voltage_now": "4000000",
    "sys/class/power_supply/battery/current_now": "-1500000",
    "sys/class/power_supply/battery/temp": "312",
    "sys/class/power_supply/usb/type": "USB",
    "sys/class/power_supply/usb/power_now": "9000000",
}


def test_a_phone(tree):
    sensors = Sensors(tree.write(PHONE).root)
    r = sensors.read()
    assert r.temperature_c["cpu-0-0"] == 45.5 and r.temperature_c["battery"] == 61.0
    assert r.temperature_c["battery 2"] == pytest.approx(31.2), "the battery's own, in tenths"
    assert r.temperature_c["cpu-0-0 2"] is None, "-274 °C is a zone that is switched off"
    assert sensors.temperature(r) == 45.5, "the processor's zone, not the hotter battery"
    assert r.freq_mhz == {"cpu0": 1800.0, "cpu1": 2800.0}
    assert r.power_w == {"battery": pytest.approx(6.0)}, "USB is not what the machine takes"
    assert sensors.passive_trip_c() == 85.0
    assert set(sensors.unavailable) == {"energy_j"}


def test_power_of_boards(tree):
    tree.write(
        {
            "sys/class/hwmon/hwmon0/name": "ina226",
            "sys/class/hwmon/hwmon0/in1_input": "5000",
            "sys/class/hwmon/hwmon0/curr1_input": "2000",
            "sys/class/hwmon/hwmon1/name": "ina3221",
            "sys/class/hwmon/hwmon1/power1_input": "7500000",
            "sys/class/hwmon/hwmon1/power1_label": "VDD_IN",
            "sys/class/hwmon/hwmon1/curr1_input": "1",
            "sys/class/hwmon/hwmon1/in1_input": "1",
            "sys/class/hwmon/hwmon2/name": "amdgpu",
            "sys/class/hwmon/hwmon2/power1_average": "30000000",
            "sys/class/hwmon/hwmon2/temp1_input": "39000",
            "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/in_power0_input": "4200",
            "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0/rail_name_0": "VDD_CPU",
        }
    )
    sensors = Sensors(tree.root)
    assert sensors.read().power_w == {
        "ina226 in1": pytest.approx(10.0),
        "ina3221 VDD_IN": 7.5,
        "amdgpu power1": 30.0,
        "ina3221 VDD_CPU": pytest.approx(4.2),
    }
    assert sensors.temperature() == 39.0, "the only one there is"


def test_a_charging_battery_is_no_power_sensor(tree):
    tree.write(PHONE).write({"sys/class/power_supply/battery/status": "Charging"})
    sensors = Sensors(tree.root)
    assert sensors.read().power_w == {"battery": None}
    assert "not 'Discharging'" in sensors.unavailable["power_w"]


def test_nothing_at_all_is_a_fact(tmp_path):
    sensors = Sensors(tmp_path / "nowhere")
    assert sensors.found == [] and sensors.temperature() is None and sensors.passive_trip_c() is None
    assert set(sensors.unavailable) == {"temperature_c", "freq_mhz", "power_w", "energy_j", "throttle"}
    with Sampler(0.01, root=tmp_path / "nowhere") as sampler:
        time.sleep(0.02)
    s = sampler.summary()
    for key in ("temperature_c", "freq_mhz", "power_w", "others_busy", "steal", "memory_available_bytes", "throttled",
                "clock_ghz", "quota_throttled_s", "swapped_bytes"):  # fmt: skip
        assert s[key] is None and s["unavailable"][key], key
    assert "No such file" in s["unavailable"]["others_busy"]
    assert s["duration_s"] > 0 and "temperature_c" in repr(sampler) and "<table>" in sampler._repr_html_()


def test_refused_files_say_so(tree, monkeypatch):
    """Root may read everything, so that the refusal of the energy counters (kernels since 2020) is put in its way."""
    tree.write(
        {
            "sys/class/powercap/intel-rapl:0/energy_uj": "1",
            "sys/class/powercap/intel-rapl:0/name": "package-0",
        }
    )
    real = open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", refuse)
    sensors = Sensors(tree.root)
    assert sensors.read().energy_j == {"package-0": None}
    assert sensors.unavailable["energy_j"] == "/sys/class/powercap/intel-rapl:0/energy_uj: Permission denied"
    sampler = tree.load([(0, 0, 0)]).sampler()
    sampler.sample()
    sampler.sample()
    assert "Permission denied" in sampler.summary()["unavailable"]["power_w"]


def test_sensors_that_vanish(tree):
    sampler = tree.write(PHONE).sampler()
    sampler.sample()
    tree.remove("sys/class/thermal/thermal_zone1/temp")
    tree.remove("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    tree.write({"sys/class/thermal/thermal_zone0/temp": "62000"})
    sampler.sample()
    s = sampler.summary()
    assert s["sensors_lost"] == ["cpu-0-0", "cpu0"]
    assert s["temperature_c"] == {"start": 45.5, "end": 62.0, "max": 62.0}
    assert s["freq_mhz"] == {"min": 1800.0, "median": 2800.0}
    tree.write({"sys/class/thermal/thermal_zone0/temp": "garbage"})
    tree.remove("sys/class/power_supply/battery/temp")
    assert sampler.sensors.temperature() is None
    assert "garbage" in sampler.sensors.unavailable["temperature_c"]


def test_shares_of_the_load(tree):
    sampler = tree.load([(1000, 5000, 7), (9, 9, 9)], own=(500, 20)).sampler()
    sampler.sample()
    # 100 ticks of each CPU: 80 and 60 busy, of which 90 are ours; 10 stolen from the first.
    tree.load([(1080, 5010, 17), (69, 49, 9)], own=(580, 30), majflt=4)
    sampler.sample()
    s = sampler.summary()
    assert s["cpu_busy"] == {0: 0.8, 1: 0.6}
    assert s["others_busy"] == pytest.approx((140 - 90) / 200) and s["steal"] == pytest.approx(10 / 200)
    assert s["major_faults"] == 4 and s["duration_s"] == 1.0


def test_load_of_the_cpus_in_use_only(tree):
    tree.load([(0, 0, 0), (0, 0, 0)])
    sampler = Sampler(root=tree.root, cpus="1")
    sampler.sample()
    tree.load([(100, 0, 0), (30, 70, 0)], own=(20, 0))
    sampler.sample()
    assert sampler.summary()["cpu_busy"] == {1: 0.3}
    assert sampler.summary()["others_busy"] == pytest.approx(0.1)


def test_energy_counters_wrap(tree):
    rapl = "sys/class/powercap/intel-rapl:0"
    files = {f"{rapl}/name": "package-0", f"{rapl}/max_energy_range_uj": "100000000", f"{rapl}/energy_uj": "90000000",
             f"{rapl}:0/name": "core", f"{rapl}:0/energy_uj": "1"}  # fmt: skip
    sampler = tree.write(files).sampler()
    sampler.sample()
    tree.write({f"{rapl}/energy_uj": "98000000", f"{rapl}:0/energy_uj": "50000001"})
    sampler.sample()
    tree.write({f"{rapl}/energy_uj": "6000000"})
    sampler.sample()
    times, watts, sensor = sampler.power_trace()
    assert watts == [pytest.approx(8.0), pytest.approx(8.0)] and sensor == "package-0"
    assert sampler.summary()["power_w"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    "path, calm, hot, sign",
    [
        ("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", 7, 8, "count cpu1 core"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", 2800000, 1400000, "limit cpu0 MHz"),
        ("sys/class/thermal/cooling_device0/cur_state", 0, 2, "cooling 0 thermal-cpufreq-0"),
        ("sys/devices/platform/soc/soc:firmware/get_throttled", 10000, 50004, "firmware flags"),
    ],
)
def test_throttling_shows(tree, path, calm, hot, sign):
    tree.write({"sys/class/thermal/cooling_device0/type": "thermal-cpufreq-0", path: calm})
    sampler = tree.sampler()
    sampler.sample()
    sampler.sample()
    assert sampler.summary()["throttled"] is False
    tree.write({path: hot})
    sampler.sample()
    tree.write({path: calm})  # over before the end
    sampler.sample()
    s = sampler.summary()
    assert s["throttled"] is True and s["throttled_by"] == [sign] and "throttled" not in s["unavailable"]


def test_low_voltage_alone_is_not_throttling(tree):
    sampler = tree.write({"sys/devices/platform/soc/soc:firmware/get_throttled": "50001"}).sampler()
    sampler.sample()
    assert sampler.summary()["throttled"] is False


def test_suspend_and_steps_of_the_clocks(tree):
    sampler = tree.sampler()
    tree.clocks[1:4] = [
        Clocks(101.0, 531.0, 1e9 + 31.0),  # slept 30 s
        Clocks(102.0, 532.0, 1e9 + 3632.0),  # set forward by an hour
        Clocks(103.0, 533.0, 1e9 + 3633.0),
    ]
    for _ in range(4):
        sampler.sample()
    s = sampler.summary()
    assert s["suspended_s"] == pytest.approx(30) and s["clock_step_s"] == pytest.approx(3600)
    assert s["duration_s"] == pytest.approx(3), "the time of day does not count"
    tree.clocks[4] = Clocks(50.0, 480.0, 1e9)
    sampler.sample()
    s = sampler.summary()
    assert s["duration_s"] is None and "backwards" in s["unavailable"]["duration_s"]


@pytest.mark.parametrize(
    "group, stat, text",
    [
        ("0::/pod\n", "sys/fs/cgroup/pod/cpu.stat", "usage_usec {0}\nthrottled_usec {0}"),
        ("0::/pod/not-mounted-here\n", "sys/fs/cgroup/cpu.stat", "throttled_usec {0}"),
        ("4:cpu,cpuacct:/pod\n0::/\n", "sys/fs/cgroup/cpu/pod/cpu.stat", "nr_throttled 3\nthrottled_time {0}000"),
        ("4:cpu,cpuacct:/pod\n", "sys/fs/cgroup/cpu,cpuacct/cpu.stat", "throttled_time {0}000"),
    ],
)
def test_time_held_back_by_the_quota(tree, group, stat, text):
    sampler = tree.write({"proc/self/cgroup": group, stat: text.format(5)}).sampler()
    sampler.sample()
    tree.write({stat: text.format(2500005)})
    sampler.sample()
    assert sampler.summary()["quota_throttled_s"] == pytest.approx(2.5)


def test_memory_and_swap(tree):
    tree.write({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4000 kB", "proc/vmstat": "pswpin 10\npswpout 20",
                "proc/self/status": "Name: x\nVmRSS:\t 300 kB"})  # fmt: skip
    sampler = tree.sampler()
    sampler.sample()
    tree.write({"proc/meminfo": "MemAvailable: 1000 kB", "proc/vmstat": "pswpin 11\npswpout 22",
                "proc/self/status": "VmRSS: 900 kB"})  # fmt: skip
    sampler.sample()
    tree.write({"proc/meminfo": "MemAvailable: 3000 kB", "proc/self/status": "VmRSS: 500 kB"})
    sampler.sample()
    s = sampler.summary()
    assert s["memory_available_bytes"] == 1000 * 1024 and s["rss_bytes"] == 900 * 1024
    assert s["swapped_bytes"] == 3 * os.sysconf("SC_PAGE_SIZE")


def test_the_thread_samples_and_ends():
    with Sampler(0.01) as sampler:
        while len(sampler.samples) < 4:
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="running already"):
            sampler.start()
    n = len(sampler.samples)
    sampler.stop()
    time.sleep(0.03)
    assert len(sampler.samples) == n
    times = [s.time_s for s in sampler.samples]
    assert times == sorted(times)
    s = sampler.summary()
    assert s["clock_ghz"]["start"] > 0 and s["rss_bytes"] > 1 << 20 and s["suspended_s"] == 0
    with sampler:
        pass
    assert len(sampler.samples) == 2, "used again, it starts anew"


def test_what_goes_wrong_in_the_thread_is_raised_at_the_end():
    def broken():
        raise ZeroDivisionError("clocks")

    sampler = Sampler(0.01)
    with pytest.raises(ZeroDivisionError, match="clocks"):
        with sampler:
            sampler._clocks = broken
            sampler._thread.join()
            sampler._clocks = lambda: Clocks(1, 1, 1)


def test_arguments():
    with pytest.raises(ValueError, match="interval_s=0"):
        Sampler(0)
    with pytest.raises(ValueError, match="0-3,6"):
        Sampler(cpus="a-b")
    with pytest.raises(TypeError, match="did you mean 'interval_s'"):
        Sampler(interval=1)
    with pytest.raises(ValueError, match="no sample yet"):
        Sampler().summary()


def test_a_busy_neighbour_is_seen():
    """Real load: another process takes what this one does not."""
    import subprocess
    import sys

    if not os.access("/proc/stat", os.R_OK):
        pytest.skip("/proc/stat cannot be read here")
    busy = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        busy.stdout.readline()
        with Sampler(0.05) as sampler:
            own = _process_ticks(busy.pid)
            time.sleep(0.5)
            taken = _process_ticks(busy.pid) - own
    finally:
        busy.kill()
        busy.wait()
    ticks = 0.5 * os.sysconf("SC_CLK_TCK") * len(sampler.cpus)
    # Whatever else runs only adds to it; a few ticks of rounding.
    assert sampler.summary()["others_busy"] >= (taken - 4) / (1.5 * ticks) > 0


def _process_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
