"""The writer makes what LeRobot's own writer made of the same episodes, and begins new files where they are full."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from edgeflow.lab.recordings.export.dataset import DatasetWriter
from edgeflow.lab.recordings.export.layout import DatasetFeatures, FilePlace
from edgeflow.lab.recordings.export.video import CODECS, best_codec
from tests.oracles import oracle

CAMERA = "observation.images.front"
VECTORS = {
    "action": tuple(f"a{each}" for each in range(7)),
    "observation.state": tuple(f"j{each}" for each in range(6)),
}
BIN = 1 / 4999
"""LeRobot's quantiles are edges of histograms with 5000 bins."""
UNEQUAL = {"video.preset", "video.fast_decode", "video.video_backend", "video.extra_options"}
"""Facts of a video's settings that differ or are not used."""


def recorded(kind: str, episode: int) -> Any:
    return np.load(oracle("wire/dataset-v3") / f"{kind}.episode{episode}.npz")


def written(out: Path, kind: str) -> Path:
    out.mkdir()
    codec = best_codec() if kind == "video" else None
    features = DatasetFeatures(fps=10, vectors=VECTORS, cameras={CAMERA: (64, 96)}, codec=codec)
    with DatasetWriter(out, features) as writer:
        for episode in (0, 1):
            made = recorded(kind, episode)
            writer.begin(str(made["task"]))
            for frame in range(len(made["action"])):
                writer.add({name: made[name][frame] for name in VECTORS}, {CAMERA: made[CAMERA][frame]})
        writer.complete()
    return out


def metadata(table: Any) -> dict[str, Any]:
    """The metadata for pandas and `datasets`, without versions and fingerprints."""
    found = {name.decode(): json.loads(text) for name, text in (table.schema.metadata or {}).items()}
    for each in found.values():
        for version in ("creator", "pandas_version", "fingerprint"):
            each.pop(version, None)
    return found


def pictures(table: Any) -> Iterator[np.ndarray]:
    for each in table[CAMERA].to_pylist():
        with av.open(io.BytesIO(each["bytes"])) as file:
            yield next(file.decode(video=0)).to_ndarray(format="rgb24")


def closeness(video: Path, expected: np.ndarray) -> float:
    """The least PSNR of a video's frames in dB, after checking their times at 10 frames per second."""
    with av.open(str(video)) as file:
        frames = list(file.decode(video=0))
    assert [frame.time for frame in frames] == pytest.approx([each / 10 for each in range(len(expected))])
    errors = [
        np.mean((frame.to_ndarray(format="rgb24").astype(float) - image) ** 2)
        for frame, image in zip(frames, expected, strict=True)
    ]
    return 10 * float(np.log10(255**2 / max(errors)))


@pytest.mark.oracle("wire/dataset-v3")
@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_dataset_is_as_lerobot_writes_it(kind: str, tmp_path: Path):
    theirs, made = oracle("wire/dataset-v3") / kind, written(tmp_path / kind, kind)
    names = {path.relative_to(theirs) for path in theirs.rglob("*.*")}
    assert names == {path.relative_to(made) for path in made.rglob("*.*")}

    for name in (each for each in names if each.suffix == ".parquet"):
        expected, table = pq.read_table(theirs / name), pq.read_table(made / name)
        assert table.schema.equals(expected.schema)
        assert metadata(table) == metadata(expected)
        for column in expected.column_names:
            if column == CAMERA:
                shown = np.stack(list(pictures(table)))
                assert (shown == np.concatenate([recorded(kind, each)[CAMERA] for each in (0, 1)])).all()
            elif not column.startswith("stats/"):
                assert table[column].equals(expected[column]), column

    info, expected_info = (json.loads((each / "meta/info.json").read_text()) for each in (made, theirs))
    for described in (info["features"][CAMERA], expected_info["features"][CAMERA]):
        described["info"] = {name: fact for name, fact in described.get("info", {}).items() if name not in UNEQUAL}
    assert info == expected_info
    for name in names:
        if name.suffix == ".mp4":
            assert closeness(made / name, np.concatenate([recorded(kind, each)[CAMERA] for each in (0, 1)])) > 38


@pytest.mark.oracle("wire/dataset-v3")
def test_statistics_are_those_of_lerobot(tmp_path: Path):
    made = json.loads((written(tmp_path / "image", "image") / "meta/stats.json").read_text())
    theirs = json.loads((oracle("wire/dataset-v3") / "image/meta/stats.json").read_text())
    assert made.keys() == theirs.keys()
    for name, kinds in theirs.items():
        assert made[name].keys() == kinds.keys()
        span = np.array(kinds["max"]) - np.array(kinds["min"])
        for kind, values in kinds.items():
            most = span * BIN if kind.startswith("q") else 2e-4 if kind == "std" else 1e-6  # its sums are float32
            assert np.shape(made[name][kind]) == np.shape(values)
            assert (np.abs(np.array(made[name][kind]) - values) <= most + 1e-6).all(), (name, kind)


@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
def test_full_files_are_followed_by_others(video: bool, tmp_path: Path):
    codec = CODECS[1] if video else None
    features = DatasetFeatures(fps=5, vectors={"action": ("x",)}, cameras={CAMERA: (64, 64)}, codec=codec)
    rng = np.random.default_rng(1)
    with DatasetWriter(tmp_path, features, data_mb=0.02, video_mb=0.02) as writer:
        for task in ("a", "b", "a", "b"):
            writer.begin(task)
            for _ in range(30):
                image = rng.integers(0, 255, (64, 64, 3), np.uint8)
                writer.add({"action": np.array([rng.normal()])}, {CAMERA: image})
        writer.complete()
    episodes = pq.read_table(tmp_path / "meta/episodes").to_pylist()
    place = f"videos/{CAMERA}" if video else "data"
    files = [each[f"{place}/file_index"] for each in episodes]
    assert files == [0, 1, 2, 3]
    assert [each["tasks"] for each in episodes] == [["a"], ["b"], ["a"], ["b"]]
    found = pq.read_table(tmp_path / "data", columns=["index", "task_index", "action"])
    assert found["index"].to_pylist() == list(range(120))
    assert found["task_index"].to_pylist() == [0] * 30 + [1] * 30 + [0] * 30 + [1] * 30
    if video:
        assert [each[f"{place}/from_timestamp"] for each in episodes] == [0.0] * 4
        assert len(list(tmp_path.rglob("*.mp4"))) == 4


def test_files_are_numbered_within_chunks():
    assert FilePlace(999).indices == {"chunk_index": 0, "file_index": 999}
    assert FilePlace(1000).indices == {"chunk_index": 1, "file_index": 0}
