"""The policy as the engine calls it: frames in, chunks out, in batches, against the naive twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edgeflow.contract import Image, Observation, StageProgram
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.memory import activation_bytes
from edgeflow.engine.one_pass import TEXT_STEP
from edgeflow.engine.policy import Footprint, LoadOptions, OnePassPolicy, Placement
from edgeflow.kernels.table.operator_table import OperatorTable, built_in_table
from edgeflow.lab.verify.offline import run_once
from edgeflow.policies.openvla.config import load_config
from edgeflow.policies.openvla_oft.config import OFTSettings
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.openvla_oft.policy import ARMS, OpenVLAOFTPolicy
from edgeflow.scheduler.session import Shift
from edgeflow_client.errors import CheckpointError
from tests.engine.control.recorded_batches import check_batches
from tests.engine.test_graphs import ON_THE_DEVICE
from tests.policies.openvla_oft.tiny import (
    HEAD,
    KEY,
    PROPRIO,
    OFTTwin,
    TinyOFT,
    save_pt,
    statistics,
    write_oft,
    write_statistics,
)

CPU = torch.device("cpu")
SIZE = TinyOFT()
TEXT_ROWS = 80
INSTRUCTIONS = ("pick up the cup", "go", "put the red block on the blue one", "open the drawer")


def load(
    directory: Path, table: OperatorTable | None = None, dtype: torch.dtype = torch.float32, **settings: object
) -> OpenVLAOFTPolicy:
    """A policy with slots for as many robots as there are instructions."""
    policy = unprepared(directory, table, dtype, **settings)
    policy.network.reserve(len(INSTRUCTIONS), policy.fixed_rows + TEXT_ROWS)
    return policy


def unprepared(
    directory: Path, table: OperatorTable | None = None, dtype: torch.dtype = torch.float32, **settings: object
) -> OpenVLAOFTPolicy:
    published = OPENVLA_OFT.load(directory, SIZE.settings(**settings), LoadOptions())
    return published.load(Placement(dtype=dtype, device=CPU, table=table or built_in_table()))


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_oft(tmp_path_factory.mktemp("oft") / "tiny", SIZE)


@pytest.fixture(scope="module")
def policy(directory: Path) -> OpenVLAOFTPolicy:
    return load(directory)


def image(random: np.random.Generator, height: int = 20, width: int = 30) -> np.ndarray:
    return random.integers(0, 256, (height, width, 3), np.uint8)


def as_image(values: np.ndarray) -> Image:
    return Image(values.shape[0], values.shape[1], memoryview(values.tobytes()))


def observation(seed: int, instruction: str, names: tuple[str, ...]) -> tuple[Observation, list[np.ndarray]]:
    """An observation, and its images in the order of the names."""
    random = np.random.default_rng(seed)
    images = [image(random, 20 + 3 * place, 30) for place in range(len(names))]
    named = dict(zip(names, map(as_image, images), strict=True))
    reordered = {name: named[name] for name in reversed(names)}
    state = {"state": tuple(random.uniform(-2, 2, SIZE.proprio).tolist())}
    return Observation(images=reordered, instruction=instruction, state=state), images


@torch.inference_mode()
def expected(twin: OFTTwin, given: Observation, images: list[np.ndarray], *, state: bool, head: bool) -> torch.Tensor:
    raw = np.array(given.state["state"]) if state else None
    read = twin.read(twin.last_hidden(twin.rows(images, given.instruction, raw)), given.instruction)
    return twin.regressed(read) if head else twin.discretised(twin.logits(read).argmax(-1)).float()


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("proprio", [SIZE.proprio, 0])
@pytest.mark.parametrize("images", [1, 2, 3])
def test_a_chunk_is_that_of_the_twin(directory: Path, images: int, proprio: int, head: bool):
    policy = load(directory, images=images, proprio=proprio, action_head=head)
    given, pictures = observation(1, INSTRUCTIONS[0], policy.settings.cameras)
    found = run_once(policy, [policy.prepare(given)])
    assert found.shape == (1, SIZE.chunk, SIZE.dims) and found.dtype == torch.float32
    wanted = expected(OFTTwin(directory, SIZE), given, pictures, state=proprio > 0, head=head)
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", [True, False])
def test_a_batch_of_robots_gives_what_each_gives_alone(directory: Path, head: bool):
    """Prompts of different lengths, and slots in which longer rows of an earlier pass still lie."""
    policy = load(directory, action_head=head)
    frames = [
        policy.prepare(observation(seed, text, policy.settings.cameras)[0]) for seed, text in enumerate(INSTRUCTIONS)
    ]
    alone = torch.cat([run_once(policy, [frame]) for frame in frames])
    assert len({len(frame.prompt_ids) for frame in frames}) > 2
    torch.testing.assert_close(run_once(policy, frames), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(run_once(policy, frames[::-1]).flip(0), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(run_once(policy, frames[1:2]), alone[1:2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["reference", "masked", "naive_gather"])
def test_every_attention_gives_the_same(directory: Path, policy: OpenVLAOFTPolicy, attention: str):
    other = load(directory, built_in_table().forcing(packed_attention=attention))
    frames = [policy.prepare(observation(seed, INSTRUCTIONS[seed], policy.settings.cameras)[0]) for seed in range(2)]
    torch.testing.assert_close(run_once(other, frames), run_once(policy, frames), rtol=0, atol=1e-5)


def test_kv_slots_are_reserved_once_and_never_grow(directory: Path):
    network = unprepared(directory).network
    reserved = network.reserve(3, 60)
    assert (reserved.slots, reserved.capacity) == (3, 64)
    assert network.reserve(2, 64) is reserved
    for robots, rows in ((4, 10), (1, 65)):
        with pytest.raises(RuntimeError) as caught:
            network.reserve(robots, rows)
        assert str(caught.value) == (
            f"{robots} robots of {rows} rows do not fit the 3 KV slots of 64 rows: reserve them before the first pass"
        )


def test_nothing_runs_before_slots_are_reserved(directory: Path):
    policy = unprepared(directory)
    with pytest.raises(RuntimeError, match="no KV slots are reserved"):
        run_once(policy, [policy.prepare(observation(1, "go", policy.settings.cameras)[0])])


@pytest.mark.parametrize("head", [True, False])
def test_more_frames_than_slots_run_in_groups(directory: Path, policy: OpenVLAOFTPolicy, head: bool, monkeypatch):
    seen = [observation(seed, text, policy.settings.cameras)[0] for seed, text in enumerate((*INSTRUCTIONS, "go"))]
    few = unprepared(directory, action_head=head)
    kv = few.network.reserve(2, few.fixed_rows + TEXT_ROWS)
    frames, sizes, read_out = [few.prepare(each) for each in seen], [], few.network.read_out
    alone = torch.cat([run_once(few, [frame]) for frame in frames])
    kept = lambda batch, *given, **options: sizes.append(len(batch[0])) or read_out(batch, *given, **options)  # noqa: E731
    monkeypatch.setattr(few.network, "read_out", kept)
    torch.testing.assert_close(run_once(few, frames), alone, rtol=0, atol=1e-5)
    assert sizes == [2, 2, 1] and few.network.reserve(2, few.fixed_rows) is kv


@pytest.mark.parametrize(("sessions", "robots_of_budget", "slots"), [(3, 8, 3), (3, 2, 2), (3, 0, 1), (1, 8, 1)])
def test_an_engine_reserves_as_many_slots_as_a_pass_can_have_robots(
    directory: Path, sessions: int, robots_of_budget: int, slots: int
):
    policy = unprepared(directory)
    budget = max(1, robots_of_budget * policy.fixed_rows)
    options = EngineOptions(sessions=sessions, text_rows=TEXT_ROWS, table=built_in_table(), row_budget=budget)
    engine = OPENVLA_OFT.prepare(policy, options)
    kv = policy.network.reserve(1, 1)
    assert (kv.slots, engine.sessions, engine.kv_bytes) == (slots, sessions, kv.nbytes)
    assert max(shape.frames for shape in engine.contract.shapes()) == slots, "a padded batch fits the slots"
    assert kv.capacity >= policy.fixed_rows + TEXT_ROWS
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    assert policy.network.reserve(1, 1) is kv


def test_frames_are_preprocessed_where_they_were_requested(directory: Path, policy: OpenVLAOFTPolicy):
    placement = Placement(dtype=torch.float32, device=CPU, table=built_in_table(), preprocess_on_device=True)
    other = OPENVLA_OFT.load(directory, SIZE.settings(), LoadOptions()).load(placement)
    given, _ = observation(5, "go", policy.settings.cameras)
    torch.testing.assert_close(other.prepare(given).pixel_values, policy.prepare(given).pixel_values, rtol=0, atol=0)


def test_an_image_that_is_too_long_for_the_device_joins_the_others_there(directory: Path):
    policy = load(directory)
    given, _ = observation(5, "go", policy.settings.cameras)
    shape = (policy.network.vision.channels, 28, 28)
    made = iter([torch.zeros(shape, device=device) for device in ("meta", "cpu", "cpu", "cpu")])
    policy._place, policy._preprocess = torch.device("meta"), lambda _: next(made)
    frames = [policy.prepare(given) for _ in range(2)]
    assert [each.pixel_values.device.type for each in frames] == ["meta"] * 2
    assert policy.batch(frames, 20)[0].shape == (2, 2 * shape[0], *shape[1:])


def test_bfloat16_computes_in_it_and_answers_in_float32(directory: Path, policy: OpenVLAOFTPolicy):
    other = load(directory, dtype=torch.bfloat16)
    given, _ = observation(5, "go", policy.settings.cameras)
    found = run_once(other, [other.prepare(given)])
    assert found.dtype == torch.float32 and other.dtype == torch.bfloat16
    torch.testing.assert_close(found, run_once(policy, [policy.prepare(given)]), rtol=0, atol=0.3)


def test_rows_are_counted(policy: OpenVLAOFTPolicy):
    given, _ = observation(5, "go", policy.settings.cameras)
    frame = policy.prepare(given)
    (rows,) = policy.network.embed(policy.batch([frame], len(frame.prompt_ids)), policy.numbers)
    assert len(rows) == policy.fixed_rows + policy.text_rows("go")


def test_a_prompt_is_tokenised_once(directory: Path, policy: OpenVLAOFTPolicy):
    asked: list[str] = []

    def ids(instruction: str) -> tuple[int, ...]:
        asked.append(instruction)
        return (1, 5, 3)

    other = OpenVLAOFTPolicy(load_config(directory), policy.settings, policy._statistics, policy.network, ids)
    assert [other.text_rows(each) for each in ("a", "b", "a", "b")] == [3] * 4 and asked == ["a", "b"]


def test_the_stated_quantisation(policy: OpenVLAOFTPolicy):
    stated: OnePassPolicy = policy
    assert [(each.name, each.named) for each in stated.inputs.cameras] == [("full_image", True), ("wrist_image", True)]
    assert [(each.name, each.size, each.elements) for each in stated.inputs.state] == [("state", SIZE.proprio, ())]
    assert stated.unnorm_keys == (KEY,)
    assert stated.program() == stated.program(KEY) == StageProgram.tokens(1)
    assert stated.device == CPU and stated.dtype == torch.float32


def test_one_camera_may_have_any_name(directory: Path):
    policy = load(directory, images=1, proprio=0)
    assert [(each.name, each.named) for each in policy.inputs.cameras] == [("full_image", False)]
    assert policy.inputs.state == ()


def test_names_as_configured(directory: Path):
    names = {"camera_names": ["top", "side"], "state_names": ["a", "b", "c", "d"], "action_names": list("vwxyz")}
    policy = load(directory, **names, relative=[True] * 4 + [False])
    assert [each.name for each in policy.inputs.cameras] == ["top", "side"]
    assert policy.inputs.state[0].elements == ("a", "b", "c", "d")
    schema = policy.action_schema()
    assert schema.names == tuple("vwxyz") and schema.relative == (True, True, True, True, False)


def test_a_schema_has_the_horizon_the_step_and_the_bounds(policy: OpenVLAOFTPolicy):
    schema, entry = policy.action_schema(KEY), statistics(SIZE.dims, SIZE.proprio)["action"]
    assert (schema.horizon, schema.step_ms, schema.control_rate_hz) == (SIZE.chunk, 100.0, 10.0)
    assert schema.names == ("a0", "a1", "a2", "a3", "a4") and not any(schema.relative)
    assert schema.low == (*entry["q01"][:-1], entry["min"][-1])
    assert schema.high == (*entry["q99"][:-1], entry["max"][-1])


PRESETS = {
    "libero": (8, 7, 50.0, 2, ("x", "y", "z", "roll", "pitch", "yaw", "gripper"), (True,) * 6 + (False,)),
    "bridge": (5, 7, 200.0, 1, ("x", "y", "z", "roll", "pitch", "yaw", "gripper"), (True,) * 6 + (False,)),
    "aloha": (25, 14, 40.0, 3, ARMS, (False,) * 14),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_served(tmp_path: Path, preset: str):
    chunk, dims, step_ms, images, names, relative = PRESETS[preset]
    settings = OFTSettings.of({"preset": preset})
    directory = write_oft(tmp_path / "oft", TinyOFT(chunk=chunk, dims=dims, proprio=settings.proprio))
    published = OPENVLA_OFT.load(directory, {"preset": preset}, LoadOptions())
    policy = published.load(Placement(dtype=torch.float32, device=CPU, table=built_in_table()))
    schema = policy.action_schema()
    assert (schema.horizon, schema.step_ms, len(policy.inputs.cameras)) == (chunk, step_ms, images)
    assert schema.names == names and schema.relative == relative and len(set(names)) == dims
    assert schema.units[0] == ("rad" if preset == "aloha" else "m")


def test_without_a_preset_nothing_is_known_of_seven_numbers(tmp_path: Path):
    size = TinyOFT(dims=7, chunk=1)
    published = OPENVLA_OFT.load(write_oft(tmp_path / "oft", size), size.settings(), LoadOptions())
    schema = published.load(Placement(dtype=torch.float32, device=CPU, table=built_in_table())).action_schema()
    assert (schema.names, schema.units) == (tuple(f"a{index}" for index in range(7)), ("1",) * 7)
    assert not any(schema.relative)
    assert (schema.horizon, schema.step_ms) == (1, 0.0)


def test_actions_are_clipped_to_the_limits_and_nan_stays(policy: OpenVLAOFTPolicy):
    schema = policy.action_schema()
    values = np.full((SIZE.chunk, SIZE.dims), 9.0)
    values[0] = -9.0
    values[1, 1] = np.nan
    found = policy.actions(values)
    assert found[0].tolist() == list(schema.low) and found[2].tolist() == list(schema.high)
    assert np.isnan(found[1, 1]) and np.isnan(found).sum() == 1


def test_several_data_sets_need_a_key(tmp_path: Path):
    directory = write_oft(tmp_path / "oft", SIZE)
    write_statistics(directory, {name: statistics(SIZE.dims, SIZE.proprio, seed) for seed, name in enumerate("ab")})
    policy = load(directory, proprio=0)
    assert policy.unnorm_keys == ("a", "b")
    assert policy.action_schema("a").low != policy.action_schema("b").low
    with pytest.raises(CheckpointError, match=r"^unnorm_key: choose one of a, b$"):
        policy.action_schema()
    with pytest.raises(CheckpointError, match=r"^unnorm_key: 'c' is not one of a, b$"):
        policy.actions(np.zeros((SIZE.chunk, SIZE.dims)), "c")


def test_a_footprint_counts_every_number(directory: Path):
    def footprint(**settings: object) -> Footprint:
        return OPENVLA_OFT.load(directory, SIZE.settings(**settings), LoadOptions()).footprint(torch.float32)

    extra = sum(tensor.numel() for name in (HEAD, PROPRIO) for tensor in torch.load(directory / name).values())
    small, large = footprint(proprio=0, action_head=False), footprint()
    assert large.other - small.other == extra and large.decoder == small.decoder > 0
    assert (large.slots, large.positions) == (0, load(directory).fixed_rows)
    policy = unprepared(directory)
    kv, text = policy.network.reserve(1, 16), load_config(directory).text
    assert large.row_bytes == kv.nbytes // kv.capacity + activation_bytes(text, 1, torch.float32)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (HEAD, {"model.fc2.weight": torch.ones(3, 32)}, "model.fc2.weight has shape [3, 32], expected [5, 32]"),
        (HEAD, {"model.fc2.weight": None}, "model.fc2.weight is missing: download the checkpoint again"),
        (PROPRIO, {"fc1.weight": torch.ones(32, 9)}, "fc1.weight has shape [32, 9], expected [32, 4]"),
        (PROPRIO, {"fc1.bias": torch.ones(32, dtype=torch.int8)}, "fc1.bias has dtype torch.int8"),
        (PROPRIO, {"other": torch.ones(1 << 19)}, "bytes, expected at most"),
    ],
)
def test_a_wrong_file_is_rejected_by_name(tmp_path: Path, name: str, change: dict, message: str):
    directory = write_oft(tmp_path / "oft", SIZE)
    tensors = {key.removeprefix("module."): value for key, value in torch.load(directory / name).items()} | change
    save_pt(directory / name, {key: value for key, value in tensors.items() if value is not None})
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    assert message in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("name", [HEAD, PROPRIO])
def test_a_damaged_file_is_reported_before_the_large_weights_are_read(tmp_path: Path, name: str, monkeypatch):
    directory = write_oft(tmp_path / "oft", SIZE)
    (directory / name).write_bytes(b"damaged")
    for part in ("LlamaDecoder", "OpenVLAVision"):
        monkeypatch.setattr(f"edgeflow.policies.openvla_oft.policy.{part}", None)
    with pytest.raises(CheckpointError, match=name):
        load(directory)


@pytest.mark.parametrize("head", [True, False])
def test_recorded_batches_answer_as_frames_one_by_one(directory: Path, head: bool):
    """Prompts of up to 64 tokens, and longer ones; memory holds NaN wherever nothing was written."""
    policy = unprepared(directory, ON_THE_DEVICE, action_head=head)
    seen = [observation(seed, text, policy.settings.cameras)[0] for seed, text in enumerate((*INSTRUCTIONS, "go"))]
    frames = [policy.prepare(each) for each in seen]
    longest = max(len(frame.prompt_ids) for frame in frames)
    assert min(len(frame.prompt_ids) for frame in frames) <= TEXT_STEP < longest < 2 * TEXT_STEP
    policy.network.reserve(len(frames), policy.fixed_rows + longest).data.fill_(torch.nan)
    check_batches(policy, frames, longest, recordings=6)
