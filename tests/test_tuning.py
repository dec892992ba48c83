# SPDX-License-Identifier: Apache-2.0
"""Tuning runs: steps that help, that do not, that do not take effect; undo; the baseline again; the waterfall."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from plots import drawn

import rooflm
from rooflm.cli import main
from rooflm.diagnosis import tuning
from rooflm.diagnosis.tuning import Step, Tuning
from rooflm.diagnosis.tuning_steps import Governor, default_steps

SHAPE = {"size": "custom", "width": 256, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 600}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuning") / "small.gguf"
    rooflm.synth(path, type="Q4_K_M", **SHAPE)
    return path


@pytest.fixture
def speeds(monkeypatch):
    """Makes the clock of every state a function of what it is, so that no time decides a test."""

    def set(speed, again=None):
        calls = []

        def interleaved(states, gen, repeats):
            calls.append(states)
            return [[speed(s)] * repeats for s in states]

        monkeypatch.setattr(tuning, "_interleaved", interleaved)
        return calls

    return set


def step(name, options=None, verdict=None, undo=lambda: None, system=None):
    def apply(s):
        changed = s.session(**(options or {}))
        return replace(changed, system=system) if system else changed

    return Step(name, apply, lambda session, state: verdict, undo)


def test_gains_multiply(path, speeds):
    rates = {"auto": 1.0, "int16": 2.0}
    speeds(lambda s: rates[s.options["compute"]] * (3.0 if s.options["n_threads"] == 1 else 1.0))
    t = rooflm.tune(path, steps=[step("a", {"compute": "int16"}), step("b", {"n_threads": 1})])
    assert [s["status"] for s in t.steps] == ["kept", "kept"] and [s["gain"] for s in t.steps] == [2.0, 3.0]
    assert t.gain == 6.0 == t.measured_gain and t.drift == 1.0
    assert t.state.options["compute"] == "int16" and t.state.options["n_threads"] == 1
    rows = t._rows()
    assert [r["in all"] for r in rows[:3]] == [1.0, 2.0, 6.0]


def test_step_that_gains_nothing_is_undone(path, speeds):
    speeds(lambda s: 10.0 * (0.9 if s.options["compute"] == "f32" else 1.0))
    undone = []
    t = rooflm.tune(path, steps=[step("slower", {"compute": "f32"}, undo=lambda: undone.append(1))])
    assert t.steps[0]["status"] == "no gain" and t.steps[0]["gain"] == pytest.approx(0.9)
    assert undone == [1] and t.gain == 1.0 and t.state.options["compute"] == "auto"


def test_step_that_does_not_take_effect_is_not_applied(path, speeds):
    """Whatever the clock says: it would have been ten times faster."""
    calls = speeds(lambda s: 100.0 if s.options["compute"] == "int8" else 10.0)
    undone = []
    t = rooflm.tune(path, steps=[step("a", {"compute": "int8"}, "int16 still runs", lambda: undone.append(1))])
    assert t.steps[0]["status"] == "not applied" and t.steps[0]["reason"] == "int16 still runs"
    assert t.steps[0]["gain"] is None and t.gain == 1.0 and undone == [1]
    assert "not applied" in repr(t) and "int16 still runs" in repr(t)
    assert all(s.options["compute"] == "auto" for states in calls for s in states)


def test_step_that_fails_is_not_applied(path, speeds):
    speeds(lambda s: 10.0)

    def denied(state):
        raise PermissionError("no rights")

    t = rooflm.tune(path, steps=[
        Step("denied", denied, lambda s, x: None),
        step("no such kernel", {"kernel": "rl_rows_nothing"}),
        step("already so", {}),
    ])  # fmt: skip
    assert [s["status"] for s in t.steps] == ["not applied"] * 3
    assert t.steps[0]["reason"] == "no rights" and "rl_rows_nothing" in t.steps[1]["reason"]
    assert t.steps[2]["reason"] == "already so"


def test_what_the_system_was_set_to_is_taken_back(path, speeds, tmp_path):
    system = {"fast": False}
    calls = speeds(lambda s: 20.0 if system["fast"] else 10.0)

    def apply(state):
        system["fast"] = True
        return replace(state, system={"governor": "performance"})

    t = rooflm.tune(path, steps=[Step("system", apply, lambda s, x: None, lambda: system.update(fast=False))])
    assert not system["fast"]
    # Both sides of a change of the system cannot be there at once: the best is measured before, the baseline after.
    assert t.best_tps == 20.0 and t.baseline_again_tps == 10.0 and len(calls[-1]) == 1


def test_undo_runs_when_the_run_is_interrupted(path, speeds):
    speeds(lambda s: 10.0 if s.options["compute"] == "auto" else 20.0)
    undone = []

    def interrupted(state):
        raise KeyboardInterrupt

    first = step("a", {"compute": "int16"}, undo=lambda: undone.append("a"))
    steps = [first, Step("b", interrupted, lambda s, x: None)]
    with pytest.raises(KeyboardInterrupt):
        rooflm.tune(path, steps=steps)
    assert undone == ["a"]


def test_drift_of_the_machine_is_said():
    t = Tuning([], tuning.State("m"), [10.0], [8.0], [8.0], "m")
    assert t.drift == pytest.approx(0.8) and "changed by -20% during the run" in repr(t)
    assert "during the run" not in repr(Tuning([], tuning.State("m"), [10.0], [9.5], [9.5], "m"))


# --- the usual steps, for real ----------------------------------------------------------------------------------


def test_usual_steps_from_bad_settings(path):
    """Each step that changes something is verified in what ran; speeds decide only kept or not."""
    t = rooflm.tune(path, isa="ref", load="copy", compute="f32", threads=1, gen=4, repeats=1)
    by_name = {s["name"]: s for s in t.steps}
    assert by_name["8-bit KV cache"]["reason"] == "nothing to gain without context in use: depth is 0"
    for name in ("mapped file", "best kernels", "compute auto"):
        assert by_name[name]["status"] in ("kept", "no gain"), by_name[name]
    assert by_name["best kernels"]["gain"] > 0 and len(t._samples["best"]) == 1


def test_files_and_context_are_steps(path, tmp_path):
    other = tmp_path / "smaller-q2_k.gguf"
    rooflm.synth(other, type="Q2_K", **SHAPE)
    steps = [s for s in default_steps(files=[other], context=16) if s.name.startswith(("file", "context"))]
    t = rooflm.tune(path, steps=steps, depth=64, gen=4, repeats=1)
    assert [s["name"] for s in t.steps] == ["file smaller-q2_k.gguf", "context 16"]
    assert all(s["status"] in ("kept", "no gain") for s in t.steps)


def test_environment_that_limits_kernels_is_not_applied(path, monkeypatch):
    monkeypatch.setenv("ROOFLM_ISA", "ref")
    steps = [s for s in default_steps() if s.name == "best kernels"]
    t = rooflm.tune(path, steps=steps, kernel="rl_rows_q4k_q8_ref", gen=2, repeats=1)
    assert t.steps[0]["status"] == "not applied" and "ROOFLM_ISA" in t.steps[0]["reason"]


def governor_tree(root, value):
    for cpu in range(2):
        base = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        base.mkdir(parents=True)
        (base / "scaling_governor").write_text(value + "\n")
    return [root / f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor" for i in range(2)]


def test_governor(tmp_path):
    files = governor_tree(tmp_path, "powersave")
    g, state = Governor(tmp_path), tuning.State("m")
    changed = g.apply(state)
    assert changed.system == {"governor": "performance"} and {f.read_text() for f in files} == {"performance"}
    assert g.verify(None, changed) is None
    files[1].write_text("powersave")  # something set it back
    assert g.verify(None, changed) == "the governor is still powersave"
    g.undo()
    assert {f.read_text().strip() for f in files} == {"powersave"}


def test_governor_that_is_there_already_or_not_at_all(tmp_path):
    governor_tree(tmp_path / "a", "performance")
    state = tuning.State("m")
    assert Governor(tmp_path / "a").apply(state) == state
    with pytest.raises(OSError, match="no cpufreq"):
        Governor(tmp_path / "b").apply(state)


# --- picture and command ----------------------------------------------------------------------------------------


def test_waterfall(path, speeds):
    pytest.importorskip("matplotlib").use("Agg")
    speeds(lambda s: 10.0 * (2.0 if s.options["compute"] == "int16" else 1.0))
    t = rooflm.tune(path, steps=[step("a", {"compute": "int16"}), step("b", {"n_threads": 1}, "no")], repeats=4)
    ax = drawn(t.plot)
    assert ax.get_ylabel() == "decode (tokens/s)" and ax.get_xlabel() == "step"
    assert "multiplied x 2.00, measured x 2.00" in ax.get_title() and "n = 4 runs" in ax.get_title()
    assert [x.get_text() for x in ax.get_xticklabels()] == ["baseline", "a", "b", "best", "baseline again"]
    assert [x.get_text() for x in ax.texts] == ["x 2.00", "not applied"]
    bars = [(b.get_y(), b.get_height()) for b in ax.patches]
    assert bars == [(0, 10.0), (10.0, 10.0), (0, 20.0), (0, 10.0)]


def test_command(path, capsys):
    assert main(["tune", str(path), "--repeats", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "tuning" and record["steps"] and record["drift"] > 0
    assert main(["tune", str(path), "--repeats", "1"]) == 0
    assert "baseline again" in capsys.readouterr().out
    with pytest.raises(ValueError, match="gen=1"):
        rooflm.tune(path, gen=1)
