"""The entry of a family of policies in the registry (policies/registry.py).

Control reads it too, so nothing here imports torch; `load` and `prepare` import theirs when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeflow.hub import cached, fetch
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode

if TYPE_CHECKING:
    from edgeflow.engine.control.engine import EngineOptions, PassEngine
    from edgeflow.engine.policy import LoadOptions, Policy, Published
    from edgeflow.kernels.table.model_shape import ModelShape

Settings = Mapping[str, Any]
"""The keys of the configuration's section `policy`, but `family`."""

DEFAULTS_FILE = "edgeflow.json"
"""The file of a checkpoint that gives defaults of the section `policy`, for families that read it."""
TOKEN_MODES = (Mode.SERIAL, Mode.PIPELINED, Mode.SPECULATIVE)
DENOISING_MODES = (Mode.SERIAL, Mode.PIPELINED)
"""Denoising steps cannot be drafted."""
ONE_PASS_MODES = (Mode.SERIAL,)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The JSON files by which a checkpoint's family is recognised."""

    config: Mapping[str, Any]
    names: frozenset[str] = frozenset()
    """The names of the checkpoint's files."""

    @classmethod
    def of(cls, directory: Path) -> CheckpointFiles:
        """Those of a checkpoint; CheckpointError for a config.json that is missing or unreadable."""
        return cls(read_json(directory / "config.json"), frozenset(path.name for path in directory.iterdir()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file of another repository of the hub that a checkpoint names and does not contain."""

    repository: str
    file: str
    folder: str
    """The folder of the checkpoint where the family looks for it."""


def check_kind(config: Mapping[str, Any], key: str, kind: str, *, family: str) -> None:
    """Raise CheckpointError for a config.json that does not state this family."""
    if config.get(key) != kind:
        raise CheckpointError(f"policy.family: {family}, but config.json has {described_kind(config, key)}")


def described_kind(config: Mapping[str, Any], key: str = "") -> str:
    """The family that a config.json states, for messages. key: the entry that should state it; by default any."""
    stated = [f"{each} {repr(config[each])[:60]}" for each in ("model_type", "type") if each in config]
    if key in config or (not key and stated):
        return " and ".join(stated)
    return " but ".join([f"no {key or 'model_type and no type'}", *stated])


def decoder_shape(directory: Path, rows: int) -> ModelShape:
    """The shape of the decoder that config.json describes. rows: of a prompt."""
    from edgeflow.models.shape import checkpoint_shape

    return checkpoint_shape(directory, rows)


def engine_of(policy: Policy, options: EngineOptions) -> PassEngine:
    """The engine for the stages of a policy, where it takes no other options."""
    from edgeflow.engine.control.engine import flow_engine, one_pass_engine, token_engine

    program = policy.program(policy.unnorm_keys[0])
    if program.step_rows:
        return flow_engine(policy, options)
    return token_engine(policy, options) if program.passes > 1 else one_pass_engine(policy, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How policies of one architecture are recognised, checked, loaded and served."""

    name: str
    """The name, as in `policy.family`."""
    modes: tuple[Mode, ...]
    """The modes that differ for its policies, besides depth and auto."""
    detect: Callable[[CheckpointFiles], bool]
    """Recognises a checkpoint of the family."""
    check: Callable[[Path, Settings], object]
    """Checks a directory and settings without reading weights; CheckpointError or ConfigError for what cannot be
    served.
    """
    load: Callable[[Path, Settings, LoadOptions], Published]
    """Reads a checkpoint's configuration, from which the policy is loaded."""
    prepare: Callable[[Policy, EngineOptions], PassEngine] = engine_of
    """Makes the engine that serves a loaded policy."""
    shape: Callable[[Path, int], ModelShape] = decoder_shape
    """The sizes of the decoder and its products, for prompts of so many rows, without reading weights."""
    formats: bool = False
    """True where slots may have other KV formats than the model's own."""
    named_files: Callable[[Path], Sequence[NamedFile]] = lambda _: ()
    """The files of other repositories that a checkpoint lacks. They are fetched into the hub's cache or the folder."""
    example: Mapping[str, Any] = field(default_factory=dict)
    """A configuration to begin with; its values are examples."""
    decisions: Mapping[str, str] = field(default_factory=dict)
    """The keys of `example` that depend on the robot or the training data, and what to write there."""


def reject_crop(family: str, options: LoadOptions) -> None:
    """Raise ConfigError for a centre crop, which policies of this family do not have."""
    if options.center_crop:
        raise ConfigError(f"center_crop: policies of this family, {family}, take whole images; remove it")


def check_files(directory: Path, *names: str) -> None:
    """Raise CheckpointError, naming all that are missing, for a directory without one of these files."""
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise CheckpointError(f"model: {directory} has no {' and no '.join(missing)}: fetch the checkpoint again")


First = TypeVar("First")
Second = TypeVar("Second")


def both(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """The results of two independent checks; where both fail, one error has both texts."""
    try:
        found = first()
    except (CheckpointError, ConfigError) as error:
        try:
            second()
        except (CheckpointError, ConfigError) as other:
            raise type(error)(f"{error.text}; {other.text}") from None
        raise
    return found, second()


def fetch_named_files(family: Family, directory: Path, *, inside: bool) -> None:
    """Fetch the files of other repositories that a checkpoint names and lacks; CheckpointError as in `fetch`.

    inside: into the checkpoint's folder; otherwise into the hub's cache, unless they are there.
    """
    for each in family.named_files(directory):
        files = (each.file,)
        if inside or cached(each.repository, files, each.file) is None:
            fetch(each.repository, f"model: its {each.file}", files, directory / each.folder if inside else None)
