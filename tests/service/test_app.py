"""Starting and stopping: ports, preflight, signals, the ready file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeflow.service.host.preflight import check_model_directory
from edgeflow.service.run import run_service
from edgeflow_client.errors import AddressError, CheckpointError, ConfigError, StartError
from tests.service.conftest import write_fake_checkpoint
from tests.service.harness import config, eventually, serving
from tests.service.scripted import Script

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from edgeflow.config.service import load_config
from edgeflow.service.run import run_service
from tests.service.scripted import Script
ports = {"grpc.port": 0, "http.port": 0, "health.port": 0, "frontends.port": 0}
config = load_config(None, {"model": sys.argv[1], **ports})
announce = lambda status: print(status.phase.value, status.grpc_port, flush=True)
sys.exit(run_service(config, announce, ready_file=Path(sys.argv[2]), launch=Script().launch))
"""


@pytest.mark.parametrize("key", ["grpc", "http"])
async def test_a_busy_port_is_named(checkpoint, key: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        script = Script()
        with pytest.raises(AddressError, match=rf"{key}\.port: 127\.0\.0\.1:{port} is in use"):
            await _enter(serving(checkpoint, script, **{f"{key}__port": port}))
        assert not script.workers


async def test_an_address_of_another_machine_is_rejected(checkpoint):
    with pytest.raises(AddressError, match=r"http\.port: cannot listen on 192\.0\.2\.1"):
        await _enter(serving(checkpoint, http__host="192.0.2.1", insecure=True))


def spare_port() -> int:
    """A free port that the system gives to nobody who asks for any."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.randrange(10_000, first)))
            return probe.getsockname()[1]


async def test_the_same_port_can_be_bound_again_after_a_stop(checkpoint):
    ports = {"grpc__port": spare_port(), "http__port": spare_port()}
    for _ in range(2):
        async with serving(checkpoint, **ports) as served:
            assert served.service.status.grpc_port == ports["grpc__port"]
            await served.robot().open()


def truncate(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def garble(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b"not json")


def lie(path: Path) -> None:
    (path / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "not readable JSON"),
        (lambda path: (path / "config.json").write_text('{"model_type": "llama"}'), "'llama'; served: "),
        (lambda path: (path / "config.json").write_text("[]"), "not a JSON object"),
        (lambda path: (path / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda path: (path / "preprocessor_config.json").unlink(), "no preprocessor_config.json"),
        (lambda path: (path / "model.safetensors").unlink(), "has neither model.safetensors"),
        (truncate, "is truncated"),
        (lie, "is truncated"),
        (garble, "not a safetensors file"),
        (
            lambda path: (
                (path / "model.safetensors").rename(path / "part-1"),
                (path / "model.safetensors.index.json").write_text('{"weight_map": {"v": "part-1", "w": "part-2"}}'),
            ),
            "lacks part-2",
        ),
    ],
)
async def test_a_damaged_checkpoint_is_rejected_before_a_worker_is_started(tmp_path: Path, damage, message: str):
    path = write_fake_checkpoint(tmp_path / "model")
    check_model_directory(path)
    damage(path)
    script = Script()
    with pytest.raises(CheckpointError, match=message):
        await _enter(serving(path, script))
    assert not script.workers


def test_only_the_weights_that_are_read_are_checked(tmp_path: Path):
    path = write_fake_checkpoint(tmp_path / "model")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "part-2.safetensors"}}')
    (path / "part-1.safetensors").write_bytes(b"cut off")
    check_model_directory(path)


def test_a_ready_file_of_an_earlier_service_goes_before_anything_can_fail(tmp_path: Path):
    ready = tmp_path / "ready.json"
    ready.write_text("{}")
    with pytest.raises(CheckpointError):
        run_service(config(model=str(tmp_path)), lambda status: None, ready_file=ready)
    assert not ready.exists()


def test_a_ready_file_that_cannot_be_written_is_reported_first(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere" / "ready.json", tmp_path / "folder"):
        with pytest.raises(ConfigError, match="ready_file: "):
            run_service(config(model=str(tmp_path)), lambda status: None, ready_file=path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_with_exit_code_0(checkpoint, tmp_path: Path, number: signal.Signals):
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-c", RUN, str(checkpoint), str(ready)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        phases = []
        for line in process.stdout:
            phases.append(line.split()[0])
            if phases[-1] == "ready" and ready.exists():
                break
            if phases[-1] == "ready":
                _wait_for(ready)
                break
        ports = json.loads(ready.read_text())
        with socket.create_connection(("127.0.0.1", ports["grpc"]), timeout=60):
            pass
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        phases += [line.split()[0] for line in out.splitlines()]
        assert phases[0] == "starting" and phases[-2:] == ["draining", "stopped"]
        assert [path.name for path in tmp_path.iterdir()] == ["ready.json"]
        assert all(json.loads(line)["event"] for line in errors.splitlines())


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_cancelled_start_leaves_no_process(checkpoint):
    script = Script(never_ready=True)
    starting = asyncio.create_task(_enter(serving(checkpoint, script)))
    await eventually(lambda: bool(script.workers))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await script.worker.wait(60) == "exit code 0"


async def test_a_worker_that_never_gets_ready(checkpoint):
    with pytest.raises(StartError, match=r"not ready after 0\.1 s"):
        await _enter(serving(checkpoint, Script(never_ready=True), timing__worker_start_s=0.1))


async def _enter(context) -> None:
    async with context:
        raise AssertionError("it must not serve")
