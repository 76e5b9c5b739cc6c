"""A service that is traced: a collector gets a trace of each frame, whatever happens to it and to the trace process."""

from __future__ import annotations

import base64
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow.service.frontends.grpc.server import SERVICE
from edgeflow.service.sessions.recording import SessionRecorder
from edgeflow_client.rpc import control_pb2 as pb
from tests.service.frontends.robot_clients import openpi_robot, robots_address
from tests.service.frontends.stub_worker import stub_script
from tests.service.harness import JPEG, WAIT_S, eventually, frame_message, open_message, serving
from tests.service.processes import command
from tests.service.tracing.collector import Collector
from tests.stub_policy import stub_checkpoint

OWN = SimpleNamespace(launch=None)  # the service starts its workers itself
PARENT = "00-{:032x}-00000000000000ab-01"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def tracer() -> int:
    """The process id of the trace process, which a thread started."""
    born = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    (pid,) = (each for each in born if "tracing.process" in command(each))
    return pid


async def test_a_frame_has_a_span_with_its_stages(collector: Collector, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "site=hall 3")
    settings = {"standby": False, "mode": "pipelined", "trace__endpoint": f"{collector.address}/"}
    async with serving(EMBEDDED_MODEL, OWN, **settings) as served:
        robot = served.robot()
        await robot.open()
        for seq in range(1, 4):
            arrived = {"arrived": pb.Arrived(seq=seq - 1, age_ns=1)} if seq > 1 else {}
            await robot.frame(seq, **arrived)
            action = await robot.action(seq)
        await robot.frame(3)
        await robot.status(3)
        await robot.call.done_writing()
        await robot.rest()
        await eventually(lambda: len(collector.named("executed")) == 2)
    frames = [each for each in collector.named("frame") if each.attributes["edgeflow.disposition"] == "acted"]
    assert [each.attributes["edgeflow.seq"] for each in frames] == [1, 2, 3]
    assert len({each.trace for each in frames}) == 3  # each a trace of its own
    for frame in frames:
        begin, end = frame.times
        inside = [each for each in collector.children(frame) if each.name != "executed"]
        passes = frame.attributes["edgeflow.passes"]
        assert [each.name for each in inside] == ["receive", "decode", "queue", *["pass"] * passes, "answer"]
        edges = [time for each in inside for time in each.times]
        assert edges == sorted(edges) and (edges[0], edges[-1]) == (begin, end)
        work = [each for each in inside if each.name == "pass"]
        assert [each.attributes["edgeflow.pass.number"] for each in work] == list(range(1, passes + 1))
        assert [each.attributes["edgeflow.pass.prefills"] for each in work] == [1] + [0] * (passes - 1)
        assert sum(each.times[1] - each.times[0] for each in work) > 0.5 * (end - begin)
    assert passes == action.timings.passes == 7 and end - begin == action.timings.server_ns
    for frame, done in zip(frames, sorted(collector.named("executed"), key=lambda each: each.times), strict=False):
        assert done.span.parent_span_id == frame.span.span_id and done.times[0] >= frame.times[1]
    (twice,) = (each for each in collector.named("frame") if each.attributes["edgeflow.disposition"] == "rejected")
    assert twice.attributes["edgeflow.reason"] == "SEQ_DUPLICATE" and twice.span.status.code == 2
    about = frames[0].attributes
    assert (about["edgeflow.front"], about["edgeflow.mode"], about["edgeflow.epoch"]) == ("grpc", "pipelined", 1)
    assert frames[0].resource["service.name"] == "edgeflow" and frames[0].resource["site"] == "hall 3"
    assert collector.headers[0]["authorization"] == "Bearer mine"


async def test_each_way_in_takes_a_trace_context(checkpoint, collector: Collector, tmp_path: Path):
    stub = stub_checkpoint(tmp_path / "stub", cameras={"image": None}, state={}, actions=2, horizon=2)
    image = np.zeros((16, 16, 3), np.uint8)
    opening = open_message(cameras=[pb.Camera(name="image", width=32, height=24, format=pb.IMAGE_FORMAT_JPEG)])
    ways = [{"traceparent": PARENT.format(number), "tracestate": "a=1"} for number in range(1, 6)]
    async with serving(checkpoint, stub_script(stub), trace__endpoint=collector.address) as served:
        robot = served.robot()
        robot._stream, made = None, robot._stream
        robot.call.cancel()
        robot.call = made(metadata=[*ways[0].items()])
        await robot.open(cameras=opening.cameras)
        await robot.frame(1)
        await robot.action(1)
        act = served.channel.unary_unary(f"/{SERVICE}/Act", pb.ActRequest.SerializeToString, pb.ActResponse.FromString)
        await act(pb.ActRequest(open=opening, frame=frame_message(1)), metadata=[*ways[1].items()], timeout=WAIT_S)
        async with httpx.AsyncClient(timeout=WAIT_S) as http:
            body = {"image": base64.b64encode(JPEG).decode(), "instruction": "go"}
            assert (await http.post(f"{served.http}/v1/act", json=body, headers=ways[2])).status_code == 200
            body = {"image": image.tolist(), "instruction": "go"}
            address = f"http://{robots_address(served)}/act"
            assert (await http.post(address, json=body, headers=ways[3])).status_code == 200
            twice = [("traceparent", PARENT.format(8)), ("traceparent", PARENT.format(9))]
            assert (await http.post(address, json=body, headers=twice)).status_code == 200
        async with openpi_robot(robots_address(served), additional_headers=ways[4]) as client:
            for _ in range(2):
                await client.ask({"observation/image": image, "prompt": "go"})
        await eventually(lambda: len(collector.named("frame")) == 7)
    frames = sorted(collector.named("frame"), key=lambda each: each.trace)
    given = [f"{number:032x}" for number in (1, 2, 3, 4, 5, 5)]
    assert [each.trace for each in frames[:6]] == given and frames[6].trace[:16] != "0" * 16
    fronts = [each.attributes["edgeflow.front"] for each in frames]
    assert fronts == ["grpc", "grpc", "grpc", "openvla", "openpi", "openpi", "openvla"]
    for frame in frames[:6]:
        assert frame.span.parent_span_id.hex() == "00000000000000ab" and frame.span.trace_state == "a=1"
    assert not frames[6].span.parent_span_id


async def test_a_trace_process_that_is_killed_is_replaced_and_knows_the_sessions(checkpoint, collector: Collector):
    async with serving(checkpoint, trace__endpoint=collector.address) as served:
        robot = served.robot()
        await robot.open()
        await robot.frame(1)
        await robot.action(1)
        await eventually(lambda: len(collector.named("frame")) == 1)
        os.kill(tracer(), signal.SIGKILL)
        await robot.frame(2)
        await robot.action(2)
        await eventually(lambda: len(collector.named("frame")) == 2)
        assert [each["level"] for each in served.events("tracer_restarted")] == ["warning"]
        assert served.metric("edgeflow_tracer_restarts_total") == 1
    first, second = collector.named("frame")
    assert second.attributes["edgeflow.session"] == first.attributes["edgeflow.session"]
    assert served.metric("edgeflow_trace_spans_lost_total") == 0


async def test_a_collector_that_is_down_costs_spans_only(checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    async with serving(checkpoint, trace__endpoint=f"http://127.0.0.1:{port}") as served:
        robot = served.robot()
        await robot.open()
        sent = 0

        async def until(condition: Callable[[], bool]) -> None:
            nonlocal sent
            while not condition():
                sent += 1
                await robot.frame(sent)
                await robot.action(sent)

        await until(lambda: served.metric("edgeflow_trace_spans_lost_total") > 20)
        (told,) = served.events("trace_failing")
        assert told["level"] == "warning" and f":{port}/v1/traces takes no spans" in told["text"]
        with Collector(port) as collector:
            await until(lambda: bool(served.events("trace_recovered")) and bool(collector.spans))
        assert len(served.events("trace_failing")) == 1 and not served.events("trace_lost")


async def test_untraced_nothing_observes_and_no_message_has_a_time(checkpoint):
    async with serving(checkpoint) as served:
        observers = served.service.plane._observers._observers
        assert not any(isinstance(each, SessionRecorder) for each in observers)
        robot = served.robot()
        robot.call.cancel()
        robot.call = robot._stream(metadata=[("traceparent", PARENT.format(1))])
        await robot.open()
        (runner,) = served.service.plane._runners.values()
        assert runner.session.request.trace == ()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--set", "trace.endpoint=127.0.0.1:4318"],
            "trace.endpoint: must be an address such as http://127.0.0.1:4318",
        ),
        (
            ["--set", "trace.endpoint=http://a:b@c"],
            "trace.endpoint: must not hold a password: set OTEL_EXPORTER_OTLP_HEA",
        ),
        (["--trace", "--set", "trace.sample=2"], "trace.sample: 2 should be less than or equal to 1"),
    ],
)
def test_what_cannot_be_traced_is_told_before_the_start(
    capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
):
    found = CliRunner().invoke(app, ["serve", *arguments])
    assert found.exit_code == 2 and told in capfd.readouterr().err


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    found = CliRunner().invoke(app, ["serve", "--model", "some/model", "--trace"])
    assert found.exit_code == 2 and "trace: opentelemetry-sdk is not installed; in a clone" in capfd.readouterr().err
