import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edgeflow.lab.demo.lockstep import run_episode
from edgeflow.lab.demo.training.actions import HIGH, LOW, bin_centres, ids_of, scaled, soft_targets
from edgeflow.lab.demo.training.batches import BRANCHES, draw_batch, make_prompts
from edgeflow.lab.demo.training.data import CHUNK, make_dataset
from edgeflow.lab.demo.training.losses import TrainingHeads, block_mask, language_loss
from edgeflow.lab.demo.training.network import NetworkSize, PolicyNetwork
from edgeflow.lab.demo.training.states import label, sample_state
from edgeflow.lab.demo.training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.demo.training.trainer import TokenTrainer, TrainingPlan, plan_for, train_demo
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES
from edgeflow.lab.demo.world.sim import RobotSim
from edgeflow.lab.demo.world.task import EpisodeOutcome
from edgeflow_client.errors import ConfigError
from tests.lab.demo.reference_policy import read_policy

pytestmark = pytest.mark.usefixtures("one_thread")
PLAN = TrainingPlan(states=CHUNK, vision_steps=3, language_steps=3, batch=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def data(folder):
    return make_dataset(folder, CHUNK, 0, lambda count: None, workers=1)


def test_states_are_reachable_labelled_and_show_their_target():
    rng = np.random.default_rng(0)
    for _ in range(50):
        state = sample_state(rng)
        labels = label(state)
        assert labels.visible[state.target]
        assert labels.actions.shape == (HANDLES, 7)


def test_a_finished_dataset_is_not_rendered_again(data, folder):
    stamp = (folder / "images.npy").stat().st_mtime_ns
    again = make_dataset(folder, CHUNK, 0, lambda count: None, workers=1)
    assert (folder / "images.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(again.images, data.images)


def test_branches_name_what_their_answers_ask_for(data):
    prompts = make_prompts(partial(prompt_ids, train_tokenizer(512)), sharing=True)
    batch = draw_batch(data, prompts, 64, np.random.default_rng(0))
    names = [*COLOURS, "leftmost", "rightmost"]
    known = {tuple(row): names[i] for tails in prompts.tails for i, row in enumerate(tails.tolist())}
    for row in range(64):
        for branch in range(BRANCHES):
            answers = [index for index in range(HANDLES) if batch.actions[row, index].equal(batch.answers[row, branch])]
            said = known[tuple(batch.ids[row, branch].tolist())]
            allowed = {names[batch.colours[row, index]] for index in answers}
            allowed |= {place for index, place in ((0, "leftmost"), (2, "rightmost")) if index in answers}
            assert said in allowed


def test_bins_round_trip_within_half_a_bin_and_the_lowest_has_the_highest_id():
    values = torch.linspace(-1.0, 1.0, 1001)
    ids = ids_of(values, 512)
    assert ids[0] == 511
    assert ids.min() == 257
    assert (bin_centres()[511 - ids] - values).abs().max() <= 1.0 / 255 + 1e-6
    assert len(bin_centres()) == 255


def test_soft_targets_are_distributions_around_the_bin():
    values = torch.tensor([-1.0, 0.013, 0.9])
    target = soft_targets(values, 576, 512)
    assert torch.allclose(target.sum(-1), torch.ones(3))
    assert target.argmax(-1).equal(ids_of(values, 512))


def test_scaling_clips_to_the_limits():
    action = torch.tensor([9.0, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0])
    low, high = torch.tensor(LOW), torch.tensor(HIGH)
    back = 0.5 * (scaled(action) + 1.0) * (high - low) + low
    assert back[0] == pytest.approx(0.26)
    assert torch.allclose(back[1:], action[1:], atol=1e-6)


def test_the_block_mask_gives_each_branch_what_a_plain_sequence_gives(data):
    torch.manual_seed(0)
    size = NetworkSize()
    network, prompts = PolicyNetwork(size), make_prompts(partial(prompt_ids, train_tokenizer(512)), sharing=True)
    batch = draw_batch(data, prompts, 4, np.random.default_rng(1))
    with torch.inference_mode():
        image = network.image_tokens(batch.frames)
        packed = language_loss(network, TrainingHeads(size), image, batch, prompts).tokens
        actions = ids_of(batch.answers, size.text_vocab)
        losses = []
        for branch in range(BRANCHES):
            ids = [prompts.shared.expand(4, -1), batch.ids[:, branch], actions[:, branch, :-1]]
            logits = network.forward_tokens(image, torch.cat(ids, dim=1))[:, -7:]
            target = soft_targets(batch.answers[:, branch], size.vocab, size.text_vocab)
            losses.append(-(target * logits.log_softmax(-1)).sum(-1).mean())
    assert float(packed) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-4)


def test_block_mask_of_a_shared_token_and_two_branches():
    positions, mask = block_mask(1, 2, 2)
    assert positions.tolist() == [0, 1, 2, 1, 2]
    allowed = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
    assert (mask == 0).int().tolist() == allowed


def test_training_lowers_the_loss_of_both_phases(data):
    trainer = TokenTrainer(data, TrainingPlan(CHUNK, vision_steps=25, language_steps=12, batch=8), 0, "cpu")
    losses = [trainer.step()[0] for _ in range(37)]
    assert np.mean(losses[22:25]) < 0.8 * losses[0]
    assert np.mean(losses[35:]) < 0.95 * losses[25]


def test_an_interrupted_training_ends_with_the_same_weights(data, tmp_path):
    whole, first, second = (TokenTrainer(data, PLAN, 0, "cpu") for _ in range(3))
    for _ in range(PLAN.steps):
        whole.step()
    for _ in range(PLAN.vision_steps + 1):
        first.step()
    first.learner.save(tmp_path / "state.safetensors", PLAN.steps)
    second.learner.load(tmp_path / "state.safetensors", PLAN.steps)
    for _ in range(PLAN.steps - second.learner.done_steps):
        second.step()
    for name, weight in whole.network.state_dict().items():
        assert weight.equal(second.network.state_dict()[name]), name


def test_resuming_with_another_seed_is_rejected(data, tmp_path):
    TokenTrainer(data, PLAN, 0, "cpu").learner.save(tmp_path / "state.safetensors", PLAN.steps)
    with pytest.raises(ConfigError, match="seed is 1, was 0"):
        TokenTrainer(data, PLAN, 1, "cpu").learner.load(tmp_path / "state.safetensors", PLAN.steps)


def test_a_tiny_training_run_writes_a_checkpoint_that_can_act(tmp_path):
    folder = train_demo(tmp_path, minutes=0.02, seed=0, resume=False, device="auto")
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert config["norm_stats"]["edgeflow_demo"]["action"]["mask"] == [True] * 7
    assert weights["vision_backbone.featurizer.pos_embed"].shape == (1, 36, 96)
    policy = read_policy(folder)
    sim = RobotSim(0)
    outcome = run_episode(sim, lambda image, text: policy([image], [text])[0], period=1.0)
    sim.close()
    assert outcome is not EpisodeOutcome.RUNNING


def test_a_device_that_is_not_there_is_rejected_before_anything_is_rendered(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: cuda is not available"):
        train_demo(tmp_path / "out", minutes=0.02, seed=0, resume=False, device="cuda")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("minutes", [0.0, -1.0])
def test_a_budget_of_nothing_is_rejected(minutes):
    with pytest.raises(ConfigError, match="minutes must be above 0"):
        plan_for(minutes)


def test_the_budget_scales_the_plan():
    half, full = plan_for(15.0), plan_for(None)
    assert half.vision_steps == full.vision_steps // 2
    assert half.states == full.states // 2
