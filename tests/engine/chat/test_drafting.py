"""Drafts as they are configured: what is loaded, foretold, and refused before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from edgeflow.config.chat import ChatConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.chat.build import chat_bytes, load_chat, measure_row
from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.kinds import Eagle, Lookup, choose_drafts
from edgeflow.engine.executor import Ticket
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.scheduler.plan import Pass
from edgeflow_client.errors import ConfigError, StartError
from tests.engine.drafts.drafters import eagle_head
from tests.engine.drafts.varied_models import varied_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ChatModel]:
    folder = tmp_path_factory.mktemp("base")
    return folder, varied_model(folder, "qwen2")


@pytest.fixture(scope="module")
def head(base: tuple[Path, ChatModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    eagle_head(folder, base[1])
    return folder


def configured(folder: Path, **changes: Any) -> ServiceConfig:
    values = {"model": str(folder), "dtype": "float32", "capacity": 96, "prefill_chunk": 16, **changes}
    return ServiceConfig(device="cpu", chat=ChatConfig.model_validate(values))


@pytest.mark.parametrize(
    ("settings", "tree", "depth"),
    [
        ({}, TreeSizes(60, 7, 10), 7),
        ({"rows": 9, "depth": 2, "width": 3}, TreeSizes(9, 2, 3), 2),
        ({"chain": True, "depth": 4}, None, 4),
    ],
)
def test_a_head_is_served_as_configured(
    base: tuple[Path, ChatModel], head: Path, settings: dict[str, Any], tree: TreeSizes | None, depth: int
):
    """The answer is that of the same service without drafts."""
    drafting = configured(base[0], draft="auto", eagle3={"model": str(head), **settings})
    built, plain = (load_chat(each, lambda *_: None) for each in (drafting, configured(base[0])))
    assert built is not None and plain is not None
    kind = built.engine.drafts
    assert isinstance(kind, Eagle) and (kind.tree, kind.depth) == (tree, depth)
    assert (built.ready().draft, plain.ready().draft, plain.engine.drafts) == ("eagle3", "", None)
    assert chat_bytes(drafting) - chat_bytes(configured(base[0])) >= 4 * kind.head.config.parameters
    answers = []
    for engine in (built.engine, plain.engine):
        prompt = engine.model.text_prompt("what is on the table")
        asked = Generation(engine, prompt, SamplingParams(max_tokens=20), ignore_stop=True)
        list(generate(engine, asked, 7))
        answers.append(asked.tokens)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"vocab_size": 999}, ("999", "272")),
        ({"target_hidden_size": 64}, ("64", "48")),
    ],
)
def test_a_head_of_another_base_is_rejected_by_its_headers(
    base: tuple[Path, ChatModel], head: Path, tmp_path: Path, entries: dict[str, Any], told: tuple[str, str]
):
    (tmp_path / "config.json").write_text(json.dumps({**json.loads((head / "config.json").read_text()), **entries}))
    (tmp_path / "model.safetensors").symlink_to(head / "model.safetensors")
    with pytest.raises(StartError) as caught:
        chat_bytes(configured(base[0], draft="eagle3", eagle3={"model": str(tmp_path)}))
    assert all(number in str(caught.value) for number in told), caught.value


def test_a_head_that_is_not_there_is_reported_by_its_key(base: tuple[Path, ChatModel], tmp_path: Path):
    """Embedded models are no heads."""
    for name in (str(tmp_path / "missing"), "demo"):
        with pytest.raises(StartError, match=r"chat\.eagle3\.model: .* is not a directory: give .* an EAGLE-3 head"):
            chat_bytes(configured(base[0], draft="eagle3", eagle3={"model": name}))


def test_more_drafts_per_node_than_the_head_has_tokens(base: tuple[Path, ChatModel], tmp_path: Path):
    eagle_head(tmp_path, base[1], drafts=5)
    with pytest.raises(ConfigError, match=r"chat\.eagle3\.width: 10 drafts .* than the 5 tokens"):
        chat_bytes(configured(base[0], draft="eagle3", eagle3={"model": str(tmp_path)}))


def test_look_up_takes_its_settings(base: tuple[Path, ChatModel]):
    settings = {"drafts": 3, "shortest": 2, "longest": 5}
    config = configured(base[0], draft="lookup", lookup=settings).chat
    assert choose_drafts(config, base[1]) == Lookup(**settings)
    assert choose_drafts(configured(base[0]).chat, base[1]) is None


def test_8_bit_weights_of_decode_rows_serve_no_verification(base: tuple[Path, ChatModel]):
    """Where `auto` weights end with them, `auto` drafts do without and others are refused."""
    refused = configured(base[0], draft="lookup", weights="auto").chat
    with pytest.raises(ConfigError, match=r"chat\.draft: lookup needs the same weights .* auto chose int8"):
        choose_drafts(refused, base[1], "int8")
    assert choose_drafts(refused, base[1], "float") == Lookup()
    assert choose_drafts(configured(base[0], draft="auto", weights="auto").chat, base[1], "int8") is None


def test_the_time_of_a_row_is_measured_at_both_ends_of_a_slot(base: tuple[Path, ChatModel], monkeypatch):
    built = load_chat(configured(base[0], draft="lookup"), lambda *_: None)
    assert built is not None
    ends: list[int] = []
    launch = ChatEngine.launch

    def noted(engine: ChatEngine, planned: Pass[int], *given: Any, **options: Any) -> Ticket[int]:
        ends.append(planned.segments[0].start + planned.segments[0].length)
        return launch(engine, planned, *given, **options)

    monkeypatch.setattr(ChatEngine, "launch", noted)
    start, growth = measure_row(built.engine, 9)
    assert 0 <= start < 5000 and 0 <= start + growth < 5000
    assert {*ends} == {1, 9, 10, *(built.engine.kv.capacity - rows for rows in (9, 1, 0))}
    rule = built.engine.rule()
    assert (rule.row_permille, rule.row_growth) == (built.engine.row_permille, built.engine.row_growth)
    with torch.inference_mode():
        assert built.engine.rule().rows == 9
