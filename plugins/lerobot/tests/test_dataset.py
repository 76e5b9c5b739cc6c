"""Exported recordings open in LeRobot's own loader, with the values that were recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torchvision
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from edgeflow.lab.recordings.export.run import export_sessions
from edgeflow_client.recording.records import AnySessionRecord, RecordedAnswer, RecordedObservation, RecordedOpening
from edgeflow_client.types import ActionSchema, CameraSpec, ImageFormat, StateSpec

FPS, HORIZON, STEP_NS = 20, 4, 50_000_000
TASKS = ("open the drawer", "close the drawer", "open the drawer")
FRAMES = 31
LEAST_DB = 35.0
"""PSNR of a video's frames."""
CAMERAS = (CameraSpec("front", 96, 64, ImageFormat.RGB8), CameraSpec("wrist", 64, 64, ImageFormat.RGB8))
SCHEMA = ActionSchema(
    names=("x", "y", "grip"),
    units=("m", "m", ""),
    low=(-1e9,) * 3,
    high=(1e9,) * 3,
    relative=(False,) * 3,
    horizon=HORIZON,
    step_ms=STEP_NS / 1e6,
)
STATES = (StateSpec(name="observation.state", size=2, elements=("j0", "j1")), StateSpec(name="force", size=1))
# LeRobot's other decoder needs the libraries of an installed FFmpeg.
BACKEND = "pyav" if hasattr(torchvision.io, "VideoReader") else "torchcodec"


def picture(camera: CameraSpec, seq: int) -> np.ndarray:
    rows, columns = np.mgrid[: camera.height, : camera.width]
    return np.stack([rows * 3, columns * 2, np.full_like(rows, seq * 2)], axis=-1).astype(np.uint8)


def rows(seq: int) -> np.ndarray:
    """The answer to a frame: a row per step."""
    return np.array([(seq + step / 10, -seq, step % 2) for step in range(HORIZON)], np.float32)


def state(seq: int) -> tuple[float, ...]:
    return tuple(np.array([seq / 3, -seq, math.sin(seq)], np.float32).tolist())


class DrawerRecording:
    """A recording (edgeflow_client.recording.reader.Recording): an epoch per task, each frame answered after 10 ms."""

    facts: ClassVar = {"cameras": "all"}

    def sessions(self) -> Iterator[tuple[AnySessionRecord, tuple[bytes, ...]]]:
        start_ns = 1_700_000_000_000_000_000
        opening: dict[str, Any] = {"cameras": CAMERAS, "state": STATES, "schema": SCHEMA, "source": "service"}
        yield RecordedOpening(session=1, time_ns=start_ns, **opening), ()
        for seq in range(FRAMES * len(TASKS)):
            epoch, stamp_ns = 1 + seq // FRAMES, seq * STEP_NS
            frame = {"session": 1, "seq": seq, "epoch": epoch, "stamp_ns": stamp_ns}
            observation = RecordedObservation(
                time_ns=start_ns + stamp_ns + 1, state=state(seq), instruction=TASKS[epoch - 1], **frame
            )
            yield observation, tuple(picture(camera, seq).tobytes() for camera in CAMERAS)
            answer = RecordedAnswer(
                time_ns=start_ns + stamp_ns + 10_000_000,
                age_ns=10_000_000,
                values=tuple(rows(seq).ravel().tolist()),
                horizon=HORIZON,
                step_ms=SCHEMA.step_ms,
                valid_for_ms=200,
                **frame,
            )
            yield answer, ()


@pytest.mark.parametrize("video", [False, True], ids=["images", "video"])
def test_lerobot_reads_what_was_recorded(video: bool, tmp_path: Path):
    out = tmp_path / "set"
    made = export_sessions(DrawerRecording(), out, video=video, report=lambda *_: None)
    dataset = LeRobotDataset("any/name", root=out, video_backend=BACKEND)
    # the first frame of an epoch has no action yet; each later one has the second row of the answer before it
    seqs = [seq for seq in range(FRAMES * len(TASKS)) if seq % FRAMES]
    assert (dataset.fps, dataset.num_episodes, len(dataset), made.frames) == (FPS, len(TASKS), len(seqs), len(seqs))
    for item, seq in zip((dataset[index] for index in range(len(dataset))), seqs, strict=True):
        assert item["task"] == TASKS[seq // FRAMES]
        assert item["episode_index"] == seq // FRAMES
        assert item["timestamp"] == torch.tensor((seq % FRAMES - 1) / FPS)
        assert item["action"].tolist() == rows(seq - 1)[1].tolist()
        assert (*item["observation.state"].tolist(), item["observation.force"].item()) == state(seq)
        for camera in CAMERAS:
            shown = item[f"observation.images.{camera.name}"].numpy().transpose(1, 2, 0)
            error = float(np.mean((shown - picture(camera, seq) / 255) ** 2))
            assert error < (10 ** -(LEAST_DB / 10) if video else 1e-14)
    assert dataset.meta.stats["action"]["max"].tolist() == [seqs[-1] - 1 + np.float32(0.1), 0, 1]
    window = {"action": [step / FPS for step in range(HORIZON)]}
    chunks = LeRobotDataset("any/name", root=out, delta_timestamps=window, video_backend=BACKEND)
    assert chunks[0]["action"].tolist() == [rows(seq)[1].tolist() for seq in range(HORIZON)]
