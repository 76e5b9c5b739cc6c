"""A Jetson in metrics, in the log and in /v1/models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from edgeflow.jetson import read_board
from edgeflow.service.observe import board
from edgeflow.service.observe.board import BoardMonitor
from tests.jetson_trees import ORIN, write_thor, write_tree


class Written:
    """The events of a log."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **values: Any) -> None:
        self.events.append((name, values))


def monitored(root: Path) -> tuple[BoardMonitor, CollectorRegistry, Written]:
    registry, log = CollectorRegistry(), Written()
    made = BoardMonitor(registry, log, root)  # type: ignore[arg-type]
    assert asyncio.run(made.found()) is (root / "proc").exists()
    return made, registry, log


def test_the_facts_are_gauges(tmp_path: Path):
    _, registry, _ = monitored(write_tree(tmp_path, ORIN))
    shown = generate_latest(registry).decode()
    for line in (
        'edgeflow_board_info{model="NVIDIA Jetson AGX Orin Developer Kit",power_mode="0 MAXN"} 1.0',
        'edgeflow_board_clock_hertz{part="gpu"} 1.3005e+09',
        'edgeflow_board_clock_max_hertz{part="cpu"} 2.2016e+09',
        'edgeflow_board_temperature_celsius{zone="tj-thermal"} 51.687',
        'edgeflow_board_throttling{device="gpu-throttle-alert"} 0.0',
        'edgeflow_board_throttled_total{event="oc3"} 27.0',
        "edgeflow_times_measured_elsewhere 0.0",
    ):
        assert line in shown


def test_what_the_board_does_not_say_has_no_series(tmp_path: Path):
    root = write_thor(tmp_path / "thor")
    (root / "var/lib/nvpmodel/status").unlink()
    shown = generate_latest(monitored(root)[1]).decode()
    assert 'power_mode="unknown"' in shown and 'zone="gpu-thermal"' not in shown
    assert not generate_latest(monitored(tmp_path / "elsewhere")[1])


def test_times_of_another_power_mode_are_marked(tmp_path: Path):
    root = write_tree(tmp_path, ORIN)
    made, registry, log = monitored(root)
    changes: list[str] = []

    def sample() -> None:
        made.take(read_board(root), lambda: changes.append(made.measured_elsewhere))

    made.measured()
    sample()
    assert not changes and made.summary()["board"]["times_measured_elsewhere"] is None
    write_tree(root, {"var/lib/nvpmodel/status": "pmode:0002", "sys/class/devfreq/17000000.gpu/max_freq": "612000000"})
    sample()
    sample()
    assert changes == ["power_mode 0 MAXN, now 2 MODE_30W, gpu_mhz 1300, now 612"]
    assert log.events == [("power_changed", {"power_mode": "2 MODE_30W", "measured_elsewhere": changes[0]})]
    assert b"edgeflow_times_measured_elsewhere 1.0" in generate_latest(registry)
    board = made.summary()["board"]
    assert (board["power_mode"], board["times_measured_in"]["power_mode"]) == ("2 MODE_30W", "0 MAXN")
    made.measured()
    assert made.measured_elsewhere == "", "a new worker has measured them here"


def test_a_board_whose_files_hang_delays_neither_start_nor_end(tmp_path: Path, monkeypatch):
    root, released = write_tree(tmp_path, ORIN), Event()
    monkeypatch.setattr(board, "read_board", lambda _: released.wait())
    monkeypatch.setattr(board, "FIRST_WITHIN_S", 0.01)
    log = Written()
    assert not asyncio.run(BoardMonitor(CollectorRegistry(), log, root).found())  # type: ignore[arg-type]
    assert [name for name, _ in log.events] == ["board_unreadable"]
    released.set()
