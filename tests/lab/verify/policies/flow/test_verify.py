"""`edgeflow verify` on flow policies: passes on recorded truth, fails on each wrong quantity."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.verify.checkpoint import VERIFY, verify_checkpoint
from edgeflow.lab.verify.comparison import CheckResult, Verification
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.oracles import oracle

EXPECTED, RTC = "expected.safetensors", "expected_rtc.safetensors"


def verify(directory: Path, **asked: Any) -> list[tuple[str, CheckResult]]:
    plain: dict[str, Any] = {"modes": (), "progress": lambda *_: None, "weights": "float", "operators": None}
    return VERIFY[family_of(directory).name](
        directory, Verification(**{**plain, "device": torch.device("cpu"), **asked})
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(f"{name}-tiny", marks=pytest.mark.oracle(f"{name}-tiny")) for name in ("smolvla", "pi0", "pi05")],
)
def test_the_original_implementation_agrees(name: str):
    """Every stored value is compared, those of steps at every pace that auto may choose, and nothing is off."""
    results = verify(oracle(name), modes=[Mode.AUTO])
    assert [(mode, result) for mode, result in results if not result.ok] == []
    compared = {(result.case, result.quantity) for _, result in results}
    for file in (EXPECTED, RTC):
        for stored in load_file(oracle(name) / file):
            case, group, quantity = stored.split(".", 2)
            assert group == "in" or (case, quantity.replace("_", " ")) in compared
    for mode in ("serial", "depth 2", "pipelined"):
        steps = {result.quantity for each, result in results if each == mode}
        assert {"x t", "v t", "v t base", "error", "action chunk"} <= steps
    bounds = {result.tolerance for _, result in results if result.quantity == "action chunk"}
    assert bounds == {1e-4 if name == "smolvla-tiny" else 1e-5}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One case of π0.5, and one that is trained to continue a chunk."""
    directory = tmp_path_factory.mktemp("bundle") / "pi05"
    shutil.copytree(oracle("pi05-tiny"), directory, copy_function=shutil.copyfile)
    for file, kept in (("cases", ("case0",)), ("cases_rtc", ("trained_delay3", "linear"))):
        content = json.loads((directory / f"{file}.json").read_text())
        content["cases"] = [case for case in content["cases"] if case["name"] in kept]
        (directory / f"{file}.json").write_text(json.dumps(content))
    return directory


CHANGES = [
    (EXPECTED, "case0.mid.images", "images"),
    (EXPECTED, "case0.mid.image_masks", "image masks"),
    (EXPECTED, "case0.mid.prefix_k_layer3", "prefix k layer3"),
    (EXPECTED, "case0.mid.prefix_last_hidden", "prefix last hidden"),
    (EXPECTED, "case0.mid.suffix_attend", "suffix attend"),
    (EXPECTED, "case0.mid.adarms_cond", "adarms cond"),
    (EXPECTED, "case0.mid.v_t", "v t"),
    (EXPECTED, "case0.out.action_chunk_unnormalized", "action chunk unnormalized"),
    (EXPECTED, "case0.in.state_bins", "state bins"),
    (EXPECTED, "case0.in.observation.language.tokens", "observation.language.tokens"),
    (RTC, "linear.mid.weights", "weights"),
    (RTC, "linear.mid.guidance_weight", "guidance weight"),
    (RTC, "linear.mid.correction", "correction"),
    (RTC, "trained_delay3.mid.timesteps", "timesteps"),
    (RTC, "trained_delay3.out.action_chunk", "action chunk"),
]


@pytest.mark.oracle("pi05-tiny")
def test_each_wrong_value_is_found(bundle: Path, tmp_path: Path):
    """All of them at once: each comparison stands for itself."""
    changed = _copy(bundle, tmp_path)
    for file in (EXPECTED, RTC):
        tensors = load_file(changed / file)
        for name in [name for each, name, _ in CHANGES if each == file]:
            flat = tensors[name].view(-1)
            flat[0] = flat[0] ^ 1 if not flat.is_floating_point() else flat[0] + 0.01
        save_file(tensors, changed / file)
    off = {(result.case, result.quantity) for _, result in verify(changed, modes=[Mode.SERIAL]) if not result.ok}
    assert {(name.split(".")[0], quantity) for _, name, quantity in CHANGES} <= off


@pytest.mark.oracle("pi05-tiny")
def test_a_value_that_nothing_is_compared_with_is_off(bundle: Path, tmp_path: Path):
    changed = _copy(bundle, tmp_path)
    save_file({**load_file(changed / EXPECTED), "case0.mid.surprise": torch.zeros(2)}, changed / EXPECTED)
    off = [result for _, result in verify(changed, modes=[Mode.SERIAL]) if not result.ok]
    assert [(result.case, result.quantity) for result in off] == [("case0", "unknown mid.surprise")]


@pytest.mark.oracle("pi05-tiny")
def test_modes_and_options_that_are_rejected(bundle: Path):
    told = r"^mode: policies of the family pi05 are not run speculative; use serial, pipelined, depth, auto$"
    with pytest.raises(ConfigError, match=told):
        verify_checkpoint(bundle, [Mode.SPECULATIVE], lambda *_: None)
    with pytest.raises(ConfigError, match="weights: fp8 is not measured for pi05"):
        verify(bundle, weights="fp8")


@pytest.mark.oracle("pi05-tiny")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("case0.in.noise", "case0.in.noise is missing"),
        ("case0.out.action_chunk", "lacks case0.out.action_chunk"),
        ("case0.in.observation.state", "case0.in.observation.state is missing"),
    ],
)
def test_bundles_that_lack_an_input(bundle: Path, tmp_path: Path, name: str, message: str):
    changed = _copy(bundle, tmp_path)
    tensors = load_file(changed / EXPECTED)
    del tensors[name]
    save_file(tensors, changed / EXPECTED)
    with pytest.raises(CheckpointError, match=message):
        verify(changed)


def _copy(bundle: Path, to: Path) -> Path:
    return Path(shutil.copytree(bundle, to / "changed"))
