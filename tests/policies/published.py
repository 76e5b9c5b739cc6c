"""Stand-ins for published checkpoints: their files as they are published, and headers of weights without numbers.

published_layouts.json has the files that LeRobot 0.4.4 saves for its defaults, two cameras and six joints, and
OpenVLA's config.json with two data sets and made-up statistics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from edgeflow.kernels.awq import PER_WORD
from edgeflow.lab.gpu.subjects.random_flow import pi_tensors, smolvla_tensors
from edgeflow.lab.gpu.subjects.random_policy import SIZES, policy_shapes
from edgeflow.policies.pi.config import load_config as load_pi
from edgeflow.policies.smolvla.config import load_config as load_smolvla
from tests.policies.act.twin import ACTTwin, TwinSize
from tests.policies.flow.tiny import tokenizer
from tests.policies.openvla_oft.tiny import HEAD, PROPRIO, statistics, write_statistics

LAYOUTS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "published_layouts.json").read_text())
TOKENIZERS = {"smolvla": "vlm", "pi0": "tokenizer", "pi05": "tokenizer"}
"""The folder in which each family looks for its tokenizer."""
TOWERS = {
    "means": [[0.5] * 3] * 2, "stds": [[0.5] * 3] * 2, "input_sizes": [[3, 224, 224]] * 2,
    "interpolations": ["bicubic"] * 2, "image_resize_strategy": "resize-naive",
}  # fmt: skip
"""OpenVLA's preprocessor_config.json."""
PALIGEMMA, SMOLVLM = 257_152, 49_280
"""Tokens of the published language models."""
LIBERO = {"dims": 7, "proprio": 8}
"""Numbers of OpenVLA-OFT's preset."""
PREFIX = {
    "openvla": "language_model.",
    "smolvla": ".text_model.",
    "pi0": ".language_model.",
    "pi05": ".language_model.",
}
"""A part of the names of what `edgeflow quantize` puts into 4 bits."""
STORED = {"qweight": "I32", "qzeros": "I32", "scales": "F16"}
ITEMSIZE = {"I32": 4, "F16": 2, "BF16": 2}
Shapes = Mapping[str, tuple[int, ...]]


def write(directory: Path, name: str, prefix: str = "") -> Path:
    """A checkpoint without its tokenizer. prefix: of the names of statistics."""
    for file, content in LAYOUTS[name].items():
        (directory / file).write_text(json.dumps(content))
        for step in content.get("steps", ()):
            if "state_file" in step:
                save_file(_statistics(LAYOUTS[name]["config.json"], prefix), directory / step["state_file"])
    save_file({"weights": np.zeros(1, np.float32)}, directory / "model.safetensors")
    return directory


def change(directory: Path, file: str, apply: Callable[[dict[str, Any]], object]) -> None:
    """Apply a function to the values of a JSON file."""
    content = json.loads((directory / file).read_text())
    apply(content)
    (directory / file).write_text(json.dumps(content))


def write_sized(directory: Path, name: str, *, cameras: int = 2, group: int = 0) -> Path:
    """A whole checkpoint of the published sizes, whose file of weights has no numbers and takes no room on the disk.

    name: of a layout, or openvla_oft. cameras: of LeRobot's policies. group: G of the language model in 4 bits; 0 for
    floats.
    """
    if name == "openvla_oft":
        write_statistics(directory, {"libero": statistics(**LIBERO)})
        for file in (HEAD, PROPRIO):
            (directory / file).touch()
        name = "openvla"
    write(directory, name)
    folder = directory / TOKENIZERS.get(name, ".")
    folder.mkdir(exist_ok=True)
    if name != "act":
        tokenizer(bos=name != "smolvla").save(str(folder / "tokenizer.json"))
    if name == "openvla":
        (directory / "preprocessor_config.json").write_text(json.dumps(TOWERS))
    else:
        change(directory, "config.json", lambda config: _with_cameras(config["input_features"], cameras))
    shapes = shapes_of(directory, name)
    if group:
        stated = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
        change(directory, "config.json", lambda config: config.update(quantization_config=stated))
        shapes = in_four_bits(shapes, PREFIX[name], group)
    write_headers(directory / "model.safetensors", shapes)
    return directory


def shapes_of(directory: Path, name: str) -> Shapes:
    """The tensors that are read of a checkpoint with these files, by their published names."""
    if name == "openvla":
        return policy_shapes(SIZES["openvla-7b"])
    if name == "act":
        values = json.loads((directory / "config.json").read_text())
        with torch.device("meta"):
            twin = ACTTwin(_act_size(values))
        return {key: tuple(tensor.shape) for key, tensor in twin.published().items()}
    found = (
        smolvla_tensors(load_smolvla(directory), SMOLVLM)
        if name == "smolvla"
        else pi_tensors(load_pi(directory, name), PALIGEMMA)
    )
    return {f"model.{key}": shape for key, shape in found}


def in_four_bits(shapes: Shapes, part: str, group: int) -> Shapes:
    """The shapes with the projections of the layers whose names have this part in AutoAWQ's GEMM layout."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if not (part in name and ".layers." in name and name.endswith("_proj.weight")):
            found[name] = shape
            continue
        (outputs, inputs), stem = shape, name.removesuffix("weight")
        found[f"{stem}qweight"] = inputs, outputs // PER_WORD
        found[f"{stem}qzeros"] = inputs // group, outputs // PER_WORD
        found[f"{stem}scales"] = inputs // group, outputs
    return found


def write_headers(path: Path, shapes: Shapes) -> None:
    """A safetensors file of these tensors, whose numbers are a hole of the file."""
    header, end = {}, 0
    for name, shape in shapes.items():
        dtype = STORED.get(name.rpartition(".")[2], "BF16")
        begin, end = end, end + math.prod(shape) * ITEMSIZE[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def _with_cameras(features: dict[str, Any], count: int) -> None:
    found = [name for name in features if "images" in name and "empty" not in name]
    for index in range(len(found), count):
        features[f"observation.images.camera{index}"] = features[found[0]]


def _act_size(values: dict[str, Any]) -> TwinSize:
    cameras = {
        name: tuple(each["shape"][1:]) for name, each in values["input_features"].items() if each["type"] == "VISUAL"
    }
    return TwinSize(
        cameras=cameras,
        state=values["input_features"]["observation.state"]["shape"][0],
        action=values["output_features"]["action"]["shape"][0],
        backbone=values["vision_backbone"],
        stem=64,
        width=values["dim_model"],
        heads=values["n_heads"],
        mlp=values["dim_feedforward"],
        encoder_layers=values["n_encoder_layers"],
        decoder_layers=values["n_decoder_layers"],
        latent=values["latent_dim"],
        chunk=values["chunk_size"],
    )


def _statistics(config: dict[str, Any], prefix: str) -> dict[str, np.ndarray]:
    found = {}
    for name, feature in (config["input_features"] | config["output_features"]).items():
        shape = (3, 1, 1) if feature["type"] == "VISUAL" else feature["shape"]
        found |= {f"{prefix}{name}.{each}": np.zeros(shape, np.float32) for each in ("mean", "q01")}
        found |= {f"{prefix}{name}.{each}": np.ones(shape, np.float32) for each in ("std", "q99")}
    return found
