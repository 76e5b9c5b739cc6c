"""A robot, the load test and the simulated arm over emulated links, with raw images and JPEG.

    .venv/bin/python -m benchmarks.links --json FILE

Service and robots run in separate network namespaces, joined by TUN devices and a forwarder that delays, drops and
stalls packets (benchmarks/links/model.py has the links), so that the kernel's TCP reacts as on a real link. Needs root
or user namespaces, and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.command import keep, machine_facts, options
from benchmarks.links.model import LINKS, EmulatedLink
from benchmarks.links.namespaces import SERVICE, RobotNetwork, enter
from benchmarks.links.robot import FRAME_HZ, SIZE
from edgeflow.lab.demo.service_process import ServiceProcess
from edgeflow.model_paths import EMBEDDED_MODEL
from edgeflow_client.types import ImageFormat

SENT = (ImageFormat.RGB8, ImageFormat.JPEG)
PROFILE = "rtx5090"
SPEED = 0.05  # of the objects, m/s


def main() -> None:
    """Run every link, and write the figures."""
    arguments = _arguments()
    enter()
    facts = machine_facts()
    network = RobotNetwork()
    serve = ("--model", EMBEDDED_MODEL, "--grpc-host", SERVICE, "--insecure", "--profile", PROFILE)
    rows: list[dict[str, Any]] = []
    with ServiceProcess([*serve, "--set", "chat.enabled=false"]) as service:
        port = service.start(lambda *_: None).rpartition(":")[2]
        with network:
            for link in LINKS:
                if not arguments.link or link.name in arguments.link:
                    rows += [_row(network, link, f"{SERVICE}:{port}", send, arguments) for send in SENT]
    report = {
        **facts,
        "model": EMBEDDED_MODEL,
        "profile": PROFILE,
        "frame_hz": FRAME_HZ,
        "camera": "{}x{}".format(*SIZE),
        "object_cm_s": 100 * SPEED,
        "models_of_links": {link.name: _described(link) for link in LINKS},
        "links": rows,
    }
    keep(arguments.json, report)


def _row(
    network: RobotNetwork, link: EmulatedLink, address: str, send: ImageFormat, arguments: argparse.Namespace
) -> dict[str, Any]:
    forwarder = network.link(link)
    try:
        row = {
            "link": link.name,
            "send": send.value,
            "robot": _robot(address, send, "--seconds", arguments.seconds),
            "load_test": _load_test(address, send, arguments.seconds),
        }
        if arguments.episodes:
            row["arm"] = _robot(address, send, "--episodes", arguments.episodes, "--speed", SPEED)
    finally:
        assert forwarder.stdin is not None
        forwarder.stdin.close()
        forwarder.wait()
    print(json.dumps(row), flush=True)
    return row


def _robot(address: str, send: ImageFormat, *rest: object) -> dict[str, Any]:
    return _json("benchmarks.links.robot", address, "--send", send.value, *rest)


def _load_test(address: str, send: ImageFormat, seconds: float) -> dict[str, Any]:
    """The load test's own figures: it keeps no window, so its frames queue where they may."""
    camera = ("--camera", "{}x{}".format(*SIZE), "--format", send.value, "--rate", FRAME_HZ)
    report = _json("edgeflow_client.loadtest", address, *camera, "--duration", f"{seconds:g}s", "--json")
    total = report["total"]
    frames = total["frames"]
    return {
        "actions_per_s": total["fps"],
        "age_p50_ms": total["age_ms"]["p50"],
        "age_p99_ms": total["age_ms"]["p99"],
        **{name: frames[name] for name in ("offered", "superseded", "dropped", "unanswered")},
    }


def _json(module: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _described(link: EmulatedLink) -> dict[str, Any]:
    """The only state of a link, or the kinds of states of its trace."""
    if len(link.trace) == 1:
        state = {name: value for name, value in asdict(link.trace[0]).items() if name not in ("for_ms", "stalled")}
        return {**state, "queue_bytes": link.queue_bytes}
    stalls = [state.for_ms for state in link.trace if state.stalled]
    seconds = sum(state.for_ms for state in link.trace) / 1000
    return {"model": "Gilbert-Elliott", "seconds": seconds, "stalls": len(stalls), "longest_stall_ms": max(stalls)}


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of the robot and of the load test")
    parser.add_argument("--episodes", type=int, default=10, help="of the simulated arm, 0 = none")
    parser.add_argument("--link", action="append", default=[], help="only this one, repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    main()
