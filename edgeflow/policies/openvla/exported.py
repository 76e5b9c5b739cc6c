"""OpenVLA as static graphs (docs/develop/static-graphs.md): towers, prefill and a decode step of several frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.artifacts.files import loaded_bytes, open_artifact
from edgeflow.artifacts.manifest import MANIFEST
from edgeflow.contract import PROMPT, Stage, StageProgram
from edgeflow.engine.exported.tokens import CPU, ExportedGraphs, ExportedNetwork, Towers, token_form
from edgeflow.engine.memory import activation_bytes
from edgeflow.engine.placement import check_host, check_prompt, check_text
from edgeflow.engine.policy import Footprint, Placement
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.policy import OpenVLAFrames
from edgeflow.policies.openvla.tokens import Prompter
from edgeflow_client.errors import CheckpointError, ConfigError

NAME = "llama"


class StaticOpenVLA(OpenVLAFrames):
    """A token policy of graphs (engine/policy.TokenPolicy)."""

    kv_format: KVFormat = DENSE
    device = CPU

    def __init__(self, config: OpenVLAConfig, prompter: Prompter, graphs: ExportedGraphs) -> None:
        self.decoder = ExportedNetwork(graphs, NAME)
        self._prompter = prompter
        self._towers = [Towers(each) for each in graphs.towers]
        super().__init__(config, self._bounded, self._towers[0].fixed, place=None)
        self.near = (False,) * self.K

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        """As many tokens as the actions of a dataset have numbers. A step is another graph, which takes one row
        of a frame, so nothing is drafted.
        """
        count = super().program(unnorm_key).passes
        steps = (Stage(rows=1, repeats=count - 1, group=1),) if count > 1 else ()
        return StageProgram((Stage(rows=PROMPT), *steps))

    def embed_rows(self, pixel_values: Tensor, ids: Sequence[Tensor]) -> list[Tensor]:
        """[B, C, h, w] and B prompts [t] → B tensors [L_P, E]: BOS, image tokens, the rest of the text."""
        return [self._run(pixels, own) for pixels, own in zip(pixel_values, ids, strict=True)]

    def _run(self, pixels: Tensor, ids: Tensor) -> Tensor:
        towers = next(each for each in self._towers if each.text >= len(ids))
        return torch.tensor(towers.run(ids.numpy(), pixel_values=pixels.numpy()))

    def _bounded(self, instruction: str) -> tuple[int, ...]:
        ids = self._prompter.ids(instruction)
        check_prompt(len(ids), self._towers[-1].text)
        return ids


class StaticOpenVLACheckpoint:
    """The folder of an artifact (engine/policy.Published). CheckpointError for one that is damaged; ConfigError for a
    KV format, which its graphs do not read.
    """

    def __init__(
        self, directory: Path, *, center_crop: bool, kv_format: KVFormat = DENSE, control_rate_hz: float = 0.0
    ) -> None:
        if kv_format is not DENSE:
            raise ConfigError(
                f"policy.kv: {kv_format.name}; the graphs of an exported model read keys and values in float32: remove "
                "it, or serve the checkpoint"
            )
        self._directory = directory
        self._config = config = load_config(directory, center_crop=center_crop, control_rate_hz=control_rate_hz)
        self.unnorm_keys = tuple(config.statistics)
        self._manifest = manifest = open_artifact(directory, "openvla")
        self._image_tokens = token_form(config.text, (1, *config.image.shape)).fixed_rows(manifest)
        longest = self._image_tokens + manifest.text + config.action_width
        if manifest.kv.positions < longest:
            raise CheckpointError(
                f"{MANIFEST} has {manifest.kv.positions} positions; a frame of {manifest.text} tokens of text takes "
                f"{longest}: export the model again"
            )

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of graphs and weights, and of sessions, whose slots have the exported positions."""
        text, stages = self._config.text, self._config.action_width
        stored = loaded_bytes(self._directory, self._manifest)
        return Footprint(
            decoder=0,
            other=-(-stored // dtype.itemsize),
            slots=stages,
            kv=text.kv_shape(dtype),
            positions=self._image_tokens + stages,
            row_bytes=activation_bytes(text, 1, dtype),
            frame_bytes=torch.float32.itemsize * math.prod(self._config.image.shape),
            capacity=self._manifest.kv.positions,
        )

    def load(self, placement: Placement) -> StaticOpenVLA:
        """Load graphs and tokenizer; CheckpointError says what is wrong with them."""
        check_host(placement.device, str(placement.dtype).removeprefix("torch."))
        graphs = ExportedGraphs.load(self._directory, self._manifest, placement.runtime)
        prompter = Prompter(self._directory, vicuna=self._config.vicuna_prompt)
        policy = StaticOpenVLA(self._config, prompter, graphs)
        check_text(policy)
        return policy
