"""The layout of a LeRobot dataset v3.0: features, columns, schemas and the numbering of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from edgeflow.lab.recordings.export.statistics import KINDS
from edgeflow.lab.recordings.export.video import VideoCodec, video_facts

VERSION = "v3.0"
FILES_PER_CHUNK = 1000
DATA_MB = 100
VIDEO_MB = 200
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
BOOKKEEPING = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""The columns that every dataset has: seconds and number in the episode, episode, number in the dataset, task."""
COLUMN_TYPES = {"float32": pa.float32(), "int64": pa.int64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFeatures:
    """The contents of a dataset's frames."""

    fps: int
    vectors: Mapping[str, tuple[str, ...]]
    """The names of each vector's elements, by feature."""
    cameras: Mapping[str, tuple[int, int]]
    """Height and width in pixels, by feature."""
    codec: VideoCodec | None = None
    """Images are videos of this codec; None = PNG in the data files."""

    @property
    def described(self) -> dict[str, Any]:
        """The features as `meta/info.json` describes them."""
        features: dict[str, Any] = {
            name: {"dtype": "float32", "shape": [len(elements)], "names": list(elements)}
            for name, elements in self.vectors.items()
        }
        for camera, (height, width) in self.cameras.items():
            features[camera] = {
                "dtype": "video" if self.codec else "image",
                "shape": [height, width, 3],
                "names": ["height", "width", "channels"],
            }
            if self.codec:
                features[camera]["info"] = video_facts(self.codec, width, height, self.fps)
        for name, dtype in BOOKKEEPING.items():
            features[name] = {"dtype": dtype, "shape": [1], "names": None}
        return features


def data_schema(features: DatasetFeatures) -> pa.Schema:
    """The columns of the data files, with the types that the library `datasets` reads from the metadata."""
    fields: list[pa.Field] = []
    known: dict[str, Any] = {}
    for name, described in features.described.items():
        dtype, size = described["dtype"], described["shape"][0]
        if dtype == "video":
            continue
        if dtype == "image":
            fields.append(pa.field(name, pa.struct({"bytes": pa.binary(), "path": pa.string()})))
            known[name] = {"_type": "Image"}
            continue
        value = {"dtype": dtype, "_type": "Value"}
        one = size == 1  # LeRobot keeps a vector of one element as a number
        fields.append(pa.field(name, COLUMN_TYPES[dtype] if one else pa.list_(COLUMN_TYPES[dtype], size)))
        known[name] = value if one else {"feature": value, "length": size, "_type": "List"}
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": known}})})


def episodes_schema(features: DatasetFeatures) -> pa.Schema:
    """The columns of the table of episodes."""
    fields = {"episode_index": pa.int64(), "tasks": pa.list_(pa.string()), "length": pa.int64()}
    fields |= dict.fromkeys(
        ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"), pa.int64()
    )
    for camera in features.cameras if features.codec else ():
        fields |= {f"videos/{camera}/{place}": pa.int64() for place in ("chunk_index", "file_index")}
        fields |= {f"videos/{camera}/{moment}": pa.float64() for moment in ("from_timestamp", "to_timestamp")}
    for name in chain(features.vectors, features.cameras, BOOKKEEPING):
        per_channel = pa.list_(pa.list_(pa.list_(pa.float64()))) if name in features.cameras else pa.list_(pa.float64())
        fields |= {f"stats/{name}/{kind}": pa.list_(pa.int64()) if kind == "count" else per_channel for kind in KINDS}
    fields |= dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), pa.int64())
    return pa.schema(list(fields.items()))


def tasks_table(tasks: list[str]) -> pa.Table:
    """The table of tasks. Its metadata makes the texts the index in pandas, where LeRobot looks for them."""
    texts = {"pandas_type": "unicode", "numpy_type": "object"}
    numbers = {"pandas_type": "int64", "numpy_type": "int64"}
    described = {
        "index_columns": ["task"],
        "column_indexes": [{"name": None, "field_name": None, **texts, "metadata": {"encoding": "UTF-8"}}],
        "columns": [
            {"name": name, "field_name": name, **types, "metadata": None}
            for name, types in (("task_index", numbers), ("task", texts))
        ],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.3.3",  # of the layout of this metadata; pandas is not used
    }
    schema = pa.schema({"task_index": pa.int64(), "task": pa.string()}, {"pandas": json.dumps(described)})
    return pa.table({"task_index": list(range(len(tasks))), "task": tasks}, schema=schema)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The place of a numbered file."""

    number: int = 0
    """From 0, over all chunks."""

    @property
    def indices(self) -> dict[str, int]:
        """The chunk and the file in it."""
        return {"chunk_index": self.number // FILES_PER_CHUNK, "file_index": self.number % FILES_PER_CHUNK}

    def path(self, folder: Path, pattern: str, **names: str) -> Path:
        """The file's path in a dataset, its folder made."""
        path = folder / pattern.format(**self.indices, **names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
