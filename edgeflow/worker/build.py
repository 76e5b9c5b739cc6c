"""Builds the engine of a policy from a configuration: device, dtype, policy, slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgeflow.artifacts.manifest import is_artifact
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.control.engine import EngineOptions, PassEngine
from edgeflow.engine.control.history import check_history, kept_bytes
from edgeflow.engine.control.samples import SIDE
from edgeflow.engine.control.trajectory import Trajectory
from edgeflow.engine.memory import FIXED_BYTES, MOST_SESSIONS, KVNeed, choose_sessions, describe, free_bytes
from edgeflow.engine.placement import (
    choose_device,
    choose_dtype,
    choose_graphs,
    device_name,
    operator_table,
    runtime_of,
    set_precision,
)
from edgeflow.engine.policy import INSTRUCTION, POLICY_PARTS, Footprint, LoadOptions, Placement, Policy
from edgeflow.kernels.kv.formats import DENSE
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.overlay import tune_options
from edgeflow.model_paths import is_hub_id
from edgeflow.models.checkpoint import fingerprint
from edgeflow.models.quantization import reject_conversion
from edgeflow.policies.family import fetch_named_files
from edgeflow.policies.registry import family_of
from edgeflow.scheduler.scheduler import SchedulerLimits
from edgeflow.scheduler.session import Shift
from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine with the limits that its scheduler must keep."""

    engine: PassEngine
    limits: SchedulerLimits
    family: str
    device_name: str
    model_fingerprint: str
    memory: str
    """The memory of its slots, in one line for people."""
    rounds: bool
    """As in `warm_up`."""
    remarks: tuple[str, ...] = ()
    """Remarks on the checkpoint, shown at the start."""


def build_engine(config: ServiceConfig, chat_bytes: int = 0) -> BuiltEngine:
    """Load the policy and reserve its slots; typed StartErrors if that is impossible.

    chat_bytes: memory to keep free for the chat model, which is loaded after the policy.
    """
    device = choose_device(config.device)
    torch.set_num_threads(config.torch_threads)
    set_precision()
    dtype = choose_dtype(config.dtype, device)
    path = config.model_path
    family = family_of(path, config.policy.family)
    if is_hub_id(config.model):
        fetch_named_files(family, path, inside=False)  # control has done so for a service
    reject_conversion(path, config.weights, "weights")
    published = family.load(path, config.policy.settings, LoadOptions(center_crop=config.center_crop))
    keys = published.unnorm_keys  # before the slow part, so that a wrong key is reported at once
    if config.unnorm_key and config.unnorm_key not in keys:
        raise ConfigError(f"unnorm_key: {config.unnorm_key!r} is not one of {', '.join(keys)}")
    overlay = Path(config.operators) if config.operators else None
    tuned_for = tune_options(config.model)
    table = operator_table(overlay, config.weights, device, dtype, tuned_for=tuned_for, threads=config.torch_threads)
    footprint = published.footprint(dtype)
    _check_family(config, family.name, footprint)
    graphs = footprint.graphs and choose_graphs(config.graphs, device, dtype)
    if graphs and dtype == torch.float32:
        table = table.forcing(packed_attention="masked")  # other implementations of float32 read slots on the host
    need = kv_need(config, footprint, device, spare=int(graphs), chat_bytes=chat_bytes)
    weights = footprint.weight_bytes(dtype, config.weights)  # checks the memory before minutes of loading
    most = _most_sessions(config.max_sessions, family.name, footprint)
    choose_sessions(config.max_sessions, need, free_bytes(device) - weights, most)
    placement = Placement(
        dtype=dtype,
        device=device,
        table=table,
        preprocess_on_device=choose_preprocess(config.preprocess, device),
        runtime=runtime_of(config),
    )
    policy = published.load(placement)
    _check_policy(config, policy)
    side = policy.frame_shape[0][-1] if hasattr(policy, "frame_shape") else SIDE  # of prepared pixels
    need = replace(need, frame_bytes=need.frame_bytes + kept_bytes(policy.inputs, side))
    free = free_bytes(device)
    sessions = choose_sessions(config.max_sessions, need, free, most)
    options = EngineOptions(
        sessions=sessions,
        text_rows=config.max_prompt_tokens,
        table=table,
        row_budget=footprint.row_budget(config.row_budget, config.max_prompt_tokens),
        graphs=graphs,
        shift=Shift(config.shift),
    )
    memory = describe(sessions, need, free)
    try:
        engine = family.prepare(policy, options)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f"max_sessions: {memory} cannot be reserved; lower max_sessions or max_prompt_tokens"
        ) from error
    _check_speculation(config, engine)
    limits = SchedulerLimits(
        stages=max(policy.program(key).passes for key in policy.unnorm_keys),  # a ring has a slot for each of them
        max_sessions=sessions,
        row_budget=options.row_budget,
        drain_after_ns=config.drain_after_ms * 1_000_000,
        shift=options.shift,
    )
    remarks = ["" if is_artifact(path) else find_weights(path).remark]
    if (robots := footprint.most_sessions) is not None:
        remarks.append(f"this policy serves {robots} robot{'s' * (robots > 1)} at a time, as it keeps state of its own")
    return BuiltEngine(
        engine=engine,
        limits=limits,
        family=family.name,
        device_name=device_name(device),
        model_fingerprint=fingerprint(path, config.policy.settings),
        memory=memory,
        rounds=config.weights != "float" or footprint.quantised > 0 or footprint.kv_format is not DENSE,
        remarks=tuple(filter(None, remarks)),
    )


def kv_need(
    config: ServiceConfig,
    footprint: Footprint,
    device: torch.device,
    *,
    spare: int = 0,
    chat_bytes: int = 0,
) -> KVNeed:
    """The memory of a policy's sessions: slots for the longest permitted prompt."""
    longest = footprint.positions + config.max_prompt_tokens
    single = longest + max(footprint.slots - 2, 0) * footprint.step_rows  # a single session may exceed the budget
    rows = max(footprint.row_budget(config.row_budget, config.max_prompt_tokens), single)
    capacity = footprint.capacity or rounded_capacity(longest)
    return KVNeed(
        ring=footprint.slots,
        spare=spare,
        capacity=capacity,
        slot_bytes=footprint.slot_bytes(capacity),
        reserve_bytes=FIXED_BYTES[device.type] + rows * footprint.row_bytes,
        frame_bytes=footprint.frame_bytes + footprint.slots * footprint.visited_bytes(capacity, device),
        chat_bytes=chat_bytes,
    )


def _most_sessions(configured: int | None, name: str, footprint: Footprint) -> int:
    """The most sessions that are reserved where `max_sessions` is not set; ConfigError where it exceeds what the policy
    can serve.
    """
    most = footprint.most_sessions or MOST_SESSIONS
    if configured is not None and footprint.most_sessions is not None and configured > most:
        raise ConfigError(f"max_sessions: is {configured}; this policy, of the family {name}, serves at most {most}")
    return min(most, MOST_SESSIONS)


def _check_family(config: ServiceConfig, name: str, footprint: Footprint) -> None:
    """Reject settings that have no effect for this family."""
    if config.graphs == "on" and not footprint.graphs:
        raise ConfigError(f"graphs: passes of the family {name} are not replayed; use auto or off")
    for key, given in (("weights", config.weights != "float"), ("operators", bool(config.operators))):
        if given and not footprint.decoder:
            raise ConfigError(f"{key}: the model, of the family {name}, does not use the operator table; remove it")


def _check_policy(config: ServiceConfig, policy: Policy) -> None:
    """Reject limits that leave no room for a short instruction, limits on motions that this policy does not have, and
    answers that no client could accept.
    """
    missing = [name for name in POLICY_PARTS if not hasattr(policy, name)]
    if missing:
        found = f"policy.family: {type(policy).__name__} has no {' and no '.join(missing)}"
        raise ConfigError(f"{found}, which every policy needs; see docs/policies/write-your-own.md")
    check_history(policy)
    shortest, limit = policy.text_rows(INSTRUCTION), config.max_prompt_tokens
    if limit < shortest:
        raise ConfigError(
            f"max_prompt_tokens: {limit} is too few, a short instruction takes {shortest} with this model"
        )
    try:
        for key in policy.unnorm_keys:
            Trajectory(config.trajectory, policy.action_schema(key), policy.inputs)
    except ValueError as error:
        raise CheckpointError(f"model: {error}") from None


def _check_speculation(config: ServiceConfig, engine: PassEngine) -> None:
    """Reject a default that no session of this model can have."""
    most = max(engine.policy.program(key).passes for key in engine.policy.unnorm_keys)
    if config.max_passes > most:
        raise ConfigError(f"max_passes: is {config.max_passes}; this model takes 1 to {most}")
    if config.mode == "depth" and config.depth > most:
        raise ConfigError(f"depth: is {config.depth}; this model takes 1 to {most}")
    if config.tolerance_bins and not any(engine.near):
        raise ConfigError("tolerance_bins: this model has no displacements, and only these may differ by bins")


def choose_preprocess(name: str, device: torch.device) -> bool:
    """True when frames are preprocessed on the device; `auto` does so on CUDA."""
    return name == "device" or (name == "auto" and device.type == "cuda")
