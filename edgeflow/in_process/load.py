"""Models in the calling process: for notebooks, simulators and tests. Imports torch only when something is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_FLOW, EMBEDDED_LOGS, EMBEDDED_MODEL
from edgeflow.openmp import limit_spinning
from edgeflow_client.errors import ConfigError

if TYPE_CHECKING:
    from edgeflow.config.service import ServiceConfig
    from edgeflow.in_process.chat import LocalChat
    from edgeflow.in_process.policy import LocalPolicy


def load(model: str | Path, *, config: str | Path | None = None, **settings: Any) -> LocalPolicy:
    """Load a policy into this process, as the worker of a service would; typed StartErrors.

    model: a checkpoint directory, a hub id, or an embedded policy: demo, demo-flow. config: a configuration file of the
    service. settings: keys of the configuration, which win over the file: `device="cpu"`; of a section as a dict,
    `policy={"control_rate_hz": 30}`, or by its dotted key, `**{"policy.control_rate_hz": 30}`.

    torch computes with `threads` threads (1 unless set) in the whole process from then on, as in a worker.
    """
    _reject_other_kind("load_chat", model, (EMBEDDED_CHAT, EMBEDDED_LOGS))
    configured = _configured("model", model, config, settings)
    from edgeflow.policies.registry import try_plugins

    policy = configured.policy
    if plugin := try_plugins(configured.model_path, policy.family, policy.settings):
        configured = configured.model_copy(update={"policy": policy.model_copy(update={"family": plugin})})
    from edgeflow.in_process.policy import LocalPolicy

    return LocalPolicy(configured)


def load_chat(model: str | Path, *, config: str | Path | None = None, **settings: Any) -> LocalChat:
    """Load a chat model into this process; typed StartErrors.

    model: a checkpoint directory, a hub id, or an embedded model: demo-chat, demo-logs. config, settings: as in `load`;
    what chat reads are `device`, `threads`, `graphs` and the section `chat`, as in `chat={"capacity": 4096}`.
    """
    _reject_other_kind("load", model, (EMBEDDED_MODEL, EMBEDDED_FLOW))
    configured = _configured("chat.model", model, config, settings)
    from edgeflow.in_process.chat import LocalChat

    return LocalChat(configured)


def _reject_other_kind(function: str, model: str | Path, names: tuple[str, ...]) -> None:
    """Raise ConfigError for an embedded model that the other function loads."""
    if model in names:
        raise ConfigError(f"model: {model} is loaded with edgeflow.{function}")


def _configured(
    key: str, model: str | Path, config: str | Path | None, settings: Mapping[str, object]
) -> ServiceConfig:
    """The configuration with `model` under a dotted key. Libraries that are loaded afterwards spin as in a worker."""
    limit_spinning(os.environ)
    from edgeflow.config.service import ServiceConfig, keys_of, load_config

    overrides = dict(_dotted(settings, frozenset(keys_of(ServiceConfig))))
    return load_config(None if config is None else Path(config), {**overrides, key: str(model)})


def _dotted(settings: Mapping[str, object], known: frozenset[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Settings by dotted key. A dict is a section, or the value of a key such as `cameras`."""
    for name, value in settings.items():
        key = prefix + name
        if isinstance(value, Mapping) and any(each.startswith(f"{key}.") for each in known):
            yield from _dotted(value, known, f"{key}.")
        else:
            yield key, value
