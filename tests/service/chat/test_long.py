"""Prompts longer than a slot at the chat front: their limits, what answers and lists say of them, and how they fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from edgeflow.ipc.chat_messages import ChatReady, ChatRejected, ChatStart, ChatToken, LongSlots, SetPrefix
from edgeflow.ipc.messages import Message
from edgeflow.service.children.messages import LogEvent
from edgeflow.service.status import chat_summary
from edgeflow.service.worker.link import WorkerLink
from edgeflow_client.errors import Internal
from edgeflow_client.reasons import Reason
from tests.service.chat.test_answers import ASKED, CHAT, TEXT, streamed
from tests.service.chat.test_front import READY_HERE, Alone, alone
from tests.service.chat.workers import Loaded
from tests.service.harness import eventually
from tests.worker.test_chat_link import READY, done

LENGTH = 3000
SIZES = LongSlots(sink=4, window=6, segment=10, memory_bytes=8 << 10)
FAILURE = Internal("the memory of the prompt is not finite", reason=Reason.MEMORY_NOT_FINITE)
GATE = {"chat__long": {"gate": "gate.json", "length": LENGTH}, "chat__capacity": 32}


class LongWorker(Alone):
    """A worker that folds: it answers two tokens. failing: the second step finds a memory that is not finite."""

    ready: ChatReady = replace(READY_HERE, length=LENGTH, capacity=32, long=SIZES)
    failing = False

    def _answer(self, link: WorkerLink, message: Message) -> None:
        if not isinstance(message, ChatStart):
            super()._answer(link, message)
            return
        self.asked.append(message)
        link.send(ChatToken(message.request, 104, [], []))
        if self.failing:
            error = FAILURE
            link.send(ChatRejected(message.request, error.code, error.text, error.field, error.reason))
            return
        link.send(ChatToken(message.request, 105, [], []))
        folds = max((len(message.ids) - 10) // 10, 0)
        route = "long" if len(message.ids) >= SIZES.threshold else "short"
        link.send(
            replace(
                done(message.request),
                prompt_tokens=len(message.ids),
                answer_tokens=2,
                route=route,
                folds=folds,
                compressed=10 * folds,
            )
        )

    def prompts(self) -> list[list[int]]:
        return [message.ids for message in self.asked if isinstance(message, ChatStart)]


async def test_the_longest_prompt_passes_whole_and_a_longer_one_is_rejected_with_the_limit(
    text_model: Loaded, tmp_path: Path
):
    async with alone(text_model, tmp_path, LongWorker, **GATE) as (http, made):
        assert isinstance(made, LongWorker)
        for length in (LENGTH - 1, LENGTH):
            answer = await http.post(TEXT, json={"prompt": "a" * length})
            assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == length
        assert [len(ids) for ids in made.prompts()] == [LENGTH - 1, LENGTH]
        for length in (LENGTH + 1, LENGTH * 2, LENGTH * 32, LENGTH * 32 + 1):
            for path, field, body in (
                (TEXT, "prompt", {"prompt": "a" * length}),
                (CHAT, "messages", _turn("a" * length)),
            ):
                rejected = await http.post(path, json=body)
                assert rejected.status_code == 400
                error = rejected.json()["error"]
                assert error["param"] == field and str(LENGTH) in error["message"], error
        assert len(made.prompts()) == 2, "nothing of the refused ones reached the worker"


async def test_a_prompt_of_131072_tokens_fits_a_body_and_a_message(text_model: Loaded, tmp_path: Path):
    whole = {"chat__long": {"gate": "gate.json"}, "chat__capacity": 32}

    class Longest(LongWorker):
        ready = replace(LongWorker.ready, length=131_072)

    async with alone(text_model, tmp_path, Longest, **whole) as (http, made):
        assert isinstance(made, LongWorker)
        text = "é" * 65_536  # two tokens each, and six bytes of a body
        answer = await http.post(
            TEXT, content=json.dumps({"prompt": text}), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
        (ids,) = made.prompts()
        assert len(ids) == 131_072 and made.process.front.loaded().tokenizer.decode(ids) == text


async def test_an_answer_says_which_route_its_prompt_took(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, LongWorker, **GATE) as (http, made):
        expected = {19: ("short", 0, 0), 20: ("long", 10, 1), 99: ("long", 80, 8)}
        for length, told in expected.items():
            body = {"prompt": "a" * length, "stream_options": {"include_usage": True}}
            whole = (await http.post(TEXT, json={"prompt": "a" * length})).json()["usage"]["edgeflow"]
            last = (await streamed(http, TEXT, body))[-1]["usage"]["edgeflow"]
            for usage in (whole, last):
                assert (usage["route"], usage["compressed_tokens"], usage["folds"]) == told
        twice = (await http.post(TEXT, json={"prompt": "a" * 20, "n": 2})).json()["usage"]["edgeflow"]
        assert (twice["route"], twice["compressed_tokens"], twice["folds"]) == ("long", 20, 2)
        metrics = (await http.get("/internal/metrics")).text
        assert f'edgeflow_chat_tokens_total{{kind="compressed"}} {10 + 10 + 80 + 80 + 20}.0' in metrics
        assert len(made.asked) == 8


async def test_without_a_gate_no_route_is_named(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path) as (http, _):
        usage = (await http.post(CHAT, json=ASKED)).json()["usage"]["edgeflow"]
        assert (usage["route"], usage["compressed_tokens"], usage["folds"]) == ("", 0, 0)
        (model, _) = (await http.get("/internal/models")).json()
        assert model["max_model_len"] == READY.length and "long" not in model
        assert model["images"] is False and "reads" not in model  # any text


async def test_the_list_of_models_has_the_real_limits(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, LongWorker, **GATE) as (http, _):
        models = (await http.get("/internal/models")).json()
        assert [model["id"] for model in models] == ["small", "small:arm"]
        for model in models:
            assert model["max_model_len"] == LENGTH
            sizes = {"sink": 4, "window": 6, "segment": 10}
            assert model["long"] == {"from_tokens": 20, **sizes, "slot_positions": 32}
        counted = (await http.post("/tokenize", json={"prompt": "a" * 100})).json()
        assert (counted["count"], counted["max_model_len"]) == (100, LENGTH)


async def test_a_fixed_prefix_may_be_longer_than_a_slot(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, LongWorker, **GATE) as (http, made):
        path = "/admin/v1/prefixes/arm"
        set_to = await http.put(path, json={"text": "a" * (LENGTH - 1)})
        assert set_to.status_code == 200 and set_to.json()["tokens"] == LENGTH - 1
        rejected = await http.put(path, json={"text": "a" * LENGTH})
        assert rejected.status_code == 400 and f"the limit is {LENGTH - 1}" in rejected.json()["error"]["message"]
        assert [len(message.ids) for message in made.asked if isinstance(message, SetPrefix)] == [LENGTH - 1]


async def test_a_memory_that_is_not_finite_ends_its_answer_and_no_other(text_model: Loaded, tmp_path: Path):
    async with alone(text_model, tmp_path, LongWorker, **GATE) as (http, made):
        assert isinstance(made, LongWorker)
        made.failing = True
        whole = await http.post(CHAT, json=ASKED)
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "INTERNAL")
        assert whole.json()["error"]["message"] == FAILURE.text
        events = (await http.post(CHAT, json={**ASKED, "stream": True})).text.split("\n\n")
        assert "[DONE]" not in events[-2]
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert (error["code"], error["message"]) == ("INTERNAL", FAILURE.text)
        made.failing = False
        assert (await http.post(CHAT, json=ASKED)).status_code == 200
        assert b'edgeflow_chat_refused_total{reason="MEMORY_NOT_FINITE"} 2.0' in (await _metrics(http))
        await eventually(lambda: len(_failures(made)) == 2)
        assert {json.loads(event.values)["reason"] for event in _failures(made)} == {"MEMORY_NOT_FINITE"}


@pytest.mark.parametrize(
    ("long", "told"),
    [
        (None, "1 slot of 32 positions, 3.0 MiB each, 6.0 MiB in all with one for recordings"),
        (
            SIZES,
            "1 slot of 32 positions with a memory of 8.0 KiB, 3.0 MiB each, 6.0 MiB in all with one for recordings, "
            "for prompts of any length up to 3000 tokens; from 20 on they are folded",
        ),
    ],
)
def test_the_start_tells_the_memory_of_a_slot(long: LongSlots | None, told: str):
    sizes = {"capacity": 32, "length": 3000, "slot_bytes": 3 << 20, "kv_bytes": 6 << 20}  # one slot for recordings
    ready = replace(READY, **sizes, long=long, numbers="float32")
    assert chat_summary(ready) == f"small (test; float32), {told}"


def _turn(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}]}


async def _metrics(http: httpx.AsyncClient) -> bytes:
    return (await http.get("/internal/metrics")).content


def _failures(made: Alone) -> list[LogEvent]:
    return [event for event in made.of(LogEvent) if event.name == "chat_failed"]
