"""Policies of flow-matching families: observations to frames, latent actions to actions; checkpoints, and loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import CameraNeed, Observation, ObservationWindow, PolicyInputs, StageProgram
from edgeflow.engine.exported.flow import FlowGraphs
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, RTCSettings, Schedule
from edgeflow.engine.flow.policy import FlowStages
from edgeflow.engine.policy import Footprint, Placement, Vectors
from edgeflow.kernels.kv.formats import KVShape
from edgeflow.models.checkpoint import Weights, tensor_shapes
from edgeflow.models.shape import FlowStacks
from edgeflow.policies.flow.config import FlowCheckpoint, FlowConfig, FlowSettings
from edgeflow.policies.flow.network import PrefixedNetwork, lerobot_weights
from edgeflow.policies.flow.observing import FlowMoment, Margin, fitted, state_with_past
from edgeflow.policies.lerobot import STATE, UNNORM_KEYS, action_schema
from edgeflow.policies.tensors import Shapes, WeightNumbers, unit_range, vector_of
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError, InvalidArgument
from edgeflow_client.types import ActionSchema, StateSpec

STAMPS = 1 << 64
LIVE = 8
"""Rows of a tower's width that are in memory at once for each patch."""
CPU = torch.device("cpu")
DEFAULT_HORIZON = 10
"""Rows that are drawn to the chunk in execution where nothing else is configured, as in LeRobot."""
Network = TypeVar("Network", bound=PrefixedNetwork)


class TokenizedTexts:
    """The tokenizer of a policy. most: tokens of a text; the rest is cut off. rows: of the embedding."""

    def __init__(self, folder: Path, most: int, rows: int) -> None:
        self._tokenizer = TextTokenizer(folder, rows)
        self._most = most
        if not self._tokenizer.encode("a", special=True):
            raise CheckpointError(f"{folder} has a tokenizer without tokens: copy the checkpoint again")

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text, BOS first where the tokenizer has one; InvalidArgument for tokens without an embedding,
        such as PaliGemma's <image>."""
        return tuple(self._tokenizer.encode(text, special=True, field="instruction")[: self._most])


class Texts(Protocol):
    """The prompts of a family. States are normalised, without padding."""

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:
        """The prompt of a frame."""
        ...

    def most_rows(self, task: str) -> int:
        """The most tokens of a task's prompt with any state."""
        ...


class TaskTexts:
    """Texts of SmolVLA and π0: the task, and a newline where it does not end in one. They do not read the state."""

    def __init__(self, texts: TokenizedTexts) -> None:
        self._texts = texts

    def ids(self, task: str, state: NDArray[np.float32]) -> tuple[int, ...]:  # noqa: ARG002
        """The prompt of a frame."""
        return self._texts.ids(task if task.endswith("\n") else f"{task}\n")

    def most_rows(self, task: str) -> int:
        """The tokens of a task."""
        return len(self.ids(task, np.empty(0, np.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNumbers:
    """Sizes of a tower."""

    patches: int
    """Rows of an image before the projection."""
    width: int
    inner: int
    rows: int
    """Rows of an image after it."""
    absent: int = 0
    """Rows of a prefix for cameras without an image."""

    def prefix_rows(self, images: int, closing: int) -> int:
        """Rows of a prefix without its text. closing: as in FlowSizes."""
        return images * self.rows + self.absent + closing


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowArchitecture(Generic[Network]):
    """The differences between families, for the configuration of one checkpoint."""

    family: str
    flow: FlowConfig
    sizes: FlowSizes
    """The sizes of answers with the checkpoint's number of steps."""
    stacks: FlowStacks
    vision: VisionNumbers
    weights: Callable[[Shapes], WeightNumbers]
    """Counts the weights that are loaded."""
    time_numbers: int
    """Numbers that steps read of each flow time (FlowNetwork.time_table)."""
    margin: Margin
    bounded: bool
    """True where the state has a range whatever its statistics are."""
    texts: Callable[[TokenizedTexts], Texts]
    """Makes the prompts of the family."""
    network: Callable[[Weights, Placement], Network]
    """Makes the network of weights; CheckpointError names the tensor at fault."""

    def read_network(self, directory: Path, placement: Placement) -> Network:
        """The network of a checkpoint; CheckpointError names the tensor at fault."""
        return self.network(lerobot_weights(directory, placement), placement)

    def texts_for(self, network: PrefixedNetwork, tokenizer: Path, tokens: int) -> Texts:
        """The prompts of at most so many tokens. tokenizer: the folder of tokenizer.json."""
        return self.texts(TokenizedTexts(tokenizer, tokens, len(network.prefix.table)))

    def footprint(self, weights: WeightNumbers, sizes: FlowSizes, dtype: torch.dtype) -> Footprint:
        """Memory of weights, of a session's slots with their state, and of the activations of a row and of a frame."""
        heads, vision, side = self.stacks.heads, self.vision, self.flow.side
        stacks = self.stacks.prefix.sizes, self.stacks.steps.sizes
        width, inner = max(each.width for each in stacks), max(each.inner for each in stacks)
        images, patch = self.flow.images, LIVE * vision.width + 2 * vision.inner
        numbers = images * (3 * side**2 + vision.patches * patch) + (sizes.steps + 1) * sizes.state_numbers
        return Footprint(
            decoder=weights.decoder,
            other=weights.others + weights.floats * torch.float32.itemsize // dtype.itemsize,
            quantised=weights.quantised,
            slots=sizes.steps + 1,
            step_rows=sizes.step_rows,
            kv=KVShape(
                layers=len(heads.kinds), capacity=0, kv_heads=heads.kv_heads, head_dim=heads.head_dim, dtype=dtype
            ),
            positions=vision.prefix_rows(images, sizes.closing) + sizes.step_rows,
            row_bytes=(4 * width + 2 * (heads.q_width + 2 * heads.kv_width) + 3 * inner) * dtype.itemsize,
            frame_bytes=numbers * torch.float32.itemsize,
            graphs=True,
        )


def inputs_of(checkpoint: FlowCheckpoint[Any]) -> PolicyInputs:
    """Cameras of any size and the state, by their observed names."""
    config: FlowConfig = checkpoint.config.flow
    settings, sources = checkpoint.settings, checkpoint.processors.normalisation.sources
    names = [camera.name for camera in config.cameras if camera.name not in settings.absent_cameras]
    state = StateSpec(
        name=sources[STATE],
        size=config.state,
        elements=tuple(settings.state_names),
        units=tuple(settings.state_units),
    )
    return PolicyInputs(
        cameras=tuple(CameraNeed(name=sources[name], side=config.side) for name in names),
        state=(state,),
        history=config.history,
        history_step_ms=config.history_step_ms,
        most_delay_ms=config.most_delay_ms,
    )


class DenoisingPolicy:
    """A flow policy (engine/flow/policy.FlowPolicy).

    unusual_states: frames so far with a state outside of its statistics' range, where these are one.
    """

    unnorm_keys = UNNORM_KEYS

    def __init__(
        self,
        checkpoint: FlowCheckpoint[Any],
        architecture: FlowArchitecture[Any],
        *,
        sizes: FlowSizes,
        network: PrefixedNetwork | FlowGraphs,
        texts: Texts,
        placement: Placement,
    ) -> None:
        normalisation, settings = checkpoint.processors.normalisation, checkpoint.settings
        state = normalisation.inputs.get(STATE)
        self.config = config = architecture.flow
        self.network = network
        self.sizes = sizes
        self.rtc = rtc_settings(settings, config)
        self.device, self.dtype = network.device, network.dtype
        self.unusual_states = 0
        self._bounded = architecture.bounded or (state is not None and state.origin != 0)
        self._margin = architecture.margin
        self._texts = texts
        self._settings = settings
        self._place = placement.device if placement.preprocess_on_device else CPU
        self._normalisation = normalisation
        self.inputs = inputs_of(checkpoint)
        self._cameras = [camera.name for camera in self.inputs.cameras]
        self._state = normalisation.sources[STATE]
        self._images_of_frame = config.history * len(self._cameras)  # with all cameras
        self.fixed_rows = architecture.vision.prefix_rows(self._images_of_frame, sizes.closing)

    def program(self, unnorm_key: str | None = None) -> StageProgram:  # noqa: ARG002 - there is one dataset
        """The prefix, then N steps of all candidates."""
        return self.sizes.program

    @property
    def frame_shape(self) -> tuple[tuple[int, int, int, int], int]:
        """As in FlowPolicy."""
        side = self.config.side
        return (self._images_of_frame, 3, side, side), self.config.state_dims

    def stages(self, slots: int, capacity: int) -> FlowStages:
        """Its networks over so many slots."""
        return self.network.stages(self.sizes, slots, capacity)

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        """Rows of the instruction, with a frame's state vectors; None: the most that any state gives."""
        texts, count = self._texts, self.config.history
        if state is None:
            return texts.most_rows(instruction)
        normalised = self._normalised([self._vector(state)] * count, (0,) * (count - 1), 0.0)
        return len(texts.ids(instruction, normalised))

    def prepare(self, observation: Observation) -> FlowFrame | FlowMoment:
        """The inputs of a frame, or of one observation of a history; InvalidArgument for one without any camera, or
        with another state.

        Cameras that a frame lacks have no rows.
        """
        moment = FlowMoment(
            pixel_values=self._images(observation),
            instruction=observation.instruction,
            state=self._vector(observation.state),
            stamp_ns=observation.stamp_ns,
        )
        if self.config.history > 1:
            return moment
        return self.joined(ObservationWindow((moment,), (), observation.delay_ms))

    def joined(self, window: ObservationWindow) -> FlowFrame:
        """The inputs of an answer from prepared observations, the images of the oldest one first."""
        moments: tuple[FlowMoment, ...] = window.frames
        newest = moments[-1]
        state = self._normalised([each.state for each in moments], window.gaps_ns, window.delay_ms)
        self.unusual_states += bool(self._bounded and np.abs(state).max(initial=0.0) > 1.0)
        padded = torch.zeros(self.config.state_dims)
        padded[: len(state)] = torch.from_numpy(state)
        return FlowFrame(
            pixel_values=torch.cat([each.pixel_values for each in moments]),
            prompt_ids=self._texts.ids(newest.instruction, state),
            state=padded,
            noise=self._noise(newest.stamp_ns),
        )

    def actions(
        self,
        values: NDArray[np.float64],
        unnorm_key: str | None = None,  # noqa: ARG002 - there is one dataset
    ) -> NDArray[np.float64]:
        """Normalised [H, A] → [horizon, D] in the units of the training's data, cut to the configured limits.

        NaN where they are not finite: an infinite one would become a limit.
        """
        kept, affine = values[: self.config.horizon, : self.config.action], self._normalisation.action
        restored = kept if affine is None else affine.restored(kept)
        cut = restored.clip(self._settings.action_low or -np.inf, self._settings.action_high or np.inf)
        return np.where(np.isfinite(restored), cut, np.nan)

    def normalised(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n, D] in the units of the training's data → normalised [n, D]; not finite where the scale is 0"""
        affine = self._normalisation.action
        return actions if affine is None else affine.unrestored(actions)

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """The meaning of actions as configured."""
        settings = self._settings
        return action_schema(
            unnorm_key,
            self.config.action,
            self.config.horizon,
            settings.control_rate_hz,
            names=settings.action_names,
            units=settings.action_units,
            low=settings.action_low,
            high=settings.action_high,
            relative=settings.action_relative,
            frame=settings.frame,
            rotation=settings.rotation,
        )

    def _images(self, observation: Observation) -> Tensor:
        """[C, 3, side, side] of the present cameras, on the place where they are prepared."""
        found = [observation.images[name] for name in self._cameras if name in observation.images]
        if not found:
            raise InvalidArgument(f"has none of {', '.join(self._cameras)}; send at least one", field="frame.images")
        size, margin = (self.config.side,) * 2, self._margin
        return torch.stack([fitted(unit_range(image, self._place), size, margin) for image in found])

    def _vector(self, vectors: Vectors) -> NDArray[np.float32]:
        """The state [S] in the policy's units."""
        return np.asarray(vector_of(vectors, self._state, self.config.state), np.float32)

    def _normalised(
        self, states: Sequence[NDArray[np.float32]], gaps_ns: Sequence[int], delay_ms: float
    ) -> NDArray[np.float32]:
        """The normalised state with its past, without padding; arguments as in `state_with_past`."""
        state = state_with_past(states, gaps_ns, delay_ms if self.config.most_delay_ms else None)
        affine = self._normalisation.inputs.get(STATE)
        return state if affine is None else affine.normalised(state)

    def _noise(self, stamp_ns: int) -> Tensor:
        """[M, H, A] float32, the same for the same seed and stamp; more candidates do not change the first ones."""
        sizes = self.sizes
        generator = np.random.default_rng([self._settings.noise_seed, stamp_ns % STAMPS])
        shape = (sizes.candidates, sizes.horizon, sizes.dims)
        noise = generator.standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(noise * np.float32(self._settings.noise_scale))


class PublishedFlow:
    """A checkpoint directory; CheckpointError for weights that are missing or truncated."""

    unnorm_keys = UNNORM_KEYS

    def __init__(self, directory: Path, checkpoint: FlowCheckpoint[Any], architecture: FlowArchitecture[Any]) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._architecture = architecture
        self.inputs = inputs_of(checkpoint)
        self._shapes = tensor_shapes(directory)
        settings = checkpoint.settings
        steps, candidates = settings.steps or architecture.sizes.steps, settings.candidates
        self._sizes = replace(architecture.sizes, steps=steps, candidates=candidates)

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """Memory of what is loaded, and of sessions."""
        architecture, sizes = self._architecture, self._sizes
        weights = architecture.weights(self._shapes)
        floats = weights.floats + (sizes.steps + 1) * architecture.time_numbers
        return architecture.footprint(replace(weights, floats=floats), sizes, dtype)

    def load(self, placement: Placement) -> DenoisingPolicy:
        """Read the weights and the tokenizer; CheckpointError says what is wrong with them."""
        architecture, processors = self._architecture, self._checkpoint.processors
        network = architecture.read_network(self._directory, placement)
        texts = architecture.texts_for(network, processors.tokenizer, processors.tokens)
        return DenoisingPolicy(
            self._checkpoint, architecture, sizes=self._sizes, network=network, texts=texts, placement=placement
        )


def rtc_settings(settings: FlowSettings, config: FlowConfig) -> RTCSettings | None:
    """Real-time chunking as configured."""
    if settings.rtc is None:
        return None
    trained = settings.rtc.trained_max_delay or config.trained_delay
    return RTCSettings(
        schedule=Schedule(settings.rtc.schedule),
        execution_horizon=settings.rtc.execution_horizon or min(DEFAULT_HORIZON, config.chunk),
        max_guidance_weight=settings.rtc.max_guidance_weight,
        trained_max_delay=trained if settings.rtc.mode == "trained" else 0,
    )
