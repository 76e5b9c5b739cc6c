"""Checks of an ACT checkpoint against outputs recorded from the original implementation, in float32.

Every stored value is compared (`<case>.mid.*`, `<case>.out.*`): normalised inputs, feature maps, camera positions,
tokens and positions of the encoder, outputs of encoder and decoder, the chunk, and the chunk in the robot's units,
computed from the stored chunk. `ensemble.<name>.out.actions` are compared with the SDK's temporal ensembling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edgeflow.lab.verify.bundle import CASES_FILE, TENSORS_FILE, RecordedCase, read_cases
from edgeflow.lab.verify.comparison import CheckResult, Results, Verification, compare
from edgeflow.models.checkpoint import read_tensors
from edgeflow.policies.act.config import ACTConfig, load_config, load_processors
from edgeflow.policies.act.network import ACTNetwork
from edgeflow.policies.act.policy import InputNormaliser, read_network
from edgeflow.policies.lerobot import Normalisation
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow_client.blending import ensemble_weights
from edgeflow_client.errors import CheckpointError, ConfigError

TOLERANCE = 1e-5
MODE = "one pass"
INPUT, CHUNK, ACTIONS = "in.", "out.action_chunk", "out.action_chunk_unnormalized"


def verify(directory: Path, asked: Verification) -> Results:
    """Every comparison of a bundle; ConfigError for modes, weights and operators that ACT does not have."""
    if asked.weights != "float":
        raise ConfigError(f"weights: policies of this family, act, have float weights, not {asked.weights}")
    if asked.operators is not None:
        raise ConfigError("operators: policies of this family, act, use none of the operator table; leave it out")
    config = load_config(directory)
    checker = _Checker(
        config,
        load_processors(directory, config),
        read_network(directory, config, torch.float32, asked.device),
    )
    cases, results = read_cases(directory), []
    for index, case in enumerate(cases):
        asked.progress(case.name, index, len(cases) + 1)
        results += list(checker.check(case))
    asked.progress("ensembles", len(cases), len(cases) + 1)
    results += list(_check_ensembles(directory))
    return [(MODE, result) for result in results]


class _Checker:
    """The checks of a loaded checkpoint."""

    def __init__(self, config: ACTConfig, processors: Normalisation, network: ACTNetwork) -> None:
        self._config = config
        self._processors = processors
        self._network = network
        self._normalise = {name: InputNormaliser(processors.inputs.get(name), network.device) for name in config.inputs}

    def check(self, case: RecordedCase) -> Iterator[CheckResult]:
        """Compare a case, in the order of the computation; an unknown stored value is infinitely off."""
        with torch.inference_mode():
            found = self._compute(case)
        stored = {name: tensor for name, tensor in case.tensors.items() if not name.startswith(INPUT)}
        if CHUNK not in stored:
            raise CheckpointError(f"{TENSORS_FILE} lacks {case.name}.{CHUNK}: name the directory of a bundle")
        for name, tensor in found.items():
            if name in stored:
                yield compare(case.name, _quantity(name), tensor, stored[name], TOLERANCE)
        for name in sorted(stored.keys() - found.keys()):
            yield CheckResult(case.name, f"unknown {name}", math.inf, TOLERANCE)

    def _compute(self, case: RecordedCase) -> dict[str, Tensor]:
        """Every quantity of a case in its stored form, by name: encoder and decoder with the sequence first."""
        network, cameras = self._network, self._config.cameras
        inputs = self._inputs(case)
        vectors = [inputs[name] for name in self._config.vectors]
        maps = {camera.name: network.feature_map(inputs[camera.name]) for camera in cameras}
        sizes = {name: (each.shape[2], each.shape[3]) for name, each in maps.items()}
        positions = network.positions(list(sizes.values()))
        tokens = network.tokens(list(maps.values()), vectors)
        encoded = network.encode(tokens, positions)
        decoded = network.decode(encoded, positions)
        return {
            **{f"mid.normalized.{name}": each for name, each in inputs.items()},
            **{f"mid.feature_map.{name}": each for name, each in maps.items()},
            **{f"mid.camera_pos_embed.{name}": network.camera_positions(*size)[None] for name, size in sizes.items()},
            "mid.encoder_in_tokens": tokens.transpose(0, 1),
            "mid.encoder_in_pos_embed": positions[:, None],
            "mid.encoder_out": encoded.transpose(0, 1),
            "mid.decoder_out": decoded.transpose(0, 1),
            CHUNK: network.head(decoded),
            **self._restored(case),
        }

    def _inputs(self, case: RecordedCase) -> dict[str, Tensor]:
        """Normalised inputs by the network's names."""
        dims: dict[str, tuple[int | None, ...]] = {name: (size,) for name, size in self._config.vectors.items()}
        dims |= {camera.name: (3, None, None) for camera in self._config.cameras}
        inputs: dict[str, Tensor] = {}
        for name, wanted in dims.items():
            observed = f"{INPUT}{self._processors.sources[name]}"
            raw = case.tensors.get(observed)
            if raw is None or not _fits(raw, wanted):
                found = "is missing" if raw is None else f"has shape {list(raw.shape)}"
                raise CheckpointError(f"{TENSORS_FILE}: {case.name}.{observed} {found}: name the directory of a bundle")
            inputs[name] = self._normalise[name](raw.to(self._network.device, torch.float32, copy=True))
        if len({len(each) for each in inputs.values()}) != 1:
            raise CheckpointError(f"{TENSORS_FILE}: the inputs of {case.name} have batches of different sizes")
        return inputs

    def _restored(self, case: RecordedCase) -> dict[str, Tensor]:
        """The stored chunk in the robot's units; the network's deviation has been checked before."""
        if CHUNK not in case.tensors:
            return {}
        chunk, action = case.tensors[CHUNK].double(), self._processors.action
        return {ACTIONS: chunk if action is None else torch.from_numpy(action.restored(chunk.numpy()))}


def _fits(tensor: Tensor, dims: tuple[int | None, ...]) -> bool:
    """True for shape [B, dims]; None is any length. Neither B nor a length may be 0."""
    lengths = zip(tensor.shape[1:], dims, strict=False)
    return (
        len(tensor.shape) == 1 + len(dims)
        and tensor.numel() > 0
        and all(want in (None, have) for have, want in lengths)
    )


def _quantity(name: str) -> str:
    """From `mid.feature_map.observation.images.top` to `feature map observation.images.top`."""
    group, _, feature = name.partition(".")[2].partition(".")
    return f"{group.replace('_', ' ')} {feature}".rstrip()


def _check_ensembles(directory: Path) -> Iterator[CheckResult]:
    """Compare the actions of control steps with a new chunk at each step."""
    listed = Fields(CASES_FILE, read_json(directory / CASES_FILE))
    if "ensemble" not in listed:
        return
    tensors = read_tensors(directory / TENSORS_FILE)
    for entry in listed.objects("ensemble"):
        name = f"ensemble.{entry.text('name')}"
        chunks, wanted = (_ensemble_part(tensors, f"{name}.{part}") for part in ("in.chunks", "out.actions"))
        if chunks.dim() != 4 or not chunks.numel():
            raise CheckpointError(
                f"{TENSORS_FILE}: {name}.in.chunks has shape {list(chunks.shape)}, expected steps, robots, horizon, "
                "numbers"
            )
        yield compare(name, "actions", _ensembled(chunks, entry.number("coefficient", 0.0)), wanted, TOLERANCE)


def _ensemble_part(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"{TENSORS_FILE} lacks {name}: name the directory of a bundle")
    return tensors[name]


def _ensembled(chunks: Tensor, coefficient: float) -> Tensor:
    """From chunks [steps, B, horizon, D], one per step, to the action of each step [steps, B, D]."""
    values = chunks.double().numpy()
    actions = []
    for step in range(len(values)):
        first = max(0, step - values.shape[2] + 1)
        rows = np.stack([values[index, :, step - index] for index in range(first, step + 1)])
        actions.append(np.tensordot(ensemble_weights(len(rows), coefficient), rows, axes=1))
    return torch.from_numpy(np.stack(actions))
