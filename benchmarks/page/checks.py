"""The live page in Chromium: every size and colour scheme, hostile texts, an hour of events, silence, a token, keys.

    npm install --no-save --prefix build/axe axe-core
    .venv/bin/python -m benchmarks.page.checks --screenshots FOLDER --json FILE

The page files are the package's, and what they show is simulated (`benchmarks.page.fake`), so little here depends on
the speed of the machine. The environment's AXE may name another axe.min.js. Exit code 1 when a target is missed; look
at the screenshots, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.report import ScenarioReport
from benchmarks.chaos.rules import BoundedFigure
from benchmarks.command import options
from benchmarks.page.browser import Browser, browser
from benchmarks.page.fake import FakePageService, PageScene
from benchmarks.page.looks import HOSTILE_LOOK, LAYOUT, findings_of_axe, injected
from edgeflow_client.errors import DependencyError, StartError

SIZES = ((360, 740), (1280, 800), (2560, 1440))
ROBOTS = (0, 1, 20)
AXE = Path("build/axe/node_modules/axe-core/axe.min.js")
LIVE = "document.querySelector('#connection')?.dataset.state === 'live'"
LOST = "document.querySelector('#lost').checkVisibility()"
CARD = "#cards > .card"
SHOWN = "#focus"
SETTLED_S = 1.2
"""After the page has its first events: pictures and charts."""
HOSTILE_ROBOTS = 8
HOUR_ROBOTS, HOUR_SPEED = 6, 60.0
FAST_CLOCK = f"{{const begun = Date.now(), now = Date.now; Date.now = () => begun + (now() - begun) * {HOUR_SPEED}}}"
"""The page's clock runs as fast as the events."""
EARLY_MIN, LATE_MIN = 5.0, 60.0
READINGS = 9
GROWTHS = {
    "process_bytes": ("the tab's process", 10.0),
    "scripts_bytes": ("what scripts hold", None),
    "nodes": ("nodes of the document", 10.0),
    "listeners": ("listeners", 10.0),
}
"""In words, with the targets in percent. Scripts hold 3 MB, of which the log of 500 lines fills up during the hour."""
LOST_BAR_S, BACK_BAR_S = 8.0, 15.0
TOKEN = "a-token-that-no-address-may-show"
TABS = 80
"""Presses of Tab within which a robot's card must have the focus."""


@dataclass(slots=True)
class _Found:
    """Figures and samples of the sections."""

    axe: str
    """The text of axe.min.js."""
    folder: Path | None
    """The folder of the screenshots; None keeps none."""
    figures: list[BoundedFigure] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def add(self, what: str, value: float, unit: str = "", bar: float | None = 0) -> None:
        """A figure and its target."""
        self.figures.append(BoundedFigure(what, value, unit, bar))

    def quiet(self, section: str, tab: Browser, address: str) -> None:
        """That the page complained of nothing, violated nothing, and asked nobody else."""
        kinds = {
            "console errors": tab.complaints,
            "violations of the policy": tab.violations,
            "requests to other hosts": tab.other_hosts(address),
        }
        for kind, found in kinds.items():
            self.add(f"{section}: {kind}", len(found))
            if found:
                self.samples.setdefault(f"{section}: {kind}", []).extend(sorted(set(found))[:20])

    async def picture(self, tab: Browser, name: str) -> None:
        """A screenshot, where they are kept."""
        if self.folder is not None:
            await tab.screenshot(self.folder / f"{name}.png")


def main() -> int:
    """Run the sections; return the exit code."""
    parser = options(__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"all, or some of {', '.join(SECTIONS)}")
    parser.add_argument("--screenshots", type=Path, help="write them into this folder")
    arguments = parser.parse_args()
    folder: Path | None = arguments.screenshots
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    del arguments.screenshots  # a result file names no folder of this machine
    report = ScenarioReport("page-checks", arguments)
    try:
        found = _Found(axe_text(), folder)
        for name in arguments.sections or SECTIONS:
            begun = time.monotonic()
            asyncio.run(SECTIONS[name](found))
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    return report.finish(found.figures, **found.samples)


def axe_text() -> str:
    """The text of axe.min.js; DependencyError where it is not installed."""
    path = Path(os.environ.get("AXE", AXE))
    if not path.is_file():
        raise DependencyError(f"{path} is missing: npm install --no-save --prefix build/axe axe-core")
    return path.read_text()


@asynccontextmanager
async def _opened(scene: PageScene) -> AsyncIterator[tuple[Browser, FakePageService]]:
    """A browser and a scene that it does not show yet."""
    with tempfile.TemporaryDirectory(prefix="edgeflow-profile-", ignore_cleanup_errors=True) as folder:
        async with FakePageService(scene) as service, browser(Path(folder)) as tab:
            yield tab, service


async def _show(tab: Browser, service: FakePageService, part: str = "") -> None:
    """Open the page, and wait for its robots."""
    await tab.open("about:blank")  # so that another hash alone is another page, too
    await tab.open(f"{service.address}/{part}")
    robots = service.scene.robots
    shown = f"{_visible(SHOWN)}" if part or robots == 1 else f"document.querySelectorAll({CARD!r}).length === {robots}"
    await tab.until(f"{LIVE} && {shown}")
    await asyncio.sleep(SETTLED_S)


def _visible(selector: str) -> str:
    return f"document.querySelector({selector!r})?.checkVisibility()"


async def _looks(found: _Found) -> None:
    """Every size and scheme: nothing to complain of, nothing out of place, nothing that axe finds serious."""
    serious: dict[str, list[str]] = {}
    wide: dict[str, list[str]] = {}
    scroll_px = apart = 0
    for robots in ROBOTS:
        async with _opened(PageScene(robots=robots)) as (tab, service):
            for part in ("", "#robot-1") if robots > 1 else ("",):
                await _show(tab, service, part)
                for width, height in SIZES:
                    for dark in (False, True):
                        await tab.appear(width, height, dark=dark)
                        await asyncio.sleep(SETTLED_S)
                        name = f"{width}x{height}-{'dark' if dark else 'light'}-{robots}{'-one' if part else ''}"
                        await found.picture(tab, name)
                        layout = await tab.evaluate(LAYOUT)
                        scroll_px = max(scroll_px, layout["scroll_px"])
                        if layout["scroll_px"]:
                            wide[name] = layout["wide"]
                        apart += layout["overlapping"] + layout["outside"]
                        if findings := await findings_of_axe(tab, found.axe):
                            serious[name] = findings
                print(f"looks: {robots} robots {part}", file=sys.stderr, flush=True)
            found.quiet(f"{robots} robots", tab, service.address)
            found.samples.setdefault("requests without a route", []).extend(sorted(set(service.refused)))
    found.add("axe: views with serious or critical findings", len(serious))
    found.add("pages wider than the window", scroll_px, "px")
    found.add("cards that overlap or leave the window", apart)
    found.samples |= {"axe": serious, "wide": wide}


async def _hostile(found: _Found) -> None:
    """Markup, 100 kB, control characters and overrides in every text: shown as text, and the page stays whole."""
    async with _opened(PageScene(robots=HOSTILE_ROBOTS)) as (tab, service):
        await _show(tab, service, "#robot-1")
        plain = await tab.evaluate(LAYOUT)
    worst: dict[str, set[str]] = {}
    wide: dict[str, list[str]] = {}
    scroll_px = apart = 0
    async with _opened(PageScene(robots=HOSTILE_ROBOTS, hostile=True)) as (tab, service):
        for part in ("", *(f"#robot-{number + 1}" for number in range(HOSTILE_ROBOTS))):
            await _show(tab, service, part)
            for width, height in SIZES if part in ("", "#robot-1") else SIZES[:1]:
                await tab.appear(width, height, dark=False)
                await asyncio.sleep(SETTLED_S / 2)
                await found.picture(tab, f"hostile-{width}x{height}{part.replace('#', '-')}")
                layout = await tab.evaluate(LAYOUT)
                look: dict[str, list[str]] = await tab.evaluate(HOSTILE_LOOK)
                look["elements injected"] += injected(layout["tags"], plain["tags"])
                if part:
                    del look["views without the markup as text"]  # one robot alone may have none
                for what, places in look.items():
                    worst[what] = worst.get(what, set()) | set(places)
                scroll_px = max(scroll_px, layout["scroll_px"])
                if layout["scroll_px"]:
                    wide[f"{width}x{height} {part}"] = layout["wide"]
                apart += layout["overlapping"] + layout["outside"]
        found.quiet("hostile", tab, service.address)
    for what, places in worst.items():
        found.add(f"hostile: {what}", len(places))
        found.samples[f"hostile: {what}"] = sorted(places)
    found.samples["hostile: wide"] = wide
    found.add("hostile: page wider than the window", scroll_px, "px")
    found.add("hostile: cards that overlap or leave the window", apart)


async def _hour(found: _Found) -> None:
    """Memory of the tab after an hour of events, against minute 5."""
    async with _opened(PageScene(robots=HOUR_ROBOTS, churn=True, speed=HOUR_SPEED)) as (tab, service):
        await tab.appear(1280, 800, dark=False)
        await tab.before_scripts(FAST_CLOCK)
        await _show(tab, service, "#robot-1")
        kept = {}
        for minute in (EARLY_MIN, LATE_MIN):
            while service.minutes < minute:
                await asyncio.sleep(0.2)
            readings = []
            for _ in range(READINGS):  # of which the least has the fewest pictures and batches in flight
                readings.append(asdict(await tab.memory()))
                await asyncio.sleep(120 / HOUR_SPEED / READINGS)
            kept[minute] = {what: min(each[what] for each in readings) for what in readings[0]}
            print(f"hour: minute {service.minutes:.0f}: {kept[minute]}", file=sys.stderr, flush=True)
        await found.picture(tab, "hour")
        found.quiet("hour", tab, service.address)
    for what, (words, bar) in GROWTHS.items():
        growth = kept[LATE_MIN][what] / kept[EARLY_MIN][what] - 1
        found.add(f"hour: growth of {words}", growth * 100, "%", bar)
    found.samples["hour"] = {f"minute {minute:g}": values for minute, values in kept.items()}


async def _silence(found: _Found) -> None:
    """A stream that says nothing more is shown as such, and comes back by itself."""
    async with _opened(PageScene(robots=3)) as (tab, service):
        await tab.appear(1280, 800, dark=False)
        await _show(tab, service)
        service.silent, begun = True, time.monotonic()
        await tab.until(LOST)
        found.add("silence: until the page says so", time.monotonic() - begun, "s", LOST_BAR_S)
        await asyncio.sleep(SETTLED_S)
        await found.picture(tab, "silence")
        announced = await tab.evaluate("document.querySelector('#announce').textContent.trim() !== ''")
        found.add("silence: not announced to screen readers", 0 if announced else 1)
        service.silent, begun = False, time.monotonic()
        await tab.until(f"{LIVE} && !({LOST})")
        found.add("silence: until the page is live again", time.monotonic() - begun, "s", BACK_BAR_S)


async def _token(found: _Found) -> None:
    """A token is asked for once, and stays out of addresses."""
    field_of_token = "document.querySelector('dialog[open] input[type=password]')"
    async with _opened(PageScene(robots=2, token=TOKEN)) as (tab, service):
        await tab.appear(1280, 800, dark=False)
        await tab.open(f"{service.address}/")
        for value in ("wrong", TOKEN):
            before = service.rejected
            await tab.until(f"{field_of_token}?.checkVisibility()")
            await found.picture(tab, f"token-{'wrong' if value == TOKEN else 'first'}")
            await tab.evaluate(f"{field_of_token}.focus()")
            await tab.call("Input.insertText", text=value)
            await tab.press("Enter")
            while value != TOKEN and service.rejected == before:
                await asyncio.sleep(0.05)
        await tab.until(f"{LIVE} && document.querySelectorAll({CARD!r}).length === 2")
        rejected = service.rejected
        await tab.open(f"{service.address}/")
        await tab.until(LIVE)
        await asyncio.sleep(SETTLED_S)
        found.add("token: asked again after a reload", service.rejected - rejected)
        found.add("token: addresses with it", sum(TOKEN in each for each in tab.asked))
        found.add("token: violations of the policy", len(tab.violations))


async def _keys(found: _Found) -> None:
    """A robot is opened, and left, with keys only."""
    async with _opened(PageScene(robots=3)) as (tab, service):
        await tab.appear(1280, 800, dark=False)
        await _show(tab, service)
        count = 0
        while count <= TABS and not await tab.evaluate(f"document.activeElement.closest({CARD!r}) !== null"):
            await tab.press("Tab")
            count += 1
        found.add("keys: presses of Tab to the first robot", count, "", TABS)
        outlined = await tab.evaluate(
            f"[document.activeElement, document.activeElement.closest({CARD!r})]"
            ".some(each => getComputedStyle(each).outlineStyle !== 'none')"
        )
        found.add("keys: focus that cannot be seen", 0 if outlined else 1)
        await tab.press("Enter")
        await asyncio.sleep(SETTLED_S)
        await found.picture(tab, "keys")
        shown = await tab.evaluate(_visible(SHOWN))
        found.add("keys: robot not opened by Enter", 0 if shown else 1)


SECTIONS: dict[str, Callable[[_Found], Awaitable[None]]] = {
    "looks": _looks,
    "hostile": _hostile,
    "hour": _hour,
    "silence": _silence,
    "token": _token,
    "keys": _keys,
}

if __name__ == "__main__":
    sys.exit(main())
