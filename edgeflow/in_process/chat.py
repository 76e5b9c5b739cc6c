"""A chat model in the calling process: the engine of a service's chat, one request at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import Any

import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat.build import chat_bytes, load_chat
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.placement import set_precision
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.requests import Finish
from edgeflow.text.text_stream import TextStream
from edgeflow_client.errors import CheckpointError, FailedPrecondition, InvalidArgument

ChatMessages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """An answer of a chat model."""

    text: str
    finish: str
    """The reason it ended: stop, after a stop token or stop text; length, after the most tokens."""
    prompt_tokens: int
    tokens: tuple[int, ...]
    """Token ids of the answer, the stop token included."""


class LocalChat:
    """A chat model that answers in the calling process, made by `edgeflow.load_chat`. One thread at a time may use it.

    Greedy answers are those of a service with the same model and settings.
    """

    def __init__(self, config: ServiceConfig) -> None:
        torch.set_num_threads(config.torch_threads)
        set_precision()
        chat_bytes(config)  # rejects what can be rejected without weights
        with torch.no_grad():
            built = load_chat(config, lambda step, done, total: None)  # noqa: ARG005
        if built is None:
            raise CheckpointError("chat.model: chat is off, or the embedded model is not installed: name a checkpoint")
        self._config, self._chunk = config.chat, config.chat.prefill_chunk
        self._engine: ChatEngine | None = built.engine
        self._running: Generation | None = None

    def generate(
        self,
        prompt: str | ChatMessages,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> GeneratedText:
        """The answer to messages, or the continuation of a text.

        prompt: messages, each {"role": ..., "content": text}, which the checkpoint's chat template renders; or a text,
        which is continued as it is, as by /v1/completions. max_tokens: of the answer; None = `chat.max_tokens`.
        temperature (0: greedy) and top_p: None = as the checkpoint recommends. seed: None = another answer each time.
        stop: texts that end the answer, which does not contain them.

        InvalidArgument for a prompt that does not fit, and for values out of range.
        """
        params = self._params(max_tokens, temperature, top_p, seed)
        pieces = self._pieces(self._prompt(prompt), params, stop)
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                answer: GeneratedText = end.value
                return answer

    def stream(
        self,
        prompt: str | ChatMessages,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """The pieces of an answer as they are computed, with the arguments and errors of `generate`.

        FailedPrecondition in a stream that goes on after another request has begun.
        """
        return self._pieces(self._prompt(prompt), self._params(max_tokens, temperature, top_p, seed), stop)

    def close(self) -> None:
        """Free the model's memory. A closed model answers no more."""
        self._engine = None

    def __enter__(self) -> LocalChat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> ChatEngine:
        if self._engine is None:
            raise FailedPrecondition("the model is closed: load it again", field="chat")
        return self._engine

    def _prompt(self, given: Any) -> Prompt:
        model = self._open.model
        if isinstance(given, str):
            return model.text_prompt(given)
        if not given:
            raise InvalidArgument("is empty: give a text, or messages", field="prompt")
        for index, message in enumerate(given):
            parts = [message.get("role"), message.get("content")] if isinstance(message, Mapping) else [None]
            if not all(isinstance(part, str) for part in parts):
                raise InvalidArgument('must be {"role": text, "content": text}', field=f"prompt[{index}]")
        return model.messages_prompt(given)

    def _params(
        self, max_tokens: int | None, temperature: float | None, top_p: float | None, seed: int | None
    ) -> SamplingParams:
        most = self._config.max_tokens if max_tokens is None else max_tokens
        params = SamplingParams.recommended(self._open.model.generation, most, temperature)
        return replace(params, top_p=params.top_p if top_p is None else top_p, seed=seed)

    def _pieces(
        self, prompt: Prompt, params: SamplingParams, stop: str | Sequence[str]
    ) -> Generator[str, None, GeneratedText]:
        engine = self._open
        generation = self._running = Generation(engine, prompt, params)
        stream = TextStream(engine.model.tokenizer, prompt.ids, [stop] if isinstance(stop, str) else stop)
        text, tokens = "", list[int]()
        for token in chain.from_iterable(each.tokens for each in generate(engine, generation, self._chunk) if each):
            tokens.append(token)
            piece = stream.push(token)
            text += piece
            if piece:
                yield piece
            if self._running is not generation:
                raise FailedPrecondition("another request has begun: read one stream at a time", field="chat")
            if stream.stopped:
                break
        rest = stream.finish()
        if rest:
            yield rest
        finish = Finish.STOP if stream.stopped or generation.finish is None else generation.finish
        return GeneratedText(text=text + rest, finish=finish.value, prompt_tokens=len(prompt), tokens=tuple(tokens))
