"""Answers that follow a schema, with drafts: the tokens of those without, with masks in one exchange per pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeflow.engine.chat.generate import Generation
from edgeflow.engine.chat.grammar import Grammars
from edgeflow.engine.drafts.kinds import DraftKind, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.chat import ChatModel
from edgeflow.scheduler.plan import DraftForm
from tests.chat_checkpoint import VOCAB
from tests.engine.chat.constrained import constrained, under
from tests.engine.drafts.drafters import CPU, Knowing, eagle, eagle_head, engine_of, taught
from tests.engine.drafts.varied_models import varied_model

SCHEMA = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"enum": ["red cup", "red arm", "blue cup"]}, "minItems": 2, "maxItems": 3}
    },
    "required": ["items"],
    "additionalProperties": False,
}
PARAMS = [
    SamplingParams(max_tokens=118),
    SamplingParams(max_tokens=118, temperature=1.0, seed=2),
    SamplingParams(max_tokens=20, repetition_penalty=1.4, logprobs=1),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    return varied_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def grammars(model: ChatModel) -> Grammars:
    return Grammars(model.tokenizer, VOCAB, model.stop_ids, CPU)


def answered(
    model: ChatModel, constraint: Any, params: SamplingParams, kind: DraftKind | None = None, chunk: int = 50
) -> tuple[Generation, int]:
    """An answer, and the passes that gave its tokens."""
    engine = engine_of(model, kind, capacity=128)
    generation = constrained(engine, model.text_prompt("the cup is"), params)
    return generation, len(list(under(constraint, engine, generation, chunk)))


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "drawn", "penalised"])
def test_tokens_are_those_without_drafts(
    model: ChatModel, grammars: Grammars, params: SamplingParams, tmp_path: Path, monkeypatch
):
    """Drafts that the schema forbids are in the middle of chains. One exchange per pass gives all masks."""
    asked: list[int] = []
    ask = grammars._ask
    monkeypatch.setattr(grammars, "_ask", lambda message, masks=1: (asked.append(masks), ask(message, masks))[1])

    def compiled() -> Any:
        return grammars.compile(json.dumps(SCHEMA)).result(30)

    plain, plain_passes = answered(model, compiled(), params)
    assert plain_passes == len(plain.tokens)
    if params.max_tokens > 20:
        assert len(json.loads(model.tokenizer.decode(plain.tokens[:-1]))["items"]) >= 2
    prompt, head = model.text_prompt("the cup is"), eagle_head(tmp_path, model)
    knowing = [Knowing(form=form, rows=9, sure=0.85, seed=seed) for seed, form in enumerate(DraftForm) if seed]
    kinds = [Lookup(), eagle(head), *knowing]
    fewer = 0
    for kind in kinds:
        for chunk in (50, 4) if isinstance(kind, Knowing) else (50,):
            if isinstance(kind, Knowing):
                taught(kind, prompt, plain.tokens)
            grammars._thread.submit(int).result(30)
            asked.clear()
            found, passes = answered(model, compiled(), params, kind, chunk)
            assert found.tokens == plain.tokens, (kind, chunk)
            assert found.plan.finish is plain.plan.finish
            grammars._thread.submit(int).result(30)  # what was asked last is asked by now
            assert len(asked) == passes, "the schema, and the masks behind each pass but the last"
            counts = found.plan.drafts.counts
            assert counts.drafts + counts.plain == passes - 1
            fewer += plain_passes - passes
    assert fewer > plain_passes, "that the test tests something"


class EveryThirdFrom:
    """A constraint that allows every third token from one on that follows from the tokens so far. Of permitted drafts
    it gives the masks of the first `most` alone, as a grammar whose limit is reached.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._said: list[int] = []
        self._drafts: tuple[int, ...] = ()

    def allowed(self) -> torch.Tensor:
        masks, said = [], list(self._said)
        for draft in (*self._drafts[: self._most], -1):
            masks.append((torch.arange(VOCAB) + sum(said) + len(said)) % 3 == 0)
            if draft < 0 or not masks[-1][draft]:
                break
            said.append(draft)
        return torch.stack(masks)

    def accept(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> None:
        self._said += tokens
        self._drafts = tuple(drafts)


@pytest.mark.parametrize("most", [0, 1, 3, 20])
def test_no_draft_is_accepted_after_the_last_mask(model: ChatModel, most: int):
    """What follows it is constrained too."""
    params = SamplingParams(max_tokens=40)
    plain, _ = answered(model, EveryThirdFrom(0), params)
    kind = Knowing(form=DraftForm.CHAIN, rows=9, sure=0.95, fixed=True)
    taught(kind, model.text_prompt("the cup is"), plain.tokens)
    found, passes = answered(model, EveryThirdFrom(most), params, kind)
    assert found.tokens == plain.tokens
    assert (passes < len(plain.tokens) - 10) == (most > 0)
