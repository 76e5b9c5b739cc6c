"""Chat beside the robots of a load test: figures by hand, and a run against a service that chats."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.connection.http import HttpService
from edgeflow_client.errors import InvalidArgument, StartError
from edgeflow_client.loadtest.chat import Beside, chat_summary, check_chat, default_address
from edgeflow_client.loadtest.chat_clients import ChatLoad, ChatSample
from edgeflow_client.loadtest.command import measured
from edgeflow_client.loadtest.results import RATIO, results_json, results_of
from edgeflow_client.loadtest.robots.ledger import Ledger
from edgeflow_client.loadtest.robots.plan import Fixed
from edgeflow_client.loadtest.summary import summarise
from edgeflow_client.loadtest.tables import print_results
from edgeflow_client.types import Disposition, StageTimings
from tests.chat_checkpoint import write_chat_checkpoint
from tests.client.loadtest.conftest import MS, PLAN, disposed
from tests.client.loadtest.conftest import measured as by_hand
from tests.service.chat.workers import chatting, load
from tests.service.harness import serving
from tests.tiny_checkpoint import write_checkpoint


def started(late_ms: list[float]) -> Ledger:
    """Frames every 50 ms whose first pass starts so late; 10 ms of inference each."""
    ledger = Ledger(0)
    for index, late in enumerate(late_ms):
        due_ns = index * 50 * MS
        number = ledger.offer(due_ns, due_ns).number
        server_ns = round((late + 10) * MS)
        assert ledger.act(
            number,
            stamp_ns=due_ns,
            received_ns=due_ns + server_ns,
            valid_for_ms=250,
            server_ns=server_ns,
            timings=StageTimings(0, 0, 10 * MS, 1),
        )
    return ledger


def test_jitter_is_of_the_interval_between_pass_starts():
    run = by_hand([started([1, 1, 4, 2])])
    assert summarise(run, run.ledgers).start_jitter_ms.count == 3
    assert summarise(run, run.ledgers).start_jitter_ms.mean == pytest.approx((0 + 3 + 2) / 3)


def test_frames_that_are_no_neighbours_have_no_interval():
    ledger = started([1, 1])
    disposed(ledger, 100, Disposition.SUPERSEDED, "SUPERSEDED")
    number = ledger.offer(150 * MS, 150 * MS).number
    ledger.act(
        number,
        stamp_ns=150 * MS,
        received_ns=180 * MS,
        valid_for_ms=250,
        server_ns=30 * MS,
        timings=StageTimings(0, 0, 10 * MS, 1),
    )
    run = by_hand([ledger])
    assert summarise(run, run.ledgers).start_jitter_ms.count == 1


def asked(at: float, *pieces: float, tokens: int = 0, done: float = 0, refused: str = "") -> ChatSample:
    return ChatSample(round(at * MS), [round(each * MS) for each in pieces], tokens, round(done * MS), refused)


def test_chat_of_the_measured_time_is_counted():
    requests = [
        asked(-50, -20, 10, tokens=9, done=20),
        asked(100, 130, 140, 160, tokens=3, done=170),
        asked(200, refused="429 RESOURCE_EXHAUSTED"),
        asked(1200, 1300, tokens=5, done=1400),
    ]
    told = chat_summary(1, requests, 0, 1000 * MS)
    assert (told.requests, told.tokens, told.tokens_per_s) == (2, 12, pytest.approx(4.0))
    assert (told.first_ms.count, told.first_ms.p50) == (1, 30.0)
    assert sorted([told.gap_ms.count, told.gap_ms.max]) == [3, 30.0]
    assert told.refused == {"429 RESOURCE_EXHAUSTED": 1}


@pytest.mark.parametrize(("late", "ratio", "met"), [([1, 2, 1], 0.5, True), ([1, 5, 1], 2.0, False)])
def test_the_ratio_is_judged(late: list[float], ratio: float, met: bool):
    alone, run = by_hand([started([1, 3, 1])]), by_hand([started(late)])
    chat = chat_summary(1, [asked(0, 10, tokens=1, done=20)], 0, 1000 * MS)
    results = results_of(run, {RATIO: 1.2}, Beside(summarise(alone, alone.ledgers), chat))
    assert results.met is met
    content = json.loads(results_json(results))
    assert content["start_jitter_ratio"] == pytest.approx(ratio)
    assert content["chat"]["requests"] == 1 and content["alone"]["start_jitter_ms"]["p99"] == pytest.approx(2.0)
    console = Console(width=80, record=True, file=io.StringIO())
    print_results(results, console)
    assert "…" not in (shown := console.export_text())
    assert "rejected: none" in shown


def test_chat_that_does_not_move_on_meets_nothing():
    alone = by_hand([started([1, 1])])
    silent = chat_summary(1, [asked(0)], 0, 1000 * MS)
    results = results_of(alone, {}, Beside(summarise(alone, alone.ledgers), silent))
    assert [check.name for check in results.checks if not check.met] == ["min-chat-requests"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:81", "http://localhost:81"),
        ("https://robot", "https://robot:8000"),
        ("[::1]:5", "http://[::1]:5"),
        ("http://h:1/", "http://h:1"),
    ],
)
def test_addresses(text: str, address: str):
    assert HttpService.of(text, Credentials()).address == address
    assert default_address("robot:50051", encrypted=True) == "https://robot:8000"


@pytest.mark.parametrize("text", ["", "ftp://h", "h:port", "http://h/v1", "h:99999"])
def test_an_invalid_address_is_an_error(text: str):
    with pytest.raises(InvalidArgument):
        HttpService.of(text, Credentials())


def test_an_address_without_a_service_is_reported_before_the_run():
    with pytest.raises(StartError, match=r"chat\.address: http://127.0.0.1:1: .*refused"):
        check_chat(ChatLoad("http://127.0.0.1:1"), Credentials())


def test_a_ratio_without_chat_is_a_wrong_option():
    told = CliRunner().invoke(app, ["loadtest", "127.0.0.1:1", "--set", "limits.max_jitter_ratio=1.2"])
    assert str(told.exception) == "limits.max_jitter_ratio: needs chat: --set chat.clients=N"


async def test_a_service_without_a_chat_model_is_reported(checkpoint: Path):
    async with serving(checkpoint) as served:
        with pytest.raises(StartError, match="serves no chat model"):
            await asyncio.to_thread(check_chat, ChatLoad(served.http), Credentials())


async def test_robots_and_chat_are_measured_side_by_side(tmp_path: Path):
    write_chat_checkpoint(tmp_path / "chat", "qwen2")
    loaded = load(write_checkpoint(tmp_path / "policy"), tmp_path / "chat")
    async with chatting(loaded, limits__rate_hz=1000.0) as (_, served):
        address = served.service.status.grpc_address
        plan = replace(PLAN, address=address, instructions=("go",), pattern=Fixed(20.0), duration_s=2.0)
        chat = ChatLoad(served.http, clients=2, max_tokens=4)
        quiet = Console(quiet=True)
        _, results = await asyncio.to_thread(measured, plan, {}, Credentials(), quiet, chat)
    assert results.beside is not None
    told = results.beside.chat
    assert told.requests > 0 and told.tokens <= 4 * told.requests and told.first_ms.p50 > 0
    assert results.total.frames.acted > 0 and results.beside.alone.frames.acted > 0
    assert results.met
