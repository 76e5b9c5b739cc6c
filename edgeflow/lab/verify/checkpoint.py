"""Checks of a checkpoint of any family against outputs recorded from the original implementation, in float32.

On any device, with the same tolerances (`exact_float32`). A policy's family defines the comparisons
(policies/registry.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from edgeflow.contract import KVName
from edgeflow.engine.placement import check_host, choose_device
from edgeflow.kernels.kv.formats import CONFIGURED, DENSE, configured_format
from edgeflow.lab.export.programs import EXPORT
from edgeflow.lab.verify.bundle import CASES_FILE
from edgeflow.lab.verify.chat import verify_chat, verify_chat_weights, verify_exported_chat, verify_kv
from edgeflow.lab.verify.comparison import FP8_BOUNDS, CheckResult, Progress, Results, Verification, exact_float32
from edgeflow.lab.verify.eagle import verify_eagle
from edgeflow.lab.verify.eagle_bundle import is_eagle_bundle
from edgeflow.lab.verify.gate import verify_gate
from edgeflow.lab.verify.gate_bundle import is_gate_bundle
from edgeflow.lab.verify.policies.act import verify as verify_act
from edgeflow.lab.verify.policies.flow.families import verify_pi, verify_smolvla
from edgeflow.lab.verify.policies.openvla import verify as verify_openvla
from edgeflow.lab.verify.policies.openvla_oft import verify as verify_oft
from edgeflow.models.published import FAMILIES, read_published
from edgeflow.models.quantization import reject_conversion
from edgeflow.policies.family import Family
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.registry import family_of
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import Mode


def verify_checkpoint(
    directory: Path,
    modes: Sequence[Mode],
    progress: Progress,
    *,
    kv: KVName = "model",
    weights: str = "float",
    overlay: Path | None = None,
    device: str = "cpu",
    family: str = "",
    artifact: Path | None = None,
) -> Results:
    """Every comparison of a bundle of any family, with its mode.

    modes: of control policies; empty for the family's default; depth and auto stand for all of their paces.
    ConfigError for one that the family does not have; chat models have other modes.

    kv: other than `model`, measure the errors and the memory of that KV format instead.

    weights: other than float, measure the cost of that precision: logits and tokens against float32. ConfigError if
    both are given.

    overlay: operators for a control policy.

    device: cpu, cuda or auto; ConfigError if it, or such weights on it, are not available.

    family: of a policy; by default the one named in the bundle.

    artifact: the folder of exported graphs to check instead of the weights.
    """
    place = choose_device(device)
    reject_conversion(directory, weights, "weights")
    with exact_float32(place):
        given = {
            "mode": bool(modes),
            "kv": CONFIGURED[kv] is not DENSE,
            "weights": weights != "float",
            "operators": overlay is not None,
            "family": bool(family),
            "artifact": artifact is not None,
        }
        if artifact is not None:
            _refuse({each: given[each] for each in ("kv", "weights", "operators")}, "exported graphs")
            check_host(place, "float32")
        if is_gate_bundle(directory):
            _refuse(given, "a memory gate")
            return verify_gate(directory, progress, place)
        if is_eagle_bundle(directory):
            _refuse(given, "an EAGLE-3 head")
            return verify_eagle(directory, progress, place)
        if kv != "model" and weights != "float":
            raise ConfigError(f"kv, weights: {kv} and {weights} are both given; the cost of each is measured by itself")
        kind = read_json(directory / "config.json").get("model_type")
        if isinstance(kind, str) and kind in FAMILIES:
            if modes:
                raise ConfigError(f"mode: {kind} is not a control policy, so it has no such modes")
            if artifact is not None:
                return verify_exported_chat(directory, artifact, progress)
            return _verify_chat(directory, progress, kv, weights, place)
        known = recorded_family(directory, family)
        every_mode = (*known.modes, *([Mode.DEPTH] if Mode.PIPELINED in known.modes else []), Mode.AUTO)
        for mode in modes:
            if mode not in every_mode:
                names = ", ".join(each.value for each in every_mode)
                raise ConfigError(f"mode: policies of the family {known.name} are not run {mode.value}; use {names}")
        if kv != "model" and not known.formats:
            raise ConfigError(
                f"kv: policies of the family {known.name} keep no tokens in KV slots; use model, not {kv}"
            )
        if artifact is not None and known.name not in EXPORT:
            raise ConfigError(f"artifact: policies of the family {known.name} have no static graphs; remove it")
        asked = Verification(
            modes=modes,
            progress=progress,
            weights=weights,
            kv=kv,
            operators=overlay,
            device=place,
            artifact=artifact,
        )
        if known.name not in VERIFY:
            raise ConfigError(f"model: policies of the family {known.name}, a plug-in, have no recordings to verify")
        return VERIFY[known.name](directory, asked)


def _refuse(given: Mapping[str, bool], what: str) -> None:
    """Raise ConfigError if an option was given with a bundle that is checked in its own way."""
    if any(given.values()):
        names = ", ".join(name for name, other in given.items() if other)
        raise ConfigError(f"{names}: a bundle of {what} is checked as it is, in float32: remove this")


def _verify_chat(directory: Path, progress: Progress, kv: KVName, weights: str, device: torch.device) -> Results:
    if weights != "float":
        return verify_chat_weights(directory, weights, FP8_BOUNDS, device)
    own = read_published(directory).text.attention.kv_format
    kv_format = configured_format("kv", kv, own)
    if kv_format is not own:
        return verify_kv(directory, kv_format, progress, device)
    return verify_chat(directory, progress, device)


Verify = Callable[[Path, Verification], Results]
"""Makes every comparison of a bundle of recordings, each with its mode."""


VERIFY: dict[str, Verify] = {
    "openvla": verify_openvla,
    "openvla_oft": verify_oft,
    "act": verify_act,
    "smolvla": verify_smolvla,
    "pi0": partial(verify_pi, "pi0"),
    "pi05": partial(verify_pi, "pi05"),
}


def shown(directory: Path, results: Results) -> Results:
    """The comparisons that a table shows, with their modes."""
    many = is_gate_bundle(directory) or is_eagle_bundle(directory)
    return list(_worst(results)) if many else results


def _worst(results: Results) -> Iterator[tuple[str, CheckResult]]:
    """All failed comparisons, by mode; and one row per mode for the others: the worst of them, and their number."""
    for mode in dict.fromkeys(mode for mode, _ in results):
        own = [result for each, result in results if each == mode]
        yield from ((mode, result) for result in own if not result.ok)
        agree = [result for result in own if result.ok]
        if agree:
            worst = max(agree, key=lambda result: result.deviation / result.tolerance if result.tolerance else 0.0)
            yield mode, replace(worst, quantity=f"{worst.quantity}, the worst of {len(agree)}")


def recorded_family(directory: Path, configured: str = "") -> Family:
    """The family of a checkpoint; OpenVLA-OFT, whose config.json is that of OpenVLA, where recordings state its
    constants.
    """
    known = family_of(directory, configured)
    if known is not OPENVLA or configured:
        return known
    constants = read_json(directory / CASES_FILE, required=False).get("constants")
    return OPENVLA_OFT if isinstance(constants, dict) and "NUM_ACTIONS_CHUNK" in constants else known
