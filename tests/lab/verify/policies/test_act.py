"""`edgeflow verify` on ACT: passes on recorded truth of any size, fails on each wrong quantity."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.lab.verify.comparison import CheckResult, Verification
from edgeflow.lab.verify.policies.act import verify as verify_act
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.oracles import oracle
from tests.policies.act.checkpoint import change_tensors, write_bundle, write_json
from tests.policies.act.twin import TwinSize

TOP = {"observation.images.top": (40, 56)}
SIZES = {
    "plain": TwinSize(),
    "no state": TwinSize(state=0, cameras=TOP, seed=1),
    "all vectors": TwinSize(environment=4, encoder_layers=3, decoder_layers=2, seed=2),
    "no cameras": TwinSize(cameras={}, environment=6, seed=3),
    "norms first": TwinSize(pre_norm=True, activation="gelu", decoder_layers=3, seed=4),
    "deeper": TwinSize(backbone="resnet34", cameras=TOP, seed=5),
    "bottlenecks": TwinSize(backbone="resnet50", cameras=TOP, stem=2, seed=6),
    "wide": TwinSize(width=24, heads=2, mlp=40, chunk=1, action=14, latent=1, cameras=TOP, seed=7),
}


def verify(directory: Path, **asked) -> list[CheckResult]:
    plain = {"modes": (), "progress": lambda *_: None, "weights": "float", "operators": None}
    results = verify_act(directory, Verification(**{**plain, "device": torch.device("cpu"), **asked}))
    assert {mode for mode, _ in results} == {"one pass"}
    return [result for _, result in results]


def wrong(results: list[CheckResult]) -> list[str]:
    return [result.quantity for result in results if not result.ok]


@pytest.mark.oracle("act-tiny")
def test_the_original_implementation_agrees():
    bundle = oracle("act-tiny")
    results = verify(bundle)
    assert wrong(results) == []
    stored = load_file(bundle / "expected.safetensors")
    assert len(results) == len([name for name in stored if ".in." not in name])
    assert {result.tolerance for result in results} == {1e-5}
    assert {result.case for result in results if result.quantity == "actions"} == {
        "ensemble.coef_0.01",
        "ensemble.coef_0",
        "ensemble.coef_-0.1",
    }


@pytest.mark.parametrize("name", SIZES)
def test_other_sizes_agree_with_the_twin(name: str, tmp_path: Path):
    bundle = write_bundle(tmp_path, SIZES[name])
    results = verify(bundle)
    assert wrong(results) == []
    stored = load_file(bundle / "expected.safetensors")
    assert len(results) == len([each for each in stored if ".in." not in each])


@pytest.mark.parametrize("kind", ["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_every_kind_of_normalisation(kind: str, tmp_path: Path):
    kinds = dict.fromkeys(("VISUAL", "STATE", "ENV", "ACTION"), kind)
    assert wrong(verify(write_bundle(tmp_path, SIZES["all vectors"], kinds=kinds))) == []


def test_renamed_inputs(tmp_path: Path):
    rename = {"observation.images.front": "observation.images.top", "observation.joints": "observation.state"}
    assert wrong(verify(write_bundle(tmp_path, TwinSize(), rename=rename))) == []


TOP_CAMERA = "observation.images.top"
MISTAKES = {
    "latent of ones": ("plain", "encoder in tokens"),
    "cameras in another order": ("plain", "encoder in tokens"),
    "columns before rows": ("plain", f"camera pos embed {TOP_CAMERA}"),
    "sines before cosines": ("plain", f"camera pos embed {TOP_CAMERA}"),
    "places from zero": ("plain", f"camera pos embed {TOP_CAMERA}"),
    "positions on values": ("plain", "encoder out"),
    "positions in the first layer": ("plain", "encoder out"),
    "queries start as positions": ("plain", "decoder out"),
    "keys without positions": ("plain", "decoder out"),
    "no last norm": ("plain", "decoder out"),
    "approximate GELU": ("norms first", "encoder out"),
    "environment state normalised": ("all vectors", "normalized observation.environment_state"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_where_it_begins(mistake: str, tmp_path: Path):
    size, first = MISTAKES[mistake]
    results = verify(write_bundle(tmp_path, SIZES[size], mistake=mistake))
    assert wrong(results)[0] == first
    order = mistake == "cameras in another order"  # of which attention makes a sum
    assert ("action chunk" in wrong(results)) is not order


@pytest.mark.parametrize("name", ["mid.normalized.observation.state", "mid.encoder_out", "out.action_chunk"])
def test_a_changed_value_is_found(name: str, tmp_path: Path):
    bundle = write_bundle(tmp_path, TwinSize())
    path = bundle / "expected.safetensors"
    tensors = load_file(path)
    tensors[f"case1.{name}"].view(-1)[-1] += 3e-5
    save_file(tensors, path)
    found = [result for result in verify(bundle) if not result.ok]
    assert found[0].case == "case1"
    assert 2e-5 < found[0].deviation < 4e-5


def test_a_stored_value_that_is_not_known_is_not_passed_over(tmp_path: Path):
    bundle = write_bundle(tmp_path, TwinSize())
    change_tensors(bundle / "expected.safetensors", case0__mid__audio=torch.zeros(2))
    found = [result for result in verify(bundle) if not result.ok]
    assert [(each.quantity, each.deviation) for each in found] == [("unknown mid.audio", math.inf)]


def ensembled(chunks: list[float], coefficient: float) -> float:
    """The action for a moment from its entries, the oldest first, as a running average."""
    average, total = 0.0, 0.0
    for index, value in enumerate(chunks):
        weight = math.exp(-coefficient * index)
        average, total = (average * total + value * weight) / (total + weight), total + weight
    return average


@pytest.mark.parametrize("newest_first", [False, True])
def test_ensembles(newest_first: bool, tmp_path: Path):
    bundle = write_bundle(tmp_path, TwinSize(cameras=TOP))
    chunks = torch.randn(9, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.zeros(9, 2, 3)
    for step in range(9):
        entries = [chunks[each, :, step - each] for each in range(max(0, step - 3), step + 1)]
        for index in range(6):
            numbers = [float(each.reshape(-1)[index]) for each in entries]
            actions[step].view(-1)[index] = ensembled(numbers[::-1] if newest_first else numbers, 0.3)
    names = {"ensemble__some__in__chunks": chunks, "ensemble__some__out__actions": actions}
    change_tensors(bundle / "expected.safetensors", **names)
    cases = json.loads((bundle / "cases.json").read_text())
    write_json(bundle / "cases.json", {**cases, "ensemble": [{"name": "some", "coefficient": 0.3}]})
    results = verify(bundle)
    assert results[-1].case == "ensemble.some"
    assert wrong(results) == (["actions"] if newest_first else [])


@pytest.mark.parametrize("shape", [(4, 3), (0, 1, 3, 2), (3, 1, 0, 2)])
def test_ensembles_of_another_shape_are_rejected(shape: tuple[int, ...], tmp_path: Path):
    bundle = write_bundle(tmp_path, TwinSize(cameras=TOP))
    names = {"ensemble__some__in__chunks": torch.zeros(shape), "ensemble__some__out__actions": torch.zeros(3, 1, 2)}
    change_tensors(bundle / "expected.safetensors", **names)
    cases = json.loads((bundle / "cases.json").read_text())
    write_json(bundle / "cases.json", {**cases, "ensemble": [{"name": "some", "coefficient": 0.3}]})
    with pytest.raises(CheckpointError) as caught:
        verify(bundle)
    assert str(caught.value) == (
        f"expected.safetensors: ensemble.some.in.chunks has shape {list(shape)}, expected steps, robots, horizon, "
        "numbers"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"weights": "fp8"}, "weights: policies of this family, act, have float weights, not fp8"),
        (
            {"operators": Path("here.json")},
            "operators: policies of this family, act, use none of the operator table; leave it out",
        ),
    ],
)
def test_options_that_do_not_apply_are_rejected(asked: dict, message: str, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        verify(tmp_path, **asked)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"case0__in__observation__state": None},
            "expected.safetensors: case0.in.observation.state is missing: name the directory of a bundle",
        ),
        (
            {"case0__in__observation__state": torch.zeros(1, 4)},
            "expected.safetensors: case0.in.observation.state has shape [1, 4]: name the directory of a bundle",
        ),
        (
            {"case1__in__observation__state": torch.zeros(3, 5)},
            "expected.safetensors: the inputs of case1 have batches of different sizes",
        ),
        (
            {"case0__in__observation__images__top": torch.zeros(1, 3, 0, 4)},
            "expected.safetensors: case0.in.observation.images.top has shape [1, 3, 0, 4]: "
            "name the directory of a bundle",
        ),
        (
            {"case1__in__observation__state": torch.zeros(0, 5)},
            "expected.safetensors: case1.in.observation.state has shape [0, 5]: name the directory of a bundle",
        ),
        (
            {"case2__out__action_chunk": None},
            "expected.safetensors lacks case2.out.action_chunk: name the directory of a bundle",
        ),
    ],
)
def test_directories_that_are_not_bundles(change: dict, message: str, tmp_path: Path):
    bundle = write_bundle(tmp_path, TwinSize(cameras=TOP))
    change_tensors(bundle / "expected.safetensors", **change)
    with pytest.raises(CheckpointError) as caught:
        verify(bundle)
    assert str(caught.value) == message


def test_the_horizon_of_an_answer_does_not_shorten_what_is_compared(tmp_path: Path):
    bundle = write_bundle(tmp_path, replace(TwinSize(), cameras=TOP), n_action_steps=2)
    assert wrong(verify(bundle)) == []
