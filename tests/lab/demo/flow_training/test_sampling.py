import numpy as np
import pytest
import torch

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import Spread
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from edgeflow.lab.demo.flow_training.tokenizer import SPECIAL, prompt_ids, train_tokenizer
from edgeflow.lab.demo.flow_training.windows import MOST_KEPT, STATE_DIM
from edgeflow.lab.demo.training.tokenizer import all_instructions
from tests.lab.demo.chunk_episodes import EpisodeFrame
from tests.lab.demo.flow_training.sampling import FlowSampler

SIZE = FlowSize(layers=2, vision_layers=1)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SIZE.vocab)


@pytest.fixture(scope="module")
def sampler_of(tokenizer):
    torch.manual_seed(0)
    network = TrainedFlowNetwork(SIZE)
    state, action = (Spread(np.full(each, 0.5), np.full(each, 2.0)) for each in (STATE_DIM, 7))
    normaliser = BatchNormaliser(SIZE, state, action)
    return lambda **options: FlowSampler(network, tokenizer, normaliser, 4, **options)


def observed(text="grab the red handle", left=None, delay=0):
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    return EpisodeFrame(image, text, np.linspace(0.0, 1.0, 7), left, delay)


def test_every_word_of_an_instruction_is_one_piece(tokenizer):
    for text in all_instructions():
        assert len(prompt_ids(tokenizer, text)) == len(text.split()) + 1
    assert tokenizer.get_vocab_size() <= SIZE.vocab
    assert [tokenizer.token_to_id(each) for each in SPECIAL] == list(range(len(SPECIAL)))


def test_any_text_survives_the_tokenizer(tokenizer):
    text = "Größer than 3 x_y?\n"
    assert tokenizer.decode(prompt_ids(tokenizer, text)) == text


def test_an_answer_in_a_batch_is_the_answer_alone(sampler_of):
    short, long = observed(), observed("reach for the green handle and close the gripper")
    together = sampler_of()([short, long])
    assert np.allclose(together[0], sampler_of()([short])[0], atol=1e-4)
    assert together[1].shape == (SIZE.chunk, 7)
    assert not np.allclose(together[0], together[1], atol=1e-2)


def test_an_answer_keeps_the_rows_that_pass_before_it_arrives_and_continues_from_them(sampler_of):
    free = sampler_of()([observed()])[0]
    left = free[3:] + 1.0
    kept = sampler_of()([observed(left=left, delay=3)])[0]
    np.testing.assert_allclose(kept[:3], left[:3], rtol=0, atol=1e-5)
    assert np.abs(kept - free)[3:].max() > 1e-3
    farther = sampler_of()([observed(left=np.concatenate([left[:3], left[3:] + 1.0]), delay=3)])[0]
    np.testing.assert_allclose(farther, kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("rows", "delay", "kept"), [(2, 3, 2), (40, 30, MOST_KEPT), (4, 0, 0)])
def test_no_more_rows_are_kept_than_there_are_and_than_were_trained(sampler_of, rows, delay, kept):
    left = np.full((rows, 7), 3.0)
    chunk = sampler_of()([observed(left=left, delay=delay)])[0]
    same = np.isclose(chunk, 3.0, atol=1e-5).all(axis=1)
    assert same.tolist() == [True] * kept + [False] * (SIZE.chunk - kept)


def test_answers_of_a_batch_keep_rows_of_their_own(sampler_of):
    left = np.full((8, 7), 3.0)
    asked = [observed(), observed(left=left, delay=4)]
    alone = [sampler_of()([each])[0] for each in asked]
    np.testing.assert_allclose(sampler_of()(asked)[0], alone[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(sampler_of()(asked)[1][:4], 3.0, rtol=0, atol=1e-5)
