"""Writes a quantised checkpoint in the layout that AutoAWQ publishes, in as many files as the source has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgeflow.model_paths import HUB_FILES
from edgeflow.models.checkpoint import CONFIG_FILE, FLOATS, INDEX_FILE, SINGLE_FILE
from edgeflow.models.quantization import BITS, VERSION
from edgeflow.quantize.files.quantised import gemm_tensors, in_float16, quantised_linear
from edgeflow.quantize.files.source import Source
from edgeflow.quantize.search.block import LINEARS
from edgeflow.quantize.search.choices import BlockChoice
from edgeflow.quantize.search.decoder import padded

COPIED = (*HUB_FILES, "*.jinja")
"""Files that are taken as they are, besides those that are written here."""
HALF = "float16"


def write_checkpoint(
    source: Source, choices: Sequence[BlockChoice], out: Path, done: Callable[[int], None] = lambda _: None
) -> None:
    """Write all files of the quantised checkpoint into a folder that exists. done: called with each file's number.

    Linears of the decoder become qweight, qzeros and scales; its other tensors float16, as AutoAWQ writes them; the
    tensors of other parts are copied. config.json comes last: a folder without it is not taken for a checkpoint.
    """
    places: dict[str, str] = {}
    for number, path in enumerate(source.files):
        tensors = _quantised_file(path, source, choices)
        places |= dict.fromkeys(tensors, path.name)
        _save(tensors, out / path.name)
        done(number + 1)
    copy_files(source.folder, out)
    if (source.folder / INDEX_FILE).is_file():
        size = sum((out / path.name).stat().st_size for path in source.files)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        _write_json(out / INDEX_FILE, index)
    _write_json(out / CONFIG_FILE, quantised_config(source))


def quantised_config(source: Source) -> dict[str, Any]:
    """config.json of the quantised checkpoint: the source's, with `quantization_config`, the width of the MLP and the
    dtype."""
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
    """The values with the padded width of the MLP, in the part where the source states it."""
    if source.grouping.inner == source.decoder.config.intermediate_size:
        return values
    if isinstance(values.get("text_config"), Mapping):
        return {**values, "text_config": {**values["text_config"], "intermediate_size": source.grouping.inner}}
    return {**values, "intermediate_size": source.grouping.inner}


def converted(source: Source, choices: Sequence[BlockChoice], name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors that are written for one tensor of the source, by name."""
    decoder = source.decoder
    stem = f"{decoder.stem}layers."
    if name.startswith(stem):
        index, _, rest = name.removeprefix(stem).partition(".")
        operation, _, part = rest.rpartition(".")
        if int(index) >= len(choices):
            return {name: tensor}  # a layer that is not used
        choice = choices[int(index)]
        if operation in LINEARS and part == "weight":
            weight = padded(operation, tensor.float(), source.grouping.inner)
            found = quantised_linear(choice, operation, weight, source.grouping.group)
            return gemm_tensors(name.removesuffix(".weight"), found)
        plus_one = decoder.shape.plus_one and part == "weight"
        tensor = choice.vector(operation, tensor.float(), plus_one=plus_one)
    elif (not name.startswith(decoder.stem) and name != decoder.head) or tensor.dtype not in FLOATS:
        return {name: tensor}
    return {name: in_float16(name, tensor)}


def _quantised_file(path: Path, source: Source, choices: Sequence[BlockChoice]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            found |= converted(source, choices, name, file.get_tensor(name))
    return found


def copy_files(folder: Path, out: Path) -> None:
    """Copy the tokenizer, templates and settings of a checkpoint, as they are."""
    for pattern in COPIED:
        for path in folder.glob(pattern):
            if path.is_file() and path.suffix != ".safetensors" and path.name not in (CONFIG_FILE, INDEX_FILE):
                shutil.copyfile(path, out / path.name)


def weights_bytes(folder: Path) -> int:
    """Bytes of the safetensors files of a checkpoint."""
    if not (folder / INDEX_FILE).is_file():
        return (folder / SINGLE_FILE).stat().st_size
    shards = set(json.loads((folder / INDEX_FILE).read_text())["weight_map"].values())
    return sum((folder / Path(shard).name).stat().st_size for shard in shards)


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file under another name first, so that a file is whole or absent."""
    draft = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft, {"format": "pt"})
    draft.replace(path)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
