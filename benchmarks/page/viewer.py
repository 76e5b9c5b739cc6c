"""A viewer of a service's live page, until SIGTERM: reads /events and the pictures as the page does.

    python -m benchmarks.page.viewer http://127.0.0.1:8000
    python -m benchmarks.page.viewer http://127.0.0.1:8000 --chromium

It prints how much it received as a line of JSON. By itself it reads and counts, which takes little of the processors
that it shares with the service; --chromium is the page itself.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.page.browser import browser

NICE = 19
CONNECTIONS = 4
"""For pictures: what a browser leaves beside the stream."""
MANY_ROBOTS = 6
"""Above which pictures are read once a second, and twice up to it."""
PATIENCE_S = 10.0


class PageReader:
    """Reads one robot in detail and the first camera of every robot."""

    def __init__(self, address: str) -> None:
        self.counts = Counter[str]()
        self._netloc = urlsplit(address).netloc
        self._cameras: list[int] = []
        self._leaving = threading.Event()

    def run(self) -> None:
        """Read until `leave`."""
        threads = [threading.Thread(target=self._events, daemon=True)]
        threads += [threading.Thread(target=self._pictures, args=(each,), daemon=True) for each in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        self._leaving.wait()

    def leave(self, *_: object) -> None:
        """End it; a signal handler."""
        self._leaving.set()

    def _events(self) -> None:
        detail = ""
        while not self._leaving.is_set():
            link = http.client.HTTPConnection(self._netloc, timeout=PATIENCE_S)
            link.request("GET", f"/events{detail}")
            answer = link.getresponse()
            kind = ""
            while line := answer.readline():
                self.counts["bytes"] += len(line)
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                    self.counts[kind] += 1
                elif line.startswith(b"data: ") and kind in ("hello", "opened", "closed"):
                    self._notice(kind, line[6:])
                    if not detail and self._cameras:
                        detail = f"?detail={self._cameras[0]}"
                        break  # as the page does, which opens another stream for a robot in detail
            link.close()

    def _notice(self, kind: str, line: bytes) -> None:
        told = json.loads(line)
        if kind == "closed":
            self._cameras = [each for each in self._cameras if each != told["session"]]
            return
        found = [each["session"] for each in (told["sessions"] if kind == "hello" else [told]) if each["cameras"]]
        self._cameras = found if kind == "hello" else [*self._cameras, *found]

    def _pictures(self, share: int) -> None:
        """Every so manieth robot; the next picture only after the last one arrived."""
        link = http.client.HTTPConnection(self._netloc, timeout=PATIENCE_S)
        tags: dict[int, str] = {}
        due = time.monotonic()
        while not self._leaving.wait(max(due - time.monotonic(), 0)):
            robots = self._cameras
            due = max(due + (1.0 if len(robots) > MANY_ROBOTS else 0.5), time.monotonic())
            for session in robots[share::CONNECTIONS]:
                link.request("GET", f"/events/images/{session}/0", headers={"if-none-match": tags.get(session, "")})
                answer = link.getresponse()
                self.counts["picture bytes"] += len(answer.read())
                self.counts[f"pictures {answer.status}"] += 1
                tags[session] = answer.headers.get("etag", "")


async def _page(address: str, seen: Counter[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with tempfile.TemporaryDirectory(prefix="edgeflow-profile-") as folder:
        async with browser(Path(folder)) as tab:
            await tab.appear(1280, 800, dark=False)
            await tab.open(address)
            await ended.wait()
            seen.update(asked=len(tab.asked), complaints=len(tab.complaints))


def main(arguments: Sequence[str] | None = None) -> None:
    """View, then print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--chromium", action="store_true", help="open the page in a browser")
    given = parser.parse_args(arguments)
    os.nice(NICE)  # a viewer is another machine, whose work is none of the service's
    if given.chromium:
        seen = Counter[str]()
        asyncio.run(_page(given.address, seen))
    else:
        reader = PageReader(given.address)
        signal.signal(signal.SIGTERM, reader.leave)
        reader.run()
        seen = reader.counts
    print(json.dumps(seen), flush=True)
    os._exit(0)  # without waiting for reads in flight


if __name__ == "__main__":
    main()
