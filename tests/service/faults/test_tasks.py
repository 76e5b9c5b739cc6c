"""Tasks that must live: their end is a fault with exit code 1, and a start that fails is tried again."""

from __future__ import annotations

import asyncio
import errno
import io
import json

import pytest

from edgeflow.service.app import Service
from edgeflow.service.host.watchdogs import VitalTask
from edgeflow.service.observe.log import EventLog
from edgeflow.service.run import run_service
from edgeflow.service.worker import supervisor
from edgeflow.service.worker.process import Launched
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import WorkerError
from tests.service.harness import config, serving
from tests.service.scripted import Script


async def returns() -> None: ...


async def raises() -> None:
    raise OSError(errno.EMFILE, "too many")


async def is_cancelled() -> None:
    """Cancelled by what it waits for, not by its owner."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize(
    ("work", "error", "where"),
    [(returns, "", ""), (raises, "OSError", "raises"), (is_cancelled, "CancelledError", "is_cancelled")],
)
async def test_an_unexpected_end_is_reported(work, error: str, where: str):
    stream, ended = io.StringIO(), asyncio.get_running_loop().create_future()
    VitalTask("ticker", work(), EventLog(ManualClock(), stream), ended.set_result)
    assert await ended == "the task ticker ended"
    line = json.loads(stream.getvalue())
    assert (line["event"], line["task"], line["error"]) == ("task_ended", "ticker", error)
    assert where in "".join(line["stack"][-1:])


async def test_a_task_that_is_stopped_ends_in_silence():
    stream = io.StringIO()
    task = VitalTask("ticker", asyncio.sleep(60), EventLog(ManualClock(), stream), lambda text: stream.write(text))
    await task.stop()
    await asyncio.sleep(0)
    assert not stream.getvalue()


async def broken(*_: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("owner", "method", "name"),
    [
        (Service, "_tick", "ticker"),
        (Service, "_watch_files", "watch-files"),
        ("edgeflow.service.frontends.grpc.server.GrpcServer", "report", "grpc-health"),
        (supervisor.Supervisor, "_keep", "worker-supervisor"),
    ],
)
def test_the_end_of_a_vital_task_ends_the_service_with_an_error(checkpoint, monkeypatch, owner, method: str, name: str):
    where = f"{owner}.{method}" if isinstance(owner, str) else f"{owner.__module__}.{owner.__name__}.{method}"
    monkeypatch.setattr(where, broken)
    lines = io.StringIO()
    with pytest.raises(WorkerError, match=f"the task {name} ended"):
        run_service(config(model=str(checkpoint)), lambda _: None, launch=Script().launch, log=lines)
    (told,) = [line for text in lines.getvalue().splitlines() if (line := json.loads(text))["event"] == "task_ended"]
    assert told["task"] == name and told["error"] == "RuntimeError"


class FewDescriptors(Script):
    """The second launch finds no descriptor."""

    launches = 0

    def launch(self) -> Launched:
        self.launches += 1
        if self.launches == 2:
            raise OSError(errno.EMFILE, "too many open files")
        return super().launch()


async def test_a_launch_without_descriptors_is_a_failed_start_and_tried_again(checkpoint):
    script = FewDescriptors()
    async with serving(checkpoint, script) as served:
        robot = served.robot()
        await robot.open()
        script.worker.kill()
        await robot.notice("worker_ready")
        await robot.frame(1)
        await robot.action(1)
        assert script.launches == 3
        assert [each["error"] for each in served.events("worker_failed")] == ["StartError"]
