"""Writes a LeRobot dataset v3.0, frame by frame: little more than one row group is held in memory."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from edgeflow.lab.outputs import write_json
from edgeflow.lab.recordings.export.layout import (
    BOOKKEEPING,
    DATA_MB,
    DATA_PATH,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    VERSION,
    VIDEO_MB,
    VIDEO_PATH,
    DatasetFeatures,
    FilePlace,
    data_schema,
    episodes_schema,
    tasks_table,
)
from edgeflow.lab.recordings.export.statistics import (
    FeatureStatistics,
    ImageStatistics,
    listed,
    over_episodes,
    vector_statistics,
)
from edgeflow.lab.recordings.export.video import VideoCodec, VideoFile
from edgeflow.lab.recordings.sessions import Pixels
from edgeflow_client.errors import ConfigError

ROW_GROUP_BYTES = 16 << 20  # of images
ROW_GROUP_ROWS = 10_000
EPISODES_PER_ROW_GROUP = 100
Values: TypeAlias = npt.NDArray[np.float32]


class _TableFile:
    """A Parquet file in the making."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema, self._file = schema, path.open("wb")
        texts = [each.name for each in schema if not pa.types.is_struct(each.type)]
        self._writer = pq.ParquetWriter(self._file, schema, write_statistics=texts)

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write rows as a row group."""
        self._writer.write_table(pa.Table.from_pylist(rows, self._schema))

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._file.close()


_File = TypeVar("_File", bound="_TableFile | VideoFile")


class _NumberedFiles(Generic[_File]):
    """Files of one kind, one after the other; a new one begins once one is full."""

    def __init__(self, open_file: Callable[[FilePlace], _File], most_mb: float) -> None:
        self._open, self._most_bytes = open_file, round(most_mb * 2**20)
        self._place = FilePlace()
        self.file = open_file(self._place)

    def begin(self) -> dict[str, int]:
        """The place of the next episode, which stays in one file."""
        if self.file.size_bytes >= self._most_bytes:
            self.file.close()
            self._place = FilePlace(self._place.number + 1)
            self.file = self._open(self._place)
        return self._place.indices


@dataclass(slots=True, kw_only=True)
class _OpenEpisode:
    row: dict[str, Any]
    """Its row in the table of episodes, as far as it is known."""
    task: int
    first: int
    """The number of its first frame in the dataset."""
    vectors: dict[str, list[Values]]
    images: dict[str, ImageStatistics]
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the data file, not yet written."""
    pending_bytes: int = 0
    length: int = 0


class DatasetWriter:
    """Writes a dataset into a new folder: `begin` of each episode, `add` of each frame, then `complete`.

    A context manager, which closes the files of a dataset that was not completed. Files are full at data_mb and
    video_mb, and an episode stays in one file.
    """

    def __init__(
        self, folder: Path, features: DatasetFeatures, *, data_mb: float = DATA_MB, video_mb: float = VIDEO_MB
    ) -> None:
        self._folder, self._features = folder, features
        self._limits = {"data_files_size_in_mb": data_mb, "video_files_size_in_mb": video_mb}
        data, episodes = data_schema(features), episodes_schema(features)
        self._data = _NumberedFiles(lambda place: _TableFile(place.path(folder, DATA_PATH), data), data_mb)
        self._table = _NumberedFiles(lambda place: _TableFile(place.path(folder, EPISODES_PATH), episodes), data_mb)
        self._videos: dict[str, _NumberedFiles[VideoFile]] = {}
        if features.codec is not None:
            for camera in features.cameras:
                self._videos[camera] = _NumberedFiles(partial(self._video, camera, features.codec), video_mb)
        self._open = True
        self._tasks: dict[str, int] = {}
        self._statistics: list[dict[str, FeatureStatistics]] = []
        self._rows: list[dict[str, Any]] = []
        self._episode: _OpenEpisode | None = None
        self.frames = 0
        """Frames so far, of all episodes."""

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files if self._open else ():
            with contextlib.suppress(OSError, ConfigError):  # of a dataset that is given up
                file.close()
        self._open = False

    @property
    def tasks(self) -> int:
        """Different tasks so far."""
        return len(self._tasks)

    @property
    def episodes(self) -> int:
        """Complete episodes so far."""
        return len(self._statistics)

    def begin(self, task: str) -> int:
        """Begin an episode, which ends the one before; its number."""
        self.end()
        row = {"episode_index": self.episodes, "tasks": [task]}
        row |= {f"data/{name}": index for name, index in self._data.begin().items()}
        for camera, video in self._videos.items():
            row |= {f"videos/{camera}/{name}": index for name, index in video.begin().items()}
            row[f"videos/{camera}/from_timestamp"] = video.file.seconds
        self._episode = _OpenEpisode(
            row=row,
            task=self._tasks.setdefault(task, len(self._tasks)),
            first=self.frames,
            vectors={name: [] for name in self._features.vectors},
            images={camera: ImageStatistics() for camera in self._features.cameras},
        )
        return self.episodes

    def add(self, vectors: Mapping[str, Values], images: Mapping[str, Pixels]) -> None:
        """Add a frame: every vector [elements] and every image [height, width, 3] of the features."""
        episode = self._episode
        if episode is None:
            raise RuntimeError("no episode has begun")
        values: dict[str, Any] = {}
        for name in self._features.vectors:
            vector = np.asarray(vectors[name], np.float32)
            episode.vectors[name].append(vector)
            values[name] = vector if len(vector) > 1 else vector[0]
        for camera in self._features.cameras:
            image = images[camera]
            episode.images[camera].add(image)
            if self._videos:
                self._videos[camera].file.add(image)
            else:
                values[camera] = {"bytes": _png(image), "path": f"frame-{episode.length:06d}.png"}
                episode.pending_bytes += len(values[camera]["bytes"])
        values |= {
            "timestamp": episode.length / self._features.fps,
            "frame_index": episode.length,
            "episode_index": self.episodes,
            "index": self.frames,
            "task_index": episode.task,
        }
        episode.pending.append(values)
        episode.length += 1
        self.frames += 1
        if episode.pending_bytes >= ROW_GROUP_BYTES or len(episode.pending) >= ROW_GROUP_ROWS:
            self._write_pending(episode)

    def end(self) -> None:
        """Complete the episode, of at least one frame, if one has begun."""
        episode = self._episode
        if episode is None:
            return
        self._write_pending(episode)
        counted: dict[str, FeatureStatistics] = {
            **{name: vector_statistics(np.stack(vectors)) for name, vectors in episode.vectors.items()},
            **{camera: images.result() for camera, images in episode.images.items()},
        }
        numbers = np.arange(episode.length)
        bookkeeping = {
            "timestamp": numbers / self._features.fps,
            "frame_index": numbers,
            "episode_index": np.full(episode.length, self.episodes),
            "index": episode.first + numbers,
            "task_index": np.full(episode.length, episode.task),
        }
        counted |= {name: vector_statistics(bookkeeping[name]) for name in BOOKKEEPING}
        row = episode.row
        row |= {"length": episode.length, "dataset_from_index": episode.first, "dataset_to_index": self.frames}
        row |= {f"videos/{camera}/to_timestamp": video.file.seconds for camera, video in self._videos.items()}
        for name, kinds in listed(counted).items():
            row |= {f"stats/{name}/{kind}": values for kind, values in kinds.items()}
        self._statistics.append(counted)
        self._rows.append(row)
        self._episode = None
        if len(self._rows) >= EPISODES_PER_ROW_GROUP:
            self._write_rows()

    def complete(self) -> None:
        """Complete the dataset, of at least one episode."""
        self.end()
        self._write_rows()
        self._open = False
        for file in self._files:
            file.close()
        pq.write_table(tasks_table(list(self._tasks)), self._folder / "meta" / "tasks.parquet")
        merged = {name: over_episodes([each[name] for each in self._statistics]) for name in self._statistics[0]}
        write_json(self._folder / "meta" / "stats.json", listed(merged))
        info = {
            "codebase_version": VERSION,
            "fps": self._features.fps,
            "features": self._features.described,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_CHUNK,
            **self._limits,
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._videos else None,
            "robot_type": "edgeflow",
            "splits": {"train": f"0:{self.episodes}"},
        }
        write_json(self._folder / "meta" / "info.json", info)

    @property
    def _files(self) -> list[_TableFile | VideoFile]:
        return [self._data.file, self._table.file, *(each.file for each in self._videos.values())]

    def _video(self, camera: str, codec: VideoCodec, place: FilePlace) -> VideoFile:
        height, width = self._features.cameras[camera]
        path = place.path(self._folder, VIDEO_PATH, video_key=camera)
        return VideoFile(path, codec=codec, width=width, height=height, fps=self._features.fps)

    def _write_pending(self, episode: _OpenEpisode) -> None:
        if episode.pending:
            self._data.file.write(episode.pending)
        episode.pending, episode.pending_bytes = [], 0

    def _write_rows(self) -> None:
        if self._rows:
            place = {f"meta/episodes/{name}": index for name, index in self._table.begin().items()}
            self._table.file.write([row | place for row in self._rows])
        self._rows = []


def _png(image: Pixels) -> bytes:
    file = io.BytesIO()
    # of photos as small as at the highest level, in a third of the time
    Image.fromarray(image).save(file, "PNG", compress_level=1, compress_type=zlib.Z_RLE)
    return file.getvalue()
