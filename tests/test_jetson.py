"""Facts of a Jetson: what files say, and what they do not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeflow.commands import doctor
from edgeflow.commands.doctor import CheckOutcome
from edgeflow.jetson import BoardClock, power_difference, read_board
from tests.jetson_trees import ORIN, write_thor, write_tree


def test_an_orin(tmp_path: Path):
    board = read_board(write_tree(tmp_path, ORIN))
    assert board is not None
    assert (board.model, board.power_mode) == ("NVIDIA Jetson AGX Orin Developer Kit", "0 MAXN")
    assert board.clocks == {
        "gpu": BoardClock(now_hz=1_300_500_000, most_hz=1_300_500_000),
        "emc": BoardClock(now_hz=3_199_000_000, most_hz=3_199_000_000),
        "cpu": BoardClock(now_hz=2_201_600_000, most_hz=2_201_600_000),
    }
    assert board.temperatures == {"cpu-thermal": 51.687, "gpu-thermal": 48.5, "tj-thermal": 51.687}
    assert board.throttling == {"gpu-throttle-alert": False} and board.throttled == {"oc1": 0, "oc2": 0, "oc3": 27}
    assert board.power == {"power_mode": "0 MAXN", "gpu_mhz": "1300", "emc_mhz": "3199", "cpu_mhz": "2201"}


def test_a_thor(tmp_path: Path):
    board = read_board(write_thor(tmp_path))
    assert board is not None and board.power_mode == "1 120W"
    assert {part: clock.now_hz for part, clock in board.clocks.items()} == {
        "gpu": 1_050_000_000,
        "emc": 4_266_000_000,
        "cpu": 2_601_000_000,
    }
    assert set(board.temperatures) == {"cpu-thermal", "tj-thermal", "soc012-thermal"}
    assert board.throttling == {"gpu-throttle-alert": True}


@pytest.mark.parametrize("missing", sorted(ORIN))
def test_a_file_that_is_missing_or_wrong_takes_only_its_fact(tmp_path: Path, missing: str):
    whole = read_board(write_tree(tmp_path, ORIN))
    (tmp_path / missing).write_bytes(b"\xff?")
    wrong = read_board(tmp_path)
    (tmp_path / missing).unlink()
    without = read_board(tmp_path)
    if missing.endswith("model"):
        assert without is None, "it is not known to be a Jetson"
        write_tree(tmp_path, {"sys/devices/soc0/family": "Tegra\n"})
        without = wrong = read_board(tmp_path)
        assert without is not None and without.model == "Jetson", "as in a container, which hides the device tree"
    assert whole is not None and without is not None and wrong is not None
    facts = ("model", "power_mode", "clocks", "temperatures", "throttling", "throttled")
    assert sum(getattr(without, name) != getattr(whole, name) for name in facts) <= 1
    assert wrong.temperatures.items() <= whole.temperatures.items() | {("\ufffd?", 48.5), ("\ufffd?", 51.687)}


def test_a_number_that_no_board_has_is_none(tmp_path: Path):
    tree = dict.fromkeys(("sys/class/thermal/thermal_zone0/temp", "sys/class/hwmon/hwmon1/oc1_event_cnt"), "9" * 5000)
    board = read_board(
        write_tree(tmp_path, {**tree, "proc/device-tree/model": "Jetson", "sys/class/thermal/thermal_zone0/type": "x"})
    )
    assert board is not None and not board.temperatures and not board.throttled


def test_other_machines_are_none(tmp_path: Path):
    assert read_board(tmp_path) is None
    assert read_board(write_tree(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5\0"})) is None


def test_power_modes_are_compared_by_what_both_say():
    measured = {"power_mode": "0 MAXN", "gpu_mhz": "1300", "emc_mhz": "3199"}
    assert power_difference(measured, {"power_mode": "0 MAXN", "gpu_mhz": "1300"}) == ""
    assert power_difference(measured, {}) == power_difference({}, measured) == ""
    found = power_difference(measured, {"power_mode": "2 MODE_30W", "gpu_mhz": "612"})
    assert found == "power_mode 0 MAXN, now 2 MODE_30W, gpu_mhz 1300, now 612"


def test_the_doctor_shows_an_orin_and_how_often_its_supply_was_short(tmp_path: Path):
    board, clocks, temperature, supply = doctor._board(write_tree(tmp_path, ORIN))
    assert board.found == "NVIDIA Jetson AGX Orin Developer Kit, power mode 0 MAXN"
    assert clocks.found == "gpu 1300 of 1300 MHz, emc 3199 of 3199 MHz, cpu 2201 of 2201 MHz"
    assert temperature.found == "cpu 52 °C, gpu 48 °C, tj 52 °C"
    assert (supply.verdict, supply.found) == (CheckOutcome.OPTIONAL, "throttled since the start: oc3 27")
    assert not doctor._board(tmp_path / "elsewhere")


def test_the_doctor_says_what_is_hot_and_what_is_unknown(tmp_path: Path):
    root = write_thor(tmp_path)
    (root / "var/lib/nvpmodel/status").unlink()
    (root / "sys/class/hwmon/hwmon5/oc3_event_cnt").unlink()
    board, _, temperature, supply = doctor._board(root)
    assert board.found.endswith("power mode unknown") and "-v /var/lib/nvpmodel" in board.advice
    assert "gpu-throttle-alert is active" in temperature.found and temperature.advice
    assert supply.found == "throttled since the start: unknown"
