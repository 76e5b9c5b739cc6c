"""`edgeflow sessions` against a service, with a token and without."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import EdgeflowError
from tests.service.harness import RunningService, serving
from tests.service.protected import robot_with, write_tokens

BOSS, ARM = "boss-token", "arm-token"


async def said(served: RunningService, *words: str, token: str = BOSS) -> str:
    """The output of a command, or its error."""
    arguments = ["sessions", words[0], *words[1:], "--address", served.http]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"EDGEFLOW_TOKEN": token})
    if result.exception is not None:
        assert isinstance(result.exception, EdgeflowError), result.exception
        return str(result.exception)
    return result.stdout


async def test_an_operator_acts_by_commands(checkpoint: Path, tmp_path: Path):
    tokens = write_tokens(tmp_path / "tokens.json", (BOSS, "ann", "admin"), (ARM, "arm-1", "control"))
    async with serving(checkpoint, tokens_file=tokens) as served, robot_with(served, Credentials(token=ARM)) as robot:
        assert "arm-1" not in await said(served, "list")
        await robot.open()
        assert "arm-1 gRPC" in await said(served, "list")
        assert "lacks the role admin" in await said(served, "hold", "1", token=ARM)
        held = await said(served, "hold", "1", "--reason", "door open")
        assert held == "session 1: hold OPERATOR_HOLD by ann: door open, serial, 'grasp the red handle'\n"
        await robot.hold("OPERATOR_HOLD")
        assert json.loads(await said(served, "list", "--json"))[0]["status"]["operator"]["by"] == "ann"
        assert (await said(served, "resume", "1")).startswith("session 1: waiting")
        assert "nobody" not in (again := await said(served, "resume", "1")) and "no operator holds" in again
        assert "'grasp the ring'" in await said(served, "instruct", "1", "grasp the ring")
        assert "depth 2" in await said(served, "mode", "1", "depth", "--depth", "2")
        assert json.loads(await said(served, "end", "1", "--json"))["reason"] == "OPERATOR_ENDED"
        await robot.hold("OPERATOR_ENDED")
        assert "9 is not open" in await said(served, "hold", "9")
