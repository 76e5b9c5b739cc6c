from functools import partial

import numpy as np
import pytest

from edgeflow.engine.control.history import picked
from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import Spread
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.pursuit import STEP_S
from edgeflow.lab.demo.flow_training.quaternions import multiply, quaternions, rotate
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


@pytest.fixture(scope="module")
def normaliser(sequences):
    return BatchNormaliser(
        SIZE, Spread.of(state_rows(sequences, np.random.default_rng(1), 500)), Spread(np.zeros(7), np.ones(7))
    )


@pytest.fixture(scope="module")
def batch(sequences, normaliser):
    prompts = make_prompts(partial(prompt_ids, train_tokenizer(SIZE.vocab)), sharing=False)
    rng = np.random.default_rng(2)
    return draw_windows(sequences, normaliser=normaliser, prompts=prompts, shape=(64, 2, 4), rng=rng)


def raw_states(batch, normaliser):
    spread = normaliser.state
    return batch.states[..., : len(spread.mean)].numpy() * spread.std + spread.mean


def test_a_sequence_shows_its_handles_move_and_its_target_in_view(sequences):
    assert sequences.visible[np.arange(len(sequences)), -1, sequences.target].all()
    speeds = np.linalg.norm(sequences.velocity, axis=2)
    assert (speeds[:, 0] == 0.0).any()
    assert speeds.max() > 0.05
    moving = speeds[:, 0] > 0.05
    assert (np.abs(np.diff(sequences.images[moving].astype(int), axis=1)).max(axis=(2, 3, 4)) > 20).all()


def test_windows_hold_the_frames_that_a_service_picks(sequences):
    rows = np.repeat(np.arange(len(sequences)), 20)
    frames, gaps = choose_windows(sequences, rows, np.random.default_rng(3))
    full = (np.diff(frames, axis=1) < 0).all(axis=1) & (gaps[:, 1] > 0.35)
    assert 0.5 < full.mean() < 1.0
    for row, chosen, apart in zip(rows[full], frames[full], gaps[full], strict=True):
        stamps = [round(each * 1e9) for each in sequences.times[row, : chosen[0] + 1]]
        assert picked(stamps, HISTORY, round(HISTORY_STEP_S * 1e9)) == chosen[::-1].tolist()
        np.testing.assert_allclose(apart, sequences.times[row, chosen[0]] - sequences.times[row, chosen[1:]])
    alone = frames[:, 0] == frames[:, 2]
    assert alone.any()
    assert (gaps[alone] == 0.0).all()


def test_the_state_of_an_older_frame_is_told_less_the_newest(sequences):
    rows, frames = np.arange(len(sequences)), np.tile([6, 4, 2], (len(sequences), 1))
    states = window_states(sequences, rows, frames, np.full((len(sequences), 2), 0.2))
    np.testing.assert_allclose(states[:, 7:10], sequences.tool[:, 4, :3] - sequences.tool[:, 6, :3])
    np.testing.assert_allclose(states[:, 15:18], sequences.tool[:, 2, :3] - sequences.tool[:, 6, :3])
    np.testing.assert_allclose(states[:, 21], sequences.aperture[:, 2] - sequences.aperture[:, 6])
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
    newest, oldest = batch.frames[:, -1], batch.frames[:, 0]
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
