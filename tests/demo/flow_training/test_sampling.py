import numpy as np
import pytest
import torch

from edgeflow.demo.chunk_episodes import Observation
from edgeflow.demo.flow_training.batches import Normaliser
from edgeflow.demo.flow_training.chunks import Spread
from edgeflow.demo.flow_training.network import FlowNetwork
from edgeflow.demo.flow_training.sampling import FlowSampler, Guidance
from edgeflow.demo.flow_training.size import FlowSize
from edgeflow.demo.flow_training.tokenizer import SPECIAL, prompt_ids, train_tokenizer
from edgeflow.demo.training.tokenizer import all_instructions

SIZE = FlowSize(layers=2, vision_layers=1)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SIZE.vocab)


@pytest.fixture(scope="module")
def sampler_of(tokenizer):
    torch.manual_seed(0)
    network = FlowNetwork(SIZE)
    spread = Spread(np.full(7, 0.5), np.full(7, 2.0))
    normaliser = Normaliser(SIZE, spread, spread)
    return lambda **options: FlowSampler(network, tokenizer, normaliser, 4, **options)


def observed(text="grab the red handle", left=None, delay=0):
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    return Observation(image, text, np.linspace(0.0, 1.0, 7), left, delay)


def test_every_word_of_an_instruction_is_one_piece(tokenizer):
    for text in all_instructions():
        assert len(prompt_ids(tokenizer, text)) == len(text.split()) + 1
    assert tokenizer.get_vocab_size() <= SIZE.vocab
    assert [tokenizer.token_to_id(each) for each in SPECIAL] == list(range(len(SPECIAL)))


def test_any_text_survives_the_tokenizer(tokenizer):
    text = "Größer than 3 x_y?\n"
    assert tokenizer.decode(prompt_ids(tokenizer, text)) == text


def test_weights_are_those_of_the_published_example():
    weights = Guidance(horizon=6).weights(rows=10, left=10, delay=3)
    torch.testing.assert_close(weights, torch.tensor([1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]))
    assert Guidance(horizon=10).weights(rows=10, left=2, delay=3).tolist() == [1.0, 1.0] + [0.0] * 8


def test_strengths_are_those_of_ten_published_steps():
    strengths = [Guidance().strength(1.0 - step / 10) for step in range(10)]
    assert strengths == pytest.approx([10, 9.111, 4.25, 2.762, 2.167, 2, 2.167, 2.762, 4.25, 9.111], abs=5e-4)


def test_an_answer_in_a_batch_is_the_answer_alone(sampler_of):
    short, long = observed(), observed("reach for the green handle and close the gripper")
    together = sampler_of()([short, long])
    assert np.allclose(together[0], sampler_of()([short])[0], atol=1e-4)
    assert together[1].shape == (SIZE.chunk, 7)
    assert not np.allclose(together[0], together[1], atol=1e-2)


def test_guidance_draws_the_first_rows_to_the_chunk_being_played(sampler_of):
    free = sampler_of()([observed()])[0]
    left = free[3:] + 1.0
    guided = sampler_of(guidance=Guidance(horizon=5))([observed(left=left, delay=3)])[0]
    padded = np.concatenate([left, np.zeros((3, 7))])
    off_free, off_guided = (np.abs(each - padded).mean(axis=1) for each in (free, guided))
    assert (off_guided[:3] < 0.5 * off_free[:3]).all()
    assert np.abs(guided - free)[8:].max() < np.abs(guided - free)[:3].max()
