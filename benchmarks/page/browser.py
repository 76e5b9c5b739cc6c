"""A headless Chromium that reports what its page asks for and complains about, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.chaos.process_facts import memory
from edgeflow_client.errors import DependencyError

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--window-size=1280,900",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
WAIT_S = 60.0
OF_THE_PAGE = ("data", "blob", "about")
"""Schemes of addresses that ask no host."""
WORLD = "harness"
VIOLATION = "ContentSecurityPolicyIssue"


def chromium() -> str | None:
    """The program: CHROMIUM, or what PATH has; None without one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def button(words: str) -> str:
    """The expression of the first visible button with these words; null where there is none."""
    wanted = f"each.checkVisibility() && each.textContent === {words!r}"
    return f"[...document.querySelectorAll('button')].find(each => {wanted})"


@dataclass(frozen=True, slots=True)
class PageMemory:
    """Memory of a page, right after its garbage was collected."""

    process_bytes: int
    """The process of the tab, with its share of shared pages (Pss)."""
    scripts_bytes: int
    """Objects of scripts, and the buffers of their arrays."""
    nodes: int
    """Elements and texts, those outside the document included."""
    listeners: int


class Browser:
    """One tab of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.asked: list[str] = []
        """Addresses of all requests."""
        self.complaints: list[str] = []
        """Errors of scripts and of the console, and what the browser blocked."""
        self.violations: list[str] = []
        """Directives of the content security policy that the page violated, with what was blocked."""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._session: dict[str, str] = {}
        self._reader = asyncio.create_task(self._read())

    async def start(self) -> None:
        """Open the tab."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Audits"):
            await self.call(f"{domain}.enable")
        # Bodies that the tools keep would count as memory of the tab, and a stream of events never ends.
        await self.call("Network.enable", maxTotalBufferSize=0, maxResourceBufferSize=0)

    async def call(self, method: str, *, of_tab: bool = True, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol, of the tab or the browser; RuntimeError with the browser's words."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "method": method, "params": params, **(self._session if of_tab else {})}
        await self._socket.send(json.dumps(request))
        answer = await asyncio.wait_for(self._waiting[number], WAIT_S)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        found: dict[str, Any] = answer["result"]
        return found

    async def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=address)
        await asyncio.wait_for(self._loaded.wait(), WAIT_S)

    async def evaluate(self, script: str, world: int | None = None) -> Any:
        """The value of an expression, or of its promise. world: of `own_world`, None for the page's."""
        where = {} if world is None else {"contextId": world}
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, **where)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def own_world(self) -> int:
        """A world in which scripts see the document, and neither the page's scripts nor its policy."""
        frame = (await self.call("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        made = await self.call("Page.createIsolatedWorld", frameId=frame, worldName=WORLD)
        return int(made["executionContextId"])

    async def until(self, script: str) -> None:
        """Wait until a condition of the page holds."""
        condition = f"const check = () => ({script}) ? done(true) : setTimeout(check, 20); check()"
        await self.evaluate(f"new Promise(done => {{ {condition} }})")

    async def before_scripts(self, script: str) -> None:
        """Run a script in each page from now on, before its own."""
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def appear(self, width: int, height: int, *, dark: bool) -> None:
        """Size in CSS pixels, and the colour scheme that the page is asked for."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    async def click(self, element: str) -> int:
        """Click the middle of the element that an expression gives; the monotonic time of the press, in ns."""
        middle = (
            f"(() => {{ const each = {element}; each.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const box = each.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        x, y = await self.evaluate(middle)
        button = {"x": x, "y": y, "button": "left", "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        pressed_ns = time.monotonic_ns()
        await self.call("Input.dispatchMouseEvent", type="mousePressed", **button)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", **button)
        return pressed_ns

    async def press(self, key: str) -> None:
        """Press and release a key: Tab or Enter."""
        known = {"Tab": (9, ""), "Enter": (13, "\r")}
        code, text = known[key]
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    async def memory(self) -> PageMemory:
        """Collect garbage, then measure."""
        for _ in range(2):  # what finalisers let go of is collected by the second
            await self.call("HeapProfiler.collectGarbage")
        heap = await self.call("Runtime.getHeapUsage")
        counted = await self.call("Memory.getDOMCounters")
        held = int(heap["usedSize"] + heap.get("backingStorageSize", 0))
        processes = (await self.call("SystemInfo.getProcessInfo", of_tab=False))["processInfo"]
        largest = max(memory(each["id"])["Pss"] for each in processes if each["type"] == "renderer")
        return PageMemory(largest, held, counted["nodes"], counted["jsEventListeners"])

    def other_hosts(self, address: str) -> list[str]:
        """The addresses asked that are of another host than this one."""
        parts = [(each, urlsplit(each)) for each in self.asked]
        own = urlsplit(address).netloc
        return [each for each, part in parts if part.scheme not in OF_THE_PAGE and part.netloc != own]

    async def close(self) -> None:
        """Close the browser; it may end before it answers."""
        with contextlib.suppress(Exception):
            await self.call("Browser.close")
        self._reader.cancel()

    async def _read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            waiting = self._waiting.pop(message.get("id", 0), None)
            if waiting is None:
                self._notice(message.get("method", ""), message.get("params", {}))
            elif not waiting.done():
                waiting.set_result(message)

    def _notice(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.complaints.append(" ".join(str(each.get("value", each)) for each in params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Audits.issueAdded" if params["issue"]["code"] == VIOLATION:
                details = params["issue"]["details"]["contentSecurityPolicyIssueDetails"]
                self.violations.append(f"{details['violatedDirective']}: {details.get('blockedURL', 'inline')}")


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A new browser with a fresh profile in this folder. DependencyError where there is none."""
    program = chromium()
    if program is None:
        raise DependencyError("no Chromium here: apt-get install chromium, or set CHROMIUM to the program")
    command = [program, *OPTIONS, *QUIET, f"--user-data-dir={profile}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        async with connect(await asyncio.wait_for(_address(process), WAIT_S), max_size=None) as socket:
            tab = Browser(socket)
            await tab.start()
            try:
                yield tab
            finally:
                await tab.close()
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
