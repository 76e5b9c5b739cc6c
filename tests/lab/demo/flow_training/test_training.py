from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser, draw_flow_batch
from edgeflow.lab.demo.flow_training.chunks import label_all
from edgeflow.lab.demo.flow_training.data import FlowStudio, make_flow_dataset
from edgeflow.lab.demo.flow_training.export import write_flow_checkpoint
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.demo.flow_training.trainer import FIRST_ROWS, FlowPlan, FlowTrainer, plan_for, train_flow
from edgeflow.lab.demo.flow_training.windows import state_rows
from edgeflow.lab.demo.training.batches import make_prompts
from edgeflow.lab.demo.training.data import CHUNK
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow.lab.training.run import rate_share
from edgeflow_client.errors import ConfigError
from tests.lab.demo.chunk_episodes import ChunkTiming, EpisodeFrame, run_chunks
from tests.lab.demo.flow_training.reference import read_json, read_network, read_normaliser, read_sampler, size_of
from tests.lab.demo.flow_training.sampling import FlowSampler

pytestmark = pytest.mark.usefixtures("one_thread")
PLAN = FlowPlan(
    states=CHUNK, vision_steps=2, flow_steps=2, tracking_steps=2, motion_steps=2, whole_steps=2, frames=4, windows=4
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_flow_dataset(tmp_path_factory.mktemp("data"), CHUNK, 0, lambda count: None, workers=1)


def test_rows_hold_the_rendered_arm(data):
    labels = label_all(data, FIRST_ROWS)
    studio = FlowStudio()
    first = studio.shoot(np.random.default_rng([0, 0]))
    studio.close()
    assert np.array_equal(first["images"], data.images[0])
    np.testing.assert_allclose(labels.states[0, :3], first["tool"][:3], rtol=0, atol=1e-6)
    assert (data.aperture == 1.0).mean() > 0.75
    assert data.aperture.min() < 0.5


def test_branches_ask_for_the_chunk_of_the_handle_that_they_name(data, sequences):
    size, prompts = FlowSize(), make_prompts(partial(prompt_ids, train_tokenizer(FlowSize().vocab)), sharing=False)
    labels = label_all(data, FIRST_ROWS)
    states = state_rows(sequences, np.random.default_rng(0), 100)
    normaliser = BatchNormaliser.of(size, data, labels, states)
    batch = draw_flow_batch(
        data, labels, normaliser=normaliser, prompts=prompts, shape=(48, 3), rng=np.random.default_rng(0)
    )
    names = [*COLOURS, "leftmost", "rightmost"]
    known = {tuple(row): names[i] for ids in prompts.tails for i, row in enumerate(ids.tolist())}
    for row in range(48):
        for branch in range(3):
            asked = [each for each in range(HANDLES) if batch.actions[row, each].equal(batch.answers[row, branch])]
            allowed = {names[batch.colours[row, each]] for each in asked}
            allowed |= {place for each, place in ((0, "leftmost"), (2, "rightmost")) if each in asked}
            assert known[tuple(batch.ids[row, branch].tolist())] in allowed
    back = normaliser.actions(batch.chunks)[:, :, 0, :6].numpy()
    assert np.abs(back).max() <= 0.05 * 1.5 + 1e-6  # a row turns and moves no further than the arm can


def changes(trainer, steps):
    """The losses of some steps, and the names of the weights that they change."""
    before = {name: weight.clone() for name, weight in trainer.network.state_dict().items()}
    losses = [trainer.step()[0] for _ in range(steps)]
    return losses, {name for name, weight in trainer.network.state_dict().items() if not weight.equal(before[name])}


def test_training_lowers_the_loss_of_each_phase_and_teaches_what_it_should(data, sequences):
    plan = FlowPlan(
        states=CHUNK,
        vision_steps=15,
        flow_steps=12,
        tracking_steps=12,
        motion_steps=12,
        whole_steps=2,
        frames=4,
        windows=4,
    )
    trainer, changed = FlowTrainer(data, sequences, plan, 0, "cpu"), []
    for phase in plan.phases:
        losses, names = changes(trainer, phase.steps)
        changed.append(names)
        assert phase.steps < 12 or np.mean(losses[-3:]) < 0.95 * losses[0]
    tracking, motion, whole = changed[2:]
    assert {name.split(".")[0] for name in tracking} == {"vlm_with_expert", "state_proj"}
    assert not any(part in name for name in tracking for part in ("lm_expert", "vision_model", "connector"))
    assert not any(part in name for name in motion for part in ("vision_model", "connector"))
    assert {"action_in_proj.weight", "state_proj.weight"} < motion
    assert "vlm_with_expert.vlm.model.connector.modality_projection.proj.weight" in whole


def test_an_interrupted_training_ends_with_the_same_weights(data, sequences, tmp_path):
    whole, first, second = (FlowTrainer(data, sequences, PLAN, 0, "cpu") for _ in range(3))
    for _ in range(PLAN.steps):
        whole.step()
    for _ in range(PLAN.steps - PLAN.whole_steps - 1):
        first.step()
    first.learner.save(tmp_path / "state.safetensors", PLAN.steps)
    second.learner.load(tmp_path / "state.safetensors", PLAN.steps)
    for _ in range(PLAN.steps - second.learner.done_steps):
        second.step()
    for name, weight in whole.network.state_dict().items():
        assert weight.equal(second.network.state_dict()[name]), name


def test_a_checkpoint_reads_back_as_the_network_that_was_written(data, sequences, tmp_path):
    trainer = FlowTrainer(data, sequences, PLAN, 0, "cpu")
    network, normaliser = trainer.network, trainer.normaliser
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    write_flow_checkpoint(tmp_path, network, trainer.tokenizer, normaliser)
    assert size_of(tmp_path) == network.size
    for name, weight in read_network(tmp_path).state_dict().items():
        assert weight.equal(network.state_dict()[name]), name
    read = read_normaliser(tmp_path, network.size)
    np.testing.assert_allclose(read.action.std, normaliser.action.std, rtol=1e-6)
    asked = [EpisodeFrame(data.images[0], "grab the red handle", trainer.labels.states[0].astype(np.float64))]
    steps = read_json(tmp_path / "config.json")["num_steps"]
    written = FlowSampler(network, trainer.tokenizer, normaliser, steps)(asked)[0]
    np.testing.assert_allclose(read_sampler(tmp_path)(asked)[0], written, rtol=0, atol=1e-5)


def test_a_tiny_training_run_writes_a_checkpoint_that_can_act(tmp_path):
    folder = train_flow(tmp_path, minutes=0.02, seed=0, resume=False, device="auto")
    weights = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert "model.vlm_with_expert.vlm.lm_head.weight" in weights
    sim = RobotSim(0)
    outcomes = run_chunks([sim], read_sampler(folder, steps=1), ChunkTiming(every=16))
    sim.close()
    assert outcomes[0] is not EpisodeOutcome.RUNNING


def test_the_rate_warms_up_and_falls_in_each_phase():
    plan = FlowPlan(vision_steps=400, flow_steps=400, tracking_steps=400, motion_steps=400, whole_steps=400)
    shares = [rate_share(step, plan.phases) for step in range(2000)]
    assert shares[0] == pytest.approx(0.01)
    assert shares[400] == pytest.approx(0.01)
    assert max(shares[:400]) < 1.0 > shares[399] > 0.29
    assert shares[799] < 0.03
    assert max(shares[800:1200]) < 0.8
    assert shares[1199] > 0.29
    assert max(shares[1200:1600]) < 0.6
    assert shares[1599] < 0.03
    assert 0.15 < max(shares[1600:]) < 0.25
    assert shares[1999] < 0.03


@pytest.mark.parametrize("minutes", [0.0, -1.0])
def test_a_budget_of_nothing_is_rejected(minutes):
    with pytest.raises(ConfigError, match="minutes must be above 0"):
        plan_for(minutes)
