"""JSON schemas as grammars over tokens: which token may come next. Compiled by llguidance, in a thread of its own.

Work is bounded by the library's fuel, in compiling and in each step; a schema or an answer that needs more is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from edgeflow.errors import InvalidArgument
from edgeflow.text.tokenizer import TextTokenizer

KEPT = 32  # compiled schemas
MAX_REASON = 200  # characters of the library's own words
# Between tokens of JSON: a blank, or a new line and its indentation. Otherwise an answer may be blanks for ever.
BLANKS = r"(\x20|\x0A[\x20\x09]{0,16})?"
# Defaults of the library, halved: about 10 ms a step and 0.1 s to begin with.
LIMITS = LLParserLimits(initial_lexer_fuel=500_000, step_lexer_fuel=100_000, step_max_items=25_000)


class Grammar:
    """Where one answer is in its schema."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, device: torch.device) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._device = device

    def allowed(self) -> Tensor:
        """[V] bool: tokens that may come next; a stop token once the schema is met."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        _check(self._matcher)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(bool)
        return torch.from_numpy(mask).to(self._device)

    def accept(self, token: int) -> None:
        """The token was chosen."""
        self._matcher.consume_token(token)
        _check(self._matcher)


class Grammars:
    """Of one tokenizer. `compile` returns at once; the result is a new Grammar or an InvalidArgument."""

    def __init__(
        self, tokenizer: TextTokenizer, vocab_size: int, stop_ids: Iterable[int], device: torch.device
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer = self._thread.submit(_tokens, tokenizer, vocab_size, sorted(stop_ids))
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def compile(self, schema: str) -> Future[Grammar]:
        """schema: JSON."""
        return self._thread.submit(self._compile, schema)

    def _compile(self, schema: str) -> Grammar:
        matcher = self._kept.get(schema)
        if matcher is None:
            try:
                grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": BLANKS})
            except ValueError:
                raise _refused("is no JSON schema") from None
            matcher = LLMatcher(self._tokenizer.result(), grammar, log_level=0, limits=LIMITS)
            _check(matcher)
            matcher.compute_bitmask()
            _check(matcher)
            self._kept[schema] = matcher
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(schema)
        return Grammar(matcher.deep_copy(), self._vocab_size, self._device)


def _tokens(tokenizer: TextTokenizer, vocab_size: int, stop_ids: list[int]) -> LLTokenizer:
    """Takes a second for a large vocabulary."""
    if not stop_ids:
        raise _refused("this model has no token that ends an answer")
    try:
        return LLTokenizer(tokenizer.definition, n_vocab=vocab_size, eos_token=stop_ids)
    except Exception as error:  # the library knows fewer kinds of tokenizers than there are
        raise _refused("this model's tokenizer cannot follow a schema") from error


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise _refused(matcher.get_error().partition("\n")[0][:MAX_REASON])


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(why, field="response_format", reason="SCHEMA")
