"""OpenVLA: vision towers, projector and Llama, from a published checkpoint.

Published source: OpenVLA's prismatic/extern/hf/modeling_prismatic.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, PolicyInputs, StageProgram
from edgeflow.engine.policy import PreparedFrame, Vectors
from edgeflow.kernels.kv.formats import DENSE, KVFormat
from edgeflow.kernels.kv.layout import on_device
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.network import OpenVLAVision
from edgeflow.policies.openvla.preprocess import EitherPreprocessor
from edgeflow.policies.openvla.tokens import ActionDecoder, Prompter
from edgeflow.policies.tensors import pixels
from edgeflow_client.types import ActionSchema

PROMPTS = 64  # instructions whose ids are kept


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
        self.image_tokens = image_tokens
        self.fixed_rows = image_tokens
        self.inputs = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))
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

    @classmethod
    def load(
        cls,
        path: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        center_crop: bool = False,
        control_rate_hz: float = 0.0,
        **decoder_options: Any,
    ) -> OpenVLAPolicy:
        """The policy of a checkpoint directory; CheckpointError says what is wrong with it.

        control_rate_hz: as in load_config.
        """
        config = load_config(Path(path), center_crop=center_crop, control_rate_hz=control_rate_hz)
        prompter = Prompter(Path(path), vicuna=config.vicuna_prompt)
        return cls(config, Weights(Path(path), dtype, device), prompter, **decoder_options)

    def embed_rows(self, pixel_values: Tensor, ids: Sequence[Tensor]) -> list[Tensor]:
        """[B, C, side, side] and B prompts [t] → B tensors [L_P, E]: BOS, image tokens, the rest of the text."""
        images = self.vision.project(self.vision.features(pixel_values))
        texts = [self.decoder.embed(prompt) for prompt in ids]
        return [torch.cat([text[:1], image, text[1:]]) for text, image in zip(texts, images, strict=True)]

    def embed_prefill(self, pixel_values: Tensor, ids: Sequence[Sequence[int]]) -> list[Tensor]:
        """`embed_rows` for prompts on the host."""
        return self.embed_rows(pixel_values, [on_device(prompt, self.device) for prompt in ids])
