"""Where exported graphs run, and the prompts that they hold."""

from __future__ import annotations

import torch

from edgeflow.artifacts.sessions import Runtime
from edgeflow.config.service import ServiceConfig
from edgeflow.engine.policy import INSTRUCTION, Placement, Policy
from edgeflow_client.errors import CheckpointError, ConfigError, InvalidArgument
from edgeflow_client.reasons import Reason


def runtime_of(config: ServiceConfig) -> Runtime:
    """By the configured providers, with the threads of the worker."""
    return Runtime(providers=tuple(config.artifact.providers), threads=config.threads or 1)


def check_placement(placement: Placement) -> None:
    """ConfigError for a device or a dtype that graphs do not have."""
    check_host(placement.device, str(placement.dtype).removeprefix("torch."))


def check_prompt(tokens: int, most: int) -> None:
    """InvalidArgument for a prompt that no bucket holds."""
    if tokens > most:
        raise InvalidArgument(
            f"has {tokens} prompt tokens; the model was exported for {most}",
            field="instruction",
            reason=Reason.INSTRUCTION_TOO_LONG,
        )


def check_text(policy: Policy) -> None:
    """CheckpointError for a policy whose buckets do not hold an ordinary instruction."""
    try:
        policy.text_rows(INSTRUCTION)
    except InvalidArgument as error:
        raise CheckpointError(f"model: {INSTRUCTION!r} {error.text}: export it with more tokens of text") from None


def check_host(device: torch.device, dtype: str, *, section: str = "") -> None:
    """ConfigError for another device than the host, or for another dtype than float32. section: of the configuration
    that names the dtype, as in `operator_table`.
    """
    if device.type != "cpu":
        raise ConfigError(
            f"device: {device.type}; an exported artifact is fed on the host: use cpu, and artifact.providers for an "
            "accelerator"
        )
    if dtype not in ("auto", "float32"):
        raise ConfigError(
            f"{section}dtype: {dtype}; an exported artifact takes and gives float32: use auto or float32; the "
            "precision of its graphs is chosen when it is exported"
        )
