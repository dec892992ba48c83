# SPDX-License-Identifier: Apache-2.0
"""The pause between two runs: a time, or until the processor is cool."""

from __future__ import annotations

import os
import time
from typing import Any, Union

from rooflm import _core
from rooflm.device.sensors import Sensors

LONGEST_S = 600.0  # a device that does not cool down to the wish is measured warm, and the record says so
STEP_S = 0.25

Cooldown = Union[None, float, int, str]


def check_cooldown(cooldown: Cooldown, root: Union[str, os.PathLike[str]] = "/") -> None:
    """ValueError for what is neither None, seconds nor a temperature such as "50C"; Error for a temperature where no
    sensor can be read."""
    target = _celsius(cooldown)
    if target is not None and temperature(root) is None:
        raise _core.Error(f"cooldown={cooldown!r}: no temperature can be read here; give seconds instead")


def _celsius(cooldown: Cooldown) -> Union[None, float]:
    if isinstance(cooldown, str):
        text = cooldown.strip().rstrip("Cc").rstrip(" °")
        try:
            if not cooldown.strip().lower().endswith("c"):
                raise ValueError
            return float(text)
        except ValueError:
            raise ValueError(f"cooldown={cooldown!r} is neither seconds nor a temperature such as '50C'") from None
    if cooldown is not None and not (isinstance(cooldown, (int, float)) and cooldown >= 0):
        raise ValueError(f"cooldown={cooldown!r} is neither seconds nor a temperature such as '50C'")
    return None


def temperature(root: Union[str, os.PathLike[str]] = "/") -> Union[None, float]:
    sensors = Sensors(root)
    return sensors.temperature(sensors.read())


def cool_down(
    cooldown: Cooldown, root: Union[str, os.PathLike[str]] = "/", longest_s: float = LONGEST_S
) -> dict[str, Any]:
    """Waits, and says how long and whether the temperature was reached (None where a time was asked for)."""
    start = time.monotonic()
    target = _celsius(cooldown)
    reached = None
    if target is None:
        time.sleep(float(cooldown or 0.0))
    else:
        sensors = Sensors(root)
        while True:
            now = sensors.temperature(sensors.read())
            reached = now is not None and now <= target
            if reached or now is None or time.monotonic() - start >= longest_s:
                break
            time.sleep(STEP_S)
    return {"asked": cooldown, "waited_s": time.monotonic() - start, "reached": reached}
