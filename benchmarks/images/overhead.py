"""The speed of the service in an image beside that of the same tree outside, in turn.

    .venv/bin/python -m benchmarks.images.overhead build/images/edgeflow-0.2.0-cpu.tar --json FILE

Each round serves on both sides, one after the other, changing which is first, and sends frames one at a time from the
same client outside. Overhead is the age of an action less the worker's inference; a pass is the worker's. Needs what
benchmarks.images.checks needs. Build the image from the tree that runs this, and run this with the image's Python, as
another build of Python is faster or slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.chaos.service import ServiceUnderTest
from benchmarks.command import keep, machine_facts, options
from benchmarks.images.archive import ImageArchive
from benchmarks.images.container import Container, until

PORT = "50051"
READY_S = 120.0
SETTLED_S = 1.0
STANDING_BY = '"worker_standby"'
"""Its line in the log, after which nothing is loaded any more."""
BAR = 1.05
"""Most that the image may take, as a share of the time outside."""
CONFIG = {"chat": {"enabled": False}}


def main() -> None:
    """Measure and print; exit code 1 when the image is slower than the bar."""
    parser = options(__doc__)
    parser.add_argument("archive", type=Path, help="of scripts/build-image")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    arguments = parser.parse_args()
    rounds, facts = [], machine_facts()
    with tempfile.TemporaryDirectory(prefix="edgeflow-image-") as name:
        folder = Path(name)
        for each in ("root", "volume", "settings"):
            (folder / each).mkdir()
        (folder / "settings" / "config.json").write_text(json.dumps(CONFIG))
        archive = ImageArchive(arguments.archive)
        archive.unpack(folder / "root")
        for number in range(arguments.rounds):
            measured = {}
            for side in ("image", "tree") if number % 2 else ("tree", "image"):
                with _image(archive, folder) if side == "image" else _tree() as client:
                    measured[side] = _times(client, arguments.seconds)
            rounds.append(measured)
            print(json.dumps(measured), file=sys.stderr, flush=True)
    figures = {
        what: {
            **{side: median(each[side][what] for each in rounds) for side in ("image", "tree")},
            "ratio": median(each["image"][what] / each["tree"][what] for each in rounds),
        }
        for what in ("overhead_ms", "pass_ms")
    }
    for what, figure in figures.items():
        print(
            f"{what}: image {figure['image']:.3f}, tree {figure['tree']:.3f}, ratio {figure['ratio']:.3f} (bar {BAR})"
        )
    keep(arguments.json, {**facts, "rounds": rounds, "figures": figures, "bar": BAR})
    raise SystemExit(0 if all(figure["ratio"] <= BAR for figure in figures.values()) else 1)


@contextmanager
def _image(archive: ImageArchive, folder: Path) -> Iterator[list[str]]:
    """The image's service; yields the words before and after which a client is named."""
    with (folder / "log").open("wb") as log:
        container = Container(archive, folder / "root", folder / "volume", log, folder / "settings")
        try:
            until(lambda: STANDING_BY in (folder / "log").read_text(), READY_S, "the worker in reserve")
            time.sleep(SETTLED_S)
            yield ["nsenter", f"--target={container.pid}", "--net", *_client(f"127.0.0.1:{PORT}")]
        finally:
            container.close()


@contextmanager
def _tree() -> Iterator[list[str]]:
    with ServiceUnderTest(dict(CONFIG)) as service:  # waits for the worker in reserve
        time.sleep(SETTLED_S)
        yield _client(service.address)


def _client(address: str) -> list[str]:
    return [sys.executable, "-m", "edgeflow.cli", "loadtest", address, "--mode", "serial", "--json"]


def _times(client: list[str], seconds: float) -> dict[str, float]:
    """Medians of one load test, in milliseconds."""
    words = [*client, "--duration", f"{seconds:g}s"]
    told = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=os.environ).stdout
    total = json.loads(told)["total"]
    return {
        "overhead_ms": total["age_ms"]["p50"] - total["inference_ms"]["p50"],
        "pass_ms": total["pass_ms"]["p50"],
        "frames": total["frames"]["acted"],
    }


if __name__ == "__main__":
    main()
