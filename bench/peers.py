# SPDX-License-Identifier: Apache-2.0
"""Speed side by side with llama.cpp and ik_llama.cpp, interleaved A B A B on one machine.

    python bench/peers.py MODEL [MODEL ...] --threads 2 --prompt 512 --gen 64 --depth 0,4096 --json out.json

Each engine lives in a process of its own (their libraries have the same names) that stays loaded and is asked in
turn, in an order shuffled for each repetition; the others sleep meanwhile. All get the same file, threads, prompt
and number of tokens. What is timed: the evaluation of the prompt in one call with the logits of its last token
(prefill), and single tokens one after another, each with its logits (decode). Sampling, tokenizing and loading are
outside. The tokens fed are the same for all, so no engine gets an easier text. Decode at a depth starts from that
many tokens of context; the cache is cut back to it after each repetition.

llama.cpp comes through llama-cpp-python (build it natively: pip install llama-cpp-python --no-binary llama-cpp-python),
ik_llama.cpp through the ik-llama-cpp-python wheel. --llamacpp-python and --ik-python name the interpreters that have
them. An engine that does not load is listed with the reason. The answers (best token after the prompt) are compared:
a fast wrong answer is marked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

GGML_TYPE = {"f32": 0, "f16": 1, "q8_0": 8}
ISA_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "amx_int8", "asimddp", "i8mm", "sve")


# ---- workers: one engine each, commands as JSON lines on stdin, answers on a private copy of stdout ----


class Rooflm:
    """This library, through its public API."""

    def __init__(self, a: dict[str, Any]) -> None:
        import rooflm

        self.version = rooflm.__version__
        self.model = rooflm.Model(a["model"])
        self.s = self.model.session(
            n_ctx=a["n_ctx"], kv=a["kv"], n_threads=a["threads"], n_batch=a["n_batch"], compute=a["compute"]
        )
        self.isa = sorted({str(k.get("isa")) for k in self.s.kernels()})

    def n_vocab(self) -> int:
        return int(self.model.n_vocab)

    def cut(self, n: int) -> None:
        self.s.rewind(n)

    def evaluate(self, tokens: list[int], pos: int) -> Any:
        return self.s.eval(tokens, logits="last")

    def fill(self, tokens: list[int], pos: int) -> None:
        self.s.eval(tokens, logits="none")


class LlamaCpp:
    """llama.cpp by the low-level functions of its binding, so that no Python copies are timed."""

    def __init__(self, a: dict[str, Any]) -> None:
        import llama_cpp as L

        self.L, self.version = L, L.__version__
        L.llama_backend_init()
        mp = L.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(a["model"].encode(), mp)
        if not self.model:
            raise RuntimeError(f"{a['model']} does not load")
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch = a["n_ctx"], a["n_batch"], a["n_batch"]
        cp.n_threads = cp.n_threads_batch = a["threads"]
        kv = (a["kv"].split("/") * 2)[:2]
        cp.type_k, cp.type_v = GGML_TYPE[kv[0]], GGML_TYPE[kv[1]]
        if hasattr(cp, "flash_attn_type"):
            cp.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[a["flash"]]
        self.ctx = L.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise RuntimeError("no context with these settings")
        self.vocab = int(L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model)))
        self.batch = L.llama_batch_init(a["n_batch"], 0, 1)
        self.isa = enabled(L.llama_print_system_info().decode())
        self.n_batch = a["n_batch"]

    def n_vocab(self) -> int:
        return self.vocab

    def cut(self, n: int) -> None:
        self.L.llama_memory_seq_rm(self.L.llama_get_memory(self.ctx), 0, n, -1)

    def decode(self, tokens: list[int], pos: int, want: bool) -> None:
        b = self.batch
        for at in range(0, len(tokens), self.n_batch):
            part = tokens[at : at + self.n_batch]
            b.n_tokens = len(part)
            for i, t in enumerate(part):
                b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = t, pos + at + i, 1, 0, 0
            b.logits[len(part) - 1] = 1 if want and at + len(part) == len(tokens) else 0
            if self.L.llama_decode(self.ctx, b) != 0:
                raise RuntimeError(f"llama_decode of {len(part)} tokens at {pos + at}")

    def evaluate(self, tokens: list[int], pos: int) -> Any:
        import numpy as np

        self.decode(tokens, pos, True)
        return np.ctypeslib.as_array(self.L.llama_get_logits_ith(self.ctx, -1), shape=(self.vocab,))

    def fill(self, tokens: list[int], pos: int) -> None:
        self.decode(tokens, pos, False)


class IkLlama(LlamaCpp):
    """ik_llama.cpp; its older interface differs in names."""

    def __init__(self, a: dict[str, Any]) -> None:
        import ctypes

        import ik_llama_cpp
        from ik_llama_cpp import _ctypes_api as L

        self.L, self.version = L, getattr(ik_llama_cpp, "__version__", "?")
        L.llama_backend_init()
        mp = L.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(a["model"].encode(), mp)
        if not self.model:
            raise RuntimeError(f"{a['model']} does not load")
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch = a["n_ctx"], a["n_batch"], a["n_batch"]
        cp.n_threads = cp.n_threads_batch = a["threads"]
        kv = (a["kv"].split("/") * 2)[:2]
        cp.type_k, cp.type_v = GGML_TYPE[kv[0]], GGML_TYPE[kv[1]]
        cp.flash_attn = a["flash"] != "off"
        self.ctx = L.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise RuntimeError("no context with these settings")
        self.vocab = int(L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model)))
        self.batch = L.llama_batch_init(a["n_batch"], 0, 1)
        self.n_batch = a["n_batch"]
        lib = next(v for v in vars(L).values() if isinstance(v, ctypes.CDLL))
        self.seq_rm = lib.llama_kv_cache_seq_rm
        self.seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        self.seq_rm.restype = ctypes.c_bool
        lib.llama_print_system_info.restype = ctypes.c_char_p
        self.isa = enabled(lib.llama_print_system_info().decode())

    def cut(self, n: int) -> None:
        if n == 0:
            self.L.llama_kv_cache_clear(self.ctx)
        elif not self.seq_rm(self.ctx, 0, n, -1):
            raise RuntimeError(f"cannot cut back to {n}")


ENGINES: dict[str, Callable[[dict[str, Any]], Any]] = {"rooflm": Rooflm, "llamacpp": LlamaCpp, "ik": IkLlama}


def enabled(info: str) -> list[str]:
    """Instruction sets that a system line such as "AVX2 = 1 | SVE = 0" reports as used."""
    parts = info.replace(":", "|").split("|")
    return sorted({p.split("=")[0].strip() for p in parts if "=" in p and p.split("=")[1].strip() not in ("0", "")})


def answer_of(logits: Any) -> dict[str, Any]:
    import numpy as np

    x = np.asarray(logits, np.float64)
    x = x - x.max()
    return {"token": int(x.argmax()), "logprob": float(-np.log(np.exp(x).sum()))}


def worker(name: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not disturb the answers
    engine: Any = None
    for line in sys.stdin:
        a = json.loads(line)
        try:
            if a["op"] == "load":
                engine = ENGINES[name](a)
                r: dict[str, Any] = {"version": engine.version, "isa": engine.isa, "n_vocab": engine.n_vocab()}
            elif a["op"] == "prefill":
                engine.cut(0)
                t = time.perf_counter()
                logits = engine.evaluate(a["tokens"], 0)
                r = {"seconds": time.perf_counter() - t, "answer": answer_of(logits)}
            elif a["op"] == "deepen":
                engine.cut(0)
                if a["tokens"]:
                    engine.fill(a["tokens"], 0)
                r = {}
            else:
                depth, times = a["depth"], []
                engine.cut(depth)
                for i, token in enumerate(a["tokens"]):
                    t = time.perf_counter()
                    engine.evaluate([token], depth + i)
                    times.append(time.perf_counter() - t)
                r = {"times": times}
        except Exception as e:  # the parent lists it; other engines go on
            r = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(r), file=out, flush=True)


# ---- the parent ----


class Peer:
    def __init__(self, name: str, python: str, env: dict[str, str]) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        self.process = subprocess.Popen(
            [python, os.path.abspath(__file__), "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def ask(self, **a: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps(a) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"its process ended with code {self.process.wait()}"}
        return dict(json.loads(line))

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()


def median(x: list[float]) -> float:
    s = sorted(x)
    return (s[(len(s) - 1) // 2] + s[len(s) // 2]) / 2


def summary(x: list[float]) -> dict[str, Any]:
    m = median(x)
    return {"median": m, "mad": median([abs(v - m) for v in x]), "n": len(x), "samples": x}


def steal_ticks() -> int | None:
    try:
        return int(Path("/proc/stat").read_text().split("\n")[0].split()[8])
    except (OSError, IndexError, ValueError):
        return None  # not readable here (Android)


def machine() -> dict[str, Any]:
    info = {"system": platform.platform(), "cpus": os.cpu_count(), "cpu": platform.processor(), "flags": []}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                info["cpu"] = value.strip()
            if key.strip() in ("flags", "Features"):
                info["flags"] = [f for f in ISA_FLAGS if f in value.split()]
    except OSError:
        pass
    return info


def measure(path: str, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    depths = [int(d) for d in args.depth.split(",")]
    n_ctx = max(args.prompt, max(depths) + args.gen) + 64
    record: dict[str, Any] = {"model": os.path.basename(path), "model_bytes": os.path.getsize(path), "engines": {}}
    peers: list[Peer] = []
    for name in args.engines.split(","):
        python = {"llamacpp": args.llamacpp_python, "ik": args.ik_python}.get(name, sys.executable)
        env = dict(os.environ, **(dict(kv.split("=", 1) for kv in args.rooflm_env) if name == "rooflm" else {}))
        p = Peer(name, python, env)
        p.facts = p.ask(
            op="load",
            model=os.path.abspath(path),
            threads=args.threads,
            n_ctx=n_ctx,
            n_batch=512,
            kv=args.kv,
            compute=args.compute,
            flash=args.flash,
        )
        record["engines"][name] = {**p.facts}
        if "error" in p.facts:
            p.close()
        else:
            peers.append(p)
    if not peers:
        return record

    vocab = min(p.facts["n_vocab"] for p in peers)
    prompt = [rng.randrange(10, vocab - 10) for _ in range(max([args.prompt, *depths]))]
    feed = [rng.randrange(10, vocab - 10) for _ in range(args.gen)]
    out = {p.name: {"prefill_tps": [], "answers": [], "decode": {}} for p in peers}
    failed: set[str] = set()

    def each(**a: Any) -> list[tuple[Peer, dict[str, Any]]]:
        """One round over the engines in a new order."""
        order = [p for p in peers if p.name not in failed]
        rng.shuffle(order)
        got = []
        for p in order:
            r = p.ask(**a)
            if "error" in r:
                record["engines"][p.name]["error"] = f"{a['op']}: {r['error']}"
                failed.add(p.name)
            else:
                got.append((p, r))
            time.sleep(args.pause)
        return got

    steal = steal_ticks()
    each(op="prefill", tokens=prompt[: args.prompt])  # warm-up, discarded
    for _ in range(args.repeats):
        for p, r in each(op="prefill", tokens=prompt[: args.prompt]):
            out[p.name]["prefill_tps"].append(args.prompt / r["seconds"])
            out[p.name]["answers"].append(r["answer"])
    for depth in depths:
        each(op="deepen", tokens=prompt[:depth])
        each(op="decode", tokens=feed[:8], depth=depth)  # warm-up, discarded
        for _ in range(args.repeats):
            for p, r in each(op="decode", tokens=feed, depth=depth):
                out[p.name]["decode"].setdefault(depth, []).append(r["times"])
    after = steal_ticks()
    record["steal_ticks"] = None if steal is None or after is None else after - steal
    for p in peers:
        o = out[p.name]
        e = record["engines"][p.name]
        if o["prefill_tps"]:
            e["prefill_tps"] = summary(o["prefill_tps"])
            e["answer"] = o["answers"][0]
        e["decode_tps"] = {
            # the first token of a run still warms up caches; tokens over time, as the rest of the library counts
            str(d): summary([(len(t) - 1) / sum(t[1:]) for t in runs])
            for d, runs in o["decode"].items()
        }
        p.close()
    return record


def show(record: dict[str, Any], args: argparse.Namespace) -> None:
    print(f"\n{record['model']}: {args.threads} threads, kv {args.kv}, medians of {args.repeats} interleaved runs")
    base = record["engines"].get("rooflm", {})
    rows = [(f"prefill {args.prompt}", lambda e: e.get("prefill_tps"))]
    for d in args.depth.split(","):
        rows.append((f"decode {args.gen} at {d}", lambda e, d=d: (e.get("decode_tps") or {}).get(d)))
    names = list(record["engines"])
    print(f"{'tokens/s':24}" + "".join(f"{n:>22}" for n in names))
    for title, get in rows:
        line = f"{title:24}"
        for n in names:
            v, b = get(record["engines"][n]), get(base)
            if not v:
                line += f"{'-':>22}"
                continue
            ratio = f" ({b['median'] / v['median']:.2f}x)" if b and n != "rooflm" else ""
            line += f"{v['median']:>10.1f} ±{v['mad']:<4.1f}{ratio:>6}"
        print(line)
    answers = {n: e["answer"]["token"] for n, e in record["engines"].items() if "answer" in e}
    if len(set(answers.values())) > 1:
        print("  the best token after the prompt differs:", answers)
    for n, e in record["engines"].items():
        print(f"  {n}: {e.get('error') or 'version ' + str(e['version']) + ', ' + ' '.join(e['isa'])}")
    if record.get("steal_ticks"):
        print(f"  another guest took {record['steal_ticks']} ticks of processor time meanwhile")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="GGUF files")
    parser.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--engines", default="rooflm,llamacpp,ik")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--depth", default="0", help="context depths for decode, comma-separated")
    parser.add_argument("--kv", default="f16", help="f32, f16, q8_0, or K/V apart")
    parser.add_argument("--compute", default="int8", help="ours only: int8, int16, f32, auto")
    parser.add_argument("--flash", default="auto", choices=["auto", "on", "off"], help="flash attention of the peers")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--llamacpp-python", default=sys.executable)
    parser.add_argument("--ik-python", default=sys.executable)
    parser.add_argument(
        "--rooflm-env", action="append", default=[], metavar="NAME=VALUE", help="e.g. to restrict our ISA"
    )
    parser.add_argument("--json", help="file for the records")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return 0
    if not args.models:
        parser.error("at least one model")
    settings = {k: v for k, v in vars(args).items() if k not in ("worker", "json", "models") and "python" not in k}
    result = {"schema": 1, "machine": machine(), "settings": settings, "records": []}
    print(f"{result['machine']['cpu']}, {result['machine']['cpus']} cpus, {' '.join(result['machine']['flags'])}")
    for i, path in enumerate(args.models):
        record = measure(path, args, args.seed + i)
        result["records"].append(record)
        show(record, args)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    usable = [r for r in result["records"] if any("error" not in e for e in r["engines"].values())]
    return 0 if len(usable) == len(result["records"]) else 1


if __name__ == "__main__":
    sys.exit(main())
