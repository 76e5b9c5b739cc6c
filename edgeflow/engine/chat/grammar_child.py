"""The process in which JSON schemas become grammars over tokens, and in which answers keep their place in them.

What a client's schema may cost is bounded from outside: the worker kills this process when an answer takes too long,
and the kernel ends it at its memory and processor limits, which also hold when the worker is gone. It knows nothing but
the tokenizer and schemas. Messages are a length, then bytes; the first one is the tokenizer, as JSON; each is answered.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from edgeflow.ipc.bounded import limit_memory, limit_time, serve

COMPILE_S = 5  # processor time of one schema
MEMORY_BYTES = 512 << 20  # beside the tokenizer, of all that is kept
KEPT = 32  # compiled schemas
KEPT_ANSWERS = 8  # answers run one at a time, and the ones that ended are not announced here
MAX_REASON = 200  # characters of the library's own words
COMPILE, NEXT = b"C", b"N"  # handle and schema; handle, how many tokens, the tokens, drafts after them
MASK, REJECTED = b"M", b"R"  # one mask after another, a bit per token, each of as many bytes; why not
HANDLE = struct.Struct("<I")
# Between tokens of JSON: a blank, or a new line and its indentation. Otherwise an answer may be blanks for ever.
BLANKS = r"(\x20|\x0A[\x20\x09]{0,16})?"
# Defaults of the library, halved: about 10 ms a step and 0.1 s to begin with.
LIMITS = LLParserLimits(initial_lexer_fuel=500_000, step_lexer_fuel=100_000, step_max_items=25_000)


def following(handle: int, tokens: Sequence[int], drafts: Sequence[int] = ()) -> bytes:
    """The message that moves an answer on by `tokens`, and asks for the masks after them and after each draft."""
    return NEXT + b"".join(map(HANDLE.pack, (handle, len(tokens), *tokens, *drafts)))


@dataclass(slots=True, kw_only=True)
class _SchemaPosition:
    """The place of an answer in its schema, and the tokens that lead there."""

    schema: str
    matcher: LLMatcher
    tokens: list[int] = field(default_factory=list)
    drafted: bool = True
    """True while the position follows drafts rather than chosen tokens."""


class Compiler:
    """Grammars of one tokenizer. Answers are bytes to send; ValueError says what is wrong with a schema or a token."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._answers: OrderedDict[int, _SchemaPosition] = OrderedDict()

    def answer(self, message: bytes) -> bytes:
        """The answer to COMPILE: the first mask; to NEXT: the mask after the tokens, and those after the drafts that
        the schema permits."""
        (handle,) = HANDLE.unpack_from(message, 1)
        rest = message[1 + HANDLE.size :]
        if message[:1] == COMPILE:
            schema = rest.decode()
            self._answers[handle] = _SchemaPosition(schema=schema, matcher=self._compiled(schema).deep_copy())
            _bound(self._answers, KEPT_ANSWERS)
            count, numbers = 0, []
        else:
            count, *numbers = (number for (number,) in HANDLE.iter_unpack(rest))
        return MASK + b"".join(self._masks(self._answers[handle], numbers[:count], numbers[count:]))

    def _masks(self, answer: _SchemaPosition, tokens: Sequence[int], drafts: Sequence[int]) -> list[bytes]:
        answer.tokens += tokens
        try:
            _follow(answer.matcher, tokens)
            masks = [_mask(answer.matcher)]
        except ValueError:
            self._kept.pop(answer.schema, None)
            raise
        if drafts and answer.drafted:
            ahead = answer.matcher.deep_copy()
            masks += _ahead(ahead, masks[0], drafts)
            if ahead.is_error():
                self._restore(answer)
        return masks

    def _restore(self, answer: _SchemaPosition) -> None:
        """Compile the schema of an answer again, whose drafts broke a limit; it gets no further masks after drafts.

        Copies of a matcher share its lexer: what broke the limit of one is an error of all.
        """
        self._kept.pop(answer.schema, None)
        answer.drafted = False
        answer.matcher = self._compiled(answer.schema).deep_copy()
        _follow(answer.matcher, answer.tokens)

    def _compiled(self, schema: str) -> LLMatcher:
        if schema not in self._kept:
            try:
                grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": BLANKS})
            except ValueError:
                raise ValueError("is not a valid JSON schema") from None
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
            _check(matcher)
            _mask(matcher)
            self._kept[schema] = matcher
            _bound(self._kept, KEPT)
        self._kept.move_to_end(schema)
        return self._kept[schema]


def main() -> None:
    """Answer questions until standard input ends, or the memory."""
    serve(_start)


def _start(first: bytes) -> tuple[bytes, Callable[[bytes], bytes] | None]:
    try:
        values = json.loads(first)
        tokenizer = LLTokenizer(values["definition"], n_vocab=values["vocab"], eos_token=values["stop_ids"])
    except Exception:  # the library knows fewer kinds of tokenizers than there are
        return REJECTED + b"this model's tokenizer cannot follow a schema", None
    limit_memory(MEMORY_BYTES)
    compiler = Compiler(tokenizer)

    def answer(message: bytes) -> bytes:
        limit_time(COMPILE_S)
        try:
            return compiler.answer(message)
        except (ValueError, MemoryError) as error:
            return REJECTED + (str(error) or "needs too much memory").encode()

    return MASK, answer


def _follow(matcher: LLMatcher, tokens: Iterable[int]) -> None:
    for token in tokens:
        matcher.consume_token(token)
    _check(matcher)


def _ahead(matcher: LLMatcher, mask: bytes, drafts: Iterable[int]) -> list[bytes]:
    """The masks after drafts, up to the first draft that the mask before it forbids, or that breaks a limit."""
    masks: list[bytes] = []
    for draft in drafts:
        permitted = draft < 8 * len(mask) and mask[draft >> 3] >> (draft & 7) & 1
        if not permitted or not matcher.consume_token(draft):
            break
        mask = bytes(matcher.compute_bitmask())
        if matcher.is_error() or not any(mask):
            break
        masks.append(mask)
    return masks


def _mask(matcher: LLMatcher) -> bytes:
    bits = bytes(matcher.compute_bitmask())
    _check(matcher)
    return bits


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error().partition("\n")[0][:MAX_REASON])


def _bound(kept: OrderedDict[str, LLMatcher] | OrderedDict[int, _SchemaPosition], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
