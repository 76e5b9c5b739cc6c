"""Training texts from JSONL files, by the tokenizer and the chat template of the model.

A line is `{"text": …}`, of which every token is learned, or `{"messages": [...]}`, of which only the assistant's
answers are. All lines are read and checked before training starts; later each is read again when it is needed, so that
memory does not grow with the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from edgeflow.lab.training.gate.examples import Example
from edgeflow.models.memory_gate import GateRules
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import ConfigError, InvalidArgument
from edgeflow_client.files import open_regular

MAX_LINE_BYTES: Final = 64 << 20
MAX_TOKENS: Final = 1 << 17
ASSISTANT: Final = "assistant"


@dataclass(frozen=True, slots=True)
class ModelText:
    """The tokenizer and chat template of a model."""

    tokenizer: TextTokenizer
    template: ChatTemplate | None
    stop_ids: frozenset[int]
    """An answer ends with the first of these ids."""

    def example(self, values: Any) -> Example:
        """The example of a line; InvalidArgument says what is wrong with it."""
        if not isinstance(values, dict) or set(values) not in ({"text"}, {"messages"}):
            raise InvalidArgument('a line must be {"text": …} or {"messages": […]}')
        if "messages" in values:
            return self._answers(values["messages"])
        if not isinstance(values["text"], str):
            raise InvalidArgument("text must be text")
        return Example.plain(self.tokenizer.encode(values["text"], special=True, field="text"))

    def _answers(self, messages: Any) -> Example:
        """A conversation, which ends with its last answer."""
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise InvalidArgument("messages must be a list of objects with a role and a content of text")
        places = [index for index, each in enumerate(messages) if each["role"] == ASSISTANT]
        if not places:
            raise InvalidArgument("messages have no answer: none has the role assistant")
        ids = self._ids(messages[: places[-1] + 1], answer=False)
        spans = [self._span(messages[:place], messages[: place + 1], ids) for place in places]
        learned = [any(start <= place < stop for start, stop in spans) for place in range(spans[-1][1])]
        return Example(tuple(ids[: spans[-1][1]]), tuple(learned), spans[-1][0])

    def _span(self, before: list[Any], after: list[Any], ids: list[int]) -> tuple[int, int]:
        """The start and end of an answer in the tokens of the conversation."""
        prompt, whole = self._ids(before, answer=True), self._ids(after, answer=False)
        start, stop = len(prompt), len(whole)
        if ids[:start] != prompt or ids[:stop] != whole or start >= stop:
            raise InvalidArgument(
                "the chat template writes a conversation so that it does not continue the prompt of each answer"
            )
        ends = (place + 1 for place in range(start, stop) if ids[place] in self.stop_ids)
        return start, next(ends, stop)

    def _ids(self, messages: list[Any], *, answer: bool) -> list[int]:
        if self.template is None:
            raise InvalidArgument("this model has no chat template: give texts")
        return self.tokenizer.encode(self.template(messages, answer=answer), special=False)


@dataclass(frozen=True, slots=True)
class Line:
    """The place of a line in a file, and its size."""

    path: Path
    number: int
    """Line number, from 1."""
    offset: int
    tokens: int
    segments: int
    """Number of folded segments."""


class GateData:
    """The lines of some files that a gate influences.

    short: number of lines too short for that. digest: of all bytes.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        text: ModelText,
        rules: GateRules,
        report: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._text, self._rules = text, rules
        digest = hashlib.sha256()
        self.lines: list[Line] = []
        self.short = 0
        for count, (path, number, offset, raw) in enumerate(_raw_lines(paths), start=1):
            digest.update(raw)
            example = self._example(path, number, raw)
            if example.teaches(rules):
                self.lines.append(Line(path, number, offset, len(example.ids), rules.segments(example.known)))
            else:
                self.short += 1
            report(count)
        self.digest = digest.hexdigest()
        if not self.lines:
            raise ConfigError(
                f"data: none of {self.short} lines has a learned token after the first folded segment: "
                f"a gate needs prompts of at least {rules.threshold} tokens (sink + window + segment)"
            )

    def read(self, index: int) -> Example:
        """The example of a usable line."""
        line = self.lines[index]
        with _opened(line.path) as file:
            file.seek(line.offset)
            return self._example(line.path, line.number, file.readline(MAX_LINE_BYTES))

    def _example(self, path: Path, number: int, raw: bytes) -> Example:
        try:
            example = self._text.example(_value(raw))
        except InvalidArgument as error:
            raise ConfigError(f"data: {path}:{number}: {error}") from error
        if len(example.ids) > MAX_TOKENS:
            raise ConfigError(f"data: {path}:{number}: a text has at most {MAX_TOKENS} tokens, got {len(example.ids)}")
        return example


def _raw_lines(paths: Sequence[Path]) -> Iterator[tuple[Path, int, int, bytes]]:
    """File, number, offset and bytes of each line that is not empty."""
    for path in paths:
        with _opened(path) as file:
            offset, number = 0, 0
            while raw := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(raw) == MAX_LINE_BYTES:
                    raise ConfigError(f"data: {path}:{number}: a line has at most {MAX_LINE_BYTES - 1} bytes")
                if raw.strip():
                    yield path, number, offset, raw
                offset += len(raw)


def _opened(path: Path) -> BinaryIO:
    """The open file; a pipe or a folder is rejected, since lines are read again later."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ConfigError(
            f"data: {path} cannot be read: {error.strerror}: give a JSONL file, which is read more than once"
        ) from error


def _value(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("not JSON") from error


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
