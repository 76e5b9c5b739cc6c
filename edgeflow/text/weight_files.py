"""Which safetensors files hold the weights of a checkpoint. Torch-free: control looks before a worker loads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files that are read."""

    paths: tuple[Path, ...]
    """The files, by name."""
    places: Mapping[str, Path] | None = None
    """The file of each tensor, as the index says; None without an index, where one file holds all of them."""
    remark: str = ""
    """A remark for the log on other files of the directory, which are not read; "" without any."""


def find_weights(directory: Path) -> WeightFiles:
    """The whole file if there is one, as transformers does, and else the shards that the index names.

    CheckpointError where there are none, for an index that is not readable, and for a shard that is absent.
    """
    single, index = directory / SINGLE_FILE, directory / INDEX_FILE
    if single.is_file():
        remark = f"{single} is read, and {INDEX_FILE} beside it is not: remove the older one"
        return WeightFiles((single,), remark=remark if index.is_file() else "")
    if not index.is_file():
        raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}: only safetensors are supported")
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise CheckpointError(f"{index} has no weight_map: copy the checkpoint again")
    places = {name: directory / Path(str(shard)).name for name, shard in shards.items()}
    paths = tuple(sorted(set(places.values())))
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise CheckpointError(f"{directory} lacks {absent[0]}, named by {INDEX_FILE}: download it again")
    return WeightFiles(paths, places)
