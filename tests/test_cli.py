# SPDX-License-Identifier: Apache-2.0
"""The command line: forms that scripts rely on, one-line errors, exit codes, and that streams end cleanly."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys

import pytest
from maker import tiny_model

import rooflm
from rooflm.cli import build_parser

COMMANDS = (
    "fetch", "info", "tokenize", "run", "chat", "ppl", "kernels", "machine", "demo", "bench", "synth",
    "bytes", "forecast", "load", "explain", "whatif",
)  # fmt: skip


def rooflm_command(*args, text="", env=None, timeout=120):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rooflm", *map(str, args)],
        input=text, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})},
    )  # fmt: skip


# ---- usage ----


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0 and "--json" in out


def test_the_module_is_the_command():
    out = rooflm_command("--version")
    assert out.returncode == 0 and out.stdout == f"rooflm {rooflm.__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["nonsense"],
        ["run"],
        ["ppl", "x.gguf"],
        ["run", "x.gguf", "-p", "a", "-n", "-1"],
        ["run", "x.gguf", "-p", "a", "--threads", "0"],
        ["run", "x.gguf", "-p", "a", "--compute", "int4"],
        ["run", "x.gguf", "-p", "a", "--promt", "b"],
        ["run", "x.gguf", "-p", "a", "--file", "b"],
        ["chat", "x.gguf", "--json"],
        ["whatif", "x.gguf"],
        ["bench", "x.gguf", "--depth", "4q"],
    ],
)
def test_wrong_usage_is_exit_code_2_without_traceback(command, args):
    code, out, err = command(*args)
    assert code == 2 and err and "Traceback" not in err and out == ""


def test_an_unknown_option_shows_the_usage_of_its_command_and_what_may_be_meant(command):
    code, _, err = command("layers", "a.gguf", "b.gguf", "--text", "t", "--tokns=5", "6")
    assert code == 2 and err.startswith("usage: rooflm layers ") and "--no-isolate" in err
    assert err.splitlines()[-1].endswith("unrecognized arguments: --tokns=5 6; did you mean --tokens?")
    _, _, err = command("info", "a.gguf", "b.gguf")
    assert err.startswith("usage: rooflm info ") and err.endswith("unrecognized arguments: b.gguf\n")


@pytest.mark.parametrize("name", ["info", "run", "tokenize", "ppl", "bench", "bytes", "forecast", "load", "whatif"])
@pytest.mark.parametrize("what", ["missing", "not GGUF", "directory", "empty"])
def test_bad_files_are_one_line_and_exit_code_1(tmp_path, command, name, what):
    path = tmp_path / "m.gguf"
    if what == "not GGUF":
        path.write_bytes(b"PK\x03\x04" + bytes(100))
    elif what == "directory":
        path.mkdir()
    elif what == "empty":
        path.write_bytes(b"")
    text = ["-p", "x"]
    needed = {"run": text, "tokenize": text, "ppl": ["--text", __file__], "whatif": ["--bandwidth", "9GB/s"]}
    extra = needed.get(name, [])
    code, out, err = command(name, path, *extra)
    assert code == 1, err
    assert err.startswith("rooflm: ") and err.count("\n") == 1 and str(path) in err and "Errno" not in err
    assert out == ""


def test_unknown_model_name_says_what_there_is(command):
    code, _, err = command("info", "nosuchmodel")
    assert code == 1 and "smollm2" in err and "rooflm fetch nosuchmodel" in err


def test_arguments_that_are_not_utf8(command, smollm2):
    code, out, err = command("tokenize", smollm2, "-p", "caf\udce9")
    assert code == 1 and out == "" and err == "rooflm: the text of -p is not UTF-8: character 3\n"


def test_huge_numbers_are_errors_of_one_line(command, smollm2):
    code, _, err = command("run", smollm2, "-p", "x", "--ctx", 10**24)
    assert code == 1 and err.startswith("rooflm: n_ctx=1000000000000000000000000 ") and err.count("\n") == 1


def test_a_full_context_is_said(command, smollm2):
    code, out, err = command("run", smollm2, "-p", "x", "--ctx", 4, "-n", 20)
    assert code == 0 and out and "context of 4 positions is full" in err
    code, out, err = command("run", smollm2, "-p", "x", "--ctx", 4, "-n", 2)
    assert code == 0 and err == ""


def test_abbreviated_options_are_refused():
    """An abbreviation would change its meaning when an option is added."""
    with pytest.raises(SystemExit) as e:
        build_parser().parse_args(["run", "m", "--promp", "x"])
    assert e.value.code == 2


def test_broken_pipe_is_silent(smollm2):
    p = subprocess.Popen(
        [sys.executable, "-m", "rooflm", "info", smollm2, "--metadata"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    p.stdout.read(10)
    p.stdout.close()
    assert p.stderr.read() == b"" and p.wait() in (0, 1)


# ---- commands ----


def test_kernels(command, answer):
    record = answer("kernels", "--json", "--all")
    names = {k["name"] for k in record["kernels"]}
    assert names == {k.name for k in rooflm.kernels()}
    assert any(k["chosen"] for k in record["kernels"]) and record["isa"]
    code, chosen, _ = command("kernels")
    assert code == 0 and all(k["name"] in chosen for k in record["kernels"] if k["chosen"])


def test_kernels_limited_by_environment(command, answer, monkeypatch):
    monkeypatch.setenv("ROOFLM_ISA", "ref")
    record = answer("kernels", "--json", "--all")
    assert {k["isa"] for k in record["kernels"] if k["chosen"]} == {"ref"} and record["isa"] == "ref"
    monkeypatch.setenv("ROOFLM_ISA", "pentium")
    code, _, err = command("kernels")
    assert code == 1 and "pentium" in err


def test_info(command, answer, smollm2):
    record = answer("info", smollm2, "--json")
    assert record["arch"] == "llama" and record["can_run"] is True and record["why_not"] is None
    assert record["file_bytes"] == 98_362_432 and record["n_ctx_train"] == 8192 and record["vocabulary"] == 49152
    # 134.5 million parameters; tied: the output matrix is not counted twice
    assert record["n_params"] == pytest.approx(134.5e6, rel=0.01)
    assert sum(t["nbytes"] for t in record["types"]) == record["tensor_bytes"] < record["file_bytes"]
    assert 4.5 < record["bits_per_weight"] < 6.5
    code, out, _ = command("info", smollm2)
    assert code == 0 and "Q4_1" in out and "can run           yes" in out
    assert "n_head_kv        3 in all 30 layers" in out


def test_tokenize(command, answer, smollm2, tmp_path):
    record = answer("tokenize", smollm2, "-p", "Hello world", "--json")
    t = rooflm.Tokenizer.from_gguf(smollm2)
    assert record["ids"] == list(t.encode("Hello world")) and t.decode(record["ids"]) == "Hello world"
    text = "line\r\nthree <|im_start|> \u00e9\u4e2d\n"
    f = tmp_path / "t.txt"
    f.write_bytes(text.encode())
    from_file = answer("tokenize", smollm2, "--file", f, "--json")["ids"]
    assert from_file == list(t.encode(text)) == answer("tokenize", smollm2, "--json", text=text)["ids"]
    special = answer("tokenize", smollm2, "--file", f, "--json", "--special")["ids"]
    assert special == list(t.encode(text, special=True)) != from_file
    f.write_bytes(b"ab\xff")
    code, _, err = command("tokenize", smollm2, "--file", f)
    assert code == 1 and "byte 2 is 0xff" in err


def test_run_json_equals_the_python_side(answer, smollm2):
    record = answer("run", smollm2, "-p", "The capital of France is", "-n", 8, "--temp", 0, "--threads", 2, "--json")
    with rooflm.Model(smollm2).session(n_ctx=64, n_threads=2) as s:
        g = s.generate("The capital of France is", max_tokens=8)
        assert record["text"] == g.text and record["ids"] == g.ids
    assert record["stop_reason"] == "length" and record["n_generated"] == 8
    assert record["text"] == rooflm.Tokenizer.from_gguf(smollm2).decode(record["ids"], continues=True)
    assert record["prefill_tps"] > 0 and record["decode_tps"] > 0 and record["ttft_s"] > 0


def test_run_streams_text_and_stats_go_to_standard_error(command, answer, smollm2):
    code, out, err = command("run", smollm2, "-p", "One two three", "-n", 5, "--stats")
    assert code == 0 and "tok/s" in err and "tok/s" not in out
    again = answer("run", smollm2, "-p", "One two three", "-n", 5, "--json")
    assert out == again["text"] + "\n"


def test_same_seed_same_text(answer, smollm2):
    args = ("run", smollm2, "-p", "Once", "-n", 12, "--temp", 1.2, "--json", "--seed")
    one, same, other = answer(*args, 7), answer(*args, 7), answer(*args, 8)
    assert one["ids"] == same["ids"] != other["ids"]


def test_interrupted_run_ends_with_130_and_a_message(smollm2):
    """A real Ctrl-C, once text streams."""
    args = [sys.executable, "-m", "rooflm", "run", str(smollm2), "-p", "Count: 1 2 3", "-n", "4000"]
    p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.read(8)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130, err
    assert "interrupted after" in err and err.count("\n") == 1


def test_interrupted_run_still_gives_its_record(command, smollm2, monkeypatch):
    from rooflm import generation

    sample, calls = generation.sample, []

    def third_time(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args)

    monkeypatch.setattr(generation, "sample", third_time)
    code, out, err = command("run", smollm2, "-p", "Count: 1 2 3", "-n", "40", "--json")
    assert code == 130 and "interrupted after 2 tokens" in err
    record = json.loads(out)
    assert record["stop_reason"] == "interrupted" and record["n_generated"] == 2


def test_chat_answers_one_message(answer, smollm2):
    record = answer("chat", smollm2, "-p", "What is the capital of France?", "-n", 24, "--compute", "int16", "--json")
    assert "Paris" in record["text"] and "<|im" not in record["text"]


def test_chat_remembers_the_conversation(command, smollm2):
    said = "What is the capital of France?\n\nAnd its river?\n"
    code, out, err = command("chat", smollm2, "-n", 24, "--compute", "int16", text=said)
    assert code == 0, err
    assert "Paris" in out


def test_ppl(command, answer, smollm2, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    record = answer("ppl", smollm2, "--text", text, "--ctx", 128, "--windows", 2, "--json")
    assert record["windows"] == 2 and record["tokens"] == 2 * 63
    assert 1.0 < record["ppl"] < 3.0 and record["stderr"] > 0
    lo, hi = record["ppl_interval"]
    assert 1.0 <= lo < record["ppl"] < hi
    short = tmp_path / "s.txt"
    for content in ("", "a", "a b"):  # R32
        short.write_text(content)
        code, _, err = command("ppl", smollm2, "--text", short, "--ctx", 128)
        assert code == 1 and "at least one window of 128 tokens" in err


def test_more_windows_than_there_are_is_a_warning(command, smollm2, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("word " * 100)
    code, out, err = command("ppl", smollm2, "--text", text, "--ctx", 64, "--windows", 9, "--json")
    assert code == 0 and json.loads(out)["windows"] == 1
    assert err.startswith("rooflm: warning: 9 windows") and err.count("\n") == 1


def test_fetched_name_is_a_model_argument(answer, smollm2):
    assert answer("info", "smollm2", "--json")["file_bytes"] == smollm2.stat().st_size


def test_bench_gives_what_scripts_rely_on(answer, smollm2):
    form = "--threads 2 --prompt 24 --gen 6 --depth 8 --kv f16 --compute int8 --repeats 2 --json"
    record = answer("bench", smollm2, *form.split())
    assert len(record["records"]) == 2 and record["schema"] == 1
    for r in record["records"]:
        assert r["ceiling_tps"] == pytest.approx(r["read_gbs"] * 1e9 / r["bytes_per_token"])
        assert r["ceiling_share"] == pytest.approx(r["decode_tps"] / r["ceiling_tps"])
        assert r["read_gbs"] == max(r["read_gbs_before"], r["read_gbs_after"])
        assert r["bytes_per_token"] == r["weight_bytes_per_token"] + (8 + 24 + 3.5) * 30 * 3 * 128 * 2
        assert r["decode_tps"] > 0 and r["ttft_ms"] > 0 and len(r["token_times_s"]) == 6
        assert r["prefill_tps"] > 0 and r["isa"] and r["threads"] == 2
        names = {k.name for k in rooflm.kernels()}
        assert {n for phase in r["kernels"].values() for op in phase.values() for n in op} <= names


def test_synthetic_model_runs(answer, tmp_path):
    shape = "--size custom --width 128 --layers 2 --heads 4 --kv-heads 2 --ffn 256 --vocab 512 --type Q8_0".split()
    record = answer("synth", tmp_path / "s.gguf", *shape, "--json")
    assert record["nbytes"] == (tmp_path / "s.gguf").stat().st_size
    assert answer("info", tmp_path / "s.gguf", "--json")["can_run"] is True
    assert answer("run", tmp_path / "s.gguf", "-p", "a", "-n", 3, "--json")["n_generated"] <= 3


def test_control_c_while_the_command_starts_is_no_traceback(command, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("rooflm.cli.build_parser", interrupted)
    assert command("kernels") == (130, "", "rooflm: interrupted\n")


@pytest.mark.parametrize("module", ["rooflm.cli", "numpy", "numpy._core._multiarray_umath", "rooflm._core"])
def test_control_c_while_modules_are_imported_is_no_traceback(module):
    """A real signal, as the search for this module begins; NumPy's C macro would make an ImportError of it."""
    code = f"""
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["kernels"]
runpy.run_module("rooflm", run_name="__main__", alter_sys=True)
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (p.returncode, p.stdout, p.stderr) == (130, "", "rooflm: interrupted\n")


def test_control_c_while_numpy_is_imported_is_a_keyboard_interrupt():
    code = """
import sys, rooflm

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
try:
    rooflm.GGUF
except KeyboardInterrupt:
    print("as it should be")
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (p.stdout, p.stderr) == ("as it should be\n", "")


def test_a_closed_standard_output_is_no_traceback(command, monkeypatch, tmp_path):
    model = tiny_model(tmp_path / "m.gguf")
    with monkeypatch.context() as m:
        m.setattr(sys, "stdout", None)
        code, _, err = command("run", model, "-p", "a", "-n", "2", "--threads", "1")
    assert code == 0 and "Error" not in err


# ---- what a newcomer meets ----


def test_a_command_that_does_not_exist_names_the_one_that_may_be_meant(command):
    code, _, err = command("qantize")
    assert code == 2 and "did you mean 'quantize'?" in err and "choose from" not in err
    code, _, err = command("zzzz")
    assert code == 2 and "choose from" in err


def test_a_terminal_that_is_not_utf8_gets_the_text_all_the_same(smollm2):
    args = ("tokenize", smollm2, "-p", "\u672c", "--pieces")
    out = rooflm_command(*args, env={"PYTHONIOENCODING": "ascii"})
    assert out.returncode == 0 and out.stderr == "" and "\\u672c" in out.stdout


@pytest.mark.parametrize(
    ("name", "what"), [("x.xyz", "ends in one of .*png"), ("no/x.png", "there is no directory"), ("/", "cannot be")]
)
def test_a_picture_that_cannot_be_is_said_before_anything_is_measured(command, tmp_path, monkeypatch, name, what):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rooflm, "tune", lambda *a, **k: pytest.fail("measured"))
    if name == "/":
        monkeypatch.setattr(os, "access", lambda *a: False)
        name = "x.png"
    code, out, err = command("tune", "m.gguf", "--plot", name)
    assert code == 1 and re.search(what, err) and err.count("\n") == 1 and out == ""


def test_a_picture_without_matplotlib_is_said_before_anything_is_measured(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setattr(rooflm, "tune", lambda *a, **k: pytest.fail("measured"))
    code, _, err = command("tune", "m.gguf", "--plot", tmp_path / "x.png")
    assert code == 1 and "pip install" in err and "matplotlib" in err


def test_options_of_sampling_that_do_nothing_are_said(command, smollm2):
    code, _, err = command("run", smollm2, "-p", "a", "-n", 1, "--top-p", 0.5, "--seed", 3)
    assert code == 0 and "--top-p without effect at temperature 0" in err and "--seed" not in err
    assert "without effect" not in command("run", smollm2, "-p", "a", "-n", 1, "--top-p", 0.5, "--temp", 1)[2]


def test_a_prompt_too_long_names_the_option(command, smollm2):
    code, _, err = command("run", smollm2, "-p", "a b c d e f g h", "--ctx", 4)
    assert code == 1 and "n_ctx is 4; --ctx makes it larger" in err


def test_chat_of_a_model_without_template(command, smollm2, gemma3, tmp_path):
    code, out, err = command("chat", gemma3, text="hi\n")
    assert code == 1 and "--template FILE" in err and "rooflm run" in err and out == ""
    template = tmp_path / "t.jinja"
    template.write_text("Count: 1 2 3 4{{ messages[0].content }}")
    code, out, err = command("chat", smollm2, "-p", " 5", "-n", 4, "--template", template)
    assert code == 0 and out.startswith(" 6"), err


def test_ctrl_c_in_a_conversation_ends_the_answer_and_not_the_chat(smollm2):
    pty = pytest.importorskip("pty")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "rooflm", "chat", str(smollm2), "-n", "4000", "--ctx", "4096"])
    shown = b""

    def until(ready):
        nonlocal shown
        while not ready():
            assert select.select([terminal], [], [], 60)[0], shown
            shown += os.read(terminal, 4096)

    try:
        until(lambda: b"> " in shown)
        os.write(terminal, b"Write a very long story.\n")
        begun = len(shown) + 200
        until(lambda: len(shown) > begun)
        os.write(terminal, b"\x03")
        until(lambda: b"interrupted after" in shown and shown.endswith(b"\n> "))
        os.write(terminal, b"\x04")
        assert os.waitpid(pid, 0)[1] == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
