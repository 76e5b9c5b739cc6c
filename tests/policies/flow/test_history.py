"""Flow checkpoints with a history and a delay, against the training network on the same weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeflow.contract import PolicyInputs
from edgeflow.engine.control.history import SessionHistory
from edgeflow.engine.flow.frames import Previous, guidance_of
from edgeflow.ipc.messages import SubmitFrame
from edgeflow.lab.demo.flow_training.layers import FlowSize
from edgeflow.lab.demo.flow_training.network import TrainedFlowNetwork
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.lab.demo.flow_training.sampling import integrate
from tests.policies.flow.tiny import CHARACTERS, MOST_DELAY_MS, STEP_MS, change_json, ids_of, write_checkpoint
from tests.policies.flow.tiny_policies import answers, loaded
from tests.policies.flow.weights import Tiny, weights_of

MS = 1_000_000
TINY = Tiny(kind="smolvla", history=3, delay=True, seed=4)
KEPT = {"mode": "trained", "trained_max_delay": 4}


def submitted(seq: int, at_ms: int, start_ms: float = 0.0) -> SubmitFrame:
    """Noise of the network's size, so that nothing is resized."""
    generator, side = np.random.default_rng(seq), TINY.side
    pixels = tuple(generator.integers(0, 256, (side, side, 3), np.uint8).tobytes() for _ in range(2))
    state = generator.normal(size=TINY.state).astype(np.float32).tolist()
    return SubmitFrame(
        session=1,
        epoch=1,
        seq=seq,
        sizes=[side] * 4,
        instruction="lift it",
        payload=pixels,
        state=state,
        stamp_ns=at_ms * MS,
        start_delay_ns=round(start_ms * MS),
    )


def network_of(tiny: Tiny) -> TrainedFlowNetwork:
    size = FlowSize(
        image=tiny.side,
        patch=tiny.patch,
        vision_width=tiny.vision,
        vision_layers=tiny.vision_layers,
        vision_heads=tiny.vision_heads,
        vision_mlp=3 * tiny.vision,
        scale_factor=tiny.scale,
        width=tiny.width,
        layers=tiny.layers,
        heads=tiny.heads,
        kv_heads=tiny.kv_heads,
        head_dim=tiny.head_dim,
        mlp=tiny.inner,
        vocab=len(CHARACTERS),
        chunk=tiny.chunk,
        state=tiny.state_dims,
        action=tiny.dims,
    )
    network = TrainedFlowNetwork(size)
    weights = weights_of(tiny, len(CHARACTERS))
    network.load_state_dict({name: weights[name] for name in network.state_dict()})
    return network.eval()


def state_of(window: list[SubmitFrame], delay_s: float) -> torch.Tensor:
    """The state token's input, number by number as the checkpoint's format says."""
    newest, numbers = window[0], [*window[0].state]
    for older in window[1:]:
        numbers += [then - now for then, now in zip(older.state, newest.state, strict=True)]
        numbers.append((newest.stamp_ns - older.stamp_ns) / 1e9)
    numbers.append(delay_s)
    steps = np.arange(1.0, len(numbers) + 1)
    normalised = (np.array(numbers) - steps / 10) / (steps / 4 + 1e-8)
    return torch.tensor([[*normalised, 0.0]], dtype=torch.float32)


WINDOWS = {
    "one frame, repeated": ([0], 0.0, 0, [1, 1, 1]),
    "two frames": ([0, 130], 250.0, 0, [2, 1, 1]),
    "the nearest to their times": ([0, 90, 180, 240, 330, 520], 600.0, 0, [6, 5, 2]),
    "more than the longest delay": ([0, 210, 390], 5000.0, 0, [3, 2, 1]),
    "kept rows": ([0, 190, 410], 0.0, 3, [3, 2, 1]),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_answers_are_those_of_the_training_network(tmp_path: Path, one_thread: None, name: str):
    stamps, start_ms, kept, chosen = WINDOWS[name]
    policy, network = loaded(write_checkpoint(tmp_path, TINY), rtc=KEPT), network_of(TINY)
    history = SessionHistory(policy, count(1))
    *earlier, newest = [submitted(seq, 1000 + at_ms, 123.0) for seq, at_ms in enumerate(stamps, start=1)]
    for frame in earlier:
        history.add(frame)
        if frame.seq % 2:
            history.prompt(frame)  # with another delay
    newest = replace(newest, start_delay_ns=round(start_ms * MS))
    frames = [*earlier, newest]
    history.add(newest)
    rows = np.random.default_rng(0).normal(size=(5, TINY.action))
    prompt = history.prompt(newest)
    prompt = replace(prompt, guidance=guidance_of(Previous(rows, kept), policy.rtc, policy.sizes))
    (found,) = answers(policy, [prompt], Mode.SERIAL)

    window = [frames[seq - 1] for seq in chosen]
    images = [np.frombuffer(pixels, np.uint8) for frame in reversed(window) for pixels in frame.payload]
    left = torch.zeros(1, TINY.chunk, TINY.dims)
    left[0, : len(rows), : TINY.action] = torch.from_numpy(rows)
    with torch.inference_mode():
        tokens = network.image_tokens(torch.from_numpy(np.stack(images).reshape(-1, TINY.side, TINY.side, 3)))
        ids = torch.tensor([ids_of("lift it\n", bos=False)])
        state = state_of(window, min(start_ms, MOST_DELAY_MS) / 1e3)
        prefix = network.prefix(tokens.flatten(0, 1)[None], ids, state)
        wanted = integrate(network, prefix, prompt.noise, left, torch.tensor([kept]), TINY.steps)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-4)
    assert policy.fixed_rows + policy.text_rows("lift it") == prefix.valid.shape[1]


@pytest.mark.parametrize(("history", "delay"), [(1, True), (2, False)])
def test_a_checkpoint_may_have_either(tmp_path: Path, history: int, delay: bool):
    tiny = replace(TINY, history=history, delay=delay)
    policy = loaded(write_checkpoint(tmp_path, tiny))
    needs = PolicyInputs(cameras=policy.inputs.cameras, state=policy.inputs.state)
    needs = replace(needs, most_delay_ms=MOST_DELAY_MS * delay)
    assert policy.inputs == (replace(needs, history=2, history_step_ms=STEP_MS) if history > 1 else needs)
    sessions, frames = SessionHistory(policy, count(1)), [submitted(1, 0), submitted(2, 200, 300.0)]
    for frame in frames:
        sessions.add(frame)
    state = sessions.prompt(frames[-1]).state
    past = [*np.subtract(frames[0].state, frames[1].state), 0.2] if history > 1 else []
    numbers = np.array([*frames[1].state, *past, *([0.3] if delay else [])])
    steps = np.arange(1.0, len(numbers) + 1)
    np.testing.assert_allclose(state[:-1], (numbers - steps / 10) / (steps / 4 + 1e-8), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"history": {"frames": 1, "step_ms": 200}}, "edgeflow.json.history.frames is 1; served: 2 to 16"),
        ({"history": {"frames": 17, "step_ms": 200}}, "edgeflow.json.history.frames is 17; served: 1 to 16"),
        ({"history": {"frames": 3}}, "edgeflow.json.history lacks step_ms"),
        ({"history": {"frames": 3, "step_ms": 0}}, "edgeflow.json.history.step_ms is 0"),
        ({"history": {"frames": 3, "step_ms": 200, "skip": 1}}, "edgeflow.json.history.skip is not known"),
        ({"most_delay_ms": -1}, "edgeflow.json.most_delay_ms is -1"),
        ({"history": {"frames": 4, "step_ms": 200}}, "max_state_dim is 13; with history and delay of edgeflow.json"),
        ({"history": {"frames": 2, "step_ms": 200}}, "observation.state.mean"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, stated: dict[str, object], message: str):
    directory = write_checkpoint(tmp_path, TINY)
    change_json(directory / "edgeflow.json", lambda facts: facts.update(stated))
    with pytest.raises(CheckpointError, match=message):
        loaded(directory)


def test_a_history_is_no_setting_and_only_smolvla_has_one(tmp_path: Path):
    fact = {"history": {"frames": 3, "step_ms": 200}}
    with pytest.raises(ConfigError, match=r"policy\.history: this family, smolvla, has no such setting"):
        loaded(write_checkpoint(tmp_path / "smolvla", TINY), **fact)
    directory = write_checkpoint(tmp_path / "pi0", Tiny(kind="pi0"))
    (directory / "edgeflow.json").write_text('{"most_delay_ms": 600}')
    with pytest.raises(ConfigError, match=r"policy\.most_delay_ms: this family, pi0, has no such setting"):
        loaded(directory)
