"""The status that the service announces while it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeflow.config.matching import Names, short
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CameraNeed
from edgeflow.ipc.chat_messages import ChatReady
from edgeflow.ipc.messages import WorkerReady
from edgeflow.scheduler.forecast import Forecast
from edgeflow.service.host.listen import address_text
from edgeflow.service.observe.health import HealthState
from edgeflow.service.sessions.shown import actions_summary, state_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """An announcement."""

    phase: HealthState
    step: str = ""
    done: int = 0
    total: int = 0
    """step, done and total: progress of the start. Ports are 0 until they are bound."""
    grpc_address: str = ""
    http_address: str = ""
    grpc_port: int = 0
    http_port: int = 0
    health_port: int = 0
    robots_address: str = ""
    robots_port: int = 0
    model: str = ""
    device: str = ""
    chat: str = ""
    """The chat model and the memory of its slots, in one line; "" without chat."""
    operators: str = ""
    """Operators in use besides the built-in ones, in one line."""
    memory: str = ""
    """KV memory of the sessions, and the memory that was free, in one line."""
    plugin: str = ""
    """The plug-in that brings the policy's family: name, distribution and version; "" for a built-in one."""
    plugins: tuple[str, ...] = ()
    """All installed plug-ins, likewise."""
    recording: str = ""
    """Where robots are recorded, what of them, and when it is deleted, in one line; "" = nothing is recorded."""
    traces: str = ""
    """Where traces go, and of how many frames, in one line; "" = nothing is traced."""
    forecasts: tuple[tuple[str, float, float], ...] = ()
    """(mode, answers per second, latency in ms) for a single robot at full rate, from measured pass times."""
    horizon: int = 1
    """Actions per answer."""
    clients: tuple[str, ...] = ()
    """Robots' own clients that can connect and the names they must use, one line each."""
    warnings: tuple[str, ...] = ()
    """Warnings about settings that the system does not permit."""


MIB = 1 << 20
DRAFTS = {"lookup": "drafts by look-up", "eagle3": "drafts by an EAGLE-3 head"}


def chat_summary(ready: ChatReady) -> str:
    """The model, its drafts, the memory of its slots, and the longest prompt."""
    slots = 1 + len(ready.slots)
    memory = f" with a memory of {_size(ready.long.memory_bytes)}" if ready.long is not None else ""
    each, whole = _size(ready.slot_bytes), _size(ready.kv_bytes)
    scratch = " with one for recordings" if ready.kv_bytes > slots * ready.slot_bytes else ""
    counted = f"{slots} slot{'s' * (slots > 1)}"
    size = f"{counted} of {ready.capacity} positions{memory}, {each} each, {whole} in all{scratch}"
    drafts = f", {DRAFTS.get(ready.draft, ready.draft)}" if ready.draft else ""
    return f"{ready.model} ({ready.family}; {ready.numbers}{drafts}), {size}{_length(ready)}"


def _length(ready: ChatReady) -> str:
    """The range of prompt lengths that slots with a memory serve."""
    if ready.long is None:
        return ""
    return f", for prompts of any length up to {ready.length} tokens; from {ready.long.threshold} on they are folded"


def _size(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size / 1024:.1f} KiB"


FIRST = "any one camera"
ANY_ADDRESS = ("0.0.0.0", "::")
CLIENTS = {"openpi": ("openpi", "ws", "/"), "openvla": ("OpenVLA, OpenVLA-OFT", "http", "/act")}
"""By front end: whose clients it serves, the scheme of its address, without TLS, and its path."""


def clients_summary(config: ServiceConfig, worker: WorkerReady, port: int) -> dict[str, dict[str, Any]]:
    """The front ends for robots' own clients: the address of each, and the client's names by the policy's.

    fits: its clients send these names. rows: that they are taken to execute before they ask again.
    """
    found = {}
    inputs, host = worker.inputs, config.frontends.host
    address = address_text("HOST" if host in ANY_ADDRESS else host, port)
    for front, dialect in config.frontends.dialects.items():
        who, scheme, path = CLIENTS[front]
        names = Names.of(config, inputs, front)
        cameras = {each.name: names.cameras.get(each.name) or _camera(each) for each in inputs.cameras}
        state = {each.name: names.state.get(each.name, short(each.name)) for each in inputs.state}
        found[front] = {
            "clients": who,
            "address": f"{scheme}{'s' if config.tls.cert else ''}://{address}{path}",
            "cameras": cameras,
            "state": state,
            "rows": dialect.rows or -(-worker.schema.horizon // 2),
            "fits": front != "openvla" or _fits_act([*cameras.values()], [*state.values()]),
        }
    return found


def _camera(need: CameraNeed) -> str:
    return short(need.name) if need.named else FIRST


def _fits_act(cameras: Sequence[str], state: Sequence[str | list[str]]) -> bool:
    """True if a client of OpenVLA (image) or of OpenVLA-OFT (full_image, wrist cameras, state) sends these names."""
    alone = cameras in (["image"], [FIRST]) and not state
    return alone or (
        all(each in ("full_image", FIRST) or "wrist" in each for each in cameras) and state in ([], ["state"])
    )


def clients_lines(clients: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The clients for people, one line each."""
    return tuple(
        f"{each['clients']}: {each['address']} (cameras: {_names(each['cameras'])}; state: {_names(each['state'])})"
        if each["fits"]
        else f"{each['clients']}: not with their names for cameras and state; frontends.{front} maps them"
        for front, each in clients.items()
    )


def _names(names: Mapping[str, Any]) -> str:
    """A client's names, with the policy's name beside those that differ."""
    joined = {key: " + ".join(name) if isinstance(name, list) else name for key, name in names.items()}
    shown = [name if name in (key, short(key), FIRST) else f"{name} for {key}" for key, name in joined.items()]
    return ", ".join(shown) or "none"


def policy_summary(worker: WorkerReady) -> dict[str, Any]:
    """The policy's cameras and state, its horizon and step. Sizes are null where any will do.

    named: false for a camera that is the robot's first one, whatever its name.
    """
    return {
        "family": worker.family,
        "plugin": worker.plugin or None,
        "cameras": [
            {"name": each.name, "width": each.width or None, "height": each.height or None, "named": each.named}
            for each in worker.inputs.cameras
        ],
        "state": [state_summary(each) for each in worker.inputs.state],
        "history": worker.inputs.history,
        "history_step_ms": worker.inputs.history_step_ms or None,
        "most_delay_ms": worker.inputs.most_delay_ms or None,
        "horizon": worker.schema.horizon,
        "step_ms": worker.schema.step_ms,
        "control_rate_hz": worker.schema.control_rate_hz or None,
        "actions": actions_summary(worker.schema),
    }


def policy_entry(
    config: ServiceConfig, worker: WorkerReady | None, board: Mapping[str, Any], port: int | None
) -> dict[str, Any]:
    """The policy's entry in /v1/models. port: of front ends, None while none is bound."""
    model: dict[str, Any] = {"id": config.alias, "object": "model", "owned_by": "edgeflow"}
    if worker is not None:
        model["fingerprint"] = worker.model_fingerprint
        model["action_tokens"] = worker.pass_times.stages
        model["unnorm_keys"] = worker.unnorm_keys
        model["mode"] = config.mode
        model |= policy_summary(worker) | dict(board)
        if port is not None:
            model["clients"] = clients_summary(config, worker, port)
    return model


def forecast_line(mode: str, seen: Forecast) -> tuple[str, float, float]:
    """A mode for people, its rate and its age."""
    name = f"{mode} (assuming {seen.passes_per_action:.0f} passes per action)" if seen.assumed else mode
    return name, seen.fps, seen.age_ns / 1e6
