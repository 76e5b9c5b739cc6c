"""OpenVLA: vision towers, projector and Llama, from a published checkpoint.

Published source: OpenVLA's prismatic/extern/hf/modeling_prismatic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, PolicyInputs, StageProgram
from edgeflow.engine.memory import activation_bytes, written_bytes
from edgeflow.engine.placement import check_kv
from edgeflow.engine.policy import Footprint, Placement, PreparedFrame, Vectors
from edgeflow.kernels.kv.formats import DENSE, KVFormat, check_action_tokens
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.models.llama import LlamaDecoder
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.network import OpenVLAVision
from edgeflow.policies.openvla.preprocess import EitherPreprocessor
from edgeflow.policies.openvla.tokens import ActionDecoder, Prompter
from edgeflow.policies.tensors import WeightNumbers, pixels
from edgeflow_client.errors import CheckpointError, InvalidArgument
from edgeflow_client.types import ActionSchema

PROMPTS = 64  # instructions whose ids are kept
_BLOCKS = ("vision_backbone.featurizer.blocks.", "vision_backbone.fused_featurizer.blocks.")
_PATCH = "vision_backbone.featurizer.patch_embed.proj.weight"


def inputs_of(config: OpenVLAConfig) -> PolicyInputs:
    """One camera of any name and size."""
    return PolicyInputs(cameras=(CameraNeed(name="image", named=False, side=config.image.side),))


class OpenVLAFrames:
    """The part of a policy that does not depend on its networks: observations to prompts, tokens to actions.

    K: action tokens per frame. pixel_shape: C, h, w of what `preprocess` returns. image_tokens: projected patches,
    which follow BOS. prompt_ids: of an instruction, BOS first. inputs: one camera, which the checkpoint does not name.
    place: where frames are preprocessed, None = on the host.
    """

    rtc = None
    unusual_states = 0

    def __init__(
        self,
        config: OpenVLAConfig,
        prompt_ids: Callable[[str], tuple[int, ...]],
        image_tokens: int,
        *,
        place: torch.device | None,
    ) -> None:
        self.config = config
        self.pixel_shape = config.image.shape
        self.fixed_rows = image_tokens
        self.inputs = inputs_of(config)
        self.prompt_ids = lru_cache(maxsize=PROMPTS)(prompt_ids)
        self.preprocess = EitherPreprocessor(config.image, place)
        self.action_decoder = ActionDecoder(config)
        self.unnorm_keys = tuple(config.statistics)
        self.K = config.action_width
        self.first_guess = self.action_decoder.neutral_ids[:-1]
        schemas = [self.action_schema(key) for key in self.unnorm_keys]  # a wrong one fails now, not at a robot's open
        self.near = tuple(
            all(index < len(each.relative) and each.relative[index] for each in schemas) for index in range(self.K)
        )

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:  # noqa: ARG002
        return len(self.prompt_ids(instruction))

    def prepare(self, observation: Observation) -> PreparedFrame:
        if len(observation.images) != 1:
            raise InvalidArgument(f"has {len(observation.images)} images; the policy takes one", field="frame.images")
        (image,) = observation.images.values()
        return PreparedFrame(self.preprocess(pixels(image)), self.prompt_ids(observation.instruction))

    def program(self, unnorm_key: str | None = None) -> StageProgram:
        """The stages of an answer: as many tokens as the actions of a dataset have numbers."""
        return StageProgram.tokens(len(self.action_decoder.statistics(unnorm_key).q01))

    def decode_actions(self, token_ids: Sequence[int], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[K], in the units of the schema"""
        return self.action_decoder.unnormalized(self.action_decoder.normalized(token_ids), unnorm_key)

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """Names, units and limits of the K numbers of an action."""
        return self.action_decoder.schema(unnorm_key)


class OpenVLAPolicy(OpenVLAFrames):
    """A token policy: a frame and an instruction in, K action tokens out."""

    def __init__(
        self,
        config: OpenVLAConfig,
        weights: Weights,
        prompter: Prompter,
        *,
        table: OperatorTable | None = None,
        preprocess_on_device: bool = False,
        kv_format: KVFormat = DENSE,
        **decoder_options: Any,
    ) -> None:
        self.kv_format = kv_format
        self.decoder = LlamaDecoder(config.text, weights.under("language_model."), table=table, **decoder_options)
        self.vision = OpenVLAVision(config, weights, table)
        self.device = weights.device
        place = weights.device if preprocess_on_device else None
        super().__init__(config, prompter.ids, self.vision.image_tokens, place=place)

    def embed_rows(self, pixel_values: Tensor, ids: Sequence[Tensor]) -> list[Tensor]:
        """[B, C, side, side] and B prompts [t] → B tensors [L_P, E]: BOS, image tokens, the rest of the text."""
        images = self.vision.project(self.vision.features(pixel_values))
        texts = [self.decoder.embed(prompt) for prompt in ids]
        return [torch.cat([text[:1], image, text[1:]]) for text, image in zip(texts, images, strict=True)]


def count_weights(directory: Path, config: OpenVLAConfig) -> tuple[WeightNumbers, int]:
    """The weights of a checkpoint, by the headers of its files, and the rows of a prefill that an image takes.

    CheckpointError where it has no vision tower.
    """
    shapes = tensor_shapes(directory)
    if _PATCH not in shapes:
        raise CheckpointError(f"{directory}: {_PATCH} is missing: download the checkpoint again")
    unused = tuple(prefix + f"{_last_block(shapes, prefix)}." for prefix in _BLOCKS)
    weights = WeightNumbers.of(shapes, decoder=("language_model.",), floats=(), unused=unused)
    return weights, (config.image.side // shapes[_PATCH][-1]) ** 2


def _last_block(shapes: Mapping[str, object], prefix: str) -> int:
    """The index of a tower's last block, which is never run: features are the second-to-last block's output."""
    return max((int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix)), default=0)


class PublishedOpenVLA:
    """A checkpoint whose configuration has been read (engine/policy.Published)."""

    def __init__(self, directory: Path, *, center_crop: bool, kv_format: KVFormat, control_rate_hz: float) -> None:
        self._directory = directory
        self._kv_format = kv_format
        self._config = load_config(directory, center_crop=center_crop, control_rate_hz=control_rate_hz)
        self.inputs = inputs_of(self._config)
        self.unnorm_keys = tuple(self._config.statistics)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of the policy; CheckpointError where the checkpoint has no vision tower."""
        text, stages = self._config.text, self._config.action_width
        weights, image_tokens = count_weights(self._directory, self._config)
        kv = text.kv_shape(dtype)
        return Footprint(
            decoder=weights.decoder,
            other=weights.others,
            quantised=weights.quantised,
            slots=stages,
            kv=kv,
            kv_format=self._kv_format,
            positions=image_tokens + stages,
            row_bytes=activation_bytes(text, 1, dtype) + written_bytes(self._kv_format, kv, rows=1),
            graphs=True,
        )

    def load(self, placement: Placement) -> OpenVLAPolicy:
        check_kv(self._kv_format, placement.device, section="policy.")
        check_action_tokens("policy.kv", self._kv_format, self._config.action_width)
        prompter = Prompter(self._directory, vicuna=self._config.vicuna_prompt)
        return OpenVLAPolicy(
            self._config,
            Weights(self._directory, placement.dtype, placement.device),
            prompter,
            kv_format=self._kv_format,
            table=placement.table,
            preprocess_on_device=placement.preprocess_on_device,
        )
