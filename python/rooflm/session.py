# SPDX-License-Identifier: Apache-2.0
"""Sessions as users see them, over the type of the extension.

A Session is one timeline of tokens with its KV cache, made by Model.session(). The numeric work is in the extension;
here are text, streaming, layer taps and the checks of arguments.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import time
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from rooflm import _core, _eviction
from rooflm._auto import decide
from rooflm._blas import find_openblas
from rooflm._closing import Closing
from rooflm._keywords import at_least, checked_keywords
from rooflm._output import html_table, table
from rooflm._stepping import whole_or_undone
from rooflm._text import TextOrTokens, as_tokens, given_text
from rooflm.capture import Capture
from rooflm.drafting import DraftModel
from rooflm.generation import Generation
from rooflm.tracing import Trace, stage

if TYPE_CHECKING:
    from rooflm.drafting import Draft
    from rooflm.model import Model

DEFAULT_N_CTX = 4096


def default_n_ctx(model: Model) -> int:
    """Positions of a session that was not told how many: the model's own, at most DEFAULT_N_CTX."""
    return min(model.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)


class LogProbs(NamedTuple):
    """What Session.logprobs gives, in nats.

    logprobs      (n - 1 - start,) float64: of token i + 1 given all up to i, for i >= start
    top_ids       (n - start, top) int32: the likeliest continuations of each position, best first
    top_logprobs  (n - start, top) float32: theirs
    """

    logprobs: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray


class Operations(list[dict[str, Any]]):
    """A list of records that prints as a table."""

    columns = ("layer", "op", "type", "kernel", "isa", "tensor")

    def __repr__(self) -> str:
        return table(self, self.columns)

    def _repr_html_(self) -> str:
        return html_table(self, self.columns)


class Session(Closing):
    """One timeline of tokens with its KV cache; made by Model.session(). A context manager that frees the cache."""

    @checked_keywords
    def __init__(
        self,
        model: Model,
        *,
        n_ctx: Optional[int] = None,
        kv: str = "f16",
        n_threads: Optional[int] = None,
        n_batch: int = 512,
        compute: Union[str, Mapping[str, str]] = "auto",
        cpus: Union[None, str, Sequence[int]] = None,
        kernel: Optional[str] = None,
        layout: str = "tile",
        rope_base: Optional[float] = None,
        isa: Optional[str] = None,
        blas: Optional[str] = None,
        window: Optional[int] = None,
        evict: Optional[str] = None,
    ) -> None:
        kept = _eviction.kept_by(evict)
        if kept is not None:
            if n_ctx is not None and n_ctx < kept.n_ctx:
                raise ValueError(f"n_ctx={n_ctx}: evict={evict!r} needs {kept.n_ctx} positions, or no n_ctx")
            n_ctx = kept.n_ctx
        self.evict = None if kept is None else str(kept)  #: what the cache keeps, such as "64+960"; None: everything
        if n_ctx is None:
            n_ctx = default_n_ctx(model)
        for name, value in (("n_ctx", n_ctx), ("n_batch", n_batch)):
            if not 1 <= value < 1 << 31:
                raise ValueError(f"{name}={value} is not from 1 to 2^31 - 1")
        if window is not None and window < 1:
            raise ValueError(f"window={window}: a token attends to itself at least; None for the file's own windows")
        if not isinstance(compute, (str, Mapping)):
            raise TypeError(f"compute must be a str or a dict of patterns, not {type(compute).__name__}")
        for name, text in (("kv", kv), ("layout", layout)):
            if not isinstance(text, str):
                raise TypeError(f"{name} must be a str, not {type(text).__name__}")
        rules = None if isinstance(compute, str) else list(compute.items())
        self.model = model
        # What "auto" takes for one token, and why (see _auto.decide); None where nothing is left to it
        self.auto: Optional[dict[str, Any]] = None
        if rules is not None or compute == "auto":
            self.auto = decide(model._matrices, isa)
        self._open: Optional[_core.Session] = _core.Session(
            model._c,
            n_ctx=n_ctx,
            kv=kv,
            n_threads=n_threads,
            n_batch=n_batch,
            compute=compute if isinstance(compute, str) else "auto",
            cpus=cpus,
            kernel=kernel,
            layout=layout,
            rope_base=rope_base or 0.0,
            isa=isa,
            blas=find_openblas(blas),
            rules=rules,
            window=window or 0,
            sinks=-1 if kept is None else kept.sinks,
            int8_single=[(c["type"], c["cols"]) for c in self.auto["matrices"] if c["compute"] == "int8"]
            if self.auto
            else None,
        )
        self._pending: list[int] = []  # sampled by generate(), not evaluated yet
        self._capture: Optional[Capture] = None
        self._tracer: Optional[Trace] = None

    # ---- life ----

    @property
    def _c(self) -> _core.Session:
        if self._open is None:
            raise _core.Error("this session is closed")
        return self._open

    def close(self) -> None:
        """Frees the cache (views of it stay valid until they are gone) and ends capture() and trace(), which keep what
        they have. Closing twice is fine."""
        if self._open is None:
            return
        for watching in (self._capture, self._tracer):
            if watching is not None:
                watching._end()
        self._open.close()
        self._open = None

    # ---- facts ----

    n_ctx = property(lambda self: self._c.n_ctx, doc="Positions this session can hold.")
    n_past = property(lambda self: self._c.n_past, doc="Positions of the text so far, with those evicted.")
    room = property(lambda self: self._c.room, doc="Positions that may come; with evict= more than n_ctx.")
    evicted = property(lambda self: self._c.evicted, doc="Positions dropped behind the sinks, see held.")
    n_threads = property(lambda self: self._c.n_threads, doc="Threads in use.")
    placement = property(
        lambda self: self._c.placement, doc="Why so many threads, the CPUs they are pinned to, and where they last ran."
    )
    n_batch = property(lambda self: self._c.n_batch, doc="Most tokens evaluated at once.")
    compute = property(lambda self: self._c.compute, doc='"int8", "int16", "f32" or "auto".')
    kv_type = property(lambda self: self._c.kv_type, doc='Type of the cache, "q8_0/f16" where K and V differ.')
    tokens = property(lambda self: self._c.tokens, doc="The ids evaluated so far.")
    kv = property(lambda self: self._c.kv, doc="The cache by layer: kv[3].k(), kv[3].v().")

    @property
    def held(self) -> list[list[int]]:
        """Positions that the cache holds, as [first, end) ranges: [[0, n_past]], or with evict= the sinks and what is
        recent. Layers with a sliding window hold less, see kv[i].first."""
        n, evicted = self.n_past, self.evicted
        if not evicted:
            return [[0, n]]
        sinks = _eviction.parse(self.evict or "").sinks
        return [[first, end] for first, end in ([0, sinks], [sinks + evicted, n]) if end > first]

    blas = property(lambda self: self._c.blas, doc="The OpenBLAS that multiplies prompts or None.")
    isa = property(lambda self: self._c.isa, doc="Best instruction-set tier in use.")
    kv_nbytes = property(lambda self: self._c.kv_nbytes, doc="Bytes of the KV pages in use.")
    scratch_nbytes = property(lambda self: self._c.scratch_nbytes, doc="Bytes of working memory, reserved at once.")
    scratch_used_nbytes = property(
        lambda self: self._c.scratch_used_nbytes,
        doc="Bytes of it that single tokens and batches of n_batch touch: what is resident then.",
    )

    @checked_keywords
    def kernels(self, n_tokens: int = 1) -> Operations:
        """What runs when n_tokens are evaluated at once: one record per matrix with layer (None outside the
        layers), op, type of the weights, kernel, isa, tensor, and of the matrix rows, columns, experts (how many are
        stacked) and nbytes (of all of them)."""
        return Operations(self._c.kernels(n_tokens))

    # ---- evaluation ----

    @checked_keywords
    def eval(
        self,
        tokens: TextOrTokens,
        logits: Union[str, slice] = "last",
        out: Optional[np.ndarray] = None,
    ) -> Optional[np.ndarray]:
        """Evaluates tokens (or text, encoded as the file asks) behind what is there; float32 logits.

        logits: "last" (n_vocab), "all" (tokens, n_vocab), "none", or a slice of the positions of these tokens.
        The array is the caller's own. ContextFull when it does not fit; then nothing has changed. An id that
        generate() sampled last and that is not evaluated yet comes first, without logits.
        """
        ids = self._ids(tokens)
        self._settle(ids)
        with whole_or_undone((self._c, self)):
            return self._c.eval(ids, logits=logits, out=out)

    @checked_keywords
    def logprobs(self, tokens: TextOrTokens, *, top: int = 0, start: int = 0) -> LogProbs:
        """Evaluates tokens and gives log-probabilities in nats, streamed in blocks, so that no array of tokens x
        vocabulary exists: of each token after the one at `start`, and with top > 0 the best ids of each position."""
        ids = self._ids(tokens)
        self._settle(ids)
        with whole_or_undone((self._c, self)):
            return LogProbs(*self._c.logprobs(ids, top=top, start=start))

    def _settle(self, coming: np.ndarray) -> None:
        """Evaluates what was sampled and is still to be evaluated, if there is room for it and for what comes."""
        if not self._pending:
            return
        both = np.concatenate([np.asarray(self._pending, np.int32), coming])
        if len(both) <= self.room:
            both = both[: len(self._pending)]
        with whole_or_undone((self._c, self)):
            self._c.eval(both, logits="none")  # without room for both: ContextFull, before anything has changed
            self._pending = []

    def _ids(self, value: TextOrTokens, special: bool = False) -> np.ndarray:
        # Within a running timeline a second BOS would be wrong whatever the file asks for.
        bos = None if self.n_past == 0 else False
        return as_tokens(value, lambda: self.model.tokenizer, special=special, bos=bos, eos=False)

    def _evaluate(self, ids: np.ndarray, out: Optional[np.ndarray] = None) -> np.ndarray:
        """Logits of the last token after evaluating what was sampled and then ids."""
        batch = np.concatenate([np.asarray(self._pending, np.int32), ids]) if self._pending else ids
        with whole_or_undone((self._c, self)):
            result = self._c.eval(batch, logits="last", out=out)
            self._pending = []
        assert result is not None
        return result

    def _evaluate_ahead(self, proposed: Sequence[int]) -> np.ndarray:
        """Logits behind what was sampled and behind each id proposed: (1 + len(proposed), n_vocab)."""
        n = len(self._pending)
        with whole_or_undone((self._c, self)):
            result = self._c.eval(np.array([*self._pending, *proposed], np.int32), logits=slice(n - 1, None))
            self._pending = []
        assert result is not None
        return result

    def _keep(self, n: int) -> None:
        """Forgets what was evaluated beyond n positions; what was sampled last stays to be evaluated."""
        if self._open is not None and self.n_past > n:
            self._c.rewind(n)

    def _in_common(self, ids: np.ndarray) -> int:
        """How many of the ids need no evaluation because the session begins with them: not the last, for its logits."""
        return min(_common_length(ids, self.tokens), max(len(ids) - 1, 0))

    def _back_to(self, n: int) -> int:
        """Rewinds to n positions, or to none where a sliding window no longer holds what is needed there; which."""
        try:
            self.rewind(n)
        except ValueError:
            self.rewind(n := 0)
        return n

    @checked_keywords
    def rewind(self, n: int) -> None:
        """Forgets all but the first n positions. A sliding window that no longer holds what would be needed, and a
        place before the last eviction and behind the sinks, is an error that gives the numbers."""
        self._c.rewind(n)
        self._pending.clear()

    @checked_keywords
    def compress(self, *, rank: Union[None, int, str] = None, recent: int = 512) -> dict[str, Any]:
        """Compresses the pages of all but the first 64 and the latest `recent` positions; a record of what that did.

        rank    of K and V: 48, or apart "48/32", at most the values of a head. Needed the first time; later calls
                compress what has become old since then by the same basis and leave it out
        recent  positions that stay whole, in whole pages at least so many

        The record has ranks, positions [first, end), tokens, kv_nbytes_before and kv_nbytes (with the basis), k_error
        and v_error (|x - x'| / |x|; None where an earlier basis was used), seconds. Layers with a window stay whole.
        rooflm.kv_loss measures what it costs. rewind() goes back to the end of what is compressed, or to 64 and before,
        where nothing is. See rooflm.compression.
        """
        from rooflm.compression import compress

        return compress(self, rank, recent)

    @property
    def compressed(self) -> Optional[dict[str, Any]]:
        """{"positions": [first, end), "ranks": [of K, of V]} of compressed pages; None where there are none."""
        n, rank_k, rank_v = self._c._compressed
        page = _eviction.PAGE  # the first stays whole
        return {"positions": [page, page + n], "ranks": [rank_k, rank_v]} if n else None

    def fork(self) -> Session:
        """A second session with the same past; pages of the cache are shared until they differ."""
        twin = object.__new__(type(self))
        twin.model = self.model
        twin.auto = self.auto
        twin.evict = self.evict
        twin._open = self._c.fork()
        twin._pending = list(self._pending)
        twin._capture = None
        twin._tracer = None
        return twin

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes tokens and cache to a file. A token that generate() sampled last is evaluated first, so that whoever
        loads the file goes on from the whole text."""
        if len(self._pending) <= self.room:
            self._settle(np.empty(0, np.int32))
        self._c.save(path)

    def load(self, path: Union[str, os.PathLike[str]]) -> None:
        """Takes tokens and cache from a file written by save() with the same model and cache settings."""
        try:
            self._c.load(path)
        except BaseException:
            if self.n_past == 0:  # a damaged file leaves nothing, one of another model what there was
                self._pending.clear()
            raise
        self._pending.clear()

    # ---- text ----

    @checked_keywords
    def generate(
        self,
        prompt: TextOrTokens,
        *,
        max_tokens: int = 64,
        sampler: Any = None,
        stop: Union[str, Sequence[str]] = (),
        special: bool = False,
        draft: Optional[Draft] = None,
        n_draft: int = 4,
        overlap: Union[bool, str] = "auto",
    ) -> Generation:
        """Continues the prompt behind what the session holds; see Generation for what comes back.

        sampler  default: greedy (the likeliest id, always the same text)
        stop     strings that end the text; they are not part of it
        special  parse special tokens such as <|im_start|> in the prompt; by default they are ordinary text
        draft    proposes up to n_draft tokens that are evaluated in one pass: PromptLookup(), DraftModel(session) or
                 any object with propose(); see rooflm.drafting
        overlap  True: while you iterate, the next step runs beside your code; "auto": where your code takes long
                 enough for that to pay (0.1 ms for one of the last 16 pieces); False: never. The text, the sampler's
                 numbers and what the session shows are the same; other uses of the session between two pieces wait
                 for the step. See docs/session.md
        """
        start = time.perf_counter()
        with stage(self, "input"):
            prompt = given_text(prompt)
        with stage(self, "tokenize"):
            ids = self._ids(prompt, special)
        return self._answer(ids, start, max_tokens, sampler, stop, draft, n_draft, overlap)

    @checked_keywords
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 512,
        sampler: Any = None,
        stop: Union[str, Sequence[str]] = (),
        template: Optional[str] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        template_options: Optional[Mapping[str, Any]] = None,
        draft: Optional[Draft] = None,
        n_draft: int = 4,
        overlap: Union[bool, str] = "auto",
    ) -> Generation:
        """The model's answer to a whole conversation, [{"role": "user", "content": "Hi"}, ...], by its chat template.

        What the session already holds of the conversation is kept, what differs is forgotten; so the messages of
        every turn are given anew. Control tokens inside messages are ordinary text.
        template          instead of the file's own
        tools             JSON schemas, for templates that know tools
        template_options  further variables of the template, such as {"enable_thinking": False}
        draft, n_draft, overlap  as for generate()
        """
        from rooflm.conversation import chat_text, encode_chat

        start = time.perf_counter()
        tokenizer = self.model.tokenizer
        with stage(self, "preprocess"):
            text = chat_text(tokenizer, messages, template=template, tools=tools, options=template_options)
        with stage(self, "tokenize"):
            ids = encode_chat(tokenizer, text)
        same = self._back_to(self._in_common(ids))
        return self._answer(ids[same:], start, max_tokens, sampler, stop, draft, n_draft, overlap)

    def _answer(
        self,
        ids: np.ndarray,
        start: float,
        max_tokens: int,
        sampler: Any,
        stop: Union[str, Sequence[str]],
        draft: Optional[Draft],
        n_draft: int,
        overlap: Union[bool, str],
    ) -> Generation:
        at_least(0, max_tokens=max_tokens, n_draft=n_draft)
        stops = (stop,) if isinstance(stop, str) else stop
        if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) for s in stops):
            raise TypeError(f"stop={stop!r}: must be a text that ends the answer, or a list of such texts; () for none")
        if "" in stops:
            raise ValueError(f"stop={stop!r}: an empty text would end every answer before it begins; () for none")
        if sampler is not None and not hasattr(sampler, "sample"):
            raise TypeError(f"sampler must be a rooflm.Sampler or have its sample(), not {type(sampler).__name__}")
        if draft is not None and not hasattr(draft, "propose"):
            raise TypeError(
                f"draft must have propose(tokens, n), as PromptLookup() and DraftModel(session) do, not "
                f"{type(draft).__name__}"
            )
        if not isinstance(overlap, bool) and not (isinstance(overlap, str) and overlap == "auto"):
            raise ValueError(f"overlap={overlap!r}: must be True, False or 'auto'")
        if isinstance(draft, DraftModel):
            draft.check(self.model.tokenizer)
            if draft.session is self:
                raise ValueError("draft=DraftModel(session) needs a session of its own, usually of a smaller model")
        if not len(ids) and not self._pending:
            raise ValueError("the prompt is empty and the session has nothing to continue from")
        return Generation(
            self,
            ids,
            max_tokens=max_tokens,
            sampler=_core.Sampler.greedy() if sampler is None else sampler,
            stop=stops,
            tokenize_s=time.perf_counter() - start,
            draft=draft,
            n_draft=n_draft,
            overlap=overlap,
        )

    # ---- traces and layer taps ----

    @checked_keywords
    def trace(self, capacity: int = 100_000) -> Trace:
        """Context manager: times of every evaluation inside it by layer and operation, and of the stages of generate()
        and chat(); see rooflm.tracing.Trace. capacity: events that are kept, some 10 per layer and step."""
        at_least(1, capacity=capacity)
        return Trace(self, capacity)

    def capture(self, *patterns: str) -> Capture:
        """Context manager: arrays of what evaluations inside it computed, by name.

            with s.capture("blk.*.resid_post") as cap:
                s.eval(tokens)
            cap["blk.3.resid_post"]        # (tokens, width)

        Names are those of Model.taps(); patterns as in fnmatch. A pattern that matches nothing is a ValueError.
        """
        known = [t["name"] for t in self.model.taps()]
        wanted: dict[str, None] = {}  # in the order asked for, each once
        for pattern in patterns or ("*",):
            hits = fnmatch.filter(known, pattern)
            if not hits:
                near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4)
                shown = ", ".join(near or known[:3])
                raise ValueError(f"no tap matches {pattern!r}; Model.taps() lists them, such as {shown}")
            wanted.update(dict.fromkeys(hits))
        return Capture(self, list(wanted))

    def __reduce__(self) -> str:
        # copy.copy() would share one cache between two lists of what is to be evaluated
        raise TypeError("a Session cannot be copied or pickled: fork() it, or save() it and load() it elsewhere")

    def __repr__(self) -> str:
        if self._open is None:
            return "<Session, closed>"
        past = f"{self.n_past} of {self.n_ctx} positions"
        if self.evict is not None:
            held = " and ".join(f"{first} to {end - 1}" for first, end in self.held if end > first) or "none"
            past = f"{self.n_past} positions, holds {held} (evict {self.evict})"
        try:
            compressed = self.compressed
        except _core.SessionBusy:
            compressed, past = None, past + ", computing in another thread"
        if compressed is not None:
            first, end = compressed["positions"]
            past += f", {first} to {end - 1} at rank {'/'.join(map(str, compressed['ranks']))}"
        return (
            f"<Session {past}, kv {self.kv_type}, "
            f"compute {self.compute}, {self.n_threads} threads>"
        )


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
