"""The path of a GPU without one: tensors without contents, which cannot be read; Triton kernels noted, not launched.

A pass that a graph holds must neither read the device nor copy from the host, and what is launched must follow from the
shape of the pass alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.control.engine import FlowEngine, OnePassEngine, PolicyEngine
from edgeflow.engine.policy import LoadOptions, Placement, Published
from edgeflow.engine.program import PassProgram
from edgeflow.engine.shapes import PassShape
from edgeflow.engine.slots import SlotState
from edgeflow.engine.staging import PassInputs, input_bytes
from edgeflow.engine.tokens import ActionTokens
from edgeflow.kernels.kv.formats import DENSE, FP8, INT4, INT8, KVFormat
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, TableEntry
from edgeflow.lab.gpu.subjects import random_weights
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, random_chat
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_policy
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors
from edgeflow.policies.act.family import ACT
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.policies.openvla_oft.policy import OpenVLAOFTPolicy
from edgeflow.scheduler.session import Shift
from tests.cases import some_by_day
from tests.engine.chat.tiny_drafts import KINDS, kind_of
from tests.engine.flow.random_flow import random_flow
from tests.engine.host_waits import NoLiterals, OnTheDevice
from tests.kernels.interpreted_engine import in_triton
from tests.policies.act.checkpoint import write_checkpoint as write_act
from tests.policies.act.twin import TwinSize
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft

META = torch.device("meta")
SIZE = SIZES["tiny"]
CAPACITY = 600  # long enough for decode rows to be split
FORMATS = (DENSE, INT8, FP8, INT4)


class Machine:
    """launches: of Triton kernels, everything but the tensors' contents."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def launch(self, kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        told = [
            (tuple(each.shape), each.stride(), each.storage_offset() % 2) if isinstance(each, Tensor) else each
            for each in arguments
        ]
        self.launches.append((kernel.__name__, grid, told, options))


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(JITFunction, "run", lambda kernel, *given, **options: machine.launch(kernel, *given, **options))
    monkeypatch.setattr(
        RandomTensors, "__getitem__", lambda self, name: torch.empty(self._shapes[name], device=self._device)
    )
    monkeypatch.setattr(random_weights, "seeded", lambda *_: None)  # tensors without contents have no generator
    with torch.inference_mode():
        yield machine


class Captures:
    """A `Record` (engine/graphs.py) that fails where a capture would hold what is gone at a replay.

    That is a read of the device, a tensor of the host, and a value that a layout or a store keeps from then on: only
    what was made before belongs to them. The rest that a program allocates is the graph's own.
    count: captures. launches: of their kernels.
    """

    def __init__(self, machine: Machine) -> None:
        self.count = 0
        self.launches: list[Any] = []
        self._machine = machine
        self._capturing = False

    def __call__(self, program: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self._machine.launches = []
        program()  # a warm-up
        warm, self._machine.launches = self._machine.launches, []
        self._capturing = True
        with OnTheDevice(), NoLiterals():
            outputs = program()
        self._capturing = False
        assert self._machine.launches == warm
        self.launches += warm
        self.count += 1
        return lambda: None, outputs

    @property
    def kernels(self) -> set[str]:
        return {launch[0] for launch in self.launches}

    def watch(self, kept: Callable[..., Any]) -> Callable[..., Any]:
        """`kept` of a layout or a store, which may not make anything in a capture."""

        def watched(owner: Any, name: Any, make: Callable[..., Any]) -> Any:
            assert not self._capturing or name in owner._kept, f"{name} is made in a capture and kept"
            return kept(owner, name, make)

        return watched


@pytest.fixture
def captures(machine: Machine, monkeypatch) -> Captures:
    captures = Captures(machine)
    for owner in (PackedLayout, KVSlots):
        monkeypatch.setattr(owner, "kept", captures.watch(owner.kept))
    return captures


def on_a_gpu() -> OperatorTable:
    """The operators of a GPU, those of torch too."""
    key = OperatorKey(op_name="rope_write_kv", kv="int4")
    return in_triton().overlaid(TableEntry(key, "on_device", origin="on a GPU"))


def openvla(captures: Captures, kv_format: KVFormat, shift: Shift) -> None:
    table = on_a_gpu()
    policy = random_policy(SIZE, META, torch.bfloat16, table=table)
    options: dict[str, Any] = {"table": table, "graphs": True, "record": captures, "kv_format": kv_format}
    engine = PolicyEngine(policy, policy.K, CAPACITY, shift=shift, **options)
    engine.record_all(lambda *_: None)
    assert ("_carry" in captures.kernels) == (shift is Shift.COPY)


def chat(captures: Captures, kv_format: KVFormat, drafts: str) -> None:
    table = on_a_gpu()
    model = random_chat(CHAT_SIZES[TINY], META, torch.bfloat16, table=table)
    kind = kind_of(drafts, model, range(20), table) if drafts else None
    options: dict[str, Any] = {"table": table, "graphs": True, "record": captures}
    kv = model.decoder.kv_slots(3, CAPACITY, kv_format)
    ChatEngine(model, kv, drafts=kind, chunk=64, **options).record_all(lambda *_: None)


OPENVLA = [(openvla, kv_format, shift) for kv_format in FORMATS for shift in Shift]
CHAT = [
    (chat, kv_format, drafts)
    for kv_format in FORMATS
    for drafts in ("", *KINDS)
    if (kv_format, drafts) != (INT4, "tree")  # which cannot move single places
]
BY_DAY = [OPENVLA[0], OPENVLA[3], *(case for case in CHAT if case[1] in (DENSE, INT4))]


@pytest.mark.parametrize(("record", "kv_format", "variant"), some_by_day([*OPENVLA, *CHAT], BY_DAY))
def test_captures_hold_nothing_of_the_host(
    captures: Captures, record: Callable[..., None], kv_format: KVFormat, variant: Any
):
    record(captures, kv_format, variant)
    assert captures.count > 3
    assert captures.kernels >= {"_attend", "_norm_row", "_gate", "_best_of_block"}


def flow(captures: Captures, name: str) -> None:
    """All passes of two robots, guided ones too."""
    policy = random_flow(name, Placement(dtype=torch.bfloat16, device=META, table=on_a_gpu()))
    engine = FlowEngine(policy, 2, 100, graphs=True, record=captures)
    engine.record_all(lambda *_: None)
    assert {(shape.whole, shape.guided) for shape in engine.contract.shapes()} == set(product((True, False), repeat=2))
    assert captures.kernels >= {"_attend", "_gate"}


def act(captures: Captures, directory: Path) -> None:
    published = ACT.load(write_act(directory, TwinSize()), {"control_rate_hz": 40}, LoadOptions())
    batches(captures, published, 0)


def oft(captures: Captures, directory: Path) -> None:
    published = OPENVLA_OFT.load(write_oft(directory, TinyOFT()), TinyOFT().settings(), LoadOptions())
    batches(captures, published, 100)
    assert captures.kernels >= {"_attend", "_norm_row", "_gate"}


def batches(captures: Captures, published: Published, text_rows: int) -> None:
    """All passes of five robots."""
    policy = published.load(Placement(dtype=torch.bfloat16, device=META, table=on_a_gpu()))
    if isinstance(policy, OpenVLAOFTPolicy):
        policy.network.reserve(5, policy.fixed_rows + text_rows)
    engine = OnePassEngine(policy, 5, text_rows, graphs=True, record=captures)
    engine.record_all(lambda *_: None)


@pytest.mark.parametrize("name", ["SmolVLA", "π0", "π0.5"])
def test_captures_of_denoised_chunks_hold_nothing_of_the_host(captures: Captures, name: str):
    flow(captures, name)


@pytest.mark.parametrize("family", [act, oft])
def test_captures_of_batches_hold_nothing_of_the_host(captures: Captures, family: Callable[..., None], tmp_path: Path):
    family(captures, tmp_path / "tiny")
    assert captures.count >= 3


def launches(machine: Machine, spans: list[Span]) -> list[Any]:
    """Of one pass whose places the host knows."""
    table = in_triton()
    policy = random_policy(SIZE, META, torch.bfloat16, table=table)
    contract, kv = ActionTokens(policy, META), policy.decoder.kv_slots(2 * policy.K, CAPACITY)
    greedy, shift = (
        table.resolve_stages(OperatorKey(op_name=name, model_name="llama"), META, torch.bfloat16)
        for name in ("greedy", "shift_kv_chain")
    )
    prefills, single = tuple(span.length for span in spans if span.length > 1), sum(s.length == 1 for s in spans)
    shape = PassShape(prefills=prefills, decodes=(1,) * single, samples=(1,) * len(spans), reach=CAPACITY)
    buffer = torch.zeros(input_bytes(shape, contract), dtype=torch.uint8, device=META)
    machine.launches = []
    PassProgram(contract, kv, SlotState(kv), greedy, shift)(
        shape, PassInputs.over(buffer, shape, contract, tuple(spans))
    )
    return machine.launches


def test_launches_depend_only_on_the_shape(machine: Machine):
    one = launches(machine, [Span(0, 0, 32), Span(3, 40, 1), Span(1, 33, 1)])
    other = launches(machine, [Span(9, 100, 32), Span(2, 590, 1), Span(5, 1, 1)])
    assert one == other
    assert one != launches(machine, [Span(0, 0, 32), Span(3, 40, 1)])
