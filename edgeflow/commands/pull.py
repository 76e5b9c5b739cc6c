"""`edgeflow pull`: fetches a model and what it names, and shows what it needs and a configuration to begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from edgeflow.commands.options import Json, OptionalPath
from edgeflow_client.errors import ConfigError, StartError

if TYPE_CHECKING:
    from edgeflow.policies.family import Family

RATE = "control_rate_hz"
OFFERED = 8  # data sets in a line


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel:
    """A model on this machine, and what is known of it before it is loaded."""

    model: str
    """Its name in the configuration."""
    directory: str
    family: str
    cameras: list[str] | None = None
    """The names of a policy's cameras; None = not known before it is loaded, or a chat model."""
    state: dict[str, int] | None = None
    """Numbers of each state vector."""
    rate_hz: float | None = None
    """The rate of a policy's actions, where the checkpoint states it."""
    weight_bytes: dict[str, int] = field(default_factory=dict)
    """Memory of the weights by dtype, or "stored"."""
    robot_bytes: int = 0
    """Memory for each robot, in bfloat16."""
    decide: dict[str, str] = field(default_factory=dict)
    """Keys of `config` whose values are examples, and what to write there."""
    config: dict[str, Any]
    """A configuration to begin with."""
    command: str
    """Serves it."""


def pull(
    model: Annotated[str, typer.Argument(help="Hub id, or a checkpoint directory that lacks its tokenizer.")],
    to: Annotated[
        OptionalPath, typer.Option(metavar="DIR", help="Folder for the model; default: Hugging Face's cache.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fetch a model with the tokenizer that it names, and print a configuration to serve it.

    An interrupted download is resumed. Weights and texts are fetched, no code.
    """
    from edgeflow.hub import fetch
    from edgeflow.model_paths import is_hub_id, resolve_model
    from edgeflow.models.published import FAMILIES as CHAT
    from edgeflow.policies.family import fetch_named_files
    from edgeflow.policies.registry import detected, family_of, try_plugins
    from edgeflow.text.checkpoint_json import read_json

    from_hub = is_hub_id(model)
    if to is not None and not from_hub:
        raise ConfigError(f"--to: {model} is not a hub id: leave it out")
    directory = fetch(model, "model", folder=to) if from_hub else resolve_model(model, chat=True)
    name = model if to is None else str(to)
    try:
        plugin = try_plugins(directory, "", {})
        if (
            not plugin
            and detected(directory) is None
            and read_json(directory / "config.json").get("model_type") in CHAT
        ):
            found = chat_model(name, directory)
        else:
            family = family_of(directory, plugin)
            fetch_named_files(family, directory, inside=to is not None or not from_hub)
            found = policy(name, directory, family)
    except StartError as error:
        if from_hub:
            text = f"{model} was fetched into {directory}, and cannot be served yet: {error.text}"
            raise type(error)(text) from error
        raise
    if as_json:
        print(json.dumps({key: value for key, value in asdict(found).items() if value is not None}, indent=2))
    else:
        show(found)


def policy(name: str, directory: Path, family: Family) -> PulledModel:
    """A policy's needs, by its JSON files and the headers of its weights. name: in the configuration.

    StartError says all that is wrong with it.
    """
    import torch

    from edgeflow.config.service import ServiceConfig
    from edgeflow.engine.policy import LoadOptions
    from edgeflow.policies.family import DEFAULTS_FILE
    from edgeflow.text.checkpoint_json import read_json
    from edgeflow.worker.build import kv_need

    config = {**family.example, "model": name}
    meaning = read_json(directory / "config.json").get("edgeflow_action", {})  # of actions, where we trained it
    stated = ({RATE: None} if meaning else {}) | meaning | read_json(directory / DEFAULTS_FILE, required=False)
    config["policy"] = {key: value for key, value in config.pop("policy", {}).items() if key not in stated}
    settings = {key: value for key, value in config["policy"].items() if key != "family"}
    try:
        family.check(directory, settings)
    except ConfigError as error:  # another setting than the example's is needed: say which
        key, _, text = error.text.partition(": ")
        return PulledModel(
            model=name,
            directory=str(directory),
            family=family.name,
            weight_bytes=stored_bytes(directory),
            decide={key: text, **family.decisions},
            config=config,
            command=_command(name),
        )
    crop = bool(config.get("center_crop", False))
    published = family.load(directory, settings, LoadOptions(center_crop=crop))
    decide = dict(family.decisions)
    config.pop("unnorm_key", None)
    if len(published.unnorm_keys) > 1:
        config["unnorm_key"] = published.unnorm_keys[0]
        others = ", ".join(published.unnorm_keys[:OFFERED]) + ", …" * (len(published.unnorm_keys) > OFFERED)
        decide["unnorm_key"] = f"the data set of your robot: {others}"
    inputs = getattr(published, "inputs", None)
    cameras = None if inputs is None else [each.name for each in inputs.cameras]
    named = [each.name for each in inputs.cameras if each.named] if inputs else []
    for key in ("cameras", "frontends"):
        config.pop(key, None)
    if named:
        config["cameras"] = {each: each.rsplit(".", 1)[-1] for each in named}
    if len(named) < 2:
        config["policy"].pop("absent_cameras", None)
    dtypes = {"bfloat16": torch.bfloat16, "float32": torch.float32}
    weights = {name: published.footprint(dtype).weight_bytes(dtype) for name, dtype in dtypes.items()}
    need = kv_need(ServiceConfig(), published.footprint(torch.bfloat16), torch.device("cpu"))
    return PulledModel(
        model=name,
        directory=str(directory),
        family=family.name,
        cameras=cameras,
        state=None if inputs is None else {each.name: each.size for each in inputs.state},
        rate_hz=stated.get(RATE),
        weight_bytes=weights,
        robot_bytes=need.total_bytes(1) - need.total_bytes(0),
        decide={key: text for key, text in decide.items() if _has(config, key)},
        config={key: value for key, value in config.items() if value != {}},
        command=_command(name),
    )


def stored_bytes(directory: Path) -> dict[str, int]:
    """The size of the files of weights."""
    from edgeflow.text.weight_files import find_weights

    return {"stored": sum(path.stat().st_size for path in find_weights(directory).paths)}


def chat_model(name: str, directory: Path) -> PulledModel:
    """A chat model; CheckpointError says what is wrong with it."""
    from edgeflow.models.published import read_published

    return PulledModel(
        model=name,
        directory=str(directory),
        family=read_published(directory).family,
        weight_bytes=stored_bytes(directory),
        config={"chat": {"model": name}},
        command=_command(name),
    )


def show(found: PulledModel) -> None:
    """Print it for a person."""
    from edgeflow.engine.memory import size

    memory = " or ".join(f"{size(count)} ({dtype})" for dtype, count in found.weight_bytes.items()) + " of weights"
    if found.robot_bytes:
        memory += f", {size(found.robot_bytes)} for each robot"
    unknown = "see /v1/models of the running service"
    lines = {"model": f"{found.family}, in {found.directory}"}
    if "chat" not in found.config:
        vectors = found.state and [f"{name}, {count} numbers" for name, count in found.state.items()]
        lines["cameras"] = unknown if found.cameras is None else ", ".join(found.cameras)
        lines["state"] = unknown if vectors is None else "; ".join(vectors or ["none"])
        if found.rate_hz or RATE in found.config.get("policy", {}):
            lines["rate"] = f"{found.rate_hz:g} Hz" if found.rate_hz else "the checkpoint does not state it"
    lines["memory"] = memory
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for name, text in lines.items():
        console.print(f"{name:<8} {text}")
    for key, text in found.decide.items():
        console.print(f"decide   {key}: {text}")
    console.print(f"\nSave this as {_file(found.model)}, with your values:\n")
    console.print(json.dumps(found.config, indent=2))
    console.print(f"\nThen: {found.command}")


def _has(config: Mapping[str, Any], key: str) -> bool:
    """True if a configuration has a dotted key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _file(name: str) -> str:
    return f"{Path(name).resolve().name if Path(name).exists() else Path(name).name}.json"


def _command(name: str) -> str:
    return f"edgeflow serve --config {_file(name)}"
