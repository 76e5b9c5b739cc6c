"""`verify` of bundles: every stored value, other sizes and seeds, and what goes wrong is seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from edgeflow.kernels.kv.layout import PackedLayout
from edgeflow.lab.verify.checkpoint import recorded_family, verify_checkpoint
from edgeflow.lab.verify.comparison import CheckResult, Verification
from edgeflow.lab.verify.policies.openvla_oft import verify
from edgeflow.policies.openvla.tokens import Prompter
from edgeflow.policies.openvla_oft.config import VectorBounds
from edgeflow.policies.openvla_oft.network import OFTNetwork
from edgeflow.policies.openvla_oft.policy import OpenVLAOFTPolicy
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.oracles import ORACLES
from tests.policies.openvla_oft.tiny import KEY, KINDS, TinyOFT, write_bundle
from tests.tiny_checkpoint import TinySize

ORACLE = ORACLES / "openvla-oft-tiny"
NOT_COMPARED = {"in.proprio_raw", "in.input_ids", "mid.action_logits_top32_ids"}
"""Inputs, and ids whose values are compared."""


def verified(directory: Path, **other: object) -> list[CheckResult]:
    asked = Verification(
        modes=(), progress=lambda *_: None, weights="float", operators=None, device=torch.device("cpu")
    )
    results = verify(directory, replace(asked, **other))
    assert {mode for mode, _ in results} == {"one pass"}
    return [result for _, result in results]


def failed(directory: Path) -> set[str]:
    return {result.quantity for result in verified(directory) if not result.ok}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle") / "oft")


@pytest.mark.oracle("openvla-oft-tiny")
def test_the_recorded_bundle_passes():
    results = verified(ORACLE)
    assert [result for result in results if not result.ok] == []
    stored = [name for name in load_file(ORACLE / "expected.safetensors") if name.split(".", 1)[1] not in NOT_COMPARED]
    compared = [each for each in results if each.tolerance]
    served = {each.case for each in compared if each.quantity == "served actions"}
    assert served == {each.case for each in results}
    assert len(compared) == len(stored) + len(served) + 2  # the ids of the largest logits, and their margin
    assert sum(result.quantity == "action tokens" for result in results) == 1


@pytest.mark.oracle("openvla-oft-tiny")
def test_a_bundle_is_recognised():
    assert recorded_family(ORACLE).name == family_of(ORACLE).name == "openvla_oft"


SIZES = {
    "default": TinyOFT(),
    "min and max": TinyOFT(chunk=5, dims=3, proprio=2, bounds="min_max", prefix=""),
    "one tower": TinyOFT(chunk=1, dims=7, base=TinySize(v01=True, seed=3, side=42, layers=3)),
    "wide": TinyOFT(chunk=25, dims=14, proprio=14, base=TinySize(hidden=64, heads=2, kv_heads=2, seed=4)),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_bundles_of_other_sizes_and_seeds_pass(tmp_path: Path, size: TinyOFT):
    directory = write_bundle(tmp_path / "oft", size)
    results = verified(directory)
    assert [result for result in results if not result.ok] == []
    assert {result.case for result in results} == {f"case{index}" for index in range(len(KINDS))}


def test_every_stored_value_is_compared(bundle: Path):
    """Any tensor that is changed is seen."""
    path = bundle / "expected.safetensors"
    tensors = load_file(path)
    try:
        for name in [name for name in tensors if name.split(".", 1)[1] not in NOT_COMPARED]:
            save_file({**tensors, name: tensors[name] + 3e-4}, path)
            found = failed(bundle)
            assert found - {"served actions"} != set(), name
            assert len(found) == 1 + name.endswith("out.actions"), name
    finally:
        save_file(tensors, path)


@pytest.mark.parametrize("name", ["case0.mid.other", "case0.in.other", "case1.in.proprio", "case9.mid.lm_last_hidden"])
def test_a_stored_value_that_is_not_known_is_not_passed_over(tmp_path: Path, name: str):
    directory = write_bundle(tmp_path / "oft")
    path = directory / "expected.safetensors"
    save_file({**load_file(path), name: torch.zeros(2)}, path)
    found = [result for result in verified(directory) if not result.ok]
    case, _, rest = name.partition(".")
    assert [(each.case, each.quantity, each.deviation) for each in found] == [(case, f"unknown {rest}", math.inf)]


def test_actions_are_compared_as_they_are_served(bundle: Path, monkeypatch):
    plain = OpenVLAOFTPolicy.actions
    monkeypatch.setattr(OpenVLAOFTPolicy, "actions", lambda self, *given: plain(self, *given) + 1e-3)
    assert failed(bundle) == {"served actions"}


TENSORS = {
    "no actions": ({"case0.out.actions": None}, "expected.safetensors lacks case0.out.actions"),
    "ids beyond the vocabulary": (
        {"case0.in.input_ids": torch.tensor([[1, 10**6]])}, "case0.in.input_ids has ids beyond the vocabulary"
    ),
    "ids that are no numbers": (
        {"case0.in.input_ids": torch.tensor([1.0, math.nan])},
        "expected.safetensors: case0.in.input_ids has 2 values of torch.float32",
    ),
    "no ids": ({"case0.in.input_ids": torch.zeros(1, 0, dtype=torch.int64)}, "case0.in.input_ids has 0 values"),
    "a number as state": ({"case0.in.proprio_raw": torch.tensor(1.0)}, "case0.in.proprio_raw has shape []"),
    "a matrix as state": ({"case0.in.proprio_raw": torch.ones(1, 4)}, "case0.in.proprio_raw has shape [1, 4]"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", TENSORS)
def test_wrong_tensors_are_rejected(tmp_path: Path, wrong: str):
    change, message = TENSORS[wrong]
    directory = write_bundle(tmp_path / "oft")
    path = directory / "expected.safetensors"
    save_file({name: each for name, each in (load_file(path) | change).items() if each is not None}, path)
    with pytest.raises(CheckpointError) as caught:
        verified(directory)
    assert message in str(caught.value)


@pytest.mark.parametrize("values", [torch.zeros(32), torch.zeros(1, 32)])
def test_largest_logits_of_another_shape_are_infinitely_off(tmp_path: Path, values: torch.Tensor):
    directory = write_bundle(tmp_path / "oft")
    path = directory / "expected.safetensors"
    save_file({**load_file(path), "case2.mid.action_logits_top32_values": values}, path)
    assert failed(directory) == {"largest logits"}


@pytest.mark.parametrize("margin", [9, -(10**400)])
def test_a_margin_may_be_a_whole_number(tmp_path: Path, margin: int):
    directory = write_bundle(tmp_path / "oft")
    values = json.loads((directory / "cases.json").read_text())
    values["cases"][2]["min_top1_top2_margin"] = margin
    (directory / "cases.json").write_text(json.dumps(values))
    assert failed(directory) == {"margin of the largest logits"}


HUGE = [
    ("config.json", "pad_to_multiple_of", math.inf, "config.json pad_to_multiple_of must be an integer"),
    ("config.json", "n_action_bins", 10**400, "config.json n_action_bins must be an integer"),
    (
        "dataset_statistics.json",
        f"{KEY}.action.q01",
        [-(10**400), *[0.0] * 4],
        f"dataset_statistics.json {KEY}.action.q01 must be finite",
    ),
]


@pytest.mark.parametrize(("file", "key", "value", "message"), HUGE)
def test_numbers_beyond_any_size_are_named(tmp_path: Path, file: str, key: str, value: object, message: str):
    directory = write_bundle(tmp_path / "oft")
    values = json.loads((directory / file).read_text())
    *outer, last = key.split(".")
    container = reduce(dict.__getitem__, outer, values)
    container[last] = value
    (directory / file).write_text(json.dumps(values))
    with pytest.raises(CheckpointError) as caught:
        verified(directory)
    assert message in str(caught.value)


ENTRIES = {
    "prompt": ("prompt", "In: something else"),
    "number of rows": ("sequence_length", 1),
    "number of ids": ("n_prompt_ids", 1),
    "shape of the chunk": ("actions_shape", [1, 1]),
    "action tokens": ("token_ids", [1]),
    "margin of the largest logits": ("min_top1_top2_margin", 9.0),
}


@pytest.mark.parametrize("quantity", ENTRIES)
def test_every_entry_of_a_case_is_compared(tmp_path: Path, quantity: str):
    key, value = ENTRIES[quantity]
    directory = write_bundle(tmp_path / "oft")
    values = json.loads((directory / "cases.json").read_text())
    values["cases"][2][key] = value
    (directory / "cases.json").write_text(json.dumps(values))
    assert failed(directory) == {quantity}


def test_without_a_tokenizer_the_recorded_ids_serve(tmp_path: Path, monkeypatch):
    directory = write_bundle(tmp_path / "oft")
    monkeypatch.setattr("edgeflow.lab.verify.policies.openvla_oft.SPACE_ID", 3)
    (directory / "tokenizer.json").unlink()
    results = verified(directory)
    assert all(result.ok for result in results)
    assert "input ids" not in {result.quantity for result in results}


def test_without_a_processor_the_published_towers_are_known(tmp_path: Path):
    directory = write_bundle(tmp_path / "oft")
    (directory / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="the normalisation of tower 'tiny' is not known"):
        verified(directory)
    values = json.loads((directory / "config.json").read_text())
    names = ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"]
    (directory / "config.json").write_text(json.dumps({**values, "timm_model_ids": names}))
    assert failed(directory) == set()


def causal(patch: pytest.MonkeyPatch) -> None:
    _relaid(patch, lambda layout: replace(layout, visibility=None))


def unshifted(patch: pytest.MonkeyPatch) -> None:
    _relaid(patch, lambda layout: replace(layout, sampled_rows=layout.sampled_rows + 1))


def _relaid(patch: pytest.MonkeyPatch, change: Callable[[PackedLayout], PackedLayout]) -> None:
    plain = OFTNetwork.layout
    patch.setattr(OFTNetwork, "layout", lambda *given, **options: change(plain(*given, **options)))


def _embedded(patch: pytest.MonkeyPatch, change: Callable[..., torch.Tensor]) -> None:
    """Change the rows [B, L, E] of a batch. change: of the network, the batch, the numbers of a chunk, and the rows."""
    plain = OFTNetwork.embed
    patch.setattr(
        OFTNetwork, "embed", lambda self, batch, numbers: change(self, batch, numbers, plain(self, batch, numbers))
    )


def placeholders_embedded(patch: pytest.MonkeyPatch) -> None:
    def embed(network: OFTNetwork, _: Any, numbers: int, rows: torch.Tensor) -> torch.Tensor:
        one = network.decoder.embed(torch.tensor([1])).expand(len(rows), numbers, -1)
        return torch.cat([rows[:, : -numbers - 1], one, rows[:, -1:]], dim=1)

    _embedded(patch, embed)


def no_stop_token(patch: pytest.MonkeyPatch) -> None:
    _embedded(patch, lambda network, batch, numbers, rows: rows[:, :-1])


def stop_token_zeroed(patch: pytest.MonkeyPatch) -> None:
    def embed(_: OFTNetwork, __: Any, ___: int, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[:, :-1], torch.zeros_like(rows[:, -1:])], dim=1)

    _embedded(patch, embed)


def state_not_clipped(patch: pytest.MonkeyPatch) -> None:
    def normalised(self: VectorBounds, values):
        return 2 * (values - self.low) / (self.high - self.low + 1e-8) - 1

    patch.setattr(VectorBounds, "normalised", normalised)


def state_first(patch: pytest.MonkeyPatch) -> None:
    def embed(network: OFTNetwork, batch: Any, _: int, rows: torch.Tensor) -> torch.Tensor:
        pixels, _, _, *states = batch
        if not states:
            return rows
        at = 1 + pixels.shape[1] // network.vision.channels * network.vision.image_tokens
        return torch.cat([rows[:, :1], rows[:, at : at + 1], rows[:, 1:at], rows[:, at + 1 :]], dim=1)

    _embedded(patch, embed)


def cameras_swapped(patch: pytest.MonkeyPatch) -> None:
    plain = OFTNetwork.image_rows

    def image_rows(self: OFTNetwork, pixels):
        return plain(self, torch.cat(torch.split(pixels, self.vision.channels, dim=1)[::-1], dim=1))

    patch.setattr(OFTNetwork, "image_rows", image_rows)


def no_space(patch: pytest.MonkeyPatch) -> None:
    plain = Prompter.ids
    patch.setattr(Prompter, "ids", lambda self, instruction: plain(self, instruction)[:-1])


MUTANTS = {
    causal: {"last hidden", "actions", "normalised actions", "hidden states of actions"},
    unshifted: {"hidden states of actions", "actions", "normalised actions", "largest logits"},
    placeholders_embedded: {"input rows", "last hidden", "actions"},
    no_stop_token: {"input rows", "last hidden", "number of rows", "actions"},
    stop_token_zeroed: {"input rows", "last hidden", "actions"},
    state_not_clipped: {"normalised state", "input rows", "actions"},
    state_first: {"input rows", "last hidden", "actions"},
    cameras_swapped: {"projected patches", "input rows", "last hidden", "actions"},
    no_space: {"input rows", "last hidden", "number of rows", "actions"},
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_wrong_computations_are_found(bundle: Path, mutant, monkeypatch):
    mutant(monkeypatch)
    assert failed(bundle) >= MUTANTS[mutant]


@pytest.mark.oracle("openvla-oft-tiny")
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each is not no_space], ids=lambda each: each.__name__)
def test_wrong_computations_are_found_in_the_recorded_bundle(mutant, monkeypatch):
    mutant(monkeypatch)
    assert failed(ORACLE) & MUTANTS[mutant]


@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.PIPELINED, Mode.DEPTH])
def test_one_pass_is_serial(bundle: Path, mode: Mode):
    told = f"^mode: policies of the family openvla_oft are not run {mode.value}; use serial, auto$"
    with pytest.raises(ConfigError, match=told):
        verify_checkpoint(bundle, [mode], lambda *_: None)
    verify_checkpoint(bundle, [Mode.SERIAL, Mode.AUTO], lambda *_: None)


def test_other_weights_are_rejected(bundle: Path):
    with pytest.raises(ConfigError, match=r"^weights: fp8 is not measured for openvla_oft$"):
        verified(bundle, weights="fp8")


def drop(*keys: str):
    def change(values: dict) -> None:
        for key in keys[:-1]:
            values = values[int(key) if key.isdigit() else key]
        del values[keys[-1]]

    return change


def put(value: object, *keys: str):
    def change(values) -> None:
        for key in keys[:-1]:
            values = values[int(key) if key.isdigit() else key]
        values[keys[-1]] = value

    return change


WRONG = {
    "no cases": (put([], "cases"), "cases.json lists no cases"),
    "no constants": (drop("constants"), "cases.json constants must be an object"),
    "no dims": (drop("constants", "ACTION_DIM"), "cases.json constants.ACTION_DIM must be an integer"),
    "other dims": (put(9, "constants", "ACTION_DIM"), "policy.dims: is 9; actions in dataset_statistics.json have 5"),
    "normal": (
        put("normal", "constants", "normalization"),
        "cases.json constants.normalization: 'normal' is not one of bounds_q99, bounds",
    ),
    "no flag": (drop("cases", "1", "proprio"), "cases.json cases[1].proprio must be true or false"),
    "images": (put(3, "cases", "0", "num_images"), "cases[0].images: 2 images of at most 16, num_images is 3"),
    "a list of bounds": (put([], "constants", "normalization"), "constants.normalization: [] is not one of"),
    "too long": (
        put(5000, "constants", "NUM_ACTIONS_CHUNK"),
        "cases.json constants.NUM_ACTIONS_CHUNK must be an integer, 1 to 1000",
    ),
    "too wide": (put(0, "constants", "ACTION_DIM"), "constants.ACTION_DIM must be an integer, 1 to 256"),
    "no image": (put(["images/none.png"] * 2, "cases", "0", "images"), "the image is missing or unreadable"),
    "two names": (put("case0", "cases", "1", "name"), "two cases have the same name"),
    "no key": (drop("unnorm_key"), "cases.json cases[0].unnorm_key must be text"),
    "other key": (put("x", "unnorm_key"), "policy.dataset: 'x' is not one of tiny_no_noops"),
    "no tensors": (put("other", "cases", "0", "name"), "expected.safetensors lacks other.out.actions"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_recordings_are_rejected(tmp_path: Path, wrong: str):
    change, message = WRONG[wrong]
    directory = write_bundle(tmp_path / "oft")
    values = json.loads((directory / "cases.json").read_text())
    change(values)
    (directory / "cases.json").write_text(json.dumps(values))
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        verified(directory)
    assert message in str(caught.value)
