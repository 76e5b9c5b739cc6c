"""After warm-up no pass makes Triton compile a kernel again: that takes seconds, inside the loop that serves robots."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from edgeflow.clock import ManualClock
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.control.actions import ActionTokens
from edgeflow.engine.control.warmup import record_passes, warm_up
from edgeflow.engine.executor import Ticket
from edgeflow.engine.generate import StepRows, run_pass
from edgeflow.engine.process.calibrate import calibrate
from edgeflow.engine.program import PassProgram
from edgeflow.engine.shapes import PassShape, shape_of
from edgeflow.engine.slots import SlotState
from edgeflow.engine.staging import PassInputs, input_bytes
from edgeflow.gpu_suite.subjects.random_chat import CHAT_SIZES, TINY, random_chat
from edgeflow.gpu_suite.subjects.random_policy import SIZES, PolicySize, random_policy
from edgeflow.gpu_suite.subjects.random_weights import RandomTensors
from edgeflow.kernels.kv_formats import DENSE, INT8, KVFormat
from edgeflow.kernels.layout import Span
from edgeflow.kernels.table import OperatorKey
from edgeflow.models.openvla.policy import OpenVLAPolicy
from edgeflow.scheduler.plan import Pass, Ref
from edgeflow.scheduler.ring import Shift
from tests.engine.process.simulated_device import AsynchronousEngine
from tests.engine.recorded import record
from tests.kernels.interpreted_engine import in_triton

META = torch.device("meta")
SIZE = SIZES["tiny"]
CAPACITY = 64
CHUNK = 256

Signature = tuple[Any, ...]


def specialised(value: Any) -> Any:
    """What Triton compiles for: alignment of pointers; integers that are 1, divisible by 16, or wide."""
    if isinstance(value, Tensor):
        return value.dtype, value.storage_offset() * value.element_size() % 16 == 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value == 1, value % 16 == 0, value >= 1 << 31
    return type(value)


def signature(kernel: JITFunction, given: tuple[Any, ...], options: dict[str, Any]) -> Signature:
    names = {param.name: param for param in kernel.params}
    values = dict(zip(names, given, strict=False)) | {name: options[name] for name in names if name in options}
    rest = {name: value for name, value in options.items() if name not in names and name not in ("grid", "warmup")}
    told = [(name, _told(names[name], value)) for name, value in values.items()]
    return kernel.__name__, *told, *sorted(rest.items())


def _told(param: Any, value: Any) -> Any:
    if param.is_constexpr:
        return value
    return type(value) if param.do_not_specialize else specialised(value)


@pytest.fixture
def compiled(monkeypatch) -> set[Signature]:
    """Signatures of the kernels that were launched; nothing is compiled or run."""
    seen: set[Signature] = set()

    def launch(kernel: JITFunction, *given: Any, **options: Any) -> None:
        seen.add(signature(kernel, given, options))

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(
        RandomTensors, "__getitem__", lambda self, name: torch.empty(self._shapes[name], device=self._device)
    )
    with torch.inference_mode():
        yield seen


class ShapeNoting(AsynchronousEngine):
    """Notes the shapes of its passes and runs none."""

    def __init__(self, policy: OpenVLAPolicy, shift: Shift, *, graphs: bool) -> None:
        options = {"graphs": graphs, "record": record, "capacity": CAPACITY, "shift": shift}
        super().__init__(policy, 2 * policy.K, ManualClock(), **options)
        self.shapes: set[PassShape] = set()

    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any]) -> Ticket[Ref]:
        if self.graphs is None:
            self.shapes.add(shape_of(planned, None))
        return super().launch(planned, prompts)

    def _find(self, shape: PassShape) -> None:
        self.shapes.add(shape)


class MetaProgram:
    """Passes of a policy over tensors without contents, with the operators of a GPU."""

    def __init__(self, size: PolicySize) -> None:
        table = in_triton()
        self.policy = random_policy(size, META, torch.bfloat16, table=table)
        self.contract = ActionTokens(self.policy)
        kv = self.policy.decoder.kv_slots(2 * self.policy.K, CAPACITY)
        greedy, shift = (
            table.resolve_stages(OperatorKey(op_name=name, model_name="llama"), META, torch.bfloat16)
            for name in ("greedy", "shift_kv_chain")
        )
        self._run = PassProgram(self.contract, kv, SlotState(kv), greedy, shift)

    def run(self, shape: PassShape) -> None:
        buffer = torch.zeros(input_bytes(shape, self.contract), dtype=torch.uint8, device=META)
        self._run(shape, PassInputs.over(buffer, shape, self.contract))


def warmed_shapes(shift: Shift, *, graphs: bool) -> set[PassShape]:
    """Those that a worker runs before it is ready."""
    policy = random_policy(SIZE, torch.device("cpu"), torch.float32)
    engine = ShapeNoting(policy, shift, graphs=graphs)
    record_passes(engine, lambda *_: None, required=True)
    warm_up(engine, shift, lambda *_: None)
    calibrate(engine, clock=engine.clock)
    return engine.shapes


def any_shape(dice: random.Random, shift: Shift, policy: OpenVLAPolicy) -> PassShape:
    """A pass of several sessions: prompts of any length, decode rows and moves of all of them."""
    longest = CAPACITY - policy.K
    prefills = tuple(dice.randint(policy.image_tokens + 2, longest) for _ in range(dice.randint(0, 4)))
    decodes = dice.randint(0 if prefills else 1, 48)
    return PassShape(
        prefills=prefills,
        decodes=(1,) * decodes,
        samples=(1,) * (len(prefills) + decodes),
        reach=CAPACITY,
        moves=dice.randint(0, 40) if shift is Shift.COPY else 0,
    )


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("shift", Shift)
def test_control_compiles_nothing_after_warm_up(compiled: set[Signature], shift: Shift, graphs: bool):
    program = MetaProgram(SIZE)
    for shape in warmed_shapes(shift, graphs=graphs):
        program.run(shape)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_attend", "_turn", "_norm_row", "_gate", "_best_of_block"}
    dice = random.Random(3)
    for _ in range(150):
        program.run(any_shape(dice, shift, program.policy))
    assert compiled - warm == set()


def any_step(dice: random.Random, width: int, components: int, capacity: int) -> StepRows:
    """A chunk of a prompt or a decode row, anywhere in a slot."""
    rows = dice.choice((1, dice.randint(1, CHUNK)))
    start = dice.randint(0, capacity - rows)
    positions = torch.arange(start, start + rows).expand(components, -1)
    hidden = torch.empty(rows, width, dtype=torch.bfloat16, device=META)
    return StepRows(Span(dice.randrange(3), start, rows), hidden, positions, samples=True)


@pytest.mark.parametrize("kv_format", [DENSE, INT8])
@pytest.mark.parametrize("components", [1, 3])
def test_chat_compiles_nothing_after_warm_up(compiled: set[Signature], components: int, kv_format: KVFormat):
    config = CHAT_SIZES[TINY]
    if components == 3:
        config = replace(config, rope=replace(config.rope, sections=(2, 3, 3)))
    model = random_chat(config, META, torch.bfloat16, table=in_triton())
    if components == 3:
        model.vision = object()
    kv = model.decoder.kv_slots(3, 3000, kv_format)
    run_each_kind(model, kv, model, CHUNK)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_turn", "_norm_row", "_gate", "_join"}
    dice = random.Random(4)
    for _ in range(200):
        run_pass(model.decoder, kv, [any_step(dice, config.hidden_size, dice.choice((1, components)), kv.capacity)])
    assert compiled - warm == set()
