"""Drafts at the chat front: what answers, metrics, the list of models and the start say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeflow.ipc.chat_messages import ChatDone, ChatStart, ChatToken
from edgeflow.ipc.messages import Message
from edgeflow.service.chat.answer import usage
from edgeflow.service.status import chat_summary
from edgeflow.service.worker.link import WorkerLink
from tests.service.chat.test_answers import ASKED, CHAT, TEXT, streamed
from tests.service.chat.test_front import READY_HERE, Alone, alone
from tests.service.chat.workers import Loaded
from tests.worker.test_chat_link import READY, done

COUNTS = {"drafted": 21, "accepted": 13, "draft_passes": 4, "plain_passes": 2}
TOLD = {"kind": "lookup", "drafted": 21, "accepted": 13, "passes": 4, "plain_passes": 2}
METRICS = {
    'edgeflow_chat_draft_tokens_total{kind="lookup"}': 21,
    'edgeflow_chat_draft_tokens_accepted_total{kind="lookup"}': 13,
    'edgeflow_chat_draft_passes_total{drafts="yes",kind="lookup"}': 4,
    'edgeflow_chat_draft_passes_total{drafts="no",kind="lookup"}': 2,
}


class DraftingWorker(Alone):
    """A worker that answers 20 tokens with drafts; without any where the prompt has a single token."""

    ready = replace(READY_HERE, draft="lookup")

    def _answer(self, link: WorkerLink, message: Message) -> None:
        if not isinstance(message, ChatStart):
            super()._answer(link, message)
            return
        for _ in range(20):
            link.send(ChatToken(message.request, 104, [], []))
        drafts: dict[str, Any] = {"draft": "lookup", **COUNTS} if len(message.ids) > 1 else {}
        link.send(replace(done(message.request), answer_tokens=20, **drafts))


async def test_answers_and_metrics_count_drafts(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, DraftingWorker) as (http, _):
        for path, body in ((CHAT, ASKED), (TEXT, {"prompt": "aaa"})):
            assert (await http.post(path, json=body)).json()["usage"]["edgeflow"]["drafts"] == TOLD
            events = await streamed(http, path, {**body, "stream_options": {"include_usage": True}})
            assert events[-1]["usage"]["edgeflow"]["drafts"] == TOLD
        twice = (await http.post(TEXT, json={"prompt": "aaa", "n": 2})).json()["usage"]["edgeflow"]["drafts"]
        assert twice == {**{name: 2 * count for name, count in TOLD.items() if name != "kind"}, "kind": "lookup"}
        found = await metrics(http)
        assert {name: found[name] for name in METRICS} == {name: 6 * count for name, count in METRICS.items()}


async def test_a_request_without_drafts_names_none(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, DraftingWorker) as (http, _):
        assert "drafts" not in (await http.post(TEXT, json={"prompt": "a"})).json()["usage"]["edgeflow"]
        assert not [name for name in await metrics(http) if "draft" in name]


def test_choices_without_drafts_add_nothing():
    drafted, plain = replace(done(1), draft="eagle3", **COUNTS), done(2)
    assert usage([drafted, plain])["edgeflow"]["drafts"] == {**TOLD, "kind": "eagle3"}
    counted: ChatDone = replace(done(3), draft="eagle3")
    assert set(usage([counted])["edgeflow"]["drafts"].values()) == {"eagle3", 0}, "no pass drafted, but might have"


@pytest.mark.parametrize(("kind", "draft"), [(DraftingWorker, {"draft": "lookup"}), (Alone, {})])
async def test_the_list_of_models_has_the_drafts(
    text_model: Loaded, tmp_path: Path, kind: type[Alone], draft: dict[str, str]
):
    async with alone(text_model, tmp_path, kind) as (http, _):
        for model in (await http.get("/internal/models")).json():
            assert {name: value for name, value in model.items() if name == "draft"} == draft


@pytest.mark.parametrize(
    ("draft", "told"),
    [("", "float32)"), ("lookup", "float32, drafts by look-up)"), ("eagle3", "float32, drafts by an EAGLE-3 head)")],
)
def test_the_start_names_the_drafts(draft: str, told: str):
    ready = replace(READY, numbers="float32", draft=draft)
    assert chat_summary(ready).startswith(f"small (test; {told}, 1 slot of")


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """The samples of the chat front's counters, by name and labels."""
    lines = (await http.get("/internal/metrics")).text.splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if line.startswith("edgeflow_") and "_total" in line]
    return {name: float(value) for name, value in samples}
