"""The twins of a memory gate against each other, against the base, and against what the rules promise."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.whole_texts import WholeTextRun, run_whole_texts
from edgeflow.lab.verify.gate_streaming import GateMemory, GatePass, StreamingTwin
from edgeflow.models.chat import load_chat_model
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import CHOICES, GateRules, MemoryGate, gate_header
from tests.chat_checkpoint import write_chat_checkpoint
from tests.engine.emulated_device import OTHER, other_device
from tests.random_gates import SIZE, random_base, random_gate

CPU = torch.device("cpu")
CONFIGS = {
    "grouped": LlamaConfig(**SIZE),
    "one head each": LlamaConfig(**{**SIZE, "num_key_value_heads": 4}, tie_word_embeddings=True),
    "biases": LlamaConfig(**SIZE, attention_bias=True, rope_theta=500.0),
    "head norms": LlamaConfig(**{**SIZE, "head_dim": 10, "num_key_value_heads": 1}, head_norm=True),
}
TOLERANCE = 5e-5
MEMORY_TOLERANCE = 1e-5  # of the largest entry

rules_of_any_size = st.builds(
    lambda sizes, options: (sizes, options),
    st.fixed_dictionaries({"sink": st.integers(0, 4), "window": st.integers(1, 7), "segment": st.integers(1, 6)}),
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}),
)


def drawn_ids(count: int) -> list[int]:
    return torch.randint(50, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def at_once(base: PlainBase, gate: MemoryGate, ids: list[int]) -> WholeTextRun:
    return run_whole_texts(base, gate, torch.tensor([ids]), gate.rules.segments(len(ids)), watch=True)


def assert_same_state(twin: StreamingTwin, last: GatePass, whole: WholeTextRun, base: PlainBase) -> None:
    """The last pass and the memory, streamed and at once."""
    rows = torch.cat((whole.plain, whole.gated), 1)[0, -len(last.hidden) :]
    torch.testing.assert_close(rows, last.hidden, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(base.logits(rows[-1]), last.logits, rtol=0, atol=TOLERANCE)
    if twin.memories:
        sums = torch.stack([each.sums[0, :, -1] for each in whole.seen])
        assert_same_memory(GateMemory(sums[..., :-1], sums[..., -1]), twin.memories[-1])


def assert_same_memory(found: GateMemory, wanted: GateMemory) -> None:
    for mine, own in ((found.sums, wanted.sums), (found.norms, wanted.norms)):
        torch.testing.assert_close(mine, own, rtol=0, atol=MEMORY_TOLERANCE * own.abs().max().item())


@given(st.sampled_from(list(CONFIGS)), rules_of_any_size, st.integers(1, 40), st.integers(0, 14), st.booleans())
@torch.inference_mode()
def test_streamed_is_at_once(
    name: str, drawn: tuple[dict[str, int], dict[str, str]], length: int, steps: int, per_head: bool
):
    sizes, options = drawn
    assume(not (options["positions"] == "local" and options["fold"] == "cached"))
    rules = GateRules(**sizes, **options)  # type: ignore[arg-type]
    base = random_base(CONFIGS[name])
    gate = random_gate(CONFIGS[name], rules, per_head=per_head)
    ids = drawn_ids(length + steps)
    twin = StreamingTwin(base, gate)
    last = twin.prefill(ids[:length])
    assert twin.folded == rules.segments(length)
    assert_same_state(twin, last, at_once(base, gate, ids[:length]), base)
    for known in range(length + 1, length + steps + 1):
        last = twin.step(ids[known - 1])
        assert twin.folded == rules.segments(known) and -rules.sink - rules.window <= twin.residual < rules.segment
        if rules.fold == "recompute":
            assert_same_state(twin, last, at_once(base, gate, ids[:known]), base)


@given(rules_of_any_size, st.integers(1, 30), st.integers(1, 20))
@torch.inference_mode()
def test_a_step_is_a_fresh_prefill_of_the_same_tokens(
    drawn: tuple[dict[str, int], dict[str, str]], length: int, steps: int
):
    sizes, options = drawn
    rules = GateRules(**sizes, **{**options, "fold": "recompute"})  # type: ignore[arg-type]
    base = random_base(CONFIGS["grouped"])
    gate = random_gate(CONFIGS["grouped"], rules)
    ids = drawn_ids(length + steps)
    twin, fresh = StreamingTwin(base, gate), StreamingTwin(base, gate)
    twin.prefill(ids[:length])
    for token in ids[length:]:
        last = twin.step(token)
    again = fresh.prefill(ids)
    torch.testing.assert_close(last.logits, again.logits, rtol=0, atol=TOLERANCE)
    assert twin.folded == fresh.folded
    if twin.memories:
        assert_same_memory(twin.memories[-1], fresh.memories[-1])


@torch.inference_mode()
def test_a_short_text_is_bit_equal_whatever_the_gate():
    config, rules = CONFIGS["biases"], GateRules(sink=3, window=4, segment=5)
    base, ids = random_base(config), drawn_ids(11)
    outcomes = []
    for gate in (random_gate(config, rules), random_gate(config, rules, per_head=True)):
        twin = StreamingTwin(base, gate)
        outcomes.append([twin.prefill(ids[:6]), *(twin.step(token) for token in ids[6:])])
        assert twin.folded == 0
    for some, others in zip(*outcomes, strict=True):
        assert some.logits.equal(others.logits) and some.a_mem == []
    one, other = (at_once(base, random_gate(config, rules, per_head=each), ids) for each in (False, True))
    assert one.plain.equal(other.plain) and one.gated.shape[1] == 0


@pytest.mark.parametrize("rules", [GateRules(sink=2, window=3, segment=4), GateRules(sink=0, window=1, segment=6)])
@torch.inference_mode()
def test_gates_that_are_shut_leave_the_attention_of_each_segment(rules: GateRules):
    config, ids = CONFIGS["grouped"], drawn_ids(30)
    base, gate = random_base(config), random_gate(config, rules)
    shut = replace(gate, layers=tuple(replace(each, g=torch.full_like(each.g, -1e4)) for each in gate.layers))
    plain = StreamingTwin(base, gate, without_memory=True).prefill(ids)
    torch.testing.assert_close(StreamingTwin(base, shut).prefill(ids).logits, plain.logits, rtol=0, atol=1e-6)
    assert (StreamingTwin(base, gate).prefill(ids).logits - plain.logits).abs().max() > 0.1


@torch.inference_mode()
def test_gates_that_are_open_pass_on_memory_alone():
    config, rules, ids = CONFIGS["grouped"], GateRules(sink=2, window=3, segment=4), drawn_ids(30)
    base, gate = random_base(config), random_gate(config, rules)
    layers = [replace(each, g=torch.full_like(each.g, 1e4), w2=torch.zeros_like(each.w2)) for each in gate.layers]
    twin = StreamingTwin(base, replace(gate, layers=tuple(layers)))
    for layer, mixed in zip(layers, twin.prefill(ids).a_com, strict=True):
        torch.testing.assert_close(mixed, layer.b2.expand_as(mixed), rtol=0, atol=1e-6)


@torch.inference_mode()
def test_memory_does_not_grow():
    config, rules = CONFIGS["grouped"], GateRules(sink=2, window=3, segment=4)
    twin = StreamingTwin(random_base(config), random_gate(config, rules))
    sizes = []
    for segments in (10, 200):
        twin.prefill(drawn_ids(rules.threshold + (segments - 1) * rules.segment))
        memory = twin.memories[-1]
        sizes.append((twin.folded, memory.sums.shape, memory.norms.shape))
    assert sizes[0][0] == 10 and sizes[1][0] == 200 and sizes[0][1:] == sizes[1][1:]


@torch.inference_mode()
def test_texts_side_by_side_are_texts_alone():
    config, rules = CONFIGS["biases"], GateRules(sink=3, window=2, segment=5)
    base, gate = random_base(config), random_gate(config, rules)
    ids = torch.tensor(drawn_ids(3 * 28)).view(3, 28)
    whole = run_whole_texts(base, gate, ids, 3)
    for row, one in enumerate(ids):
        alone = run_whole_texts(base, gate, one[None], 3)
        torch.testing.assert_close(whole.gated[row], alone.gated[0], rtol=0, atol=1e-5)
    padded = run_whole_texts(base, gate, torch.cat((ids, torch.zeros(3, 4, dtype=torch.long)), 1), 3)
    torch.testing.assert_close(padded.gated[:, :-4], whole.gated, rtol=0, atol=1e-5)


@pytest.mark.parametrize("needed, skipped", [(0, 0), (9, 0), (10, 10), (14, 10)])
@torch.inference_mode()
def test_rows_that_are_not_needed_are_left_out(needed: int, skipped: int):
    config, rules = CONFIGS["grouped"], GateRules(sink=3, window=2, segment=5)
    base, gate = random_base(config), random_gate(config, rules)
    ids = torch.tensor(drawn_ids(2 * 25)).view(2, 25)
    whole, part = run_whole_texts(base, gate, ids, 3), run_whole_texts(base, gate, ids, 3, needed=needed)
    assert (whole.skipped, part.skipped) == (0, skipped)
    torch.testing.assert_close(part.gated, whole.gated[:, skipped:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("first_segment", ["bypass", "zero"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_small_changes(first_segment: str, checkpointing: bool):
    config, rules = CONFIGS["grouped"], GateRules(sink=2, window=2, segment=4, first_segment=first_segment)
    base, gate = in_float64(random_base(config)), random_gate(config, rules)
    parameters = [each.double().requires_grad_() for layer in gate.layers for each in layer.tensors().values()]
    ids, mark = torch.tensor([drawn_ids(21)]), torch.randn(24, generator=torch.Generator().manual_seed(1)).double()

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        names = list(gate.layers[0].tensors())
        layers = (dict(zip(names, tensors[index : index + 5], strict=True)) for index in range(0, len(tensors), 5))
        own = replace(gate, layers=tuple(replace(gate.layers[0], **layer) for layer in layers))
        return (run_whole_texts(base, own, ids, 4, checkpointing=checkpointing).gated @ mark).sin().sum()

    gradients = torch.autograd.grad(loss(*parameters), parameters)
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    step = 1e-3  # sums of memory are float32, which bounds how small a change can be
    for index, gradient in enumerate(gradients):
        change = step * gradient / gradient.norm()
        sides = []
        for moved in (parameters[index] + change, parameters[index] - change):
            with torch.no_grad():
                sides.append(loss(*parameters[:index], moved, *parameters[index + 1 :]))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert slope.item() == pytest.approx(gradient.norm().item(), rel=1e-2)


def in_float64(base: PlainBase) -> PlainBase:
    def wide(holder: Any) -> Any:
        tensors = {name: getattr(holder, name) for name in holder.__dataclass_fields__}
        return replace(holder, **{name: each.double() for name, each in tensors.items() if torch.is_tensor(each)})

    return replace(wide(base), layers=tuple(wide(layer) for layer in base.layers))


ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "family, config",
    [
        ("llama", {}),
        ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear"}}),
        (
            "llama",
            {"rope_parameters": {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        ),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
    ],
)
@torch.inference_mode()
def test_the_plain_base_is_the_decoder_that_serves(tmp_path: Path, family: str, config: dict[str, Any]):
    write_chat_checkpoint(tmp_path, family, **config)
    model, base = load_chat_model(tmp_path, torch.float32, CPU), PlainBase.read(tmp_path, torch.float32, CPU)
    ids = drawn_ids(30)
    layout = PackedLayout.of([Span(0, 0, len(ids))], CPU)
    hidden = model.decoder.forward(model.embed(ids), layout, model.decoder.kv_slots(1, len(ids)))
    gate = random_gate(base.config, GateRules(sink=4, window=10, segment=20))
    found = at_once(base, gate, ids).plain
    torch.testing.assert_close(base.logits(found[0]), model.decoder.logits(hidden, "prefill"), rtol=0, atol=1e-4)
    twin = StreamingTwin(base, gate)
    torch.testing.assert_close(twin.prefill(ids).hidden, found[0], rtol=0, atol=1e-4)
    stored = sum(tensor.numel() for tensor in {id(each): each for each in base.tensors()}.values())
    assert base.weights == stored


@torch.inference_mode()
def test_the_twins_run_on_the_device_of_the_base(tmp_path: Path):
    """On an emulated device, where an operation over tensors of two devices fails as it does on CUDA."""
    write_chat_checkpoint(tmp_path, "qwen3")
    rules, ids = GateRules(sink=2, window=3, segment=5, memory_content="sink_and_segment"), drawn_ids(24)
    write_gate(tmp_path, random_gate(PlainBase.read(tmp_path, torch.float32, CPU).config, rules))
    found = []
    for device, context in ((CPU, nullcontext()), (OTHER, other_device())):
        with context:
            base = PlainBase.read(tmp_path, torch.float32, device)
            gate = gate_header(tmp_path, base.config).read(base.config, torch.float32, device)
            twin = StreamingTwin(base, gate)
            twin.prefill(ids)
            rows = run_whole_texts(base, gate, torch.tensor([ids], device=device), 3).gated
            found.append([twin.step(7).logits.cpu(), twin.memories[-1].sums.cpu(), rows.cpu()])
    for mine, own in zip(*found, strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-5, atol=1e-5)


@settings(max_examples=10)
@given(st.integers(0, 30))
def test_segments_that_do_not_fit_are_rejected(missing: int):
    rules = GateRules(sink=2, window=3, segment=4)
    base = random_base(CONFIGS["grouped"])
    with pytest.raises(ValueError, match=f"8 segments do not fit into {34 - missing} tokens"):
        run_whole_texts(base, random_gate(CONFIGS["grouped"], rules), torch.zeros(1, 34 - missing, dtype=torch.long), 8)
