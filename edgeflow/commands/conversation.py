"""`edgeflow chat`: a conversation in the terminal, with the model in this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.artifacts.sessions import Runtime
from edgeflow.config.chat import ChatConfig
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import SlotSize, folding_of, read_long, remarks, store_format
from edgeflow.engine.chat.precision import choose_chat_dtype
from edgeflow.engine.drafts.kinds import choose_drafts
from edgeflow.engine.exported.chat import check_exported_chat, read_exported_chat
from edgeflow.engine.placement import choose_device
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.chat import load_chat_model
from edgeflow.text.text_stream import TextStream
from edgeflow_client.errors import ConfigError, RequestError
from edgeflow_client.files import read_regular

CHUNK = 256
MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """Timing of one answer: seconds to the first token, number of tokens, seconds for the remaining ones."""

    first_token_s: float
    tokens: int
    decode_s: float
    compressed: int = 0
    """Tokens of the conversation that were folded into the memory; 0 without a gate."""
    passes: int = 0
    """Passes after the prompt, where these may verify drafts; 0 elsewhere."""

    def line(self) -> str:
        """Time to first token and tokens per second, for a person."""
        rate = (self.tokens - 1) / self.decode_s if self.tokens > 1 and self.decode_s > 0 else 0.0
        folded = f", {self.compressed} tokens compressed" if self.compressed else ""
        first_ms = self.first_token_s * 1e3
        drafted = f", {(self.tokens - 1) / self.passes:.1f} per pass" if self.passes else ""
        return f"first token after {first_ms:.0f} ms, then {rate:.1f} tokens/s ({self.tokens} tokens{drafted}{folded})"


class ChatSession:
    """A conversation over one slot; each answer is computed from all turns so far.

    remarks: remarks on the model, printed before the first question.
    """

    def __init__(
        self, engine: ChatEngine, params: SamplingParams, system: str = "", remarks: Sequence[str] = ()
    ) -> None:
        self.remarks = tuple(remarks)
        self._model = engine.model
        self._engine = engine
        self._params = params
        self._messages = [{"role": "system", "content": system}] if system else []
        self.times: AnswerTimes | None = None

    def ask(self, text: str) -> Generator[str, None, None]:
        """Stream the pieces of an answer; sets `times` at its end. InvalidArgument when there is no room left."""
        started = time.perf_counter()
        messages = [*self._messages, {"role": "user", "content": text}]
        prompt = self._model.chat_prompt(self._model.render(messages))
        generation = Generation(self._engine, prompt, self._params)
        stream = TextStream(self._model.tokenizer, prompt.ids)
        first, said = 0.0, ""
        try:
            for sampled in generate(self._engine, generation, CHUNK):
                if sampled is None:
                    continue
                first = first or time.perf_counter()
                piece = "".join(map(stream.push, sampled.tokens))
                said += piece
                yield piece
            rest = stream.finish()
            said += rest
            yield rest
        finally:  # an answer that was stopped is part of the conversation as far as it came
            now = time.perf_counter()
            counts = generation.plan.drafts.counts
            self.times = AnswerTimes(
                first_token_s=(first or now) - started,
                tokens=len(generation.tokens),
                decode_s=now - (first or now),
                compressed=self._engine.placement.compressed(generation.plan.folds),
                passes=counts.drafts + counts.plain if self._engine.drafts is not None else 0,
            )
            self._messages = [*messages, {"role": "assistant", "content": said}]


def read_text(file: Path, key: str) -> str:
    """The text of a file of at most MAX_TEXT_BYTES; ConfigError about `key` where it is none."""
    try:
        return read_regular(file, MAX_TEXT_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {file} is not UTF-8 text") from error


def open_conversation(
    config: ChatConfig, path: Path, device: str, temperature: float | None, system: str = ""
) -> ChatSession:
    """Load the model at `path`; typed StartErrors. temperature: None takes the checkpoint's own."""
    where = choose_device(device)
    if is_artifact(path):
        exported = read_exported_chat(path)
        check_exported_chat(config, exported, where)
        model, found = exported.load(Runtime(threads=torch.get_num_threads())), list[str]()
        engine = ChatEngine(model, model.network.kv_slots(1, exported.manifest.kv.positions))
    else:
        dtype = choose_chat_dtype(config.dtype, path, where)
        gate = read_long(config, path, where, dtype)
        model = load_chat_model(path, dtype, where)
        text, found = model.config, remarks(gate, config, model.config)
        kv = model.network.kv_slots(1, SlotSize.of(config, text, gate).positions, store_format(config, text, gate))
        folding = folding_of(gate.rules) if gate else None
        engine = ChatEngine(model, kv, folding=folding, drafts=choose_drafts(config, model))
    params = SamplingParams.recommended(model.generation, config.max_tokens, temperature)
    return ChatSession(engine, params, system, [*model.remarks, *found])


def converse(conversation: ChatSession, read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Converse until `read` raises EOFError or KeyboardInterrupt. After a rejected request, which is printed, or Ctrl-C
    in an answer, which ends there, the conversation continues.
    """
    while True:
        try:
            text = read().strip()
        except (EOFError, KeyboardInterrupt):
            return
        if text:
            _answer(conversation, text, write)


def _answer(conversation: ChatSession, text: str, write: Callable[[str], None]) -> None:
    stopped = ""
    try:
        with contextlib.closing(conversation.ask(text)) as pieces:
            for piece in pieces:
                write(piece)
    except RequestError as error:
        write(f"\n{error.text}\n")
        return
    except KeyboardInterrupt:
        stopped = "stopped; "
    write(f"\n[{stopped}{conversation.times.line() if conversation.times else ''}]\n")
