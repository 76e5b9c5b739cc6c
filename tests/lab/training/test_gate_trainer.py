"""Training of a memory gate: only the gate moves, a resumed run ends with the same gate."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from edgeflow.lab.training.gate import trainer as training
from edgeflow.lab.training.gate.examples import Example, grouped
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.trainer import GatePlan, GateTrainer, initial_gate
from edgeflow.lab.training.run import run_training, training_progress
from edgeflow.lab.verify.gate_streaming import StreamingTwin
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, MemoryGate
from edgeflow_client.errors import ConfigError, Stopped
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.emulated_device import OTHER, other_device
from tests.random_gates import SIZE, random_base, random_gate

CPU = torch.device("cpu")
CONFIG = LlamaConfig(**SIZE, attention_bias=True)
RULES = GateRules(sink=2, window=3, segment=5)


def texts(step: int, count: int = 4) -> list[Example]:
    """Texts of several lengths, the end of each an answer."""
    make = torch.Generator().manual_seed(step)
    made = []
    for _ in range(count):
        length, answer = (int(torch.randint(low, high, (), generator=make)) for low, high in ((12, 30), (1, 6)))
        ids = torch.randint(SIZE["vocab_size"], (length + answer,), generator=make).tolist()
        made.append(Example(tuple(ids), (False,) * length + (True,) * answer, length))
    return made


def trainer_of(base: PlainBase, plan: GatePlan, gate: MemoryGate | None = None, **options: object) -> GateTrainer:
    gate = gate or initial_gate(base.config, RULES, 0)
    return GateTrainer(base, gate, texts, plan, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def base() -> PlainBase:
    return random_base(CONFIG)


def test_the_loss_is_that_of_the_streaming_twin(base: PlainBase):
    gate = random_gate(CONFIG, RULES)
    examples = [
        Example(ids, (False,) * known + (True,) * answer, known)  # no answer reaches the next fold
        for known, answer in ((10, 5), (15, 1), (25, 3), (25, 5))
        for ids in [tuple(torch.arange(known + answer).mul(7).remainder(50).tolist())]
    ]
    trainer = trainer_of(base, GatePlan(steps=1), gate)
    found = sum(float(trainer.loss(group).detach()) for group in grouped(examples, RULES, CPU))
    wanted = 0.0
    for each in examples:
        twin = StreamingTwin(base, gate)
        first = twin.prefill(each.ids[: each.known])
        logits = [first.logits, *(twin.step(token).logits for token in each.ids[each.known : -1])]
        assert twin.folds_at == []
        answer = torch.tensor(each.ids[each.known :])
        wanted += float(torch.nn.functional.cross_entropy(torch.stack(logits), answer, reduction="sum"))
    assert found == pytest.approx(wanted, rel=1e-4)


def test_gradients_reach_the_gate_alone_and_all_of_it(base: PlainBase):
    trainer = trainer_of(base, GatePlan(steps=1), random_gate(CONFIG, RULES))
    for group in grouped(texts(0), RULES, CPU):
        trainer.loss(group).backward()  # type: ignore[no-untyped-call]
    assert all(tensor.grad is None and not tensor.requires_grad for tensor in base.tensors())
    in_training = [each for layer in trainer._gate.layers for each in layer.tensors().values()]
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in in_training)


def test_the_base_is_bit_equal_after_training(base: PlainBase):
    before = [tensor.clone() for tensor in base.tensors()]
    trainer = trainer_of(base, GatePlan(steps=3))
    start = trainer.gate
    for _ in range(3):
        trainer.step()
    assert all(tensor.equal(old) for tensor, old in zip(base.tensors(), before, strict=True))
    moved = [
        not new.equal(own.tensors()[name])
        for layer, own in zip(trainer.gate.layers, start.layers, strict=True)
        for name, new in layer.tensors().items()
    ]
    assert all(moved)


def run(trainer: GateTrainer, steps: int, state: Path, *, resume: bool) -> None:
    with silent() as progress:
        run_training(trainer, steps, state=state, resume=resume, progress=progress, cpu_before=0.0)


def silent() -> Progress:
    progress = training_progress()
    progress.disable = True
    return progress


def test_a_resumed_run_gives_the_gate_of_a_run_without_a_pause(base: PlainBase, tmp_path: Path):
    plan = GatePlan(steps=6)
    whole = trainer_of(base, plan)
    run(whole, 6, tmp_path / "whole.safetensors", resume=False)
    part = trainer_of(base, plan)
    for _ in range(4):
        part.step()
    part.learner.save(tmp_path / "part.safetensors", plan.steps)
    rest = trainer_of(base, plan)
    run(rest, 6, tmp_path / "part.safetensors", resume=True)
    assert rest.learner.done_steps == 6
    for mine, own in zip(rest.gate.layers, whole.gate.layers, strict=True):
        assert all(tensor.equal(own.tensors()[name]) for name, tensor in mine.tensors().items())


@pytest.mark.parametrize(
    "plan, settings, message",
    [
        (GatePlan(steps=1, seed=1), {"lr": "0.005"}, r"\(seed is 1, was 0\): --no-resume starts again, or choose"),
        (GatePlan(steps=1), {"lr": "0.1"}, r"\(lr is 0\.1, was 0\.005\)"),
        (GatePlan(steps=6), {"lr": "0.005", "sink": "3"}, r"\(sink is 3, was not stated; steps is 6, was 1\)"),
    ],
)
def test_a_state_of_another_run_is_rejected(
    base: PlainBase, tmp_path: Path, plan: GatePlan, settings: dict[str, str], message: str
):
    state = tmp_path / "state.safetensors"
    run(trainer_of(base, GatePlan(steps=6), settings={"lr": "0.005"}), 1, state, resume=True)
    with pytest.raises(ConfigError, match=message):
        run(trainer_of(base, plan, settings=settings), plan.steps, state, resume=True)
    state.write_bytes(b"no state")
    with pytest.raises(ConfigError, match="is not the state of a training run"):
        run(trainer_of(base, plan, settings=settings), 6, state, resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_keeps_its_state(base: PlainBase, tmp_path: Path, number: signal.Signals):
    trainer, plan = trainer_of(base, GatePlan(steps=5)), GatePlan(steps=5)
    step, state, before = trainer.step, tmp_path / "state.safetensors", signal.getsignal(number)

    def signalled() -> tuple[float, str]:
        if trainer.learner.done_steps == 2:
            signal.raise_signal(number)
        return step()

    trainer.step = signalled  # type: ignore[method-assign]
    with pytest.raises(Stopped, match="stopped after step 3 of 5: the same command continues from there"):
        run(trainer, 5, state, resume=True)
    assert signal.getsignal(number) is before
    rest = trainer_of(base, plan)
    run(rest, 5, state, resume=True)
    assert rest.learner.done_steps == 5 and rest.last_loss is not None


def test_a_second_signal_ends_the_run_at_once(base: PlainBase, tmp_path: Path):
    trainer = trainer_of(base, GatePlan(steps=5))

    def signalled() -> tuple[float, str]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    trainer.step = signalled  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(trainer, 5, tmp_path / "state.safetensors", resume=True)


def test_a_state_that_does_not_state_its_length_is_resumed(base: PlainBase, tmp_path: Path):
    plan, state = GatePlan(steps=2), tmp_path / "state.safetensors"
    run(trainer_of(base, GatePlan(steps=1)), 1, state, resume=True)
    with safe_open(state, "pt") as file:
        facts = {name: value for name, value in file.metadata().items() if name != "of_steps"}
    save_file(load_file(state), state, facts)
    rest = trainer_of(base, plan)
    run(rest, 2, state, resume=True)
    assert rest.learner.done_steps == 2


def test_the_loss_of_a_batch_falls(base: PlainBase):
    trainer = GateTrainer(base, initial_gate(CONFIG, RULES, 0), lambda _: texts(0), GatePlan(steps=60, rate=0.02))
    losses = [trainer.step()[0] for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0] and trainer.last_loss == losses[-1]


@pytest.mark.parametrize("at_once", [1, 50 * 7])
def test_a_loss_in_parts_is_the_loss(base: PlainBase, monkeypatch: pytest.MonkeyPatch, at_once: int):
    gate = random_gate(CONFIG, RULES)

    def gradients(plan: GatePlan) -> tuple[float, list[torch.Tensor]]:
        trainer = trainer_of(base, plan, gate)
        total = torch.stack([trainer.loss(group) for group in grouped(texts(2), RULES, CPU)]).sum()
        parameters = [each for layer in trainer._gate.layers for each in layer.tensors().values()]
        return float(total.detach()), list(torch.autograd.grad(total, parameters))

    loss, wanted = gradients(GatePlan(steps=1))
    monkeypatch.setattr(training, "LOGITS_AT_ONCE", at_once)
    parted, found = gradients(GatePlan(steps=1, checkpointing=True))
    assert parted == pytest.approx(loss, rel=1e-5)
    for mine, own in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-4, atol=1e-5 * own.abs().max().item())


def test_every_tensor_is_on_the_device_of_the_base(tmp_path: Path):
    """On an emulated device, where an operation over tensors of two devices fails as it does on CUDA."""
    write_chat_checkpoint(tmp_path, "qwen2")
    losses = []
    for device, context in ((CPU, nullcontext()), (OTHER, other_device())):
        with context:
            base = PlainBase.read(tmp_path, torch.float32, device)
            trainer = trainer_of(base, GatePlan(steps=2, checkpointing=True), random_gate(base.config, RULES))
            losses.append([trainer.step()[0] for _ in range(2)])
            assert {tensor.device for layer in trainer.gate.layers for tensor in layer.tensors().values()} == {device}
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_rate_that_is_too_high_is_named(base: PlainBase):
    broken = random_gate(CONFIG, RULES)
    broken.layers[0].w2.fill_(1e38)
    with pytest.raises(ConfigError, match=r"lr: the loss of step 0 is .* lower the learning rate"):
        trainer_of(base, GatePlan(steps=1), broken).step()


def test_rates_rise_and_fall():
    plan = GatePlan(steps=200)
    shares = [plan.share(step) for step in range(200)]
    assert shares[0] == pytest.approx(0.05) and max(shares) > 0.95
    top = shares.index(max(shares))
    assert shares[:top] == sorted(shares[:top]) and shares[top:] == sorted(shares[top:], reverse=True)
    assert shares[-1] == pytest.approx(0.1, abs=0.01)


@given(
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5)),
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=4),
    first_segment=st.sampled_from(["bypass", "zero"]),
)
def test_groups_hold_every_learned_token_that_a_gate_reaches(
    sizes: tuple[int, int, int], lengths: list[tuple[int, int]], first_segment: str
):
    rules = GateRules(sink=sizes[0], window=sizes[1], segment=sizes[2], first_segment=first_segment)
    examples = []
    for index, (length, answer) in enumerate(lengths):
        ids = tuple(range(100 * index, 100 * index + length + answer))
        examples.append(Example(ids, (False,) * length + (True,) * answer, length))
    groups = grouped(examples, rules, CPU)
    found = sorted(target for group in groups for target in group.targets.tolist())
    reached = rules.sink + (rules.segment if first_segment == "bypass" else 0)
    wanted = sorted(
        token
        for each in examples
        if rules.segments(each.known)
        for place, token in enumerate(each.ids)
        if each.learned[place] and place > reached
    )
    assert found == wanted
    for group in groups:
        assert torch.equal(group.ids[group.texts, reached + group.places] + 1, group.targets)


def test_a_plain_text_is_learned_after_its_first_segment():
    (group,) = grouped([Example.plain(range(20)), Example.plain(range(9))], RULES, CPU)
    assert group.segments == 3 and group.targets.tolist() == list(range(8, 20))


def test_the_first_gate_passes_memory_on_and_is_half_open(base: PlainBase):
    gate = initial_gate(CONFIG, RULES, 3, "abc")
    assert gate.base_fingerprint == "abc" and gate.mlp_hidden == 4 * CONFIG.head_dim
    x = torch.randn(5, CONFIG.head_dim, generator=torch.Generator().manual_seed(1))
    for layer in gate.layers:
        passed = (x @ layer.w1[0].T + layer.b1[0]).relu() @ layer.w2[0].T + layer.b2[0]
        assert (passed - x).abs().max() < 0.5 and torch.equal(layer.g.sigmoid(), torch.full_like(layer.g, 0.5))
        assert layer.g.shape == (CONFIG.num_attention_heads, CONFIG.head_dim)
    again, other = (initial_gate(CONFIG, RULES, seed) for seed in (3, 4))
    assert again.layers[0].w1.equal(gate.layers[0].w1) and not other.layers[0].w1.equal(gate.layers[0].w1)


def test_steps_of_texts_that_teach_nothing_count(base: PlainBase):
    short: Callable[[int], list[Example]] = lambda step: [Example.plain(range(5))]  # noqa: E731
    trainer = GateTrainer(base, initial_gate(CONFIG, RULES, 0), short, GatePlan(steps=2))
    assert trainer.step() == (0.0, "") and trainer.learner.done_steps == 1
