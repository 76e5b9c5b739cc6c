"""JSON schemas as grammars over tokens: the tokens that may come next, computed in a separate process.

Schemas are a client's, so llguidance runs in a separate process (grammar_child.py): compiling and every step are killed
at their limits, and no schema can hold the interpreter of the worker's loop. One thread communicates with the
process; the masks after a token are computed while the loop does something else. The process starts with the first
schema.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from typing import cast

import numpy as np
import torch
from torch import Tensor

from edgeflow.engine.chat.grammar_child import (
    COMPILE,
    COMPILE_S,
    HANDLE,
    MASK,
    MEMORY_BYTES,
    following,
)
from edgeflow.ipc.bounded import LAST_WORDS_S, OUT_OF_MEMORY, BoundedProcess
from edgeflow.kernels.kv.layout import uploaded
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import RETRY_AFTER_MS, InvalidArgument, RequestError, Unavailable
from edgeflow_client.reasons import Reason

START_S = 60.0  # of the process, a large tokenizer included
PATIENCE_S = 20.0  # for an answer, of which COMPILE_S may be processor time: on a busy machine it gets little
MAX_BYTES = 1 << 20  # of a mask: eight million tokens
MOST_DRAFTS = 64  # after the tokens of one step, of which there may be one more
QUICK_S = 1.0  # a rejection that takes longer leaves no time to try the alternatives
SCHEMA = "schema"  # the field of errors; the chat front knows which field of the request it was made from


class Grammar:
    """The place of one answer in its schema. wake: called, from another thread, whenever `ready` has become true."""

    def __init__(self, grammars: Grammars, handle: int, mask: bytes, wake: Callable[[], None]) -> None:
        self._grammars = grammars
        self._handle = handle
        self._wake = wake
        self._mask_bytes = len(mask)  # of each mask, also of later ones
        self._masks: Future[bytes] = Future()
        self._masks.set_result(mask)

    @property
    def ready(self) -> bool:
        """True when `allowed` can answer without waiting."""
        return self._masks.done()

    def allowed(self) -> Tensor:
        """[1 + permitted, V] bool: tokens that may come after the tokens that were accepted, then after each draft.

        A stop token is one of them once the schema is met. permitted: drafts before the first one that the schema
        forbids or that is a stop token; fewer where following them breaks a limit. No row is empty.
        """
        bits = np.frombuffer(self._masks.result(), np.uint8).reshape(-1, self._mask_bytes)
        masks = np.unpackbits(bits, axis=1, count=self._grammars.vocab_size, bitorder="little").view(bool)
        if not masks[0].any():
            raise _rejected("permits no token here")
        return uploaded(torch.from_numpy(masks), self._grammars.device)

    def accept(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> None:
        """Move on by the tokens that were chosen, and ask for the masks after them and after each draft.

        The drafts are followed for their masks only: the next tokens may be others. ValueError for more than
        MOST_DRAFTS drafts, or for more tokens than one and as many accepted drafts.
        """
        self._masks = self._grammars.after(self._handle, tokens, drafts)
        self._masks.add_done_callback(lambda _: self._wake())


class Grammars:
    """Grammars of one tokenizer. `compile` returns at once; the result is a new Grammar or an InvalidArgument."""

    def __init__(
        self, tokenizer: TextTokenizer, vocab_size: int, stop_ids: Iterable[int], device: torch.device
    ) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._stop_ids = frozenset(stop_ids)
        values = {"definition": tokenizer.definition, "vocab": vocab_size, "stop_ids": sorted(self._stop_ids)}
        self._process = _Process(json.dumps(values).encode()) if self._stop_ids else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._last = 0

    def compile(self, schema: str, wake: Callable[[], None] = lambda: None) -> Future[Grammar]:
        """Start to compile a JSON schema. wake: called when it is done, and whenever the grammar is ready again."""
        self._last += 1
        future = self._thread.submit(self._compile, schema, self._last, wake)
        future.add_done_callback(lambda _: wake())
        return future

    def after(self, handle: int, tokens: Sequence[int], drafts: Sequence[int] = ()) -> Future[bytes]:
        """The mask after more tokens, and those after permitted drafts; ValueError for more than MOST_DRAFTS."""
        if len(drafts) > MOST_DRAFTS or len(tokens) > MOST_DRAFTS + 1:
            text = f"{len(tokens)} tokens and {len(drafts)} drafts: at most {MOST_DRAFTS + 1} and {MOST_DRAFTS}"
            raise ValueError(f"{text} are permitted in one step; split them")
        chain = list(takewhile(lambda draft: draft not in self._stop_ids, drafts))  # nothing comes after a stop token
        return self._thread.submit(self._ask, following(handle, tokens, chain), 1 + len(chain))

    def _compile(self, schema: str, handle: int, wake: Callable[[], None]) -> Grammar:
        began_s = time.monotonic()
        try:
            mask = self._ask(COMPILE + HANDLE.pack(handle) + schema.encode())
        except InvalidArgument as error:
            if time.monotonic() - began_s > QUICK_S:
                raise
            raise self._narrowed(schema, handle, began_s + COMPILE_S) or error from None
        return Grammar(self, handle, mask, wake)

    def _narrowed(self, schema: str, handle: int, end_s: float) -> InvalidArgument | None:
        """The error of the first alternative that is rejected by itself; None if none is found in time.

        The alternatives of a forced call are tools, whose fields the chat front knows by their number.
        """
        try:
            values = json.loads(schema)
            choices = enumerate({"$defs": values.get("$defs", {}), **choice} for choice in values.get("anyOf", ()))
            for index, choice in choices:
                if time.monotonic() > end_s:
                    break
                try:
                    self._ask(COMPILE + HANDLE.pack(handle) + json.dumps(choice).encode())
                except InvalidArgument as error:
                    why = error.text.removeprefix(f"{SCHEMA}: ")
                    return InvalidArgument(why, field=f"{SCHEMA}.{index}", reason=error.reason)
        except (ValueError, TypeError, AttributeError):
            return None  # no schema at all
        return None

    def _ask(self, message: bytes, masks: int = 1) -> bytes:
        if self._process is None:
            raise _rejected("this model has no token that ends an answer")
        return self._process.ask(message, masks * MAX_BYTES)


class _Process:
    """One grammar process after another: one that breaks its limits is killed, the next question starts a new one."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self._process: BoundedProcess | None = None

    def ask(self, message: bytes, most_bytes: int) -> bytes:
        """Ask for masks; InvalidArgument where the answer has none or comes too late; Unavailable if the process is
        lost.

        most_bytes: the most bytes of an answer; a process that sends more is ended.
        """
        if self._process is not None and message[:1] == COMPILE and not self._process.alive:
            self._end()  # it was lost between two requests, so nothing of this one is
        if self._process is None:
            self._process = BoundedProcess("edgeflow.engine.chat.grammar_child")
            self._exchange(self._first, START_S, MAX_BYTES)
        return self._exchange(message, PATIENCE_S, most_bytes)

    def _exchange(self, message: bytes, limit_s: float, most_bytes: int) -> bytes:
        process = cast("BoundedProcess", self._process)
        try:
            answer = process.exchange(message, limit_s, most_bytes)
        except TimeoutError:
            self._end()
            raise _rejected(f"takes longer than {limit_s:g} s") from None
        except ConnectionAbortedError:
            raise _cause(self._end()) from None
        except OSError:
            raise _cause(self._end(LAST_WORDS_S)) from None
        if answer[:1] != MASK:
            raise _rejected(answer[1:].decode(errors="replace"))
        return answer[1:]

    def _end(self, patience_s: float = 0.0) -> int:
        process, self._process = cast("BoundedProcess", self._process), None
        return process.end(patience_s)


def _cause(code: int) -> RequestError:
    """The error for a request whose process ended with this exit code."""
    if code == -signal.SIGXCPU:
        return _rejected(f"needs more than {COMPILE_S} s of processor time")
    if code in OUT_OF_MEMORY:
        return _rejected(f"needs more than {MEMORY_BYTES >> 20} MiB")
    return Unavailable(
        "the process that handles schemas was lost: try again",
        field=SCHEMA,
        reason=Reason.SCHEMA_PROCESS_LOST,
        retry_after_ms=RETRY_AFTER_MS,
    )


def _rejected(why: str) -> InvalidArgument:
    return InvalidArgument(why, field=SCHEMA, reason=Reason.SCHEMA)
