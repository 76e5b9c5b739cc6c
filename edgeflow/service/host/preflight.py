"""Checks of the configuration and the model directory before anything is loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from edgeflow.artifacts.files import open_artifact
from edgeflow.artifacts.manifest import is_artifact
from edgeflow.config.devices import PROFILE_NAMES
from edgeflow.config.sections import PolicyConfig, RecordingConfig, TraceConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.hub import cached
from edgeflow.model_paths import EMBEDDED_CHAT, is_hub_id, resolve_head, resolve_model
from edgeflow.policies.family import fetch_named_files
from edgeflow.policies.registry import family_of, try_plugins
from edgeflow.service.host.files import read_file
from edgeflow.text.checkpoint_json import MAX_JSON_BYTES, where_it_is
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, ConfigError, DependencyError, how_to_install
from edgeflow_client.files import open_regular, read_regular

MAX_HEADER_BYTES = 100 << 20
RECORD_LIBRARIES = {"foxglove": "foxglove-sdk", "mcap": "mcap", "msgspec": "msgspec", "xxhash": "xxhash"}
"""The libraries of the extra `record` by module, but for pillow, which the server itself needs."""
TRACE_LIBRARIES = {
    "msgspec": "msgspec",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}
"""The libraries of the extra `trace` by module."""
DEV = Path("/dev")
GPU_DEVICES = ("nvidiactl", "nvhost-ctrl-gpu", "nvhost-gpu", "nvgpu", "nvmap", "dxg", "kfd")
"""Files in /dev of drivers that PyTorch uses as cuda: NVIDIA's on servers and on Jetson, of WSL, AMD's."""


def check_configured(config: ServiceConfig) -> str:
    """Check that everything named in a configuration exists: models, profile, overlays, tokens, certificates, device.
    Returns the name of the plug-in that serves the policy, "" for a built-in family.

    StartError names the key. Nothing is loaded or fetched: of the hub's models only one in its cache is checked.
    """
    path = cached(config.model) if is_hub_id(config.model) else resolve_model(config.model)
    plugin = "" if path is None else check_model_directory(path, config.policy)
    chat = config.chat
    if chat.enabled:
        named = {"model": chat.model, "decode_model": chat.decode_model, "eagle3.model": chat.eagle3.model}
        for key, name in named.items():
            if name not in ("", EMBEDDED_CHAT) and not is_hub_id(name):
                resolve_model(name, chat=key == "model", key=f"chat.{key}")
    files = {"operators": config.operators, "chat.operators": chat.operators if chat.enabled else ""}
    if config.profile not in PROFILE_NAMES:
        files["profile"] = config.profile
    for key, file in files.items():
        try:
            if file:
                open_regular(Path(file)).close()
        except OSError as error:
            known = f"; use {', '.join(PROFILE_NAMES)} or a JSON file" if key == "profile" else ""
            raise ConfigError(f"{key}: cannot read {str(file)!r}: {error.strerror}{known}") from None
    check_recording(config.recording)
    check_trace(config.trace)
    tls = config.tls
    secrets = {"tokens_file": config.tokens_file, "tls.key": tls.key}
    for key, file in {"tls.cert": tls.cert, "tls.client_ca": tls.client_ca, **secrets}.items():
        if file:
            read_file(key, file, private=key in secrets)
    # Whether a driver of a GPU has left its file; the worker asks the libraries, which take seconds to load.
    may_have_cuda = sys.platform != "linux" or any((DEV / name).exists() for name in GPU_DEVICES)
    if config.device == "cuda" and not may_have_cuda:
        raise ConfigError("device: cuda is not available here; run `edgeflow doctor`, or use cpu")
    return plugin


def check_trace(trace: TraceConfig) -> None:
    """Check that traces can be made: DependencyError without the extra `trace`."""
    if trace.on:
        _check_libraries("trace", TRACE_LIBRARIES, "trace")


def _check_libraries(section: str, libraries: Mapping[str, str], extra: str) -> None:
    for module, library in libraries.items():
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # not even its parent
            found = None
        if found is None:
            raise DependencyError(f"{section}: {library} is not installed; {how_to_install(extra)}")


def check_recording(recording: RecordingConfig) -> None:
    """Check that recordings can be made: DependencyError without the extra `record`, ConfigError for a directory."""
    if not recording.on:
        return
    _check_libraries("recording", RECORD_LIBRARIES, "record")
    if recording.directory:
        path = Path(recording.directory).expanduser().absolute()
        found = next(each for each in (path, *path.parents) if each.exists())
        if not found.is_dir():
            raise ConfigError(f"recording.directory: {found} is not a directory: name another one")
        if not os.access(found, os.W_OK | os.X_OK):
            raise ConfigError(f"recording.directory: {found} cannot be written: change its owner, or name another one")


def fetch_configured(config: ServiceConfig, fetching: Callable[[str], object] = lambda _: None) -> None:
    """Fetch the models that a configuration names by hub ids, and the tokenizers that they name, where they are not in
    the hub's cache; CheckpointError says why that is impossible and what to do.

    fetching: called with the name of a model before it is downloaded.
    """
    chat, names = config.chat, {"model": config.model}
    if chat.enabled:
        names |= {"chat.model": chat.model, "chat.decode_model": chat.decode_model}
    for key, name in names.items():
        if is_hub_id(name):
            if cached(name) is None:
                fetching(name)
            path = resolve_model(name, key=key)
            if key == "model":
                plugin = try_plugins(path, config.policy.family, config.policy.settings)
                fetch_named_files(family_of(path, plugin or config.policy.family), path, inside=False)
    if chat.enabled and is_hub_id(chat.eagle3.model):
        resolve_head(chat.eagle3.model, "chat.eagle3.model")


def check_model_directory(path: Path, policy: PolicyConfig | None = None) -> str:
    """Check a model directory and the settings of its policy; typed StartErrors name what is missing, truncated or
    unsupported. Returns the name of the plug-in that serves it, "" for a built-in family.
    """
    config = path / "config.json"
    if not config.is_file():
        raise CheckpointError(f"model: {path} has no config.json: {where_it_is(path, config.name)}")
    _read_object(config)
    asked = policy or PolicyConfig()
    plugin = try_plugins(path, asked.family, asked.settings)
    family_of(path, plugin or asked.family).check(path, asked.settings)
    if is_artifact(path):
        open_artifact(path)
        return plugin
    for file in find_weights(path).paths:
        try:
            _check_length(file)
        except OSError as error:
            raise CheckpointError(f"model: cannot read {file}: {error.strerror}") from None
    return plugin


def _read_object(file: Path) -> dict[str, object]:
    try:
        value = json.loads(read_regular(file, MAX_JSON_BYTES))
    except OSError as error:
        raise CheckpointError(f"model: cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"model: {file} is not readable JSON: fetch the checkpoint again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"model: {file} is not a JSON object: fetch the checkpoint again")
    return value


def _check_length(file: Path) -> None:
    """Check a safetensors file: an eight-byte length, a JSON header of that length, and the tensors it lists."""
    size = file.stat().st_size
    with open_regular(file) as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise _truncated(file, size)
        try:
            header = json.loads(stream.read(header_bytes))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise CheckpointError(f"model: {file} is not a safetensors file: fetch the checkpoint again") from None
    if size != 8 + header_bytes + max(ends, default=0):
        raise _truncated(file, size)


def _truncated(file: Path, size: int) -> CheckpointError:
    return CheckpointError(f"model: {file} is truncated ({size} bytes): fetch the checkpoint again")
