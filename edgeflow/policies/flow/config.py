"""A checkpoint of LeRobot's flow-matching policies without its weights: sizes, pipelines and settings. Torch-free.

A file edgeflow.json beside the checkpoint gives defaults of the section `policy`; configured keys win.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import is_artifact
from edgeflow.contract import MOST_HISTORY
from edgeflow.hub import HUB_ID, cached
from edgeflow.policies.family import DEFAULTS_FILE, NamedFile, Settings, both
from edgeflow.policies.lerobot import (
    ABSOLUTE,
    ACTION,
    BATCH,
    CONFIG_FILE,
    DEVICE,
    NORMALISE,
    POSTPROCESSOR,
    PREPROCESSOR,
    RELATIVE,
    RENAME,
    STATE,
    UNNORMALISE,
    ImageInput,
    Normalisation,
    local_folder,
    read_cameras,
    read_normalisation,
    read_pipeline,
    read_vector,
)
from edgeflow.policies.settings import STRICT, Name, StatedSettings, check_stated, check_unique, validated
from edgeflow.text.checkpoint_json import Fields, read_json
from edgeflow.text.tokenizer import TOKENIZER_FILE
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import check_chunk

MOST_STEPS = 100
MOST_CAMERAS = 16
MOST_SIDE = 1024  # pixels
MOST_TOKENS = 1024
MOST_DIMS = 1024  # numbers of a padded vector
EMPTY = "observation.images.empty_camera_"
"""Cameras by which a config counts those that its training did not have; they are never observed."""
MOST_CANDIDATES = 16
MOST_GUIDANCE = 100.0
MISSING = {
    "control_rate_hz": "the checkpoint does not state it: set the rate of the training's data, "
    "such as --set policy.control_rate_hz=30"
}
HISTORY, DELAY = "history", "most_delay_ms"
"""Facts that a checkpoint may state in DEFAULTS_FILE, beside defaults of settings."""
TOKENIZER = "tokenizer_processor"
BEFORE = (RENAME, BATCH, RELATIVE, NORMALISE, TOKENIZER, DEVICE)
AFTER = (UNNORMALISE, ABSOLUTE, DEVICE)
"""The steps that are served, besides the one that writes the text."""
Config = TypeVar("Config")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """Sizes that every flow-matching policy has."""

    cameras: tuple[ImageInput, ...]
    """The image inputs, in the order of the prefix."""
    state: int
    """Numbers of the state vector."""
    action: int
    """D, numbers of an action."""
    side: int
    """Pixels of the square images that the network takes."""
    prompt: int
    """The most tokens of a text."""
    chunk: int
    """H, actions that the network computes."""
    horizon: int
    """Actions of an answer."""
    steps: int
    """N, denoising steps."""
    state_dims: int
    """S, numbers of the padded state."""
    dims: int
    """A, numbers of a padded action."""
    periods: tuple[float, float]
    """The shortest and longest period in the embedding of flow times."""
    trained_delay: int = 0
    """The most rows that training kept clean for real-time chunking; 0 = none."""
    history: int = 1
    """F, observations of an answer (PolicyInputs.history)."""
    history_step_ms: float = 0.0
    most_delay_ms: float = 0.0
    """As in PolicyInputs."""

    @property
    def images(self) -> int:
        """The number of images of a prefix with all cameras."""
        return self.history * len(self.cameras)

    @property
    def state_inputs(self) -> int:
        """The numbers of the state with its past and the delay (policies/flow/observing.state_with_past)."""
        return self.history * (self.state + 1) - (not self.most_delay_ms)


def read_flow_config(values: Fields, *, steps: str, side: str) -> FlowConfig:
    """Read and check them; CheckpointError names the key and what is served.

    steps, side: the keys of the number of steps and of the size of images.
    """
    values.only("n_obs_steps", 1)
    inputs = values.object("input_features")
    cameras = tuple(each for each in read_cameras(inputs) if not each.name.startswith(EMPTY))
    if not 1 <= len(cameras) <= MOST_CAMERAS:
        raise CheckpointError(f"{inputs.where} has {len(cameras)} cameras; served: 1 to {MOST_CAMERAS}")
    state = read_vector(inputs, "STATE", STATE)
    if not state:
        raise CheckpointError(f"{inputs.where} lacks {STATE}; served: with a state")
    action = values.object("output_features").object(ACTION).shape("shape", 1)[0]
    state_dims, dims = (at_most(values, key, 32, MOST_DIMS) for key in ("max_state_dim", "max_action_dim"))
    for what, size, most in ((STATE, state, state_dims), (ACTION, action, dims)):
        if size > most:
            raise CheckpointError(f"{values.where}: {what} has {size} numbers; served: at most its padded {most}")
    chunk = values.size("chunk_size", 50)
    horizon = values.size("n_action_steps", chunk)
    if horizon > chunk:
        raise CheckpointError(f"{values.name('n_action_steps')} is {horizon}; served: at most chunk_size, {chunk}")
    try:
        check_chunk(chunk, dims)
    except ValueError as error:
        raise CheckpointError(f"{values.name('chunk_size')} is {chunk}: {error}") from None
    return FlowConfig(
        cameras=cameras,
        state=state,
        action=action,
        side=_square(values, side),
        prompt=at_most(values, "tokenizer_max_length", 48, MOST_TOKENS),
        chunk=chunk,
        horizon=horizon,
        steps=at_most(values, steps, 10, MOST_STEPS),
        state_dims=state_dims,
        dims=dims,
        periods=_periods(values),
        trained_delay=_trained_delay(values, chunk),
    )


def with_history(config: FlowConfig, directory: Path) -> FlowConfig:
    """The configuration with the history and the longest delay that a checkpoint states beside its settings.

    CheckpointError names the key, and what is served.
    """
    stated = Fields(DEFAULTS_FILE, read_json(directory / DEFAULTS_FILE, required=False))
    frames, step_ms = 1, 0.0
    if HISTORY in stated:
        entry = stated.object(HISTORY)
        unknown = [key for key in entry if key not in ("frames", "step_ms")]
        if unknown:
            raise CheckpointError(f"{entry.name(unknown[0])} is not known; served: frames and step_ms")
        frames, step_ms = at_most(entry, "frames", None, MOST_HISTORY), entry.positive("step_ms", None)
        if frames < 2:
            raise CheckpointError(f"{entry.name('frames')} is {frames}; served: 2 to {MOST_HISTORY}")
    delay_ms = stated.positive(DELAY, None) if DELAY in stated else 0.0
    found = replace(config, history=frames, history_step_ms=step_ms, most_delay_ms=delay_ms)
    if found.state_inputs > config.state_dims:
        raise CheckpointError(
            f"{CONFIG_FILE}.max_state_dim is {config.state_dims}; with history and delay of {DEFAULTS_FILE}, {STATE} "
            f"has {found.state_inputs} numbers"
        )
    return found


def at_most(values: Fields, key: str, default: int | None, most: int) -> int:
    """A size with a bound below that of all sizes."""
    size = values.size(key, default)
    if size > most:
        raise CheckpointError(f"{values.name(key)} is {size}; served: 1 to {most}")
    return size


def _square(values: Fields, key: str) -> int:
    width, height = values.shape(key, 2)
    if width != height or width > MOST_SIDE:
        raise CheckpointError(f"{values.name(key)} is {width} x {height}; served: squares of at most {MOST_SIDE}")
    return width


def _trained_delay(values: Fields, chunk: int) -> int:
    key = "rtc_training_max_delay"
    delay = values.number(key, 0) if key in values else 0.0
    if not delay.is_integer() or not 0 <= delay <= chunk:
        raise CheckpointError(f"{values.name(key)} is {delay:g}; served: integers from 0 to chunk_size, {chunk}")
    return int(delay)


def _periods(values: Fields) -> tuple[float, float]:
    shortest, longest = values.positive("min_period", 4e-3), values.positive("max_period", 4.0)
    if shortest > longest:
        raise CheckpointError(f"{values.name('min_period')} is {shortest}; served: at most max_period, {longest}")
    return shortest, longest


def _between(low: float, high: float) -> AfterValidator:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(f"must be {low:g} to {high:g}")
        return value

    return AfterValidator(check)


class ChunkingSettings(BaseModel):
    """Real-time chunking: how an answer continues the chunk in execution. By default, answers start anew."""

    model_config = STRICT

    schedule: Literal["ZEROS", "ONES", "LINEAR", "EXP"] = Field(
        "LINEAR", description="weights of the guidance over the rows that continue the chunk"
    )
    execution_horizon: Annotated[int, Field(ge=1)] | None = Field(
        None, description="rows that are guided, at most; unset = 10, or the chunk"
    )
    max_guidance_weight: Annotated[float, _between(0.0, MOST_GUIDANCE)] = Field(
        10.0, description="bound of the guidance"
    )
    mode: Literal["guided", "trained"] = Field(
        "guided", description="trained: rows that will have been executed are set instead of guided"
    )
    trained_max_delay: Annotated[int, Field(ge=1)] | None = Field(
        None, description="most rows that the training set; unset = rtc_training_max_delay of the checkpoint"
    )


class FlowSettings(StatedSettings):
    """Settings of a flow-matching policy: what its checkpoint lacks, and how answers are computed."""

    absent_cameras: list[Name] = Field([], description="cameras of the checkpoint that the robot does not have")
    steps: Annotated[int, _between(1, MOST_STEPS)] | None = Field(
        None, description="denoising steps; unset = those of the checkpoint"
    )
    candidates: Annotated[int, _between(1, MOST_CANDIDATES)] = Field(
        1, description="chunks that are computed per frame; the best one is sent"
    )
    rtc: ChunkingSettings | None = Field(None, description="real-time chunking; unset = answers start anew")


Stated = TypeVar("Stated", bound=FlowSettings)


def read_settings(family: str, directory: Path, given: Settings, config: FlowConfig, model: type[Stated]) -> Stated:
    """The settings for a checkpoint; ConfigError names the key, what is wrong and what to write.

    model: those that the family has.
    """
    stated = read_json(directory / DEFAULTS_FILE, required=False)
    if config.history > 1 or config.most_delay_ms:
        stated = {key: value for key, value in stated.items() if key not in (HISTORY, DELAY)}
    read = validated(family, model, {**stated, **given}, MISSING)
    check_stated(read, action=config.action, state=config.state)
    check_unique("absent_cameras", read.absent_cameras)
    _check_cameras(read.absent_cameras, [camera.name for camera in config.cameras])
    if read.rtc is not None:
        _check_chunking(read.rtc, config)
    return read


def _check_cameras(absent: list[str], cameras: list[str]) -> None:
    unknown = [name for name in absent if name not in cameras]
    if unknown:
        raise ConfigError(f"policy.absent_cameras: {unknown[0]!r} is not one of {', '.join(cameras)}")
    if len(absent) == len(cameras):
        raise ConfigError("policy.absent_cameras: names all cameras of the checkpoint; leave at least one")


def _check_chunking(rtc: ChunkingSettings, config: FlowConfig) -> None:
    if rtc.execution_horizon is not None and rtc.execution_horizon > config.chunk:
        raise ConfigError(f"policy.rtc.execution_horizon: {rtc.execution_horizon} must be 1 to {config.chunk}")
    most = config.trained_delay or config.chunk
    if rtc.trained_max_delay is not None and rtc.trained_max_delay > most:
        raise ConfigError(f"policy.rtc.trained_max_delay: {rtc.trained_max_delay} must be 1 to {most}")
    if rtc.trained_max_delay is not None and rtc.mode != "trained":
        raise ConfigError('policy.rtc.trained_max_delay: is for "mode": "trained"; set that, or remove it')
    if rtc.mode == "trained" and not (rtc.trained_max_delay or config.trained_delay):
        raise ConfigError(
            "policy.rtc.mode: this checkpoint does not say that it was trained for it: use guided, or state "
            "policy.rtc.trained_max_delay, the most rows that its training kept"
        )


@dataclass(frozen=True, slots=True)
class FlowProcessors:
    """Processing of a flow-matching policy's inputs and outputs."""

    normalisation: Normalisation
    tokens: int
    """The most tokens of a text; the rest of it is cut off."""
    tokenizer: Path
    """The folder of tokenizer.json."""


def load_processors(
    directory: Path, config: FlowConfig, *, writer: str, reads_state: bool, folders: tuple[str, ...]
) -> FlowProcessors:
    """Read and check both pipelines; CheckpointError names the step, statistic or file at fault.

    writer: the step that makes the text from the task. reads_state: it writes the normalised state into it. folders:
    where tokenizer.json may lie besides the folder that the pipeline names.
    """
    before = read_pipeline(directory, PREPROCESSOR, (*BEFORE, writer))
    after = read_pipeline(directory, POSTPROCESSOR, AFTER)
    before.one(writer)
    entry = before.one(TOKENIZER).object("config")
    before.ordered(writer, TOKENIZER)
    if reads_state:
        before.ordered(NORMALISE, writer)
    shapes: dict[str, tuple[int, ...]] = {camera.name: (3, 1, 1) for camera in config.cameras}
    shapes[STATE] = (config.state_inputs,)
    normalisation, tokenizer = both(
        lambda: read_normalisation(directory, before, after, shapes, config.action),
        lambda: find_tokenizer(directory, entry.text("tokenizer_name"), folders),
    )
    images = [name for name in normalisation.inputs if name != STATE]
    if images:
        raise CheckpointError(f"{PREPROCESSOR}: {images[0]} is normalised by statistics; served: IDENTITY")
    entry.only("padding_side", "right")
    entry.only("truncation", True)
    entry.only("task_key", "task")
    return FlowProcessors(
        normalisation,
        at_most(entry, "max_length", config.prompt, MOST_TOKENS),
        tokenizer,
    )


def find_tokenizer(directory: Path, name: str, folders: tuple[str, ...]) -> Path:
    """The folder of tokenizer.json: of the checkpoint, or else of its repository in the hub's cache.

    name: of the tokenizer, as the checkpoint states it. CheckpointError, with the first of `folders`, without one.
    """
    found = _tokenizer_inside(directory, name, folders)
    if found is None and HUB_ID.fullmatch(name):
        found = cached(name, (TOKENIZER_FILE,), TOKENIZER_FILE)
    if found is None:
        raise CheckpointError(
            f"{directory} has no {TOKENIZER_FILE} of {name}, which its pipeline names: run `edgeflow pull` with this "
            f"model, which fetches it, or put that tokenizer into {directory / folders[0]}"
        )
    return found


def _tokenizer_inside(directory: Path, name: str, folders: tuple[str, ...]) -> Path | None:
    candidates = [local_folder(directory, each) for each in (name, *folders)]
    return next((each for each in candidates if each is not None and (each / TOKENIZER_FILE).is_file()), None)


def named_tokenizer(directory: Path, folders: tuple[str, ...]) -> tuple[NamedFile, ...]:
    """The tokenizer of another repository that a checkpoint's pipeline names, if the checkpoint lacks it."""
    pipeline = Fields(PREPROCESSOR, read_json(directory / PREPROCESSOR, required=False))
    for step in pipeline.objects("steps") if "steps" in pipeline else ():
        if "registry_name" in step and step.text("registry_name") == TOKENIZER:
            name = step.object("config").text("tokenizer_name")
            if HUB_ID.fullmatch(name) and _tokenizer_inside(directory, name, folders) is None:
                return (NamedFile(repository=name, file=TOKENIZER_FILE, folder=folders[0]),)
    return ()


@dataclass(frozen=True, slots=True)
class FlowCheckpoint(Generic[Config]):
    """The network's sizes, the pipelines with their statistics, and the settings."""

    config: Config
    processors: FlowProcessors
    settings: FlowSettings


def check_weights(directory: Path) -> None:
    """Raise CheckpointError for a directory without weights, or for an artifact with missing files."""
    if is_artifact(directory):
        open_artifact(directory)
    else:
        find_weights(directory)


def read_parts(
    directory: Path, processors: Callable[[], FlowProcessors], settings: Callable[[], Stated]
) -> tuple[FlowProcessors, Stated]:
    """The processors and settings of a directory with weights; one error names all that is missing."""
    (found, _), read = both(lambda: both(processors, lambda: check_weights(directory)), settings)
    return found, read
