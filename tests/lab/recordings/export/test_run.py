"""A recording becomes a dataset: episodes, names, values, and nothing at all where it cannot."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.recordings.export.run import ExportedDataset, export_sessions
from edgeflow_client.errors import ConfigError, EdgeflowError, FailedPrecondition
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.lab.recordings.made_up import SCHEMA, STATE, MadeUp, picture, steady


def exported(source: Any, out: Path, **options: Any) -> ExportedDataset:
    return export_sessions(source, out, report=lambda *_: None, **options)


def joined(*sessions: MadeUp) -> MadeUp:
    return MadeUp([record for each in sessions for record in each.records])


def two_epochs() -> MadeUp:
    made = steady(range(1, 6))
    made.frame(6, 600, epoch=2, text="place").frame(7, 700, epoch=2, text="place")
    for seq in range(8, 12):
        made.frame(seq, 100 * seq, epoch=3, text="place").answer(seq, 100 * seq, 50, epoch=3)
    return made


@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
def test_an_episode_per_epoch_with_actions(video: bool, tmp_path: Path):
    out = tmp_path / "new" / "set"
    made = exported(two_epochs(), out, video=video)
    assert (made.fps, made.episodes, made.frames, made.tasks) == (10, 2, 7, 2)
    assert [(each.epoch, each.episodes, each.frames) for each in made.epochs] == [(1, [0], 4), (2, [], 0), (3, [1], 3)]

    rows = pq.read_table(out / "data").to_pylist()
    assert [each["observation.state"] for each in rows] == [[seq / 2, -seq] for seq in (2, 3, 4, 5, 9, 10, 11)]
    assert [each["observation.tool"] for each in rows] == [7.0] * 7
    assert [each["action"] for each in rows] == [[10 * seq + 1, -1] for seq in (1, 2, 3, 4, 8, 9, 10)]
    assert [each["frame_index"] for each in rows] == [0, 1, 2, 3, 0, 1, 2]
    assert [each["timestamp"] for each in rows] == [np.float32(each / 10) for each in (0, 1, 2, 3, 0, 1, 2)]
    assert [each["task_index"] for each in rows] == [0] * 4 + [1] * 3
    assert pq.read_table(out / "meta/tasks.parquet")["task"].to_pylist() == ["pick", "place"]

    features = json.loads((out / "meta/info.json").read_text())["features"]
    assert features["action"]["names"] == ["x", "grip"]
    assert features["observation.state"]["names"] == ["j0", "j1"]
    assert features["observation.images.top"]["shape"] == [64, 96, 3]
    assert json.loads((out / "meta/edgeflow.json").read_text())["epochs"][1]["left_out"]
    episodes = pq.read_table(out / "meta/episodes").to_pylist()
    if video:
        assert [each["videos/observation.images.top/from_timestamp"] for each in episodes] == [0, 0.4]
        assert [each["videos/observation.images.top/to_timestamp"] for each in episodes] == [0.4, 0.7]
    else:
        shown = [np.array(Image.open(io.BytesIO(each["observation.images.top"]["bytes"]))) for each in rows]
        assert all((image == picture(seq)).all() for image, seq in zip(shown, (2, 3, 4, 5, 9, 10, 11), strict=True))
    assert out.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in out.parent.iterdir()] == ["set"]


def test_sessions_follow_one_another_and_can_be_chosen(tmp_path: Path):
    other = MadeUp(session=2).opened().frame(1, 0).answer(1, 0, 20).frame(2, 50).frame(3, 100)
    source = joined(steady(range(1, 4)), other)
    made = exported(source, tmp_path / "both")
    assert (made.fps, made.recorded_hz) == (20, {"1": 10.0, "2": 20.0})
    assert [(each.session, each.episodes) for each in made.epochs] == [("1", [0]), ("2", [1])]
    assert exported(source, tmp_path / "one", chosen=("1",)).fps == 10


def test_a_pause_begins_another_episode_of_the_epoch(tmp_path: Path):
    source = steady(range(1, 4))
    for seq in (4, 5, 6):
        source.frame(seq, 100 * seq + 5000).answer(seq, 100 * seq + 5000, 50)
    made = exported(source, tmp_path / "set")
    assert [(each.epoch, each.episodes, each.frames) for each in made.epochs] == [(1, [0, 1], 6)]
    assert pq.read_table(tmp_path / "set/meta/episodes")["length"].to_pylist() == [4, 2]


def test_displacements_at_another_rate_are_noticed(tmp_path: Path):
    source = MadeUp().opened(schema=replace(SCHEMA, relative=(True, False)))
    source.records += steady(range(1, 4)).records[1:]
    assert not exported(source, tmp_path / "same").notices
    (notice,) = exported(source, tmp_path / "faster", fps=20).notices
    assert "--fps 10" in notice


class Breaking(MadeUp):
    """A recording whose disk fails when it is read again."""

    passes = 0

    def sessions(self) -> Iterator[Any]:
        self.passes += 1
        for number, record in enumerate(self.records):
            if self.passes == 2 and number == 8:
                raise OSError(5, "Input/output error")
            yield record


def odd() -> MadeUp:
    small = CameraSpec("top", 3, 2, ImageFormat.RGB8)
    return MadeUp().opened(cameras=(small,)).frame(1, 0, image=bytes(18)).frame(2, 100, image=bytes(18))


@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        (MadeUp().opened().frame(1, 0).frame(2, 100), {}, FailedPrecondition, "before the first action: 2 ticks"),
        (joined(steady(range(3)), MadeUp(session=2).opened(state=()).frame(1, 0)), {}, FailedPrecondition, "--session"),
        (steady(range(3)), {"chosen": ("7",)}, EdgeflowError, "7 is not one of 1"),
        (MadeUp().opened(schema=None).frame(1, 0), {}, FailedPrecondition, "no action schema"),
        (MadeUp().opened(state=(STATE[0], replace(STATE[0], name="state"))).frame(1, 0), {}, FailedPrecondition, "two"),
        (odd(), {"video": True}, ConfigError, "even sizes"),
        (Breaking(steady(range(9)).records), {}, ConfigError, "Input/output error"),
    ],
    ids=["no actions", "different", "no such session", "no schema", "same names", "odd video", "broken"],
)
def test_nothing_is_left_of_a_failed_export(
    source: Any, options: dict[str, Any], error: type[EdgeflowError], text: str, tmp_path: Path
):
    with pytest.raises(error, match=text):
        exported(source, tmp_path / "set", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="mine exists; name a new folder"):
        exported(steady(range(3)), tmp_path / "mine")


def test_the_command_reads_the_files_of_a_recorder(tmp_path: Path):
    folder, out = steady(range(1, 10)).write(tmp_path / "recordings"), tmp_path / "set"
    shown = CliRunner().invoke(app, ["recording", "export", str(folder), str(out), "--fps", "5", "--json"])
    assert shown.exit_code == 0, shown.output
    made = json.loads(shown.stdout)
    assert (made["fps"], made["episodes"], made["frames"], made["damage"]) == (5, 1, 4, [])
    assert pq.read_table(out / "data")["action"].to_pylist() == [[10 * seq + 1, -1] for seq in (2, 4, 6, 8)]

    again = CliRunner().invoke(app, ["recording", "export", str(folder), str(tmp_path / "other"), "--video"])
    assert "wrote" in again.output and "8 frames at 10 per second, av1 videos" in " ".join(again.output.split())
