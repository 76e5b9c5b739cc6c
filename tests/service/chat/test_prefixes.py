"""Fixed prefixes changed at run time: by administrators, exactly, for later workers too; and revoked tokens."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.service.chat.front import PREFIXES
from edgeflow.service.http.middleware import Hosts, PublicMiddleware
from edgeflow.service.observe.log import EventLog
from edgeflow.service.security.auth import Authenticator
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import PermissionDenied
from tests.service.chat.test_answers import ASKED, CHAT, SLOTS, TEXT, alone, chat_prompt, text_of
from tests.service.chat.test_queue import LONG, held, running, waiting
from tests.service.chat.workers import Loaded, chatting
from tests.service.harness import eventually
from tests.service.protected import write_tokens

NEW = [{"role": "system", "content": "you watch a red cup"}]
USER, BOSS = "user-token", "boss-token"


async def ask(http: httpx.AsyncClient, **changes: Any) -> tuple[str, dict[str, Any]]:
    """Text and EdgeFM's statistics."""
    answer = await http.post(CHAT, json={**ASKED, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"], answer.json()["usage"]["edgeflow"]


def expected(loaded: Loaded, before: list[dict[str, Any]]) -> str:
    return text_of(loaded.chat, alone(loaded.chat, chat_prompt(loaded.chat, *before, *ASKED["messages"])))


async def test_a_prefix_is_changed_and_answers_are_exact_before_and_after(text_model: Loaded):
    async with chatting(text_model, chat__slots=SLOTS) as (http, _):
        text, told = await ask(http, slot="arm")
        assert text == expected(text_model, SLOTS[0]["messages"]) and told["slot"] == "arm"
        changed = await http.put(f"{PREFIXES}/arm", json={"messages": NEW})
        assert changed.status_code == 200, changed.text
        tokens = changed.json()["tokens"]
        text, told = await ask(http, slot="arm")
        assert text == expected(text_model, NEW)
        assert (told["slot"], told["prefix_tokens_reused"]) == ("arm", tokens)
        listed = (await http.get(PREFIXES)).json()["data"]
        assert listed[0] == {"id": "arm", "object": "prefix", "tokens": tokens, "messages": NEW}
        assert listed[1]["text"] == SLOTS[1]["text"] and listed[1]["tokens"] > 0
        assert (await http.delete(f"{PREFIXES}/arm")).json()["tokens"] == 0
        text, told = await ask(http, slot="arm")
        assert text == expected(text_model, []) and told["slot"] == ""


async def test_the_old_prefix_serves_until_the_new_one_is_ready(text_model: Loaded):
    """The answer under way keeps its own; a change waits behind it, and is told when it is done."""
    async with held(text_model, chat__slots=SLOTS) as (http, served), running(http, served, slot="arm") as first:
        changing = asyncio.create_task(http.put(f"{PREFIXES}/arm", json={"messages": NEW}))
        await eventually(lambda: len(served.script.worker.plane._waiting) == 2)
        assert (await http.get(PREFIXES)).json()["data"][0]["messages"] == SLOTS[0]["messages"]
        assert not changing.done()
        served.script.gate.release()
        assert (await first).json()["usage"]["edgeflow"]["slot"] == "arm"
        assert (await changing).status_code == 200
        assert (await ask(http, slot="arm"))[0] == expected(text_model, NEW)


async def test_a_changed_prefix_outlives_its_worker(text_model: Loaded):
    async with chatting(text_model, chat__slots=SLOTS) as (http, served):
        assert (await http.put(f"{PREFIXES}/note", json={"text": "the cup is red and "})).status_code == 200
        served.script.worker.kill()
        await eventually(lambda: len(served.events("chat_ready")) == 2 and served.service.health.ready)
        answer = await http.post(TEXT, json={"prompt": "what is red?", "max_tokens": 4, "slot": "note"})
        assert answer.json()["usage"]["edgeflow"]["slot"] == "note", answer.text


@pytest.mark.parametrize(
    ("slot", "body", "status", "param"),
    [
        ("none", {"text": "x"}, 404, "slot"),
        ("arm", {"text": "x" * 300}, 400, "text"),
        ("arm", {"text": ""}, 400, None),
        ("arm", {"text": "x", "messages": NEW}, 400, None),
        ("arm", {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role"),
        ("arm", {"prefix": "x"}, 400, "prefix"),
    ],
)
async def test_an_invalid_prefix_is_rejected_and_nothing_changes(
    text_model: Loaded, slot: str, body: dict[str, Any], status: int, param: str | None
):
    async with chatting(text_model, chat__slots=SLOTS) as (http, _):
        answer = await http.put(f"{PREFIXES}/{slot}", json=body)
        assert answer.status_code == status, answer.text
        assert param is None or answer.json()["error"]["param"] == param
        assert (await http.get(PREFIXES)).json()["data"][0]["messages"] == SLOTS[0]["messages"]


async def test_only_an_administrator_s_token_changes_prefixes(text_model: Loaded, tmp_path: Path):
    file = write_tokens(tmp_path / "t.json", (USER, "user", "chat"), (BOSS, "boss", "admin"))
    async with chatting(text_model, chat__slots=SLOTS, tokens_file=file) as (http, _):
        for token, status in (("", 401), (USER, 403), (BOSS, 200)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            assert (await http.get(PREFIXES, headers=headers)).status_code == status
            put = await http.put(f"{PREFIXES}/arm", json={"messages": NEW}, headers=headers)
            assert put.status_code == status
            assert (await http.delete(f"{PREFIXES}/arm", headers=headers)).status_code == status


@pytest.mark.parametrize(("peer", "fine"), [("127.0.0.1", True), ("::1", True), ("192.0.2.7", False), ("", False)])
def test_without_tokens_only_this_machine_may(peer: str, fine: bool):
    log, metrics = EventLog(MonotonicClock(), io.StringIO()), Metrics()
    middleware = PublicMiddleware(
        None, Authenticator(None, metrics, log), 1 << 20, metrics, log, hosts=Hosts(), reader_s=30.0
    )
    scope = {"client": (peer, 1), "path": f"{PREFIXES}/arm", "headers": []}
    if fine:
        assert middleware._caller(scope).peer == peer
    else:
        with pytest.raises(PermissionDenied, match="limited to this machine"):
            middleware._caller(scope)
        assert middleware._caller({**scope, "path": CHAT}).peer == peer, "other routes are as they were"


async def test_the_command_lists_sets_and_clears(text_model: Loaded, tmp_path: Path):
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(NEW))

    async def run(*arguments: str) -> tuple[int, str]:
        command = ["prefix", *arguments, "--address", str(http.base_url)]
        told = await asyncio.to_thread(CliRunner().invoke, app, command)
        return told.exit_code, told.output + str(told.exception or "")

    async with chatting(text_model, chat__slots=SLOTS) as (http, _):
        code, told = await run("set", "arm", "--file", str(file))
        assert code == 0 and told.startswith("arm: ")
        assert "you watch a red cup" in (await run("list"))[1]
        assert (await run("clear", "arm"))[1] == "arm: 0 tokens\n"
        code, told = await run("list", "--json")
        assert json.loads(told)[0] == {"id": "arm", "object": "prefix", "tokens": 0}
        code, told = await run("set", "none", "--text", "x")
        assert code == 1 and "unknown slot" in told
        assert "give either --file or --text" in (await run("set", "arm"))[1]


async def test_a_revoked_token_ends_the_running_and_the_waiting_answer(text_model: Loaded, tmp_path: Path):
    file = write_tokens(tmp_path / "t.json", (USER, "user", "chat"), (BOSS, "boss", "admin"))
    async with held(text_model, tokens_file=file, chat__queue_ms=60_000) as (http, served):
        http.headers["authorization"] = f"Bearer {USER}"
        served.script.gate.grant(40)
        async with http.stream("POST", CHAT, json={**LONG, "stream": True}) as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            assert first.startswith("data: {")
            second = asyncio.create_task(http.post(CHAT, json=ASKED))
            await eventually(lambda: waiting(served) == 1)
            write_tokens(Path(file), (BOSS, "boss", "admin"))
            rest = [line async for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "UNAUTHENTICATED"
        assert (await second).status_code == 401
        await eventually(lambda: not served.script.worker.busy)
        boss = {"authorization": f"Bearer {BOSS}"}
        served.script.gate.release()
        assert (await http.post(CHAT, json=ASKED, headers=boss)).status_code == 200
