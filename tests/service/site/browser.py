"""A headless Chromium that reports what its pages ask for, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless=new",
    "--window-size=1280,900",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
WAIT_S = 60.0


class Browser:
    """One tab. asked: addresses of all requests. complaints: errors of scripts, and what the browser blocked."""

    def __init__(self, socket: ClientConnection) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}

    async def start(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Network", "Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params, **self._session}))
        answer = await self._until(lambda message: message.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        await self.call("Page.navigate", url=address)
        await self._until(lambda message: message.get("method") == "Page.loadEventFired")

    async def evaluate(self, script: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a condition of the page holds."""
        condition = f"const check = () => ({script}) ? done(true) : setTimeout(check, 20); check()"
        await self.evaluate(f"new Promise(done => {{ {condition} }})")

    async def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    async def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = json.loads(await asyncio.wait_for(self._socket.recv(), WAIT_S))
            self._notice(message.get("method", ""), message.get("params", {}))
            if wanted(message):
                return message

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A new browser without a profile."""
    command = [str(EXECUTABLE), *OPTIONS, *QUIET, f"--user-data-dir={profile}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        async with connect(await asyncio.wait_for(_address(process), WAIT_S), max_size=None) as socket:
            tab = Browser(socket)
            await tab.start()
            yield tab
            with contextlib.suppress(Exception):  # it may end before it answers
                await tab.call("Browser.close")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode(errors="replace"):
        if found := re.search(r"DevTools listening on (ws://\S+)", line):
            return found[1]
    raise RuntimeError("the browser ended at its start")
