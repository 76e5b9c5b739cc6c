"""Locations of model files: in the package, in a directory, or on the hub."""

from __future__ import annotations

from pathlib import Path

from edgeflow.hub import HEAD_FILES, HUB_ID, cached, fetch
from edgeflow_client.errors import CheckpointError

EMBEDDED_MODEL = "demo"
EMBEDDED_POLICY = Path(__file__).parent / "embedded" / "policy"
EMBEDDED_FLOW = "demo-flow"
EMBEDDED_FLOW_POLICY = Path(__file__).parent / "embedded" / "flow_policy"
EMBEDDED_CHAT = "demo-chat"
EMBEDDED_CHAT_MODEL = Path(__file__).parent / "embedded" / "chat_model"
EMBEDDED_LOGS = "demo-logs"
EMBEDDED_LOG_MODEL = Path(__file__).parent / "embedded" / "log_model"


def resolve_model(name: str, *, chat: bool = False, key: str = "model") -> Path:
    """The directory of `demo`, of `demo-flow`, of a path, or of a hub id. chat: of `demo-chat` and `demo-logs` too.
    key: of the configuration, by which errors name it.

    Of the hub only files of HUB_FILES are fetched: weights and texts, no code. What is in its cache is not fetched
    again: `edgeflow pull` fetches what is new.
    """
    embedded = {
        EMBEDDED_MODEL: (EMBEDDED_POLICY, "policy", ""),
        EMBEDDED_FLOW: (EMBEDDED_FLOW_POLICY, "policy", " --policy flow"),
    }
    if chat:
        embedded[EMBEDDED_CHAT] = (EMBEDDED_CHAT_MODEL, "chat model", " --chat")
        embedded[EMBEDDED_LOGS] = (EMBEDDED_LOG_MODEL, "chat model for logs", " --logs")
    if name in embedded:
        folder, kind, option = embedded[name]
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{key}: the embedded {kind} is not installed: run `edgeflow train-demo{option}`")
        return folder
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(name):
        *others, last = embedded
        raise CheckpointError(
            f"{key}: {name} is not a directory: give a checkpoint directory, a hub id, {', '.join(others)} or {last}"
        )
    return cached(name) or fetch(name, key)


def is_hub_id(name: str) -> bool:
    """True if the name has the form `owner/name` and there is no such local path."""
    return bool(HUB_ID.fullmatch(name)) and not Path(name).exists()


def resolve_head(name: str, key: str) -> Path:
    """The directory of an EAGLE-3 head: a path, or a hub id. key: of the configuration, by which errors name it."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(name):
        raise CheckpointError(f"{key}: {name} is not a directory: give the directory or the hub id of an EAGLE-3 head")
    return cached(name, HEAD_FILES) or fetch(name, key, HEAD_FILES)
