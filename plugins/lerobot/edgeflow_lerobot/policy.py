"""A LeRobot policy as a policy of one pass: LeRobot's own network between the checkpoint's own processors."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from edgeflow_lerobot.family import LeRobotCheckpoint
from edgeflow_lerobot.randomness import FrameByFrame, Tensors
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.contract import PROMPT, CameraNeed, Observation, ObservationWindow, PolicyInputs, Stage, StageProgram
from edgeflow.engine.control.samples import sample_observations
from edgeflow.engine.policy import INSTRUCTION, Footprint, Placement, Vectors
from edgeflow.models.checkpoint import tensor_shapes
from edgeflow.policies.lerobot import CONFIG_FILE, DEVICE, STATE, UNNORM_KEYS, action_schema, local_folder
from edgeflow.policies.tensors import image_of, unit_range, vector_of
from edgeflow.text.tokenizer import TOKENIZER_FILE
from edgeflow_client.errors import CheckpointError, DependencyError, EdgeflowError
from edgeflow_client.types import ActionSchema, StateSpec

CPU = torch.device("cpu")
STAMPS = 1 << 64
TOKENIZER = "tokenizer_processor"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"
IMAGE, IMAGES = "observation.image", "observation.images"
"""Names by which queues of policies hold the only image, and all images."""
VLM = "vlm"
"""The folder of the checkpoint in which the model that it names, or its tokenizer, may lie."""
KEEPS_A_PLAN = ("tdmpc",)
"""Policies that predict chunks from what their last call left."""
LIVE = 3 * 64 // 4
"""Numbers per pixel of a residual network's largest feature maps, three of which are in memory at once."""


@dataclass(frozen=True, slots=True)
class StepTensors:
    """One observation as the preprocessor returns it, or, joined, as many as the policy needs."""

    tensors: Tensors
    """[1, ...] each; joined [1, n_obs_steps, ...], the oldest first."""
    seed: int
    """Seed of the draws of its answer."""
    session: int

    @property
    def tokens(self) -> int:
        """Tokens of the prompt; 0 without one."""
        return self.tensors[TOKENS].shape[-1] if TOKENS in self.tensors else 0


class AnyLeRobotPolicy:
    """Predicts chunks; frames of several robots are a batch.

    network: LeRobot's policy. before, after: its pipelines. single: it answers by `select_action`.
    """

    unnorm_keys = UNNORM_KEYS
    fixed_rows = 1
    rtc = None
    unusual_states = 0

    def __init__(
        self,
        checkpoint: LeRobotCheckpoint,
        network: Any,
        before: Any,
        after: Any,
        *,
        placement: Placement,
        single: bool,
    ) -> None:
        self.device, self.dtype = placement.device, placement.dtype
        self._checkpoint = checkpoint
        self._network, self._before, self._after = network, before, after
        self._single = single
        self._place = placement.device if placement.preprocess_on_device else CPU
        self._tokenizer = next((each for each in before.steps if hasattr(each, "input_tokenizer")), None)
        self._observations = 1 if single else checkpoint.observations
        self._draws = FrameByFrame(self._answer, placement.device)
        self._session = 0
        self.horizon: int | None = None
        example = self._example()
        self._names = tuple(example.tensors)
        predicted = self.run(self.batch([example], example.tokens), on_host=False).shape[1]
        self.horizon = min(predicted, checkpoint.horizon or predicted)

    @property
    def inputs(self) -> PolicyInputs:
        """The observed names of the inputs, and the observations that an answer needs, one step of the data apart."""
        checkpoint, settings = self._checkpoint, self._checkpoint.settings
        cameras = [
            CameraNeed(name=checkpoint.sources[each.name], width=each.width, height=each.height)
            for each in checkpoint.cameras
        ]
        vectors = [
            StateSpec(
                name=checkpoint.sources[name],
                size=size,
                elements=tuple(settings.state_names) if name == STATE else (),
                units=tuple(settings.state_units) if name == STATE else (),
            )
            for name, size in checkpoint.vectors.items()
        ]
        count = self._observations
        step_ms = 1000.0 / settings.control_rate_hz if count > 1 else 0.0
        return PolicyInputs(cameras=tuple(cameras), state=tuple(vectors), history=count, history_step_ms=step_ms)

    def program(self, unnorm_key: str | None = None) -> StageProgram:  # noqa: ARG002 - there is one dataset
        """A single pass."""
        return StageProgram((Stage(rows=PROMPT),))

    def text_rows(self, instruction: str, state: Vectors | None = None) -> int:
        """Tokens of the instruction, as the preprocessor pads it; 0 for a policy that does not read it."""
        if self._tokenizer is None:
            return 0
        zeros = {source: (0.0,) * self._checkpoint.vectors[name] for name, source in self._vectors()}
        observed = self._observed(
            Observation(images={}, state={**zeros, **(state or {})}, instruction=instruction), images=False
        )
        return int(self._before(observed)[TOKENS].shape[-1])

    def prepare(self, observation: Observation) -> StepTensors:
        """The tensors that the preprocessor makes of an observation; InvalidArgument for one that lacks an input
        or has it in another size."""
        seen = self._before(self._observed(observation))
        tensors = {
            name: each for name, each in seen.items() if isinstance(each, Tensor) and name.startswith("observation.")
        }
        entropy = [self._checkpoint.settings.noise_seed, observation.stamp_ns % STAMPS]
        (seed,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64).tolist()
        return StepTensors(tensors, seed >> 1, observation.session)

    def joined(self, window: ObservationWindow) -> StepTensors:
        """The observations of an answer in one; its seed is the newest one's."""
        newest: StepTensors = window.frames[-1]
        stacked = {name: torch.stack([each.tensors[name] for each in window.frames], 1) for name in newest.tensors}
        return replace(newest, tensors=stacked)

    def prompt_tokens(self, frame: StepTensors) -> int:
        """Tokens of the prompt, as the preprocessor padded it."""
        return frame.tokens

    def batch(self, frames: Sequence[StepTensors], tokens: int) -> list[Tensor]:
        """B frames → int64 [B, 2] of seeds and sessions, then [B, ...] of each tensor, prompts padded to `tokens`"""
        columns = [torch.cat([self._padded(frame, name, tokens) for frame in frames]) for name in self._names]
        numbers = [(frame.seed, frame.session) for frame in frames]
        return [torch.tensor(numbers, device=columns[0].device), *columns]

    def run(self, batch: Sequence[Tensor], *, on_host: bool) -> Tensor:  # noqa: ARG002 - seeds are read in any case
        """A batch → actions [B, horizon, D] as the network predicts them, float32, on the device"""
        numbers, *columns = batch
        seeds, sessions = zip(*numbers.tolist(), strict=True)
        if self._single and self._session != sessions[0]:
            self._network.reset()
            self._session = sessions[0]
        tensors = {name: each.to(self.device) for name, each in zip(self._names, columns, strict=True)}
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32):
            actions = self._draws(tensors, seeds)
        return actions[:, : self.horizon].float()

    def actions(
        self,
        values: NDArray[np.float64],
        unnorm_key: str | None = None,  # noqa: ARG002 - there is one dataset
    ) -> NDArray[np.float64]:
        """[horizon, D] of `run` → [horizon, D] by the postprocessor, within the configured limits; NaN if not finite"""
        sent = self._after(torch.from_numpy(values).float()).double().numpy()
        settings = self._checkpoint.settings
        return np.where(
            np.isfinite(sent), sent.clip(settings.action_low or -np.inf, settings.action_high or np.inf), np.nan
        )

    def action_schema(self, unnorm_key: str | None = None) -> ActionSchema:
        """The meaning of actions as configured, or as files beside the checkpoint state it."""
        settings = self._checkpoint.settings
        return action_schema(
            unnorm_key,
            self._checkpoint.action,
            self.horizon,
            settings.control_rate_hz,
            names=settings.action_names,
            units=settings.action_units,
            low=settings.action_low,
            high=settings.action_high,
            relative=settings.action_relative,
            frame=settings.frame,
            rotation=settings.rotation,
        )

    def _vectors(self) -> Iterator[tuple[str, str]]:
        return ((name, self._checkpoint.sources[name]) for name in self._checkpoint.vectors)

    def _observed(self, observation: Observation, *, images: bool = True) -> dict[str, Any]:
        """An observation as LeRobot's robots give it to the preprocessor, a batch of one."""
        found: dict[str, Any] = {"task": observation.instruction}
        for camera in self._checkpoint.cameras if images else ():
            name = self._checkpoint.sources[camera.name]
            image = image_of(observation, name, camera.width, camera.height)
            found[name] = unit_range(image, self._place)[None]
        for name, source in self._vectors():
            vector = vector_of(observation.state, source, self._checkpoint.vectors[name])
            found[source] = torch.tensor([vector], dtype=torch.float32, device=self._place)
        return found

    def _padded(self, frame: StepTensors, name: str, tokens: int) -> Tensor:
        values = frame.tensors[name]
        if name not in (TOKENS, MASK) or values.shape[-1] == tokens:
            return values
        gap = tokens - values.shape[-1]
        filler = self._tokenizer.input_tokenizer.pad_token_id if name == TOKENS else 0
        return F.pad(values, (gap, 0) if self._tokenizer.padding_side == "left" else (0, gap), value=filler or 0)

    def _answer(self, tensors: Tensors) -> Tensor:
        """[B, ...] each → [B, H, D]"""
        if self._single:
            return self._network.select_action(tensors)[:, None]
        queues = getattr(self._network, "_queues", {})
        if not any(name.startswith("observation.") for name in queues):
            return self._network.predict_action_chunk(tensors)
        steps = [tensors]
        if self._observations > 1:
            steps = [{name: each[:, step] for name, each in tensors.items()} for step in range(self._observations)]
        return self._by_queues([self._as_queued(step, queues) for step in steps])

    def _as_queued(self, tensors: Tensors, queues: Any) -> Tensors:
        """One observation, with its images by the name that the queues have."""
        images = [tensors[each.name] for each in self._checkpoint.cameras]
        if IMAGES in queues and images:
            return {**tensors, IMAGES: torch.stack(images, dim=-4)}
        return {**tensors, IMAGE: images[0]} if IMAGE in queues and images else tensors

    def _by_queues(self, steps: Sequence[Tensors]) -> Tensor:
        """The chunk of a policy that reads the last observations in its own queues, which begin empty here."""
        from lerobot.policies.utils import populate_queues

        self._network.reset()
        for step in steps:
            self._network._queues = populate_queues(self._network._queues, step)
        chunk = self._network.predict_action_chunk(steps[-1])
        seen = self._network._queues
        shifted = [name for name, each in steps[-1].items() if name in seen and len(seen[name]) != len(steps)]
        moved = [name for name, each in steps[0].items() if name in seen and seen[name][0] is not each]
        if shifted or moved:
            text = f"model: a policy of type {self._checkpoint.kind} fills its queue of {(shifted or moved)[0]} itself"
            raise CheckpointError(f"{text}; served: policies whose select_action does, or with n_obs_steps 1")
        return chunk

    def _example(self) -> StepTensors:
        (observation,) = sample_observations(self.inputs, 1, INSTRUCTION)
        frame = self.prepare(observation)
        count = self._observations
        return frame if count == 1 else self.joined(ObservationWindow((frame,) * count, (0,) * (count - 1)))


class OneRobotPolicy(AnyLeRobotPolicy):
    """A policy that answers one action at a time from what it keeps between calls, which only one robot may share."""

    def begin(self, session: int) -> None:  # noqa: ARG002 - there is one
        """Forget what earlier sessions left, before the next frame."""
        self._session = 0

    def end(self, session: int) -> None:
        """Nothing is kept by session."""


class PublishedLeRobot:
    """A checkpoint directory; CheckpointError for a type that the installed LeRobot does not have."""

    unnorm_keys = UNNORM_KEYS

    def __init__(self, directory: Path, checkpoint: LeRobotCheckpoint) -> None:
        self._directory, self._checkpoint = directory, checkpoint
        self._numbers = sum(map(math.prod, tensor_shapes(directory).values()))
        self._class, self._config = _published(directory, checkpoint)
        predict = getattr(self._class, "predict_action_chunk", None)
        raises = predict is None or "NotImplementedError" in inspect.unwrap(predict).__code__.co_names
        self._single = raises or checkpoint.kind in KEEPS_A_PLAN

    def footprint(self, dtype: torch.dtype) -> Footprint:
        """The weights, in the precision in which LeRobot loads them; an estimate of a frame's activations."""
        pixels = sum(each.height * each.width for each in self._checkpoint.cameras)
        return Footprint(
            decoder=0,
            other=self._numbers * torch.float32.itemsize // dtype.itemsize,
            slots=0,
            positions=0,
            row_bytes=0,
            frame_bytes=self._checkpoint.observations * pixels * (3 + LIVE) * torch.float32.itemsize,
            most_sessions=1 if self._single else None,
        )

    def load(self, placement: Placement) -> AnyLeRobotPolicy:
        """Read the weights and both pipelines, and run the policy once; CheckpointError says what is wrong."""
        from lerobot.policies.factory import make_pre_post_processors

        checkpoint, directory = self._checkpoint, self._directory
        self._config.device = str(placement.device)
        place = placement.device if placement.preprocess_on_device else CPU
        overrides: dict[str, dict[str, Any]] = {DEVICE: {"device": str(place)}}
        if TOKENIZER in checkpoint.before.names:
            named = checkpoint.before.one(TOKENIZER).object("config").text("tokenizer_name")
            overrides[TOKENIZER] = {"tokenizer_name": _found(directory, "tokenizer_name", named, TOKENIZER_FILE)}
        overrides = {name: each for name, each in overrides.items() if name in checkpoint.before.names}
        after = {DEVICE: {"device": "cpu"}} if DEVICE in checkpoint.after.names else {}
        with _explained(checkpoint.kind, directory):
            network = self._class.from_pretrained(directory, config=self._config, strict=True)
            pipelines = make_pre_post_processors(
                self._config, str(directory), preprocessor_overrides=overrides, postprocessor_overrides=after
            )
            kind = OneRobotPolicy if self._single else AnyLeRobotPolicy
            return kind(checkpoint, network, *pipelines, placement=placement, single=self._single)


def _published(directory: Path, checkpoint: LeRobotCheckpoint) -> tuple[Any, Any]:
    """LeRobot's class of the policy, and its configuration without what would be fetched or compiled."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    try:
        import huggingface_hub.constants
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class
        from lerobot.utils.import_utils import register_third_party_plugins
    except ImportError as error:
        text = f"the plug-in lerobot needs LeRobot, which could not be imported ({error})"
        raise DependencyError(f"{text}: install it as plugins/lerobot/README.md says") from error
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    with _explained(checkpoint.kind, directory):
        register_third_party_plugins()
        config = PreTrainedConfig.from_pretrained(directory)
        found = get_policy_class(config.type)
    for name, value in (("pretrained_backbone_weights", None), ("compile_model", False)):
        if hasattr(config, name):
            setattr(config, name, value)  # weights are those of the checkpoint
    if hasattr(config, "vlm_model_name"):
        config.vlm_model_name = _found(directory, "vlm_model_name", config.vlm_model_name, CONFIG_FILE)
    return found, config


def _found(directory: Path, key: str, name: str, file: str) -> str:
    """Where a model that the checkpoint names lies, by one of its files; CheckpointError where it is not at hand."""
    from huggingface_hub import try_to_load_from_cache

    for each in (local_folder(directory, name), local_folder(directory, VLM), Path(name)):
        if each is not None and (each / file).is_file():
            return str(each.resolve())
    if not Path(name).is_absolute() and isinstance(try_to_load_from_cache(name, file), str):
        return name
    raise CheckpointError(
        f"model: {key} of {directory} is {name!r}, and neither its folder {VLM} nor Hugging Face's cache has {file} of "
        f"that: nothing is fetched while serving, so run `hf download {name}` first"
    )


@contextlib.contextmanager
def _explained(kind: str, directory: Path) -> Iterator[None]:
    """Turn what LeRobot raises into a CheckpointError of one line. What it prints is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except EdgeflowError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = " ".join(lines[:2])[:300] or "no message"
        raise CheckpointError(
            f"model: LeRobot cannot load the {kind} of {directory}: {type(error).__name__}: {cause}"
        ) from error
