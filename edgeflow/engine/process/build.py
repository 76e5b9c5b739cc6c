"""Builds a policy engine from a configuration: device, dtype, policy, KV slots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from edgeflow.config import ServiceConfig
from edgeflow.engine.control.actions import PolicyEngine
from edgeflow.engine.device import choose_device, choose_dtype, choose_graphs, device_name
from edgeflow.engine.memory import FIXED_BYTES, KVNeed, activation_bytes, choose_sessions, describe, free_bytes
from edgeflow.engine.policy import INSTRUCTION
from edgeflow.engine.table import operator_table
from edgeflow.errors import ConfigError
from edgeflow.kernels.kv.formats import DENSE
from edgeflow.kernels.kv.slots import rounded_capacity
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.checkpoint import fingerprint
from edgeflow.policies.openvla.config import OpenVLAConfig, load_config
from edgeflow.policies.openvla.footprint import Footprint, read_footprint
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.ring import Shift
from edgeflow.scheduler.scheduler import SchedulerLimits


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine with the limits that its scheduler must keep. memory: one line about its KV, for a person."""

    engine: PolicyEngine
    limits: SchedulerLimits
    device_name: str
    model_fingerprint: str
    memory: str


def build_engine(config: ServiceConfig, chat_bytes: int = 0) -> BuiltEngine:
    """Load the policy and reserve its KV slots; typed StartErrors when that cannot be.

    chat_bytes: memory to keep free for the chat model, which is loaded after the policy.
    """
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or 1)
    dtype = choose_dtype(config.dtype, device)
    path = config.model_path
    published = load_config(path, center_crop=config.center_crop)
    keys = published.statistics  # before the long part, so that a wrong key is reported at once
    if config.unnorm_key and config.unnorm_key not in keys:
        raise ConfigError(f"unnorm_key: {config.unnorm_key!r} is not one of {', '.join(keys)}")
    table = operator_table(Path(config.operators) if config.operators else None, config.weights, device, dtype)
    graphs = choose_graphs(config.graphs, device, dtype)
    if graphs and dtype == torch.float32:
        table = table.forcing(packed_attention="masked")  # what serves float32 else reads slots on the host
    footprint = read_footprint(path, published)
    need = kv_need(config, published, footprint.image_tokens, dtype, device, spare=int(graphs), chat_bytes=chat_bytes)
    _check_before_loading(config, need, footprint, dtype, device)
    policy = OpenVLAPolicy.load(
        path,
        dtype,
        device,
        center_crop=config.center_crop,
        table=table,
        preprocess_on_device=choose_preprocess(config.preprocess, device),
    )
    engine, limits, memory = _reserve(policy, config, need, device, table=table, graphs=graphs)
    return BuiltEngine(engine, limits, device_name(device), fingerprint(path), memory)


def kv_need(
    config: ServiceConfig,
    published: OpenVLAConfig,
    image_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    spare: int = 0,
    chat_bytes: int = 0,
) -> KVNeed:
    """The memory that sessions of a policy take: slots for the longest prompt that is allowed."""
    text = published.text
    heads = text.num_key_value_heads, text.head_dim
    return KVNeed(
        ring=published.action_width,
        spare=spare,
        capacity=rounded_capacity(image_tokens + config.max_prompt_tokens + published.action_width),
        position_bytes=text.num_hidden_layers * DENSE.position_bytes(*heads, dtype),
        reserve_bytes=FIXED_BYTES[device.type] + activation_bytes(text, config.row_budget, dtype),
        chat_bytes=chat_bytes,
    )


def _check_before_loading(
    config: ServiceConfig, need: KVNeed, footprint: Footprint, dtype: torch.dtype, device: torch.device
) -> None:
    """Sessions that cannot fit are refused before minutes are spent on loading the weights."""
    decoder_itemsize = 1 if config.weights == "fp8" else dtype.itemsize
    weights = footprint.decoder * decoder_itemsize + footprint.vision * dtype.itemsize
    choose_sessions(config.max_sessions, need, free_bytes(device) - weights)


def _reserve(
    policy: OpenVLAPolicy,
    config: ServiceConfig,
    need: KVNeed,
    device: torch.device,
    *,
    table: OperatorTable,
    graphs: bool,
) -> tuple[PolicyEngine, SchedulerLimits, str]:
    """The engine with its slots, the limits they set, and a line about their memory."""
    shortest = len(policy.prompt_ids(INSTRUCTION))
    if config.max_prompt_tokens < shortest:
        limit = config.max_prompt_tokens
        raise ConfigError(
            f"max_prompt_tokens: {limit} is too few, a short instruction takes {shortest} with this model"
        )
    _check_speculation(config, policy)
    free = free_bytes(device)
    sessions = choose_sessions(config.max_sessions, need, free)
    limits = SchedulerLimits(
        stages=policy.K,
        max_sessions=sessions,
        row_budget=config.row_budget,
        drain_after_ns=config.drain_after_ms * 1_000_000,
        shift=Shift(config.shift),
    )
    memory = describe(sessions, need, free)
    positions = policy.image_tokens + config.max_prompt_tokens + policy.K
    try:
        engine = PolicyEngine(policy, limits.slots, positions, table=table, graphs=graphs, shift=limits.shift)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f"max_sessions: {memory} cannot be reserved; lower max_sessions or max_prompt_tokens"
        ) from error
    return engine, limits, memory


def _check_speculation(config: ServiceConfig, policy: OpenVLAPolicy) -> None:
    """Refuse a default that no session of this model could have."""
    if config.max_passes > policy.K:
        raise ConfigError(f"max_passes: is {config.max_passes}; this model takes 1 to {policy.K}")
    if config.tolerance_bins and not any(policy.near):
        raise ConfigError("tolerance_bins: this model has no displacements, which alone may settle within bins")


def choose_preprocess(name: str, device: torch.device) -> bool:
    """True when frames are preprocessed on the device; `auto` does so on CUDA."""
    return name == "device" or (name == "auto" and device.type == "cuda")
