"""Prompts longer than a slot through a whole service: answers are those of the naive twin, by any way they are asked
for, and what an answer says of its prompt is what was folded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.verify.gate_streaming import StreamingTwin
from edgeflow.models.memory_gate import MemoryGate, base_fingerprint, gate_header
from edgeflow.models.published import read_published
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.chat.test_long import gate_for
from tests.oracles import ORACLES
from tests.service.chat.test_answers import CHAT, TEXT, said, streamed
from tests.service.chat.workers import CPU, Gate, Loaded, chatting, load
from tests.service.harness import eventually

LENGTH, TOKENS = 300, 14
MARGIN = 2e-4  # between the best two logits, twenty times what rounding changes
WORDS = "arm x+12 y-03 z21; gripper closed; holding red cube; faults none; "


@dataclass(frozen=True)
class Long:
    """A base with its gate, as a service has it and as the naive twin reads it."""

    loaded: Loaded
    gate_path: Path
    gate: MemoryGate
    base: PlainBase

    @classmethod
    def of(cls, policy_path: Path, path: Path, gate_path: Path) -> Long:
        config = read_published(path).text
        gate = gate_header(gate_path, config).read(config, torch.float32, CPU)
        return cls(load(policy_path, path), gate_path, gate, PlainBase.read(path, torch.float32, CPU))

    def ids(self, text: str) -> list[int]:
        return list(self.loaded.chat.text_prompt(text).ids)

    def service(self, gate: Gate | None = None, **changes: Any) -> Any:
        """The service; short chunks, so that none ends with a segment by chance."""
        long = {"gate": str(self.gate_path), "length": LENGTH}
        return chatting(self.loaded, gate, chat__long=long, chat__capacity=32, chat__prefill_chunk=7, **changes)

    def answer(self, ids: Sequence[int], tokens: int = TOKENS) -> ExpectedAnswer:
        """The greedy answer of the twin."""
        twin, told = StreamingTwin(self.base, self.gate), []
        with torch.inference_mode():
            logits = twin.prefill(ids).logits
            while True:
                best, second = logits.topk(2).values.tolist()
                assert best - second > MARGIN, "choose another prompt: this one has a near tie"
                told.append(int(logits.argmax()))
                if len(told) == tokens or told[-1] in self.loaded.chat.stop_ids:
                    break
                logits = twin.step(told[-1]).logits
        segment = self.gate.rules.segment
        route = "long" if len(ids) >= self.gate.rules.threshold else "short"
        text = self.loaded.chat.tokenizer.decode(told)
        return ExpectedAnswer(text, {"route": route, "compressed_tokens": twin.folded * segment, "folds": twin.folded})


@dataclass(frozen=True)
class ExpectedAnswer:
    """text: of the answer. usage: what it says of its prompt."""

    text: str
    usage: dict[str, Any]


def prompt(length: int, begin: str = "") -> str:
    """A text of so many characters; of a byte tokenizer as many tokens."""
    return (begin + WORDS * 20)[:length]


def body(text: str, tokens: int = TOKENS, **changes: Any) -> dict[str, Any]:
    return {"prompt": text, "max_tokens": tokens, "temperature": 0, **changes}


async def asked(http: httpx.AsyncClient, text: str, **changes: Any) -> ExpectedAnswer:
    """A whole answer."""
    answer = await http.post(TEXT, json=body(text, **changes))
    assert answer.status_code == 200, answer.text
    values = answer.json()
    return ExpectedAnswer(values["choices"][0]["text"], _of_route(values["usage"]["edgeflow"]))


def _of_route(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: usage[name] for name in ("route", "compressed_tokens", "folds")}


@pytest.fixture(scope="session")
def long(policy_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Long:
    """A byte tokenizer, so that lengths are exact; 4 + 6 + 10 tokens."""
    path = tmp_path_factory.mktemp("long-model")
    write_chat_checkpoint(path, "qwen2")
    write_gate(path, gate_for(read_published(path).text, base_fingerprint(path)))
    return Long.of(policy_path, path, path)


async def test_answers_to_short_and_long_prompts_whole_and_streamed(long: Long):
    async with long.service() as (http, _):
        for length in (1, 3, 18, 19, 20, 21, 29, 30, 64, 117):
            expected = long.answer(long.ids(prompt(length)))
            assert await asked(http, prompt(length)) == expected, length
            events = await streamed(http, TEXT, body(prompt(length), stream_options={"include_usage": True}))
            assert said(events)[0] == expected.text, length
            assert _of_route(events[-1]["usage"]["edgeflow"]) == expected.usage, length


async def test_several_in_a_row_leave_nothing_of_each_other(long: Long):
    lengths = [95, 12, 64, 19, 117, 20, 3, 95]
    async with long.service() as (http, _):
        for length in lengths:
            assert await asked(http, prompt(length)) == long.answer(long.ids(prompt(length))), length
        twice = (await http.post(TEXT, json=body(prompt(64), n=2))).json()
        expected = long.answer(long.ids(prompt(64)))
        assert [choice["text"] for choice in twice["choices"]] == [expected.text] * 2
        assert twice["usage"]["edgeflow"]["folds"] == 2 * expected.usage["folds"]


async def test_messages_are_folded_like_texts(long: Long):
    turns = [{"role": "system", "content": prompt(80)}, {"role": "user", "content": "what is red?"}]
    chat = long.loaded.chat
    expected = long.answer(chat.chat_prompt(chat.render(turns)).ids)
    async with long.service() as (http, _):
        request = {"messages": turns, "max_tokens": TOKENS, "temperature": 0}
        answer = (await http.post(CHAT, json=request)).json()
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert _of_route(answer["usage"]["edgeflow"]) == expected.usage


@pytest.mark.parametrize("rows", [3, 15, 24, 47, 90])
async def test_a_fixed_prefix_changes_no_answer(long: Long, rows: int):
    """Shorter than the sink, than a slot, and longer; prompts behind it fold a part of it, or all."""
    slots = [{"id": "log", "text": prompt(rows)}]
    async with long.service(chat__slots=slots) as (http, _):
        for rest in (1, 2, 9, 10, 40, 1):
            text = prompt(rows + rest)
            answer = await http.post(TEXT, json=body(text))
            values = answer.json()
            usage = values["usage"]["edgeflow"]
            expected = long.answer(long.ids(text))
            assert (values["choices"][0]["text"], _of_route(usage)) == (expected.text, expected.usage), rest
            assert usage["slot"] == "log" and 0 < usage["prefix_tokens_reused"] <= rows
            named = (await http.post(TEXT, json=body(text[rows:], slot="log"))).json()
            assert named["choices"][0]["text"] == expected.text
        assert await asked(http, prompt(64, "other ")) == long.answer(long.ids(prompt(64, "other ")))


async def test_a_prefix_that_was_changed_is_folded_anew(long: Long):
    slots = [{"id": "log", "text": prompt(50)}]
    new = prompt(70, "log of today: ")
    async with long.service(chat__slots=slots) as (http, _):
        assert (await http.put("/admin/v1/prefixes/log", json={"text": new})).status_code == 200
        answer = (await http.post(TEXT, json=body("go", slot="log"))).json()
        assert answer["choices"][0]["text"] == long.answer(long.ids(new + "go")).text
        assert answer["usage"]["edgeflow"]["slot"] == "log"


async def test_the_longest_prompt_is_answered_and_a_longer_one_rejected_with_the_limit(long: Long):
    async with long.service() as (http, served):
        answer = (await http.post(TEXT, json=body(prompt(LENGTH)))).json()
        assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["text"] == long.answer(long.ids(prompt(LENGTH)), 1).text
        steps = served.script.gate.steps
        for path, request in ((TEXT, body(prompt(LENGTH + 1))), (CHAT, _turn(prompt(LENGTH + 1)))):
            rejected = await http.post(path, json=request)
            assert rejected.status_code == 400 and str(LENGTH) in rejected.json()["error"]["message"]
        assert served.script.gate.steps == steps
        (model,) = [each for each in (await http.get("/v1/models")).json()["data"] if each["id"] == "small"]
        assert model["max_model_len"] == LENGTH and model["long"]["from_tokens"] == 20
        assert model["long"]["slot_positions"] == 32


@pytest.mark.parametrize("steps", [0, 5, 20], ids=["at once", "in the prompt", "in the answer"])
async def test_a_cancelled_prompt_leaves_no_state(long: Long, steps: int):
    gate = Gate()
    async with long.service(gate) as (http, served):
        gate.close()
        async with httpx.AsyncClient(base_url=served.http) as leaving:
            asking = asyncio.create_task(leaving.post(TEXT, json=body(prompt(95), 100)))
            await eventually(lambda: served.script.worker.busy)
            gate.grant(steps)
            await eventually(lambda: gate.steps == steps)
            asking.cancel()
        await eventually(lambda: not served.script.worker.busy)
        gate.release()
        for length in (19, 64):
            assert await asked(http, prompt(length)) == long.answer(long.ids(prompt(length)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_memory_that_is_not_finite_fails_its_request_and_no_other(long: Long, stream: bool):
    gate = Gate()
    async with long.service(gate) as (http, served):
        gate.close()
        failing = asyncio.create_task(http.post(TEXT, json=body(prompt(95), 100, stream=stream)))
        await eventually(lambda: served.script.worker.busy)
        gate.grant(20)
        await eventually(lambda: gate.steps == 20)
        with torch.inference_mode():
            served.script.worker.plane.engine.kv.tensors[1].fill_(torch.nan)
        gate.release()
        answer = await failing
        began = answer.headers["content-type"].startswith("text/event-stream")  # else no event had left the front yet
        error = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: ")) if began else answer.json()
        assert answer.status_code == (200 if began else 500) and began <= stream
        assert (error["error"]["code"], "not finite" in error["error"]["message"]) == ("INTERNAL", True)
        assert len(served.script.workers) == 1
        for length in (19, 64):
            assert await asked(http, prompt(length)) == long.answer(long.ids(prompt(length)))
        assert served.metric("edgeflow_chat_refused_total", reason="MEMORY_NOT_FINITE") == 1


async def test_a_grammar_holds_after_a_long_prompt(long: Long):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    kind = {
        "type": "json_schema",
        "json_schema": {"name": "verdict", "schema": {**schema, "additionalProperties": False}},
    }
    async with long.service() as (http, _):
        request = {**_turn(prompt(100)), "max_tokens": 40, "temperature": 0, "response_format": kind}
        answer = (await http.post(CHAT, json=request)).json()
        assert list(json.loads(answer["choices"][0]["message"]["content"])) == ["ok"]
        assert answer["usage"]["edgeflow"]["route"] == "long"


@pytest.mark.oracle("edgeinfinite-tiny")
@pytest.mark.parametrize("name", ["llama", "qwen2"])
async def test_the_recorded_bundles_are_served(policy_path: Path, name: str):
    bundle = ORACLES / "edgeinfinite-tiny" / name
    long = Long.of(policy_path, bundle / "base", bundle)
    async with long.service() as (http, _):
        routes = []
        for length in (20, 60, 300, 500):
            text = prompt(length)
            expected = long.answer(long.ids(text))
            assert await asked(http, text) == expected
            events = await streamed(http, TEXT, body(text))
            assert said(events)[0] == expected.text
            routes.append(expected.usage["route"])
        assert set(routes) == {"short", "long"}


def _turn(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}
