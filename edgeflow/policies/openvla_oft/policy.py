"""OpenVLA-OFT: a chunk of actions in one pass, by regression or token by token at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, PolicyInputs, StageProgram
from edgeflow.engine.memory import activation_bytes
from edgeflow.engine.policy import Footprint, Placement, Vectors
from edgeflow.kernels.kv.formats import DENSE, slot_bytes
from edgeflow.models.checkpoint import Weights
from edgeflow.models.llama import LlamaDecoder
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.network import OpenVLAVision
from edgeflow.policies.openvla.policy import count_weights
from edgeflow.policies.openvla.preprocess import EitherPreprocessor
from edgeflow.policies.openvla.tokens import SEVEN, SEVEN_UNITS, Prompter, bin_centers, of_dataset
from edgeflow.policies.openvla_oft.config import STATE, OFTCheckpoint, OFTSettings, TrainingStatistics
from edgeflow.policies.openvla_oft.network import (
    ActionHead,
    OFTNetwork,
    ProprioProjector,
    head_numbers,
    proprio_numbers,
    read_weights,
)
from edgeflow.policies.tensors import image_of, pixels, placed, vector_of
from edgeflow_client.types import ActionSchema, StateSpec

PROMPTS_KEPT = 256
_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
ARMS = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in _JOINTS)
ARMS_UNITS = (*["rad"] * 6, "fraction") * 2


@dataclass(frozen=True, slots=True)
class OFTFrame:
    """A frame as a pass takes it: pixel_values [images * channels, side, side] float32, on the host or the device;
    prompt_ids with BOS; state [P] float32 on the host, normalised, None without."""

    pixel_values: Tensor
    prompt_ids: tuple[int, ...]
    state: Tensor | None


class OpenVLAOFTPolicy:
    """A policy of one pass: frames of several robots in, a chunk of actions for each out.

    prompt_ids: instruction → token ids of the prompt, BOS first.
    """

    rtc = None
    unusual_states = 0

    def __init__(
        self,
        config: OpenVLAConfig,
        settings: OFTSettings,
        statistics: TrainingStatistics,
        network: OFTNetwork,
        prompt_ids: Callable[[str], tuple[int, ...]],
        *,
        preprocess_on_device: bool = False,
    ) -> None:
        self.settings = settings
        self.inputs = inputs_of(settings, config.image.side)
        self.network = network
        self.device, self.dtype = network.device, network.decoder.dtype
        self.numbers = settings.chunk * settings.dims
        self.fixed_rows = fixed_rows(settings, network.vision.image_tokens)
        self._statistics = statistics
        self.unnorm_keys = tuple(statistics.actions)
        self._prompt_ids = lru_cache(PROMPTS_KEPT)(prompt_ids)
        self._preprocess = EitherPreprocessor(config.image, self.device if preprocess_on_device else None)
        self._place = self.device if preprocess_on_device else torch.device("cpu")
        self._last_action_id = config.action_vocab - 1
        self._centers = torch.from_numpy(bin_centers(config.n_action_bins)).to(self.device, torch.float32)

    def program(self, unnorm_key: str | None = None) -> StageProgram:  # noqa: ARG002 - the same for all data sets
        """A single pass."""
        return StageProgram.tokens(1)

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:  # noqa: ARG002
        """Rows of the prompt that the instruction takes."""
        return len(self._prompt_ids(instruction))

    def prepare(self, observation: Observation) -> OFTFrame:
        """The inputs of a pass; images are preprocessed on the device where that is configured."""
        images = [self._preprocess(pixels(image_of(observation, name))) for name in self.settings.cameras]
        images = [placed(each, self._place) for each in images]  # one may have been too long for the device
        state, bounds = None, self._statistics.proprio
        if bounds is not None:
            values = np.asarray(vector_of(observation.state, STATE, self.settings.proprio), np.float64)
            state = torch.from_numpy(bounds.normalised(values)).float()
        return OFTFrame(torch.cat(images), self._prompt_ids(observation.instruction), state)

    def prompt_tokens(self, frame: OFTFrame) -> int:
        """Tokens of the prompt."""
        return len(frame.prompt_ids)

    def batch(self, frames: Sequence[OFTFrame], tokens: int) -> list[Tensor]:
        """Frames [B] → pixel values, prompts [B, tokens] and their lengths [B], states where there are some."""
        ids = [[*frame.prompt_ids, *[0] * (tokens - len(frame.prompt_ids))] for frame in frames]
        lengths = [len(frame.prompt_ids) for frame in frames]
        states = [frame.state for frame in frames if frame.state is not None]
        pixels = torch.stack([frame.pixel_values for frame in frames])
        return [pixels, torch.tensor(ids), torch.tensor(lengths), *([torch.stack(states)] if states else [])]

    @torch.inference_mode()
    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:
        """A batch → normalised actions [B, horizon, D] float32 on the device.

        As many at once as there are KV slots; RuntimeError before those are reserved.
        """
        slots, settings = self.network.slots, self.settings
        groups = zip(*(torch.split(each, slots) for each in batch), strict=True)
        found = [self.decode(self.network.read_out(group, self.numbers, on_host=on_host)) for group in groups]
        return torch.cat(found).view(len(batch[0]), settings.chunk, settings.dims)

    def decode(self, hidden: Tensor) -> Tensor:
        """[B * horizon * D, E] before the final norm → [B * horizon, D] or [B * horizon * D] float32, normalised."""
        decoder, head = self.network.decoder, self.network.head
        if head is None:
            best, ids = decoder.logits(hidden, "prefill").max(-1)  # NaN is the largest
            centers = self._centers[(self._last_action_id - ids).clamp(0, len(self._centers) - 1)]
            return centers.where(best.isfinite(), torch.nan)
        normed = decoder.final_norm(hidden, "prefill")
        return head(normed.view(-1, self.settings.dims * normed.shape[-1])).float()

    def actions(self, values: NDArray[np.float64], unnorm_key: str | None = None) -> NDArray[np.float64]:
        """[horizon, D] of `run` → [horizon, D] in the schema's units, cut to its limits.

        Training cut its targets to -1 .. 1, so what a regression gives beyond is its error; what is not finite is NaN.
        """
        bounds = of_dataset(self._statistics.actions, unnorm_key)
        return bounds.within_limits(bounds.unnormalised(values))

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """Names, units and limits of an action, the horizon of a chunk and its step."""
        settings, (low, high) = self.settings, of_dataset(self._statistics.actions, unnorm_key).limits
        names, units, relative = _meaning(settings)
        return ActionSchema(
            names=tuple(settings.action_names or names),
            units=units,
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            relative=tuple(relative if settings.relative is None else settings.relative),
            control_rate_hz=settings.control_rate_hz,
            horizon=settings.chunk,
            step_ms=1000.0 / settings.control_rate_hz if settings.chunk > 1 else 0.0,
        )


def inputs_of(settings: OFTSettings, side: int) -> PolicyInputs:
    """Named cameras of any size, a single one of any name, and the state vector. side: of the images of a pass."""
    cameras = tuple(CameraNeed(name=name, named=settings.images > 1, side=side) for name in settings.cameras)
    elements = tuple(settings.state_names or ())
    state = (StateSpec(name=STATE, size=settings.proprio, elements=elements),) if settings.proprio else ()
    return PolicyInputs(cameras=cameras, state=state)


def fixed_rows(settings: OFTSettings, image_tokens: int) -> int:
    """Rows of a robot besides those of its text: images, state, the numbers of the chunk and the stop token."""
    return settings.images * image_tokens + bool(settings.proprio) + settings.chunk * settings.dims + 1


def _meaning(settings: OFTSettings) -> tuple[tuple[str, ...], tuple[str, ...], tuple[bool, ...]]:
    """Names and units of an action's numbers, and which are displacements, as the preset's robot has them; without a
    preset nothing is known of them."""
    if settings.dims == len(ARMS) and settings.preset == "aloha":
        return ARMS, ARMS_UNITS, (False,) * len(ARMS)
    if settings.dims == len(SEVEN) and settings.preset in ("libero", "bridge"):
        return SEVEN, SEVEN_UNITS, (*[True] * 6, False)
    count = settings.dims
    return tuple(f"a{index}" for index in range(count)), ("1",) * count, (False,) * count


class PublishedOpenVLAOFT:
    """A checkpoint directory whose settings, files and statistics have been read; CheckpointError for a wrong
    configuration."""

    def __init__(self, directory: Path, checkpoint: OFTCheckpoint, *, center_crop: bool = False) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self.unnorm_keys = tuple(checkpoint.statistics.actions)
        self._config = load_config(directory, center_crop=center_crop)
        self.inputs = inputs_of(checkpoint.settings, self._config.image.side)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Rows with their keys and values, which live as long as a pass: no session keeps slots."""
        text, settings, files = self._config.text, self._checkpoint.settings, self._checkpoint.files
        weights, image_tokens = count_weights(self._directory, self._config)
        extra = head_numbers(settings.dims, text.hidden_size) if files.head else 0
        extra += proprio_numbers(settings.proprio, text.hidden_size) if files.proprio else 0
        return Footprint(
            decoder=weights.decoder,
            other=weights.others + extra,
            quantised=weights.quantised,
            slots=0,
            positions=fixed_rows(settings, image_tokens),
            row_bytes=activation_bytes(text, 1, dtype) + slot_bytes(DENSE, text.kv_shape(dtype, capacity=1)),
            graphs=True,
        )

    def load(self, placement: Placement) -> OpenVLAOFTPolicy:
        """Read the weights, small files first; CheckpointError names the file and the tensor at fault."""
        config, settings, files = self._config, self._checkpoint.settings, self._checkpoint.files
        prompter = Prompter(self._directory, vicuna=config.vicuna_prompt)
        weights = Weights(self._directory, placement.dtype, placement.device)
        head = read_head(files.head, weights, settings.dims, config.text.hidden_size)
        proprio = read_proprio(files.proprio, weights, settings.proprio, config.text.hidden_size)
        network = OFTNetwork(
            LlamaDecoder(config.text, weights.under("language_model."), table=placement.table),
            OpenVLAVision(config, weights, placement.table),
            placement.device,
            head=head,
            proprio=proprio,
        )
        return OpenVLAOFTPolicy(
            config,
            settings,
            self._checkpoint.statistics,
            network,
            prompter.ids,
            preprocess_on_device=placement.preprocess_on_device,
        )


def read_head(path: Path | None, like: Weights, dims: int, width: int) -> ActionHead | None:
    """The action head of a file, in the dtype and on the device of other weights."""
    return ActionHead(read_weights(path, head_numbers(dims, width), like), dims, width) if path else None


def read_proprio(path: Path | None, like: Weights, size: int, width: int) -> ProprioProjector | None:
    """The projector of states of a file, in the dtype and on the device of other weights."""
    return ProprioProjector(read_weights(path, proprio_numbers(size, width), like), size, width) if path else None
