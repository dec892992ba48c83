# SPDX-License-Identifier: Apache-2.0
"""Subcommands that read a model and say something: fetch, info, tokenize, run, chat, ppl."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, Optional

from rooflm._output import answer, clip, emit, megabytes, show, show_layers, table

OVERLAP: dict[str, Any] = {"auto": "auto", "on": True, "off": False}
TRACE_CAPACITY = 1 << 20  # operations; some 270 for a token of a model with 30 layers


class UsageError(Exception):
    """Arguments that contradict each other: exit code 2."""


def fetch(args: argparse.Namespace) -> int:
    from rooflm import fetching

    if args.name is None:
        have = fetching.fetched()
        rows: list[dict[str, Any]] = [
            {"name": s.name, "about": s.about, "path": str(have[s.name]) if s.name in have else None}
            for s in fetching.KNOWN.values()
        ]
        rows += [{"name": n, "about": None, "path": str(p)} for n, p in have.items() if n not in fetching.KNOWN]
        if args.json:
            emit({"models": rows})
        else:
            print(table(rows, ("name", "about", "path")))
        return 0
    path = fetching.fetch(args.name, progress=not args.quiet)
    if args.json:
        emit({"name": args.name, "path": str(path), "file_bytes": path.stat().st_size})
    else:
        print(path)
    return 0


def info(args: argparse.Namespace) -> int:
    from rooflm.fetching import resolve_model
    from rooflm.inspecting import describe_file

    record = describe_file(resolve_model(args.model), metadata=args.metadata or args.json)
    if args.json:
        emit(record)
        return 0
    print(f"{record['path']}: GGUF version {record['version']}, {megabytes(record['file_bytes'])}")
    for key in ("name", "arch", "n_params", "bits_per_weight", "n_ctx_train", "vocabulary", "chat_template"):
        print(f"  {key:<18}{show(record[key])}")
    print(f"  {'can run':<18}{'yes' if record['can_run'] else 'no: ' + record['why_not']}")
    print()
    rows = [{**r, "": "#" * round(40 * (r["share"] or 0))} for r in record["types"]]
    print(table(rows, ("type", "tensors", "elements", "nbytes", "share", "")))
    for line in record["claims"]["warnings"]:
        print(f"warning: {line}")
    if record["claims"]["recommendation"]:
        print(f"recommended: {record['claims']['recommendation']['text']}")
    if record["hparams"]:
        print()
        print(table([{"hyper-parameter": k, "value": show_layers(v)} for k, v in record["hparams"].items()],
                    ("hyper-parameter", "value")))  # fmt: skip
    if args.metadata:
        print()
        print(table([{"key": k, "value": clip(v)} for k, v in record["metadata"].items()], ("key", "value")))
    return 0


def _argument_text(text: str) -> str:
    """The text of -p; bytes that are not UTF-8 reach us as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise ValueError(f"the text of -p is not UTF-8: character {e.start}") from None
    return text


def _text_argument(args: argparse.Namespace, *, stdin: bool = True) -> str:
    """The text of -p, --file or standard input."""
    from rooflm._text import read_text

    if args.prompt is not None and args.file is not None:
        raise UsageError("give the text by -p or by --file, not both")
    if args.prompt is not None:
        return _argument_text(args.prompt)
    if args.file is not None and str(args.file) != "-":
        return read_text(Path(args.file))
    if args.file is not None or (stdin and not sys.stdin.isatty()):
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as e:
            raise ValueError(f"standard input is not UTF-8 text: byte {e.start}") from None
    raise UsageError("no text: give it by -p TEXT, by --file FILE, or on standard input")


def tokenize(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    text = _text_argument(args)
    tokenizer = rooflm.Tokenizer.from_gguf(resolve_model(args.model))
    ids = [int(i) for i in tokenizer.encode(text, special=args.special, bos=args.bos)]
    if args.json:
        emit({"ids": ids, "n_tokens": len(ids), "text_bytes": len(text.encode("utf-8"))})
    elif args.pieces:
        for i in ids:
            print(i, _shown(tokenizer.piece(i)), sep="\t")
    else:
        print(" ".join(map(str, ids)))
    return 0


def _shown(piece: bytes) -> str:
    """The text of a token; its bytes where they are a part of a character."""
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)


def session_options(args: argparse.Namespace) -> dict[str, Any]:
    options = {
        "n_ctx": args.ctx,
        "kv": args.kv,
        "n_threads": args.threads,
        "compute": args.compute,
        "cpus": args.cpus,
        "kernel": args.kernel,
        "evict": args.evict,
    }
    return {k: v for k, v in options.items() if v is not None}


def make_sampler(args: argparse.Namespace) -> Any:
    import rooflm

    options = {
        "temperature": args.temp,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repeat_penalty": args.repeat_penalty,
        "seed": args.seed,
    }
    if args.temp == 0:
        idle = [f"--{k.replace('_', '-')}" for k in ("top_k", "top_p", "min_p") if options[k] is not None]
        if idle:
            print(f"rooflm: {', '.join(idle)} without effect at temperature 0: give --temp, too", file=sys.stderr)
        if args.repeat_penalty in (None, 1.0):
            return rooflm.Sampler.greedy()
    return rooflm.Sampler(**{k: v for k, v in options.items() if v is not None})


@contextmanager
def _drafting(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What --draft and --n-draft ask of generate() and chat()."""
    import rooflm
    from rooflm.fetching import resolve_model

    if args.draft is None:
        yield {}
    elif args.draft == "lookup":
        yield {"draft": rooflm.PromptLookup(), "n_draft": args.n_draft}
    else:
        model = rooflm.Model(resolve_model(args.draft))
        with model.session(**{k: v for k, v in session_options(args).items() if k != "kernel"}) as small:
            yield {"draft": rooflm.DraftModel(small), "n_draft": args.n_draft}


def _stream(generation: Any, quiet: bool) -> Optional[KeyboardInterrupt]:
    """Prints pieces as they come; what interrupted it, if anything did."""
    try:
        for piece in generation:
            if not quiet:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt as e:
        return e
    finally:
        if not quiet:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return None


def _closing_line(generation: Any) -> str:
    def rate(v: Optional[float]) -> str:
        return "-" if v is None else f"{v:.1f} tok/s"

    d = generation.to_dict()
    first = "-" if d["ttft_s"] is None else f"{1e3 * d['ttft_s']:.0f} ms"
    hidden = f" ({1e3 * d['hidden_s']:.0f} ms of the steps beside the output)" if d["n_ahead"] else ""
    drafted = "" if d["draft"] is None else f", {d['n_accepted']} of {d['n_proposed']} proposed accepted"
    return (
        f"[{d['n_prompt']} prompt tokens at {rate(d['prefill_tps'])}, first token after {first}, "
        f"{d['n_generated']} tokens at {rate(d['decode_tps'])}{hidden}{drafted}, ended by {d['stop_reason']}]"
    )


def _say_when_full(generation: Any, session: Any) -> None:
    if generation.stop_reason == "context":
        print(f"rooflm: ended because the context of {session.n_ctx} positions is full; --ctx makes it larger, "
              "--evict goes on without the oldest", file=sys.stderr)  # fmt: skip


@contextmanager
def traced(session: Any, path: Optional[str]) -> Iterator[None]:
    """Traces the block and writes the file, however the block ends; nothing without a path."""
    if path is None:
        yield
        return
    trace = session.trace(capacity=TRACE_CAPACITY)
    try:
        with trace:
            yield
    finally:
        trace.to_chrome(path)
        if trace.dropped:
            print(f"rooflm: the trace is full: {trace.dropped} later operations are not in {path}", file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    prompt = _text_argument(args)
    model = rooflm.Model(resolve_model(args.model))
    with model.session(**session_options(args)) as session, traced(session, args.trace), _drafting(args) as drafting:
        generation = session.generate(
            prompt, max_tokens=args.n, sampler=make_sampler(args), stop=args.stop, special=args.special,
            overlap=OVERLAP[args.overlap], **drafting
        )  # fmt: skip
        stopped = _stream(generation, args.json)
        if args.json:
            emit(generation.to_dict())
        elif args.stats:
            print(_closing_line(generation), file=sys.stderr)
        if not stopped:
            _say_when_full(generation, session)
    if stopped:
        print(f"rooflm: interrupted after {len(generation.ids)} tokens", file=sys.stderr)
        return 130
    return 0


def chat(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm._text import read_text
    from rooflm.chat import check_ready
    from rooflm.fetching import resolve_model
    from rooflm.tracing import stage

    if args.json and args.prompt is None:
        raise UsageError("chat --json answers one message: give it by -p")
    template = None if args.template is None else read_text(Path(args.template))
    model = rooflm.Model(resolve_model(args.model))
    check_ready(model.tokenizer, template)  # before somebody types a message
    talking = args.prompt is None and sys.stdin.isatty()
    if talking:
        with suppress(ImportError):
            import readline  # noqa: F401  (gives input() a line that can be edited, and its history)
    sampler = make_sampler(args)
    messages: list[dict[str, str]] = [{"role": "system", "content": args.system}] if args.system else []
    with model.session(**session_options(args)) as session, traced(session, args.trace), _drafting(args) as drafting:
        while True:
            if args.prompt is not None:
                said = _argument_text(args.prompt)
            else:
                try:
                    with stage(session, "input"):
                        said = input("> " if talking else "")
                except EOFError:
                    if talking:
                        print()  # what comes next begins a line
                    return 0
                if not said.strip():
                    continue
            messages.append({"role": "user", "content": said})
            generation = session.chat(
                messages, max_tokens=args.n, sampler=sampler, stop=args.stop, template=template,
                overlap=OVERLAP[args.overlap], **drafting
            )  # fmt: skip
            stopped = _stream(generation, args.json)
            if args.json:
                emit(generation.to_dict())
            elif args.stats:
                print(_closing_line(generation), file=sys.stderr)
            if stopped:
                print(f"rooflm: interrupted after {len(generation.ids)} tokens", file=sys.stderr)
                if not talking:  # in a conversation Ctrl-C ends the answer, and at the prompt the command
                    return 130
            _say_when_full(generation, session)
            if args.prompt is not None:
                return 0
            messages.append({"role": "assistant", "content": generation.text})


def ppl(args: argparse.Namespace) -> int:
    import rooflm
    from rooflm.fetching import resolve_model

    progress = None
    if sys.stderr.isatty() and not args.json:

        def progress(done: int, total: int) -> None:
            print(f"\rwindow {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    result = rooflm.perplexity(
        resolve_model(args.model),
        Path(args.text),
        ctx=args.ctx,
        windows=args.windows,
        compute=args.compute,
        kv=args.kv,
        n_threads=args.threads,
        progress=progress,
    )
    answer(result, args)
    return 0
