"""The path of a GPU without one: tensors without contents, which cannot be read; Triton kernels noted, not launched.

A pass that a graph holds must neither read the device nor copy from the host, and what is launched must follow from the
shape of the pass alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from edgeflow.engine.control.engine import ActionTokens
from edgeflow.engine.program import PassProgram
from edgeflow.engine.shapes import PassShape
from edgeflow.engine.slots import SlotState
from edgeflow.engine.staging import PassInputs, input_bytes
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.table.operator_table import OperatorKey
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_policy
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors
from tests.engine.host_waits import OnTheDevice
from tests.kernels.interpreted_engine import in_triton

META = torch.device("meta")
SIZE = SIZES["tiny"]
CAPACITY = 600  # long enough for decode rows to be split


class Machine:
    """launches: of Triton kernels, everything but the tensors' contents. uploads: copies of host numbers."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.uploads = 0

    def launch(self, kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        told = [
            (tuple(each.shape), each.stride(), each.storage_offset() % 2) if isinstance(each, Tensor) else each
            for each in arguments
        ]
        self.launches.append((kernel.__name__, grid, told, options))

    def upload(self, values: Any, device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
        self.uploads += 1
        return torch.empty(torch.tensor(values).shape, dtype=dtype, device=device)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *given, **options: machine.launch(kernel, *given, **options))
    monkeypatch.setattr("edgeflow.kernels.triton.tile_list.on_device", machine.upload)
    monkeypatch.setattr(
        RandomTensors, "__getitem__", lambda self, name: torch.empty(self._shapes[name], device=self._device)
    )
    with torch.inference_mode():
        yield machine


def program(capacity: int = CAPACITY) -> tuple[ActionTokens, PassProgram]:
    table = in_triton()
    policy = random_policy(SIZE, META, torch.bfloat16, table=table)
    kv = policy.decoder.kv_slots(2 * policy.K, capacity)
    greedy, shift = (
        table.resolve_stages(OperatorKey(op_name=name, model_name="llama"), META, torch.bfloat16)
        for name in ("greedy", "shift_kv_chain")
    )
    contract = ActionTokens(policy, META)
    return contract, PassProgram(contract, kv, SlotState(kv), greedy, shift)


def of(prefills: tuple[int, ...], decodes: int, moves: int = 0, rows: int = 1) -> PassShape:
    samples = (1,) * len(prefills) + (rows,) * decodes
    return PassShape(prefills=prefills, decodes=(rows,) * decodes, samples=samples, reach=CAPACITY, moves=moves)


def inputs_of(shape: PassShape, contract: ActionTokens, places: tuple[Span, ...] | None = None) -> PassInputs:
    buffer = torch.zeros(input_bytes(shape, contract), dtype=torch.uint8, device=META)
    return PassInputs.over(buffer, shape, contract, places)


DRAFTED = PassShape(prefills=(48,), decodes=(6, 6), samples=(7, 6, 6), reach=CAPACITY)
SHAPES = [of((32,), 0), of((32,), 6), of((32, 48), 5, 4), of((), 1), of((), 6, 5), of((32,), 5, rows=3), DRAFTED]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_pass_stays_on_the_device(machine: Machine, shape: PassShape):
    contract, run = program()
    inputs = inputs_of(shape, contract)
    run(shape, inputs)  # a warm-up, which may make tiles
    first, machine.launches, machine.uploads = machine.launches, [], 0
    with OnTheDevice() as seen:
        outputs = run(shape, inputs)
    assert outputs.results.shape == (len(shape.lengths), 2 if max(shape.samples) == 1 else 2 + max(shape.samples))
    assert machine.uploads == 0, "a graph would hold the address of memory that is gone"
    assert machine.launches == first
    kernels = {launch[0] for launch in first}
    assert {"_attend", "_turn", "_norm_row", "_gate", "_best_of_block"} <= kernels
    assert ("_carry" in kernels) == (shape.moves > 0)
    assert len(seen.calls) > 20


def launches(machine: Machine, spans: list[Span]) -> list[Any]:
    """Of one pass whose places the host knows."""
    contract, run = program()
    shape = of(tuple(span.length for span in spans if span.length > 1), sum(s.length == 1 for s in spans))
    machine.launches = []
    run(shape, inputs_of(shape, contract, tuple(spans)))
    return machine.launches


def test_launches_depend_only_on_the_shape(machine: Machine):
    one = launches(machine, [Span(0, 0, 32), Span(3, 40, 1), Span(1, 33, 1)])
    other = launches(machine, [Span(9, 100, 32), Span(2, 590, 1), Span(5, 1, 1)])
    assert one == other
    assert one != launches(machine, [Span(0, 0, 32), Span(3, 40, 1)])
