"""Writes a quantised checkpoint in the layout that AutoAWQ publishes, in as many files as the source has."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from edgeflow.hub import HUB_FILES
from edgeflow.kernels.awq import AwqWeight
from edgeflow.lab.outputs import write_json, write_tensors
from edgeflow.lab.quantize.files.quantised import Storing, gemm_tensors, in_float16
from edgeflow.lab.quantize.files.source import Source
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import padded
from edgeflow.models.checkpoint import CONFIG_FILE, FLOATS
from edgeflow.models.quantization import BITS, VERSION
from edgeflow.text.weight_files import INDEX_FILE, find_weights

HALF = "float16"


def write_checkpoint(
    source: Source, choices: Sequence[BlockChoice], out: Path, done: Callable[[int], None] = lambda _: None
) -> None:
    """Write all files of the quantised checkpoint into an existing folder. done: called with each file's number.

    Linears of the decoder become qweight, qzeros and scales; its other tensors float16, as AutoAWQ writes them;
    tensors of other parts are copied. config.json comes last: a folder without it does not count as a checkpoint.
    """
    places: dict[str, str] = {}
    for number, path in enumerate(source.files):
        tensors = _quantised_file(path, source, choices)
        places |= dict.fromkeys(tensors, path.name)
        write_tensors(out / path.name, tensors, {"format": "pt"})
        done(number + 1)
    copy_files(source.folder, out)
    if find_weights(source.folder).places is not None:
        size = sum((out / path.name).stat().st_size for path in source.files)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        write_json(out / INDEX_FILE, index)
    write_json(out / CONFIG_FILE, quantised_config(source))


def quantised_config(source: Source) -> dict[str, Any]:
    """config.json of the quantised checkpoint: the source's, with `quantization_config`, the MLP width and the
    dtype.
    """
    values = _with_width(dict(source.config), source)
    for name in ("torch_dtype", "dtype"):
        if name in values and not source.kept:
            values[name] = HALF
    values["quantization_config"] = {
        "quant_method": "awq",
        "version": VERSION,
        "bits": BITS,
        "group_size": source.grouping.group,
        "zero_point": True,
        "modules_to_not_convert": list(source.kept) or None,
    }
    return values


def _with_width(values: dict[str, Any], source: Source) -> dict[str, Any]:
    """The values with the padded MLP width, in the section that states it in the source."""
    if source.grouping.inner == source.decoder.config.intermediate_size:
        return values
    if isinstance(values.get("text_config"), Mapping):
        return {**values, "text_config": {**values["text_config"], "intermediate_size": source.grouping.inner}}
    return {**values, "intermediate_size": source.grouping.inner}


def converted(source: Source, choices: Sequence[BlockChoice], name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors written for one tensor of the source, by name."""
    decoder, grouping = source.decoder, source.grouping
    index, rest = decoder.place(name)
    if index is None:
        held = decoder.holds(name) and tensor.dtype in FLOATS
        return {name: in_float16(name, tensor) if held else tensor}
    if index >= len(choices):
        return {name: tensor}  # a layer that is not executed
    storing = Storing(
        choice=choices[index],
        group=grouping.group,
        plus_one=decoder.shape.plus_one,
        prefix=decoder.block_prefix(index),
    )
    found = storing.stored(rest, padded(rest.removesuffix(".weight"), tensor.float(), grouping.inner))
    return gemm_tensors(name.removesuffix(".weight"), found) if isinstance(found, AwqWeight) else {name: found}


def _quantised_file(path: Path, source: Source, choices: Sequence[BlockChoice]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            found |= converted(source, choices, name, file.get_tensor(name))
    return found


def copy_files(folder: Path, out: Path) -> None:
    """Copy the tokenizer, templates and settings of a checkpoint unchanged."""
    for pattern in HUB_FILES:
        for path in folder.glob(pattern):
            if path.is_file() and path.suffix != ".safetensors" and path.name not in (CONFIG_FILE, INDEX_FILE):
                shutil.copyfile(path, out / path.name)


def weights_bytes(folder: Path) -> int:
    """Bytes of the safetensors files of a checkpoint."""
    return sum(path.stat().st_size for path in find_weights(folder).paths)
