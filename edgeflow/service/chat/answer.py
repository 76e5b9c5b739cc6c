"""One choice of an answer: tokens converted to text, counted and timed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from edgeflow.ipc.chat_messages import ChatDone, ChatReady, ChatStart, ChatToken
from edgeflow.service.chat.body import ChatBody, CompletionBody
from edgeflow.service.chat.prompts import PreparedPrompt
from edgeflow.service.chat.queue import ChatQueue, QueueTurn
from edgeflow.service.chat.tool_calls import Call, CallReader, ParsedText
from edgeflow.service.observe.process_metrics import ChatMetrics
from edgeflow.text.text_stream import TextStream
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log probability and its alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: new text (often empty), calls, log probabilities."""

    text: str
    token: TokenText | None = None
    done: ChatDone | None = None
    """Set in the last piece."""
    finish: str = ""
    calls: tuple[Call, ...] = ()


def start_message(
    body: ChatBody | CompletionBody,
    prompt: PreparedPrompt,
    schema: str,
    ready: ChatReady,
    config_tokens: tuple[int, int],
) -> ChatStart:
    """The request for the worker. config_tokens: default and maximum number of answer tokens."""
    usual, most = config_tokens
    field, wanted = body.length
    asked = wanted or min(usual, most)
    if asked > most:
        raise InvalidArgument(f"{asked} exceeds the limit of {most}", field=field, reason=Reason.MAX_TOKENS)
    if len(prompt.ids) > ready.length:
        text = f"has {len(prompt.ids)} tokens; the limit is {ready.length}, prompt and answer together"
        raise InvalidArgument(text, field=prompt.field, reason=Reason.CONTEXT_LENGTH_EXCEEDED)
    defaults = dict(zip(("temperature", "top_p", "min_p", "repetition_penalty"), ready.sampling, strict=True))
    chosen = {name: value if (value := getattr(body, name)) is not None else defaults[name] for name in defaults}
    return ChatStart(
        request=0,
        model=ready.model,
        ids=prompt.ids,
        sizes=[side for image in prompt.images for side in image.shape[:2]],
        max_tokens=asked,
        **chosen,
        top_k=ready.top_k if body.top_k is None else max(body.top_k, 0),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=-1 if body.seed is None else body.seed,
        logprobs=body.logprob_count,
        schema=schema,
        payload=b"".join(image.tobytes() for image in prompt.images),
    )


async def answer_pieces(
    queue: ChatQueue,
    tokenizer: TextTokenizer,
    message: ChatStart,
    turn: QueueTurn,
    *,
    stops: tuple[str, ...],
    reader: CallReader | None,
) -> AsyncGenerator[Piece, None]:
    """The pieces of one choice, computed in its turn of the queue; the last one has `done`.

    Tokens after a stop string are neither sent nor counted. reader: finds tool calls, if tools were offered.
    """
    text = TextStream(tokenizer, message.ids, stops)
    count, last_ns, stopping, called = 0, turn.asked_ns, False, False
    async with contextlib.aclosing(queue.answer(message, turn)) as answers:
        async for answer in answers:
            if isinstance(answer, ChatDone):
                found = _read(reader, text.finish(), last=True)
                reason = "stop" if text.stopped else answer.reason
                done = replace(answer, reason=reason, answer_tokens=count)
                _count(done, queue.metrics)
                why = "length" if reason == "length" else "tool_calls" if called or found.calls else "stop"
                yield Piece(found.text, None, done, why, found.calls)
                return
            if stopping:
                continue  # tokens that were in flight when the stop string was found
            now_ns = queue.clock.now_ns()
            seconds = queue.metrics.token_gap if count else queue.metrics.first_token
            seconds.observe((now_ns - last_ns) / 1e9)
            count, last_ns = count + 1, now_ns
            found = _read(reader, text.push(answer.token), last=False)
            called = called or bool(found.calls)
            stopping = text.stopped or (reader is not None and reader.is_complete)
            if stopping:
                queue.stop(answer)
            yield Piece(found.text, _token_text(answer), calls=found.calls)


def _count(done: ChatDone, metrics: ChatMetrics) -> None:
    metrics.tokens.labels("prompt").inc(done.prompt_tokens)
    metrics.tokens.labels("prefix_reused").inc(done.reused)
    metrics.tokens.labels("answer").inc(done.answer_tokens)
    metrics.tokens.labels("compressed").inc(done.compressed)
    if done.draft:
        metrics.draft_tokens.labels(done.draft).inc(done.drafted)
        metrics.draft_tokens_accepted.labels(done.draft).inc(done.accepted)
        metrics.draft_passes.labels(done.draft, "yes").inc(done.draft_passes)
        metrics.draft_passes.labels(done.draft, "no").inc(done.plain_passes)


def usage(dones: list[ChatDone], n: int = 1) -> dict[str, Any]:
    """Token counts in OpenAI's format; queue, prefill and decode times; the prompt's route, its folds, and the drafts.

    Counts and times are sums over the choices, those of prompts over the prompts; slot and route are the first one's.
    n: choices of each prompt.
    """
    prompt, answer = sum(done.prompt_tokens for done in dones[::n]), sum(done.answer_tokens for done in dones)
    reused = sum(done.reused for done in dones[::n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": reused},
        "edgeflow": {
            "queue_ms": round(sum(done.queue_ns for done in dones) / 1e6, 3),
            "prefill_ms": round(sum(done.prefill_ns for done in dones) / 1e6, 3),
            "decode_ms": round(sum(done.decode_ns for done in dones) / 1e6, 3),
            "prefix_tokens_reused": reused,
            "slot": dones[0].slot,
            "route": dones[0].route,
            "compressed_tokens": sum(done.compressed for done in dones),
            "folds": sum(done.folds for done in dones),
            **_drafts(dones),
        },
    }


def _drafts(dones: list[ChatDone]) -> dict[str, Any]:
    """The drafts of all choices, under the key `drafts`; empty without any."""
    drafted = [done for done in dones if done.draft]
    if not drafted:
        return {}
    counts = {
        "kind": drafted[0].draft,
        "drafted": sum(done.drafted for done in drafted),
        "accepted": sum(done.accepted for done in drafted),
        "passes": sum(done.draft_passes for done in drafted),
        "plain_passes": sum(done.plain_passes for done in drafted),
    }
    return {"drafts": counts}


def _read(reader: CallReader | None, text: str, *, last: bool) -> ParsedText:
    if reader is None:
        return ParsedText(text)
    found = reader.push(text)
    if not last:
        return found
    rest = reader.finish()
    return ParsedText(found.text + rest.text, found.calls + rest.calls)


def _token_text(answer: ChatToken) -> TokenText | None:
    if not answer.logprobs:
        return None
    return TokenText(answer.token, answer.logprobs[0], tuple(zip(answer.top, answer.logprobs[1:], strict=True)))
