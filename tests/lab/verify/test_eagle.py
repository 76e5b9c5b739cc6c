"""`edgeflow verify` for bundles of EAGLE-3 heads: passes on what was recorded, fails on what is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.comparison import CheckResult
from edgeflow.lab.verify.eagle import check_run, prepare
from edgeflow.lab.verify.eagle_bundle import BASE, FEATURES, HEAD, MASK
from edgeflow.models.chat import load_chat_model
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.lab.verify.eagle_bundle import write_bundle
from tests.oracles import oracle

BUNDLE = "eagle3-tiny"
CPU = torch.device("cpu")
WHOLE = ("trees", "trees, chunks of 5", "trees, prefix", "trees, prefix, copied")
WAYS = (*WHOLE, "no drafts", "chains", "look-up", "trees, passes of 5", "INT8 KV")
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("eagle") / "small")


def copied(source: Path, folder: Path) -> Path:
    """A copy that may be written."""
    return Path(shutil.copytree(source, folder / "bundle", copy_function=shutil.copyfile))


def edited(source: Path, folder: Path, edit: Edit) -> Path:
    """A copy with other cases. edit: of all values of cases.json."""
    target = copied(source, folder)
    values = json.loads((source / "cases.json").read_text())
    edit(values)
    (target / "cases.json").write_text(json.dumps(values))
    return target


def with_tensors(source: Path, folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy with other tensors."""
    target = copied(source, folder)
    tensors = load_file(source / "expected.safetensors")
    edit(tensors)
    save_file(tensors, target / "expected.safetensors")
    return target


def off(folder: Path) -> set[tuple[str, str]]:
    """Case and quantity of all that trees by themselves give otherwise."""
    bundle, ways = prepare(folder)
    check = ways.recorded()["trees"]
    return {(result.case, result.quantity) for case in bundle.cases for result in check(case) if not result.ok}


@pytest.mark.oracle(BUNDLE)
def test_the_recorded_bundle_agrees():
    """By trees all cases, in each other way one of them."""
    bundle, ways = prepare(oracle(BUNDLE))
    checks = {**ways.recorded(), **ways.tokens()}
    results = [result for case in bundle.cases for result in checks["trees"](case)]
    stored = {key.split(".", 1)[0] for key in load_file(oracle(BUNDLE) / "expected.safetensors")}
    assert {case.name for case in bundle.cases} == stored == {result.case for result in results}
    for quantity in ("draft inputs", "mask"):
        assert sum(result.quantity.endswith(quantity) for result in results) == 3 * len(bundle.cases)
    trees = sum(len(case.trees) for case in bundle.cases)
    for quantity in ("drafts", "paths", "positions"):
        assert sum(result.quantity.endswith(quantity) for result in results) == trees
    for index, check in enumerate(checks.values()):
        results += check(bundle.cases[index % len(bundle.cases)])
    assert tuple(checks) == WAYS and [result for result in results if not result.ok] == []


def test_a_small_bundle_agrees_in_every_way(small: Path):
    found = CliRunner().invoke(app, ["verify", str(small), "--json"])
    rows = json.loads(found.stdout)
    assert found.exit_code == 0 and [row for row in rows if not row["ok"]] == []
    cases = json.loads((small / "cases.json").read_text())["cases"]
    assert {0, 1, 2, 3} == {each for case in cases for each in case["accept_lengths"]}, "all depths are accepted"
    assert len({each for case in cases for each in case["best_candidates"]}) > 3
    checked = {way: {(row["case"], row["quantity"]) for row in rows if row["mode"] == way} for way in WAYS}
    assert sum(map(len, checked.values())) == len(rows)
    assert all({case for case, _ in each} == {"case0", "case1", "case2"} for each in checked.values())
    assert all(checked[way] == checked["trees"] for way in WHOLE)
    stored = {tuple(key.split(".")) for key in load_file(small / "expected.safetensors")}
    told = {FEATURES: "draft inputs", MASK: "mask"}
    assert {(case, f"tree {step[4:]}: {told[name]}") for case, step, name in stored} <= checked["trees"]


def change(*path: Any, to: Any) -> Edit:
    """Replace one value of the second case."""

    def edit(values: dict[str, Any]) -> None:
        at = values["cases"][1]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return edit


def last_token(values: dict[str, Any]) -> None:
    case = values["cases"][1]
    case["output_ids"][-1] = (case["output_ids"][-1] + 1) % 12


def other_lengths(values: dict[str, Any]) -> None:
    """A draft more in one verification, and one less in the next."""
    lengths = values["cases"][1]["accept_lengths"]
    assert lengths[1:3] == [3, 3]
    lengths[1:3] = [2, 3]
    lengths[0] += 1


CHANGES: list[tuple[Edit, set[str]]] = [
    (change("trees", 2, "draft_tokens", 5, to=11), {"tree 2: drafts"}),
    (change("trees", 6, "draft_tokens", 13, to=11), {"tree 6: drafts"}),
    (change("trees", 2, "retrieve_indices", 0, 1, to=13), {"tree 2: paths"}),
    (change("trees", 2, "retrieve_indices", 0, -1, to=13), {"tree 2: paths"}),
    (change("trees", 3, "tree_position_ids", 13, to=0), {"tree 3: positions"}),
    (change("best_candidates", 1, to=0), {"best candidates"}),
    (last_token, {"tokens"}),
]


@pytest.mark.parametrize("edit, quantities", CHANGES, ids=range(len(CHANGES)))
def test_a_changed_entry_is_found(small: Path, tmp_path: Path, edit: Edit, quantities: set[str]):
    assert off(edited(small, tmp_path, edit)) == {("case1", quantity) for quantity in quantities}


def test_changed_lengths_are_found(small: Path, tmp_path: Path):
    folder = edited(small, tmp_path, other_lengths)
    (folder / "expected.safetensors").unlink()
    save_file({}, folder / "expected.safetensors")
    assert off(folder) == {("case1", "accept lengths")}


@pytest.mark.parametrize(
    "key, by, quantity",
    [
        (f"case1.step0.{FEATURES}", 2e-4, "tree 0: draft inputs"),
        (f"case1.step4.{FEATURES}", 2e-4, "tree 4: draft inputs"),
        (f"case1.step6.{MASK}", 1.0, "tree 6: mask"),
    ],
)
def test_a_changed_tensor_is_found(small: Path, tmp_path: Path, key: str, by: float, quantity: str):
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[key][..., -1, -2] += by

    assert off(with_tensors(small, tmp_path, edit)) == {("case1", quantity)}


def test_another_head_is_found_by_its_trees_while_the_tokens_stay(small: Path, tmp_path: Path):
    folder = copied(small, tmp_path)
    tensors = load_file(small / HEAD / "model.safetensors")
    tensors["midlayer.hidden_norm.weight"] *= torch.linspace(0.5, 2, 24)
    save_file(tensors, folder / HEAD / "model.safetensors")
    bundle, ways = prepare(folder)
    checks = {**ways.recorded(), **ways.tokens()}
    for way in ("trees", "trees, prefix"):
        results = [result for case in bundle.cases for result in checks[way](case)]
        wrong = {result.quantity.split(": ")[-1] for result in results if not result.ok}
        assert {"drafts", "accept lengths"} <= wrong and not wrong & {"tokens", "draft inputs"}
    for way in ("chains", "trees, passes of 5"):
        assert all(result.ok for case in bundle.cases for result in checks[way](case))


def test_a_run_that_ends_early_is_infinitely_off(small: Path):
    """Without its last pass, whose tree and features are missing then."""
    bundle, ways = prepare(small)
    case = bundle.cases[2]
    run = ways.alone(case, 8)
    last = max(run.features)
    short = replace(
        run,
        settled=run.settled[:-1],
        trees=run.trees[:-1],
        features={place: row for place, row in run.features.items() if place < last},
    )
    found = {result.quantity: result for result in check_run(case, short) if not result.ok}
    assert set(found) == {"tokens", "accept lengths", "best candidates", "tree 6: drafts", "tree 6: draft inputs"}
    assert found["tree 6: drafts"] == CheckResult("case2", "tree 6: drafts", float("inf"), 0)
    assert found["accept lengths"].deviation == 1


REFUSED: list[tuple[Edit, str]] = [
    (lambda values: values.pop("params"), "lacks params"),
    (lambda values: values["params"].pop("depth"), "params lacks depth"),
    (lambda values: values["params"].update(top_k="4"), "params.top_k must be an integer"),
    (lambda values: values["params"].update(top_k=10), "params.top_k is 10, but the head has 9 tokens"),
    (
        lambda values: values["params"].update(total_token=64),
        "params total_token 64, .* rows of a tree must be at most 63",
    ),
    (
        lambda values: values["params"].update(depth=10**9),
        "params total_token 14, depth 1000000000, top_k 4: .* at most",
    ),
    (lambda values: values["params"].update(total_token=13), r"case0 trees\[0\]: draft_tokens must have 13 numbers"),
    (lambda values: values.update(vocab=13), "vocab is 13, but the checkpoint beside it has 12"),
    (lambda values: values.update(draft_vocab=12), "draft_vocab is 12, but the checkpoint beside it has 9"),
    (lambda values: values.update(cases=[]), "lists no cases"),
    (lambda values: values.update(cases=3), "cases must be a list of objects"),
    (lambda values: values.pop("cases"), "lacks cases"),
    (change("prompt_ids", to=[]), "case1: output_ids must begin with prompt_ids, which must not be empty"),
    (change("output_ids", 0, to=6), "case1: output_ids must begin with prompt_ids"),
    (change("output_ids", -1, to=12), "case1: output_ids must be from 0 to 11, got 12"),
    (change("output_ids", to=[5] * 64), "case1: output_ids has 64 tokens, the base 64 positions"),
    (change("output_ids", to=[5, 5]), "case1: by accept_lengths output_ids has 15 tokens, but it has 2"),
    (change("accept_lengths", 0, to=4), "case1: accept_lengths must be from 0 to 3, got 4"),
    (change("accept_lengths", to=[]), "case1: 0 accept_lengths must have as many .* got 6 and 7"),
    (change("best_candidates", 2, to=99), r"case1: best_candidates\[2\] must be from 0 to \d, got 99"),
    (change("best_candidates", to="0"), r"cases\[1\].best_candidates must be a list of numbers"),
    (change("trees", to=[3]), r"cases\[1\].trees must be a list of objects"),
    (change("trees", 1, to={}), r"trees\[1\] lacks draft_tokens"),
    (change("trees", 1, "draft_tokens", 0, to=-1), r"case1 trees\[1\]: draft_tokens must be from 0 to 11, got -1"),
    (change("trees", 1, "tree_position_ids", 0, to=4), r"tree_position_ids must be from 0 to 3, got 4"),
    (change("trees", 1, "retrieve_indices", to=[]), r"retrieve_indices must be 1 to 14 paths of one length, at most 4"),
    (
        change("trees", 1, "retrieve_indices", to=[[0, 1], [0]]),
        r"trees\[1\]: retrieve_indices must be 1 to 14 paths of",
    ),
    (change("trees", 1, "retrieve_indices", to=[[0] * 5]), r"retrieve_indices must be 1 to 14 paths of"),
    (change("trees", 1, "retrieve_indices", to=[[0]] * 15), r"retrieve_indices must be 1 to 14 paths of"),
    (change("trees", 1, "retrieve_indices", to=[[0, 14]]), "retrieve_indices must be from -1 to 13, got 14"),
    (
        change("trees", 1, "retrieve_indices", to=[[0, 1.0]]),
        "retrieve_indices must be a list of lists of integers",
    ),
    (change("trees", 1, "retrieve_indices", to=[0, 1]), "retrieve_indices must be a list of lists of integers"),
]


@pytest.mark.parametrize("edit, message", REFUSED, ids=[message for _, message in REFUSED])
def test_an_entry_that_cannot_be_read_is_rejected(small: Path, tmp_path: Path, edit: Edit, message: str):
    with pytest.raises(CheckpointError, match=message):
        prepare(edited(small, tmp_path, edit))


FEATURE, SEEN = f"case1.step1.{FEATURES}", f"case1.step1.{MASK}"


@pytest.mark.parametrize(
    "name, tensor, message",
    [
        ("case1.step7.tree_mask", torch.ones(14, 14), "case1.step7.tree_mask is of no tree"),
        ("case1.step1.logits", torch.ones(1), f"case1.step1.logits is .* not {FEATURES} or {MASK}"),
        (FEATURE, torch.ones(1, 2, 72), r"has shape \[1, 2, 72\], expected \[1, 1, 72\]"),
        (SEEN, torch.ones(14, 14).long(), "must be finite floating-point numbers"),
        (FEATURE, torch.full((1, 1, 72), torch.nan), "must be finite floating-point numbers"),
    ],
)
def test_a_tensor_that_fits_no_tree_is_rejected(small: Path, tmp_path: Path, name: str, tensor: Tensor, message: str):
    with pytest.raises(CheckpointError, match=message):
        prepare(with_tensors(small, tmp_path, lambda tensors: tensors.update({name: tensor})))


def test_missing_files_are_rejected(small: Path, tmp_path: Path):
    folder = copied(small, tmp_path)
    (folder / "expected.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no expected\.safetensors"):
        prepare(folder)
    (folder / "cases.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no cases\.json"):
        prepare(folder)


def test_a_base_without_tokenizer_takes_token_ids_alone(small: Path):
    model = load_chat_model(small / BASE, torch.float32, CPU, text=False)
    assert model.prompt([3, 4]).ids == (3, 4)
    with pytest.raises(ValueError, match="loaded without its tokenizer: give it token ids"):
        model.text_prompt("go")
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        load_chat_model(small / BASE, torch.float32, CPU)


def test_the_table_has_a_row_for_each_way_and_for_what_is_off(small: Path, tmp_path: Path):
    folder = edited(small, tmp_path, lambda values: values.update(cases=values["cases"][:1]))
    values = json.loads((folder / "cases.json").read_text())
    values["cases"][0]["best_candidates"][-1] = 0
    (folder / "cases.json").write_text(json.dumps(values))
    tensors = load_file(folder / "expected.safetensors")
    save_file({key: each for key, each in tensors.items() if "case0" in key}, folder / "expected.safetensors")
    found = CliRunner().invoke(app, ["verify", str(folder)])
    assert found.exit_code == 1 and f"{len(WHOLE)} of " in found.stdout
    assert found.stdout.count("best candidates") == len(WHOLE)
    assert found.stdout.count("the worst of") == len(WAYS)


@pytest.mark.parametrize(
    "modes, options, told",
    [
        ([Mode.SERIAL], {}, "mode"),
        ([], {"kv": "int8"}, "kv"),
        ([], {"kv": "int8", "weights": "fp8"}, "kv, weights"),
        ([], {"overlay": Path("x.json"), "family": "openvla"}, "operators, family"),
    ],
)
def test_options_are_rejected(small: Path, modes: list[Mode], options: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=f"^{told}: a bundle of an EAGLE-3 head is checked as it is, in float32: "):
        verify_checkpoint(small, modes, lambda *_: None, **options)
