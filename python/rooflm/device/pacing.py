# SPDX-License-Identifier: Apache-2.0
"""Pacing: idle time between the tokens of a generation, to stay below a temperature or a rate."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

from rooflm._keywords import checked_keywords
from rooflm.device.sensors import Sensors

T = TypeVar("T")

STEP_S = 0.05  # of the pause, at first; it doubles while the machine stays hot and halves while it is cool
LONGEST_S = 2.0
READ_EVERY_S = 0.25  # zones answer slowly: reading them for each token would only cost time


class Pacer:
    """Iterates over anything and inserts idle time:

        for piece in Pacer(below_c=75)(session.generate(prompt, overlap=False)):
            print(piece, end="")

    (Without overlap=False the next step would run during the pause.)

    below_c     pauses while the processor is hotter: pauses grow while it stays so and shrink below it. ValueError
                where no temperature can be read.
    per_second  at most so many items per second
    sensors     where the temperature comes from, default Sensors(); clock and sleep are for tests.

    idle_s is the time inserted so far, paused how often, hottest_c the highest temperature seen.
    """

    @checked_keywords
    def __init__(
        self,
        *,
        below_c: Optional[float] = None,
        per_second: Optional[float] = None,
        sensors: Optional[Sensors] = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        if below_c is None and per_second is None:
            raise ValueError("a Pacer needs below_c (a temperature) or per_second (a rate)")
        if per_second is not None and not per_second > 0:
            raise ValueError(f"per_second={per_second} must be positive")
        self._sensors = (sensors or Sensors()) if below_c is not None else None
        if self._sensors is not None and self._sensors.temperature() is None:
            why = self._sensors.unavailable.get("temperature_c", "no value")
            raise ValueError(f"below_c={below_c} needs a temperature, and none can be read: {why}; use per_second")
        self.below_c, self.per_second = below_c, per_second
        self._clock, self._sleep = clock, sleep
        self.idle_s, self.paused = 0.0, 0
        self.hottest_c: Optional[float] = None
        self._pause = 0.0
        self._read_at = -READ_EVERY_S

    def __call__(self, items: Iterable[T]) -> Iterator[T]:
        due = self._clock()
        for item in items:
            yield item
            wait = self._pause_for_heat()
            if self.per_second is not None:
                # From when it was due: a slow item does not make later ones faster than the rate.
                due = max(due + 1.0 / self.per_second, self._clock() - 1.0 / self.per_second)
                wait = max(wait, due - self._clock())
            if wait > 0:
                self._sleep(wait)
                self.idle_s += wait
                self.paused += 1

    def _pause_for_heat(self) -> float:
        if self._sensors is None or self.below_c is None:
            return 0.0
        now = self._clock()
        if now - self._read_at >= READ_EVERY_S:
            self._read_at = now
            t = self._sensors.temperature()
            if t is not None:  # a sensor that has gone changes nothing
                self.hottest_c = t if self.hottest_c is None else max(self.hottest_c, t)
                if t > self.below_c:
                    self._pause = min(LONGEST_S, 2 * self._pause or STEP_S)
                else:
                    self._pause = self._pause / 2 if self._pause > STEP_S / 4 else 0.0
        return self._pause
