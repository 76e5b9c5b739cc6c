"""Who waits, who is told to come again, and what becomes of answers that nobody reads any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.service.chat.test_answers import ASKED, CHAT, said
from tests.service.chat.workers import Gate, Loaded, chatting
from tests.service.harness import RunningService, eventually

LONG = {**ASKED, "max_tokens": 150}


def waiting(served: RunningService) -> float:
    return served.metric("edgeflow_chat_requests_waiting")


@contextlib.asynccontextmanager
async def held(
    loaded: Loaded, incidents: int = 0, **overrides: object
) -> AsyncIterator[tuple[httpx.AsyncClient, RunningService]]:
    """Chat steps wait for the gate."""
    gate = Gate()
    gate.close()
    async with chatting(loaded, gate, incidents, **overrides) as (http, served):
        yield http, served


@contextlib.asynccontextmanager
async def running(
    http: httpx.AsyncClient, served: RunningService, **changes: Any
) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A request that the worker has begun."""
    asking = asyncio.create_task(http.post(CHAT, json={**LONG, **changes}))
    await eventually(lambda: served.script.worker.busy)
    try:
        yield asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_full_queue_answers_with_retry_after(text_model: Loaded):
    async with held(text_model, chat__queue=2, chat__queue_ms=20_000) as (http, served):
        async with running(http, served, max_tokens=2) as first:
            second = asyncio.create_task(http.post(CHAT, json={**ASKED, "max_tokens": 3}))
            await eventually(lambda: waiting(served) == 1)
            third = asyncio.create_task(http.post(CHAT, json={**ASKED, "max_tokens": 4}))
            await eventually(lambda: waiting(served) == 2)
            rejected = await http.post(CHAT, json=ASKED)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
            assert rejected.json()["error"]["type"] == "rate_limit_error"
            served.script.gate.release()
            answers = [await each for each in (first, second, third)]
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [2, 3, 4]
        second_ms, third_ms = (answer.json()["usage"]["edgeflow"]["queue_ms"] for answer in answers[1:])
        assert third_ms > answers[1].json()["usage"]["edgeflow"]["decode_ms"] and second_ms > 0
        assert served.metric("edgeflow_chat_refused_total", reason="QUEUE_FULL") == 1


async def test_a_request_that_waits_too_long_gets_retry_after(text_model: Loaded):
    async with held(text_model, chat__queue_ms=50) as (http, served), running(http, served):
        rejected = await http.post(CHAT, json={**ASKED, "stream": True})
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        assert "50 ms" in rejected.json()["error"]["message"] and waiting(served) == 0


async def test_an_answer_that_takes_too_long_ends(text_model: Loaded):
    async with held(text_model, chat__request_s=0.3) as (http, served):
        answer = await http.post(CHAT, json=LONG)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "DEADLINE_EXCEEDED")
        served.script.gate.release()
        assert (await http.post(CHAT, json={**ASKED, "max_tokens": 1})).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("steps", [0, 6], ids=["before the first token", "in the answer"])
async def test_a_reader_that_goes_frees_the_model_within_one_step(text_model: Loaded, stream: bool, steps: int):
    async with held(text_model) as (http, served):
        gate = served.script.gate
        async with httpx.AsyncClient(base_url=served.http) as leaving, running(leaving, served, stream=stream):
            gate.grant(steps)
            await eventually(lambda: gate.steps == steps)
        await eventually(lambda: not served.script.worker.busy)
        assert gate.steps <= steps + 1
        gate.release()
        assert (await http.post(CHAT, json={**ASKED, "max_tokens": 1})).status_code == 200
        assert served.metric("edgeflow_chat_requests_running") == 0


async def test_a_reader_that_goes_while_it_waits_is_never_begun(text_model: Loaded):
    async with (
        held(text_model, chat__queue_ms=20_000) as (http, served),
        running(http, served, max_tokens=1) as first,
    ):
        async with httpx.AsyncClient(base_url=served.http) as leaving:
            second = asyncio.create_task(leaving.post(CHAT, json=LONG))
            await eventually(lambda: waiting(served) == 1)
            second.cancel()
        await eventually(lambda: waiting(served) == 0)
        served.script.gate.release()
        assert (await first).status_code == 200
        assert served.script.gate.steps < 10


async def test_a_worker_that_dies_in_an_answer_is_503_and_the_next_answers(text_model: Loaded):
    async with held(text_model) as (http, served):
        async with running(http, served) as asking:
            served.script.worker.kill()
            answer = await asking
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        served.script.gate.release()
        await eventually(lambda: len(served.events("chat_ready")) == 2 and served.service.health.ready)
        assert (await http.post(CHAT, json=ASKED)).status_code == 200


async def test_a_dead_worker_is_the_last_event_of_its_stream(text_model: Loaded):
    async with held(text_model) as (http, served):
        served.script.gate.grant(8)
        async with http.stream("POST", CHAT, json={**LONG, "stream": True}) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            first = await anext(lines)
            assert json.loads(first.removeprefix("data: "))["choices"]
            served.script.worker.kill()
            rest = [json.loads(line.removeprefix("data: ")) async for line in lines if line]
            assert rest[-1]["error"]["code"] == "UNAVAILABLE"
        served.script.gate.release()


async def test_the_running_answer_is_finished_when_the_service_stops(text_model: Loaded):
    async with (
        held(text_model, chat__queue_ms=20_000) as (http, served),
        running(http, served, max_tokens=3, stream=True) as first,
        httpx.AsyncClient(base_url=served.http) as other,
    ):
        second = asyncio.create_task(other.post(CHAT, json=ASKED))
        await eventually(lambda: waiting(served) == 1)
        stopping = asyncio.create_task(served.service.stop())
        assert (await second).status_code == 503
        served.script.gate.release()
        events = [json.loads(line.removeprefix("data: ")) for line in (await first).text.split("\n\n")[:-2]]
        assert said(events)[1] == ["length"]
        await stopping


async def test_an_answer_that_cannot_be_finished_in_time_is_an_error(text_model: Loaded):
    async with held(text_model, timing__drain_ms=200) as (http, served), running(http, served) as asking:
        stopping = asyncio.create_task(served.service.stop())
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
        served.script.gate.release()
        await stopping


async def test_without_a_chat_model_the_routes_say_so(checkpoint):
    from tests.service.harness import serving

    async with serving(checkpoint, chat__enabled=False) as served, httpx.AsyncClient(base_url=served.http) as http:
        for path, body in ((CHAT, ASKED), ("/v1/completions", {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
            answer = await http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
