"""`edgeflow sim` as a user types it, with an environment of the tests and the stub policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow_client.errors import ConfigError, EdgeflowError, FailedPrecondition, InvalidArgument
from tests.lab.sim.follow import ENV, LIMIT, RIGHT
from tests.plugins.edgeflow_stub import NAN, REFUSE
from tests.policies.service_process import served
from tests.stub_policy import environment, stub_checkpoint

CHUNK = 4
NAMES = {
    "cameras": {"top": "pixels/top"},
    "state": {"position": "arm/position"},
    "instruction": "follow",
    "success": "task/done",
    "take": [1],  # number 1 of row i is the sum of the state, plus i
    "hold": "arm/position",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub") / "stub"
    return stub_checkpoint(folder, cameras={"top": (8, 8)}, state={"position": 1}, actions=2, horizon=CHUNK)


@pytest.fixture(scope="module")
def address(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        with served(tmp_path_factory.mktemp("service"), str(checkpoint)) as found:
            yield found


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return written(tmp_path / "names.json")


def written(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**NAMES, **changes}))
    return path


def sim(*arguments: object) -> dict[str, Any]:
    """The JSON that the command prints; it raises the command's error."""
    found = CliRunner().invoke(app, ["sim", ENV, "--json", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_policy_in_process_and_on_a_service_does_the_same(stub_plugin, address: str, checkpoint: Path, names: Path):
    options = ("--names", names, "--episodes", 3, "--seed", 5)
    here, there = (sim(*driver, *options) for driver in (("--model", checkpoint), (address,)))
    assert here["episodes"] == there["episodes"]
    assert [(each["seed"], each["steps"], each["holds"]) for each in here["episodes"]] == [
        (n, RIGHT, 0) for n in (5, 6, 7)
    ]
    assert here["success"]["value"] == 1.0 and here["episodes"][0]["reward"] == RIGHT
    assert here["latency_ms"]["count"] == there["latency_ms"]["count"] == 3 * RIGHT / (CHUNK / 2)


@pytest.mark.parametrize(("rows", "answers"), [(1, 12), (3, 4), (CHUNK, 3), (100, 3)])
def test_rows_are_executed_before_the_policy_is_asked_again(stub_plugin, checkpoint: Path, names: Path, rows, answers):
    run = sim("--model", checkpoint, "--names", names, "--episodes", 1, "--rows", rows)
    assert (run["episodes"][0]["steps"], run["latency_ms"]["count"]) == (RIGHT, answers)


def test_a_policy_with_history_sees_every_step(stub_plugin, tmp_path: Path, names: Path):
    model = stub_checkpoint(
        tmp_path / "history", cameras={"top": (8, 8)}, state={"position": 1}, actions=2, horizon=CHUNK, history=2
    )
    run = sim("--model", model, "--names", names, "--episodes", 1)
    assert run["latency_ms"]["count"] == run["episodes"][0]["steps"]


def test_in_real_time_the_environment_does_not_wait(address: str, names: Path):
    run = sim(address, "--names", names, "--episodes", 1, "--real-time", "--set", "tolerance=1000")
    (episode,) = run["episodes"]
    assert episode["steps"] == RIGHT > episode["holds"] >= 1  # no answer is there at once
    assert run["latency_ms"]["count"] >= 1 and run["time"] == "real time"
    assert run["seconds"] > 0.9 * (RIGHT - 1) / run["rate_hz"]


def test_without_an_answer_the_robot_keeps_still(stub_plugin, address: str, checkpoint: Path, names: Path):
    for driver, instruction in (("--model", checkpoint), NAN), ((address,), REFUSE):
        run = sim(*driver, "--names", names, "--episodes", 1, "--instruction", instruction)
        (episode,) = run["episodes"]
        assert (episode["steps"], episode["holds"], episode["reward"]) == (LIMIT, LIMIT, 1.0)  # it holds at the start
        assert run["latency_ms"]["count"] == 0


def test_a_stop_of_the_service_ends_the_run(address: str, names: Path):
    with pytest.raises(FailedPrecondition, match="the service says STOP: FAULT"):
        sim(address, "--names", names, "--instruction", NAN)


def test_an_environment_need_not_know_success(stub_plugin, checkpoint: Path, tmp_path: Path):
    file = written(tmp_path / "names.json", success="")
    run = sim("--model", checkpoint, "--names", file, "--episodes", 1)
    assert (run["success"], run["episodes"][0]["success"], run["episodes"][0]["steps"]) == (None, None, LIMIT)
    shown = CliRunner().invoke(app, ["sim", ENV, "--model", str(checkpoint), "--names", str(file), "--episodes", "1"])
    assert "reward" in shown.stdout and "success" not in shown.stdout


def test_a_service_needs_an_instruction(address: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="instruction: a service needs one: give --instruction"):
        sim(address, "--names", written(tmp_path / "names.json", instruction=""))


def test_a_strip_shows_the_first_episode(tmp_path: Path, names: Path):
    strip = tmp_path / "strip.png"
    run = sim("--policy", "random", "--names", names, "--episodes", 2, "--strip", strip)
    assert [each["steps"] for each in run["episodes"]] == [LIMIT, LIMIT] and run["policy"] == "random"
    with Image.open(strip) as picture:
        assert picture.width > 5 * picture.height  # six squares


def test_the_table_has_the_figures(stub_plugin, checkpoint: Path, names: Path):
    arguments = ["sim", ENV, "--model", str(checkpoint), "--names", str(names), "--episodes", "2"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    for text in ("lockstep", "2 of 2, 95 % interval 34% to 100%", f"{RIGHT} steps, 0.6 s", "ms p99", "0 of 24 steps"):
        assert text in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"state": {"position": "arm/place"}},
            r"state.position: .* no 'arm/place'; it has pixels/top \[8, 8, 3\]",
        ),
        ({"state": {"position": "text"}}, "names.state.position: 'text' is not a vector"),
        ({"cameras": {"top": "arm/position"}}, r"names.cameras.top: 'arm/position' is float64 \[1\]"),
        ({"cameras": {"top": "render()"}}, "renders no picture: give --set render_mode=rgb_array"),
        ({"take": None}, "takes 1 numbers, and it gets 2; the policy answers 2 numbers: a0, a1"),
        ({"take": [2]}, "names.take: 2 is not an index"),
        ({"scale": [1.0, 2.0]}, "names.scale: has 2 numbers"),
        ({"camera": {}}, "names.camera: unknown key; known: cameras"),
        ({"rate_hz": 10}, "takes 10 steps per second, and the policy's chunks have 20 rows per second: make both"),
        ({"state": {"position": "arm/position[:3]"}}, r"no 'arm/position\[:3\]'; it has"),
        ({"rate_hz": "fast"}, "names.rate_hz: 'fast' should be a valid number"),
        ({"cameras": {"front": "pixels/top"}}, "the policy needs 'top' 8x8; the robot sends 'front' 8x8"),
        ({"success": "is_success"}, "names.success: the info of .* has no 'is_success'; it has task/done"),
    ],
)
def test_names_that_do_not_fit_are_told_with_both_lists(
    stub_plugin, checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str
):
    file = written(tmp_path / "names.json", **changes)
    with pytest.raises((ConfigError, InvalidArgument), match=message):
        sim("--model", checkpoint, "--names", file, "--episodes", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([ENV], "give one of ADDRESS, --model and --policy"),
        ([ENV, "127.0.0.1:1", "--policy", "random"], "give one of ADDRESS"),
        ([ENV, "--policy", "random", "--real-time"], "real_time: is for a service"),
        ([ENV, "--model", "demo"], "names: tests/Follow-v0 is not one of gym_pusht/.*: give --names FILE"),
        ([ENV, "--policy", "random", "--strip", "strip.jpg"], "strip: strip.jpg is not the name of a PNG file"),
        ([ENV, "--policy", "scripted"], "policy: there is no script for tests/Follow-v0"),
        ([ENV, "--policy", "random", "--set", "nothing=1"], "cannot be made: TypeError: .*'nothing'"),
        (["tests/Nowhere-v0", "--policy", "random"], "env: .*doesn't exist.*; registered: tests/Follow-v0"),
        (["CartPole-v1", "--policy", "random"], r"takes Discrete\(2\); only vectors"),
        pytest.param(
            ["Meta-World/MT1", "--policy", "random"],
            "needs metaworld: pip install metaworld",
            marks=pytest.mark.skipif(find_spec("metaworld") is not None, reason="it is installed"),
        ),
    ],
)
def test_what_cannot_run_says_why(arguments: list[str], message: str):
    with pytest.raises(EdgeflowError, match=message):
        CliRunner().invoke(app, ["sim", *arguments], catch_exceptions=False)
