"""The pipelines around a network: policy_preprocessor.json and policy_postprocessor.json with their statistics.

Published source: LeRobot's processor/pipeline.py and normalize_processor.py. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeflow.policies.lerobot.features import ACTION, TYPES
from edgeflow.policies.lerobot.statistics import IDENTITY, KINDS, Affine, names_of, read_statistics
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.fields import Fields
from edgeflow_client.errors import CheckpointError

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
RENAME, BATCH, DEVICE = "rename_observations_processor", "to_batch_processor", "device_processor"
NORMALISE, UNNORMALISE = "normalizer_processor", "unnormalizer_processor"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
OLDER_NAMES = {"delta_actions_processor": RELATIVE}
"""Present names of steps by those of earlier versions of LeRobot."""
EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Normalisation:
    """sources: the name under which each input of the network is observed. inputs: by the network's name; an input that
    is missing stays as it is. action: None = the network's actions are in the robot's units.
    """

    sources: Mapping[str, str]
    inputs: Mapping[str, Affine]
    action: Affine | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline's steps in order: name and entry of each."""

    file: str
    steps: tuple[tuple[str, Fields], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.steps)

    def one(self, name: str) -> Fields:
        """The entry of a step that has to be there once."""
        found = [entry for step, entry in self.steps if step == name]
        if len(found) != 1:
            raise CheckpointError(f"{self.file} has {len(found)} steps {name}; served: one")
        return found[0]

    def ordered(self, first: str, second: str) -> None:
        """Refuse a pipeline in which a step comes after one that it has to precede."""
        if self.names.index(first) > self.names.index(second):
            raise CheckpointError(f"{self.one(first).where}: {first} comes after {second}; served: before it")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Normaliser:
    """kinds: of normalisation, by feature."""

    kinds: Mapping[str, str]
    eps: float
    state_file: str


def read_pipeline(directory: Path, name: str, served: Sequence[str]) -> Pipeline:
    """Read a pipeline; CheckpointError for a file that is missing and for a step that is not served."""
    if not (directory / name).is_file():
        raise CheckpointError(
            f"{directory} has no {name}: only checkpoints with LeRobot's processor pipelines are served; "
            "LeRobot converts older ones with its migrate_policy_normalization"
        )
    entries = Fields(name, read_json(directory / name)).objects("steps")
    return Pipeline(name, tuple((_known(entry, served), entry) for entry in entries))


def read_normalisation(
    directory: Path, before: Pipeline, after: Pipeline, inputs: Mapping[str, tuple[int, ...]], action: int
) -> Normalisation:
    """Renaming and statistics of both pipelines; CheckpointError names the step or statistic at fault.

    inputs: shapes of the network's inputs; [3, 1, 1] for images. action: D.
    """
    affines = _affines(directory, _normaliser(before.one(NORMALISE)), inputs)
    outputs = _affines(directory, _unnormaliser(after.one(UNNORMALISE)), {ACTION: (action,)})
    return Normalisation(_sources(before, tuple(inputs)), affines, outputs.get(ACTION))


def _known(entry: Fields, served: Sequence[str]) -> str:
    key = "registry_name" if "registry_name" in entry else "class"
    stated = entry.text(key)
    step = OLDER_NAMES.get(stated, stated)
    if key == "class" or step not in served:
        raise CheckpointError(f"{entry.where}: the step {stated} is not served; served: {', '.join(served)}")
    if step == DEVICE:
        entry.object("config").only("float_dtype", "float32")
    if step in (RELATIVE, ABSOLUTE) and entry.object("config").flag("enabled", False):
        raise CheckpointError(f"{entry.where}: the step {stated} is enabled; served: disabled")
    return step


def _sources(before: Pipeline, inputs: Sequence[str]) -> dict[str, str]:
    """The observed name of each input: the renaming, which comes before the normalisation, backwards."""
    if RENAME not in before.names:
        return {name: name for name in inputs}
    entry = before.one(RENAME)
    before.ordered(RENAME, NORMALISE)
    renamed = entry.object("config").object("rename_map")
    new_names = {old: renamed.text(old) for old in renamed}
    sources = {}
    for name in inputs:
        found = [old for old, new in new_names.items() if new == name]
        if not found and name not in new_names:
            found = [name]
        if len(found) != 1:
            raise CheckpointError(f"{renamed.where}: {len(found)} names become {name}; served: one")
        sources[name] = found[0]
    return sources


def _normaliser(entry: Fields) -> _Normaliser:
    """The step before the network: of the features that it lists, by their types."""
    config = entry.object("config")
    features, kinds = config.object("features"), _kinds(config)
    types = {name: features.object(name).choice("type", TYPES) for name in features}
    chosen = config.texts("normalize_observation_keys") if "normalize_observation_keys" in config else tuple(types)
    return _step(entry, {name: kinds.get(kind, IDENTITY) for name, kind in types.items() if name in chosen})


def _unnormaliser(entry: Fields) -> _Normaliser:
    """The step behind the network, which knows only one feature: the action, listed or not."""
    return _step(entry, {ACTION: _kinds(entry.object("config")).get("ACTION", IDENTITY)})


def _kinds(config: Fields) -> dict[str, str]:
    """Kinds of normalisation by type of feature."""
    mapping = config.object("norm_map")
    return {kind: mapping.choice(kind, KINDS) for kind in mapping}


def _step(entry: Fields, kinds: Mapping[str, str]) -> _Normaliser:
    state_file = entry.text("state_file") if "state_file" in entry else ""
    if Path(state_file).name != state_file:
        raise CheckpointError(f"{entry.name('state_file')} is {state_file!r}; served: a file of the checkpoint")
    return _Normaliser(kinds=kinds, eps=entry.object("config").positive("eps", EPS), state_file=state_file)


def _affines(directory: Path, step: _Normaliser, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Affine]:
    """The normalisation of each feature in `shapes` that has one."""
    kinds = {name: step.kinds[name] for name in shapes if step.kinds.get(name, IDENTITY) != IDENTITY}
    if not kinds:
        return {}
    names = {name: [f"{name}.{each}" for each in names_of(kind)] for name, kind in kinds.items()}
    wanted = {each: shapes[name] for name, both in names.items() for each in both}
    if not step.state_file:
        raise CheckpointError(
            f"{directory} has no statistics for {', '.join(kinds)}: its processor names no state_file"
        )
    found = read_statistics(directory / step.state_file, wanted)
    return {name: Affine.of(kind, [found[each] for each in names[name]], step.eps) for name, kind in kinds.items()}
