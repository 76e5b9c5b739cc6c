"""The processor pipelines: what they do, and the message for each step or statistic that is not served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.policies.act.config import load_config, load_processors
from edgeflow.policies.act.policy import InputNormaliser
from edgeflow.policies.lerobot import Affine, Normalisation
from edgeflow_client.errors import CheckpointError
from tests.policies.act.checkpoint import (
    AFTER,
    AFTER_STATE,
    BEFORE,
    BEFORE_STATE,
    change_json,
    change_tensors,
    write_checkpoint,
)
from tests.policies.act.twin import TwinSize

CPU = torch.device("cpu")
KINDS = ("MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10")
FLOATS = st.floats(-100, 100, width=32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)


def load(directory: Path) -> Normalisation:
    return load_processors(directory, load_config(directory))


def change_step(directory: Path, pipeline: str, index: int, change: Callable[[dict[str, Any]], Any]) -> None:
    change_json(directory / f"{pipeline}.json", lambda values: change(values["steps"][index]))


@given(
    kind=st.sampled_from(KINDS),
    first=FLOATS,
    spread=st.floats(2**-6, 100, width=32),
    x=st.lists(FLOATS, min_size=1, max_size=5),
)
def test_actions_are_restored_from_what_is_normalised(kind: str, first: float, spread: float, x: list[float]):
    second = spread if kind == "MEAN_STD" else first + spread
    affine = Affine.of(kind, [np.array([each], np.float32) for each in (first, second)], 1e-8)
    normal = InputNormaliser(affine, CPU)(torch.tensor(x)[:, None])
    np.testing.assert_allclose(affine.restored(normal.double().numpy())[:, 0], x, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_range_ends_at_minus_one_and_one(kind: str):
    affine = Affine.of(kind, [np.array([-3.0], np.float32), np.array([5.0], np.float32)], 1e-8)
    assert InputNormaliser(affine, CPU)(torch.tensor([[-3.0], [5.0], [1.0]])).flatten().tolist() == [-1.0, 1.0, 0.0]


def test_statistics_that_do_not_vary_divide_by_the_epsilon():
    zeros = np.zeros(1, np.float32)
    spread = Affine.of("MEAN_STD", [zeros, zeros], 1e-3)
    assert InputNormaliser(spread, CPU)(torch.tensor([2e-3])).item() == pytest.approx(2.0)
    assert spread.restored(np.array([[5.0]])).tolist() == [[0.0]]  # back by the deviation itself, without epsilon
    same = Affine.of("MIN_MAX", [zeros, zeros], 1e-3)
    assert InputNormaliser(same, CPU)(torch.tensor([0.0])).item() == -1.0
    assert same.restored(np.array([[1.0]]))[0, 0] == pytest.approx(1e-3)


def test_the_environment_vector_is_left_unnormalised(tmp_path: Path):
    directory = write_checkpoint(tmp_path, TwinSize(environment=2))
    assert set(load(directory).inputs) == {"observation.state", *TwinSize().cameras}


def test_only_the_listed_observations_are_normalised(checkpoint: Path):
    change_step(checkpoint, BEFORE, 3, lambda step: step["config"]["features"].pop("observation.images.top"))
    assert set(load(checkpoint).inputs) == {"observation.state", "observation.images.side"}
    chosen = {"normalize_observation_keys": ["observation.state"]}
    change_step(checkpoint, BEFORE, 3, lambda step: step["config"].update(chosen))
    assert set(load(checkpoint).inputs) == {"observation.state"}


def test_actions_as_they_are_need_no_statistics(tmp_path: Path):
    directory = write_checkpoint(tmp_path, kinds={"VISUAL": "IDENTITY"})
    for name in (BEFORE_STATE, AFTER_STATE):
        (directory / name).unlink()
    assert load(directory) == Normalisation({name: name for name in load_config(directory).inputs}, {}, None)


def test_statistics_of_images_may_be_flat(checkpoint: Path):
    change_tensors(checkpoint / BEFORE_STATE, observation__images__top__mean=torch.tensor([1.0, 2.0, 3.0]))
    centre = load(checkpoint).inputs["observation.images.top"].centre
    assert centre.shape == (3, 1, 1)
    assert centre.flatten().tolist() == [1.0, 2.0, 3.0]


def test_names_are_renamed_backwards(tmp_path: Path):
    rename = {"observation.images.a": "observation.images.top", "observation.images.top": "observation.images.side"}
    assert dict(load(write_checkpoint(tmp_path, rename=rename)).sources) == {
        "observation.state": "observation.state",
        "observation.images.top": "observation.images.a",
        "observation.images.side": "observation.images.top",
    }


def test_a_pipeline_without_renaming(checkpoint: Path):
    change_json(checkpoint / f"{BEFORE}.json", lambda values: values["steps"].pop(0))
    sources = load(checkpoint).sources
    assert all(old == new for old, new in sources.items())


STEP = "policy_preprocessor.json.steps"
STEPS_BEFORE = "rename_observations_processor, to_batch_processor, device_processor, normalizer_processor"


def rename(**names: str) -> Callable[[dict], None]:
    return lambda step: step["config"].update(rename_map={old.replace("_", "."): new for old, new in names.items()})


@pytest.mark.parametrize(
    ("pipeline", "index", "change", "message"),
    [
        (
            BEFORE,
            1,
            lambda step: step.update(registry_name="tokenizer_processor"),
            f"{STEP}[1]: the step tokenizer_processor is not served; served: {STEPS_BEFORE}",
        ),
        (
            BEFORE,
            1,
            lambda step: (step.pop("registry_name"), step.update({"class": "mine.Step"})),
            f"{STEP}[1]: the step mine.Step is not served; served: {STEPS_BEFORE}",
        ),
        (
            AFTER,
            1,
            lambda step: step.update(registry_name="clip_processor"),
            "policy_postprocessor.json.steps[1]: the step clip_processor is not served; "
            "served: unnormalizer_processor, device_processor",
        ),
        (
            BEFORE,
            2,
            lambda step: step["config"].update(float_dtype="float16"),
            f"{STEP}[2].config.float_dtype is 'float16'; served: 'float32'",
        ),
        (
            BEFORE,
            2,
            lambda step: step.update(registry_name="normalizer_processor"),
            "policy_preprocessor.json has 2 steps normalizer_processor; served: one",
        ),
        (
            AFTER,
            0,
            lambda step: step.update(registry_name="device_processor"),
            "policy_postprocessor.json has 0 steps unnormalizer_processor; served: one",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"]["norm_map"].update(STATE="ROBUST"),
            f"{STEP}[3].config.norm_map.STATE is 'ROBUST'; served: IDENTITY, MEAN_STD, MIN_MAX, QUANTILES, QUANTILE10",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].pop("norm_map"),
            f"{STEP}[3].config lacks norm_map: the file is incomplete, or of another kind of model",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].update(eps="small"),
            f"{STEP}[3].config.eps is 'small'; served: a number",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].update(eps=10**400),
            f"{STEP}[3].config.eps is 1{'0' * 59}; served: a number",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].update(eps=-1),
            f"{STEP}[3].config.eps is -1.0; served: a number above 0",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].update(eps=0),
            f"{STEP}[3].config.eps is 0.0; served: a number above 0",
        ),
        (
            BEFORE,
            3,
            lambda step: step.update(state_file="../other.safetensors"),
            f"{STEP}[3].state_file is '../other.safetensors'; served: a file of the checkpoint",
        ),
        (
            BEFORE,
            3,
            lambda step: step["config"].update(normalize_observation_keys="all"),
            f"{STEP}[3].config.normalize_observation_keys is 'all'; served: a list of texts",
        ),
        (
            BEFORE,
            0,
            rename(observation_state="joints"),
            f"{STEP}[0].config.rename_map: 0 names become observation.state; served: one",
        ),
        (
            BEFORE,
            0,
            rename(a="observation.state", b="observation.state"),
            f"{STEP}[0].config.rename_map: 2 names become observation.state; served: one",
        ),
    ],
)
def test_a_step_that_is_not_served_is_named(
    pipeline: str, index: int, change: Callable[[dict], Any], message: str, checkpoint: Path
):
    change_step(checkpoint, pipeline, index, change)
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert str(caught.value) == message


def test_a_renaming_after_the_normalisation_is_rejected(checkpoint: Path):
    change_json(checkpoint / f"{BEFORE}.json", lambda values: values["steps"].reverse())
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{STEP}[3]: rename_observations_processor comes after normalizer_processor; served: before it"
    )


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        (
            BEFORE_STATE,
            {"observation__state__mean": torch.zeros(4)},
            f"{BEFORE_STATE}: observation.state.mean has shape [4], expected [5]",
        ),
        (
            BEFORE_STATE,
            {"observation__images__top__std": torch.zeros(1, 1, 1)},
            f"{BEFORE_STATE}: observation.images.top.std has shape [1, 1, 1], expected [3, 1, 1]",
        ),
        (
            AFTER_STATE,
            {"action__std": torch.zeros(3, 1)},
            f"{AFTER_STATE}: action.std has shape [3, 1], expected [3]",
        ),
        (
            AFTER_STATE,
            {"action__mean": None},
            f"{AFTER_STATE} lacks action.mean, by which its feature is normalised: copy the checkpoint again",
        ),
        (
            AFTER_STATE,
            {"action__mean": torch.tensor([0.0, float("nan"), 0.0])},
            f"{AFTER_STATE}: action.mean has values that are not finite",
        ),
        (
            AFTER_STATE,
            {"action__mean": torch.zeros(3, dtype=torch.int64)},
            f"{AFTER_STATE}: action.mean has dtype I64; served: F32, F64, F16",
        ),
    ],
)
def test_a_statistic_that_does_not_fit_is_named(file: str, entries: dict, message: str, checkpoint: Path):
    change_tensors(checkpoint / file, **entries)
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert str(caught.value) == message


def test_a_missing_file_of_statistics_is_named(checkpoint: Path):
    (checkpoint / AFTER_STATE).unlink()
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert str(caught.value) == f"{checkpoint} has no {AFTER_STATE} with its statistics: copy the checkpoint again"


def test_a_truncated_file_of_statistics_is_named(checkpoint: Path):
    (checkpoint / AFTER_STATE).write_bytes((checkpoint / AFTER_STATE).read_bytes()[:40])
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    path = checkpoint / AFTER_STATE
    assert str(caught.value) == f"{path} is truncated or not safetensors: copy the checkpoint again"


def test_statistics_without_a_file_are_rejected(checkpoint: Path):
    change_step(checkpoint, AFTER, 0, lambda step: step.pop("state_file"))
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert str(caught.value) == f"{checkpoint} has no statistics for action: its processor names no state_file"
