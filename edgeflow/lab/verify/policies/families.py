"""The checks of each family of policies, by its name in the registry (policies/registry.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgeflow.lab.verify.policies.act import verify as verify_act
from edgeflow.lab.verify.policies.openvla.exported import verify_exported
from edgeflow.lab.verify.policies.openvla.verify import verify as verify_weights
from edgeflow.lab.verify.policies.openvla_oft.verify import verify as verify_oft
from edgeflow.lab.verify.policies.pi import verify as verify_pi
from edgeflow.lab.verify.policies.request import Verification
from edgeflow.lab.verify.policies.smolvla import verify as verify_smolvla
from edgeflow.lab.verify.recorded.comparison import CheckResult

Verify = Callable[[Path, Verification], list[tuple[str, CheckResult]]]
"""Every comparison of a bundle of recordings, with the mode it was made in."""


def _verify_openvla(directory: Path, asked: Verification) -> list[tuple[str, CheckResult]]:
    if asked.artifact is not None:
        return verify_exported(directory, asked.artifact, asked)
    return verify_weights(directory, asked)


VERIFY: dict[str, Verify] = {
    "openvla": _verify_openvla,
    "openvla_oft": verify_oft,
    "act": verify_act,
    "smolvla": verify_smolvla,
    "pi0": partial(verify_pi, "pi0"),
    "pi05": partial(verify_pi, "pi05"),
}
