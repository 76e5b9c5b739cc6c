from functools import partial

import numpy as np
import pytest
import torch

from edgeflow.engine.control.history import picked
from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import STEP_S, Spread
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.quaternions import conjugate, multiply, quaternions, rotate
from edgeflow.lab.demo.flow_training.sequences import FRAMES, SequenceData, SequenceStudio
from edgeflow.lab.demo.flow_training.tokenizer import prompt_ids, train_tokenizer
from edgeflow.lab.demo.flow_training.windows import (
    AHEAD_S,
    HISTORY,
    HISTORY_STEP_S,
    MOST_DELAY_S,
    MOST_KEPT,
    choose_windows,
    draw_windows,
    state_rows,
    window_states,
)
from edgeflow.lab.demo.training.batches import make_prompts

SIZE = FlowSize()
COUNT = 24


@pytest.fixture(scope="module")
def data():
    studio, rng = SequenceStudio(), np.random.default_rng(0)
    rows = [studio.shoot(rng) for _ in range(COUNT)]
    studio.close()
    return SequenceData(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


@pytest.fixture(scope="module")
def normaliser(data):
    return BatchNormaliser(
        SIZE, Spread.of(state_rows(data, np.random.default_rng(1), 500)), Spread(np.zeros(7), np.ones(7))
    )


@pytest.fixture(scope="module")
def batch(data, normaliser):
    tokens = torch.arange(COUNT * FRAMES).view(COUNT, FRAMES, 1, 1).expand(-1, -1, 2, 1).float()
    prompts = make_prompts(partial(prompt_ids, train_tokenizer(SIZE.vocab)), sharing=False)
    rng = np.random.default_rng(2)
    return draw_windows(data, tokens, normaliser=normaliser, prompts=prompts, shape=(64, 2, 4), rng=rng)


def raw_states(batch, normaliser):
    spread = normaliser.state
    return batch.states[..., : len(spread.mean)].numpy() * spread.std + spread.mean


def test_a_sequence_shows_its_handles_move_and_its_target_in_view(data):
    assert data.visible[np.arange(COUNT), -1, data.target].all()
    speeds = np.linalg.norm(data.velocity, axis=2)
    assert (speeds[:, 0] == 0.0).any()
    assert speeds.max() > 0.05
    moving = speeds[:, 0] > 0.05
    assert (np.abs(np.diff(data.images[moving].astype(int), axis=1)).max(axis=(2, 3, 4)) > 20).all()


def test_windows_hold_the_frames_that_a_service_picks(data):
    rows = np.repeat(np.arange(COUNT), 20)
    frames, gaps = choose_windows(data, rows, np.random.default_rng(3))
    full = (np.diff(frames, axis=1) < 0).all(axis=1) & (gaps[:, 1] > 0.35)
    assert 0.5 < full.mean() < 1.0
    for row, chosen, apart in zip(rows[full], frames[full], gaps[full], strict=True):
        stamps = [round(each * 1e9) for each in data.times[row, : chosen[0] + 1]]
        assert picked(stamps, HISTORY, round(HISTORY_STEP_S * 1e9)) == chosen[::-1].tolist()
        np.testing.assert_allclose(apart, data.times[row, chosen[0]] - data.times[row, chosen[1:]])
    alone = frames[:, 0] == frames[:, 2]
    assert alone.any()
    assert (gaps[alone] == 0.0).all()


def test_the_state_of_an_older_frame_is_told_less_the_newest(data):
    rows, frames = np.arange(COUNT), np.tile([6, 4, 2], (COUNT, 1))
    states = window_states(data, rows, frames, np.full((COUNT, 2), 0.2))
    np.testing.assert_allclose(states[:, 7:10], data.tool[:, 4, :3] - data.tool[:, 6, :3])
    np.testing.assert_allclose(states[:, 15:18], data.tool[:, 2, :3] - data.tool[:, 6, :3])
    np.testing.assert_allclose(states[:, 21], data.aperture[:, 2] - data.aperture[:, 6])
    assert (states[:, [14, 22, 23]] == [0.2, 0.2, 0.0]).all()


def test_a_chunk_has_a_delay_or_kept_rows(batch, normaliser):
    delays, kept = raw_states(batch, normaliser)[..., 23], batch.kept.numpy()
    waiting = delays > 1e-6
    assert not (waiting & (kept > 0)).any()
    assert 0.3 < waiting.mean() < 0.7
    assert delays.max() <= MOST_DELAY_S + 1e-6
    assert kept.max() <= MOST_KEPT
    assert ((kept >= 8) & (kept <= 16)).mean() > 0.1


def test_images_come_oldest_first_and_chunks_lead_to_where_the_handle_will_be(batch, normaliser):
    newest, oldest = batch.tokens[:, -1, 0], batch.tokens[:, 0, 0]
    assert (newest >= oldest).all()
    states = raw_states(batch, normaliser)
    chunks = batch.chunks[..., :7].double().numpy().reshape(-1, SIZE.chunk, 7)
    position, turn = np.zeros((len(chunks), 3)), np.tile([1.0, 0.0, 0.0, 0.0], (len(chunks), 1))
    path = [position]
    for row in range(SIZE.chunk):
        position = position + rotate(turn, chunks[:, row, :3])
        turn = multiply(turn, quaternions(chunks[:, row, 3:6]))
        path.append(position)
    for index, after in enumerate(AHEAD_S[1:], 1):
        row = round(after / STEP_S)
        there = batch.ahead[..., index, :].double().numpy().reshape(-1, 3)
        closed = (chunks[:, :row, 6] < 0.5).any(axis=1) & (batch.kept.numpy().reshape(-1) == 0)
        off = np.linalg.norm(path[row] - there, axis=1)[closed]
        assert len(off) > 20
        assert off.max() < 0.002
    alone = (newest == oldest).numpy()
    assert (batch.velocity.numpy()[alone] == 0.0).all()
    assert np.abs(states[alone][..., 7:23]).max() < 1e-6
    assert conjugate(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [1.0, -2.0, -3.0, -4.0]
