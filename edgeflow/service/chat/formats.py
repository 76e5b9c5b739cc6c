"""The format of answers: OpenAI's chat completions and completions, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgeflow.service.chat.answer import Piece, TokenText
from edgeflow.service.chat.tool_calls import Call
from edgeflow.text.tokenizer import TextTokenizer

PARTIAL = "bytes:"  # before a part of a character where a token has a text only


@dataclass(frozen=True, slots=True)
class _AnswerFormat:
    """The common parts of both formats."""

    KIND: ClassVar[str]
    CHUNK: ClassVar[str]
    PREFIX: ClassVar[str]
    request_id: str
    created: int
    model: str
    tokenizer: TextTokenizer

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """An answer in one piece."""
        return {**self._envelope(self.KIND, choices), "usage": usage}

    def last(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk, with the token counts only."""
        return {**self._envelope(self.CHUNK, []), "usage": usage}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{self.PREFIX}-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _shown(self, token: int, partial: str = "") -> tuple[str, bytes | None]:
        """A token's text and bytes. A part of a character is written as `\\xNN` for each byte, after `partial`."""
        data = self.tokenizer.bytes_of(token)
        try:
            return (data or b"").decode(), data
        except UnicodeDecodeError as error:
            return partial + "".join(f"\\x{byte:02x}" for byte in error.object), data


class ChatFormat(_AnswerFormat):
    """The formats chat.completion and chat.completion.chunk."""

    __slots__ = ()
    KIND, CHUNK, PREFIX = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        calls = [_call(call) for piece in pieces for call in piece.calls]
        text = _joined(pieces)
        content: dict[str, Any] = {"content": text or None, "tool_calls": calls} if calls else {"content": text}
        return {
            "index": index,
            "message": {"role": "assistant", **content},
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].finish,
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return self._envelope(self.CHUNK, [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.calls:
            delta["tool_calls"] = [{"index": call.index, **_call(call)} for call in piece.calls]
        finish = piece.finish or None
        logprobs = self._logprobs([piece])
        return self._envelope(
            self.CHUNK, [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]
        )

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        tokens = [piece.token for piece in pieces if piece.token is not None]
        return {"content": [self._entry(token) for token in tokens], "refusal": None} if tokens else None

    def _entry(self, shown: TokenText) -> dict[str, Any]:
        top = [self._alternative(token, logprob) for token, logprob in shown.top]
        return {**self._alternative(shown.token, shown.logprob), "top_logprobs": top}

    def _alternative(self, token: int, logprob: float) -> dict[str, Any]:
        text, data = self._shown(token)
        return {"token": text, "logprob": logprob, "bytes": None if data is None else list(data)}


class TextFormat(_AnswerFormat):
    """The format text_completion, for whole and streamed answers alike."""

    __slots__ = ()
    KIND = CHUNK = "text_completion"
    PREFIX = "cmpl"

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        return self._choice(index, _joined(pieces), pieces, pieces[-1].finish)

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002 - texts begin with their first piece
        return None

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._envelope(self.CHUNK, [self._choice(index, piece.text, [piece], piece.finish or None)])

    def _choice(self, index: int, text: str, pieces: Sequence[Piece], finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._logprobs(pieces), "finish_reason": finish}

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        tokens = [piece.token for piece in pieces if piece.token is not None]
        if not tokens:
            return None
        return {
            "tokens": [self._shown(each.token, PARTIAL)[0] for each in tokens],
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [self._alternatives(each) for each in tokens],
            "text_offset": None,
        }

    def _alternatives(self, shown: TokenText) -> dict[str, float]:
        """The token and its alternatives by their texts, or by id where two have the same text."""
        found: dict[str, float] = {}
        for token, logprob in {shown.token: shown.logprob, **dict(shown.top)}.items():
            text, _ = self._shown(token, PARTIAL)
            found[text if text not in found else f"token_id:{token}"] = logprob
        return found


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
