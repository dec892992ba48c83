# SPDX-License-Identifier: Apache-2.0
"""Checks of results in a user's own tests: a fixture `expect` that pytest finds by itself once rooflm is installed.

    def test_speed(expect):
        result = rooflm.bench("m.gguf", threads=4, repeats=5)
        expect(result).no_fallback().not_throttled().share(ge=0.8).decode(ge=20)

Each check holds for the median of every setting (fallbacks and throttling: for every run), raises an AssertionError
that names the setting, the figure and what was expected, and returns the object, so that checks chain.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, Union

import pytest

if TYPE_CHECKING:
    from rooflm.measuring.results import Results


class Expectation:
    def __init__(self, result: Union[Results, Mapping[str, Any], Iterable[Mapping[str, Any]]]) -> None:
        from rooflm.measuring.results import Results

        if not isinstance(result, Results):
            result = Results([result] if isinstance(result, Mapping) else result)
        if not len(result):
            raise AssertionError("the result has no records: nothing was measured")
        self.result = result

    def no_fallback(self) -> Expectation:
        """Nothing but what was asked for, or is best, ran: no copied file, no reference kernel, no free thread."""
        for r in self.result:
            if "fallbacks" not in r:
                raise AssertionError(f"{_named(r)}: the record does not say what fell back")
            if r["fallbacks"]:
                raise AssertionError(f"{_named(r)}: {'; '.join(r['fallbacks'])}")
        return self

    def not_throttled(self, *, unknown: bool = True) -> Expectation:
        """No run was throttled. unknown=False fails where the machine has no sign of throttling either."""
        for r in self.result:
            sensors = r.get("sensors") or {}
            if sensors.get("throttled"):
                raise AssertionError(f"{_named(r)}: throttled by {', '.join(sensors.get('throttled_by') or ['?'])}")
            if sensors.get("throttled") is None and not unknown:
                why = (sensors.get("unavailable") or {}).get("throttled", "not sampled")
                raise AssertionError(f"{_named(r)}: whether it was throttled is unknown: {why}")
        return self

    def share(self, *, ge: Optional[float] = None, le: Optional[float] = None) -> Expectation:
        """Share of the decode ceiling, from 0 to 1."""
        return self.figure("ceiling_share", ge=ge, le=le)

    def decode(self, *, ge: Optional[float] = None, le: Optional[float] = None) -> Expectation:
        """Decode speed in tokens/s."""
        return self.figure("decode_tps", ge=ge, le=le)

    def prefill(self, *, ge: Optional[float] = None, le: Optional[float] = None) -> Expectation:
        """Prefill speed in tokens/s."""
        return self.figure("prefill_tps", ge=ge, le=le)

    def first_token(self, *, ge: Optional[float] = None, le: Optional[float] = None) -> Expectation:
        """Time to the first token in ms."""
        return self.figure("ttft_ms", ge=ge, le=le)

    def figure(self, key: str, *, ge: Optional[float] = None, le: Optional[float] = None) -> Expectation:
        """Any figure of the records: its median over the runs of each setting."""
        if ge is None and le is None:
            raise TypeError(f"{key}: say what is expected, ge= (at least) or le= (at most)")
        for _, records in self.result.groups():
            values = [r[key] for r in records if r.get(key) is not None]
            if not values:
                raise AssertionError(f"{_named(records[0])}: no run has {key}")
            median = statistics.median(values)
            if ge is not None and median < ge:
                expected = f"at least {ge:g}"
            elif le is not None and median > le:
                expected = f"at most {le:g}"
            else:
                continue
            raise AssertionError(
                f"{_named(records[0])}: {key} is {median:.4g} (median of n = {len(values)} runs, "
                f"{min(values):.4g} to {max(values):.4g}), expected {expected}"
            )
        return self


def _named(record: Mapping[str, Any]) -> str:
    setting = record.get("setting") or {}
    return ", ".join(f"{k} {v}" for k, v in setting.items() if v is not None) or "record without a setting"


def expect(result: Any) -> Expectation:
    """The checks of a Results, of records, or of one record; also there as a fixture of the same name."""
    return Expectation(result)


@pytest.fixture(name="expect")
def expect_fixture() -> Any:
    return expect
