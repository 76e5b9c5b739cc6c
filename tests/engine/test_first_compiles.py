"""After warm-up no pass makes Triton compile a kernel again: that takes seconds, inside the loop that serves robots."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from edgeflow.engine import executor
from edgeflow.engine.chat.engine import ChatEngine, TextTokens
from edgeflow.engine.chat.warmup import run_each_kind
from edgeflow.engine.control.engine import FlowEngine, OnePassEngine
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.drafts.kinds import DraftKind
from edgeflow.engine.drafts.verifier import DraftVerifier
from edgeflow.engine.executor import Ticket
from edgeflow.engine.graphs import record_passes
from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.engine.program import PassOutputs, PassProgram
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.sampling.sample import GREEDY, SamplingState
from edgeflow.engine.shapes import PassShape, shape_of
from edgeflow.engine.slots import SlotState
from edgeflow.engine.staging import PassInputs, PromptContract, input_bytes
from edgeflow.engine.tokens import ActionTokens
from edgeflow.kernels.kv.formats import DENSE, INT8, KVFormat
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorKey
from edgeflow.lab.gpu.subjects import random_weights
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, random_chat
from edgeflow.lab.gpu.subjects.random_policy import SIZES, random_policy
from edgeflow.lab.gpu.subjects.random_weights import RandomTensors
from edgeflow.models.chat import ChatModel
from edgeflow.models.prompt import Prompt
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla_oft.family import OPENVLA_OFT
from edgeflow.scheduler.drafting import UNDRAFTED, DraftRule
from edgeflow.scheduler.plan import DraftForm, FrameRef, Pass, Ref, Segment
from edgeflow.scheduler.session import Shift
from edgeflow.worker.calibrate import calibrate
from edgeflow_client.clock import ManualClock
from tests.cases import some_by_day
from tests.engine.chat.tiny_drafts import kind_of
from tests.engine.flow.passes_at_random import FlowPassesAtRandom
from tests.engine.flow.random_flow import random_flow
from tests.engine.recorded_graphs import record
from tests.kernels.compiled_launches import Signature, launches
from tests.kernels.interpreted_engine import in_triton
from tests.policies.openvla_oft.tiny import TinyOFT, write_oft
from tests.worker.simulated_device import AsynchronousEngine

META = torch.device("meta")
SIZE = SIZES["tiny"]
CAPACITY = 64
CHUNK = 256
SERVED = [(True, 0), (False, 0), (False, 32)]
"""Whether passes are replayed, and the groups of weights of 4 bits; 0 for floats."""
OF_4_BITS = {0: (), 32: ("_multiply",)}
"""Kernels of weights with these groups."""


@pytest.fixture
def compiled(monkeypatch) -> set[Signature]:
    """Signatures of the kernels that were launched; nothing is compiled or run."""
    monkeypatch.setattr(
        RandomTensors, "__getitem__", lambda self, name: torch.empty(self._shapes[name], device=self._device)
    )
    monkeypatch.setattr(random_weights, "seeded", lambda *_: None)  # tensors without contents have no generator
    with torch.inference_mode():
        yield launches(monkeypatch)


class ShapeNoting(AsynchronousEngine):
    """Notes the shapes of its passes and runs none."""

    def __init__(self, policy: OpenVLAPolicy, shift: Shift, *, graphs: bool) -> None:
        options = {"graphs": graphs, "record": record, "capacity": CAPACITY, "shift": shift}
        super().__init__(policy, 2 * policy.K, ManualClock(), **options)
        self.met: set[PassShape] = set()

    def launch(self, planned: Pass[Ref], prompts: Mapping[Ref, Any], *, waits: bool = False) -> Ticket[Ref]:
        if self.graphs is None:
            self.met.add(shape_of(planned, GREEDY, CAPACITY))
        return super().launch(planned, prompts, waits=waits)

    def _find(self, shape: PassShape) -> None:
        self.met.add(shape)


class MetaProgram:
    """Passes over tensors without contents, with the operators of a GPU."""

    def __init__(
        self,
        contract: PromptContract,
        kv: KVSlots,
        sampling: SamplingState | None = None,
        drafts: DraftKind | None = None,
    ) -> None:
        self.contract = contract
        greedy, shift = (
            in_triton().resolve_stages(OperatorKey(op_name=name, model_name="llama"), META, torch.bfloat16)
            for name in ("greedy", "shift_kv_chain")
        )
        state = SlotState(kv, sampling, 1 if drafts is None else drafts.rows)
        verifier = None if drafts is None else DraftVerifier(drafts.drafter(kv, state), kv, state, greedy)
        self.program = PassProgram(contract, kv, state, greedy, shift, verifier=verifier)

    @classmethod
    def of_policy(cls, policy: OpenVLAPolicy) -> MetaProgram:
        return cls(ActionTokens(policy, META), policy.decoder.kv_slots(2 * policy.K, CAPACITY))

    def run(self, shape: PassShape) -> PassOutputs:
        buffer = torch.zeros(input_bytes(shape, self.contract), dtype=torch.uint8, device=META)
        return self.program(shape, PassInputs.over(buffer, shape, self.contract))


def warmed_shapes(shift: Shift, *, graphs: bool) -> set[PassShape]:
    """Those that a worker runs before it is ready."""
    policy = random_policy(SIZE, torch.device("cpu"), torch.float32)
    engine = ShapeNoting(policy, shift, graphs=graphs)
    record_passes(engine, lambda *_: None, required=True)
    warm_up(engine, shift, lambda *_: None)
    calibrate(engine, clock=engine.clock)
    return engine.met


def any_shape(dice: random.Random, shift: Shift, policy: OpenVLAPolicy) -> PassShape:
    """A pass of several sessions: prompts of any length, decode rows, drafts and moves of all of them."""
    longest = CAPACITY - policy.K
    prefills = tuple(dice.randint(policy.fixed_rows + 2, longest) for _ in range(dice.randint(0, 4)))
    count = dice.randint(0 if prefills else 1, 48)
    drafts = dice.choice([0, policy.K - 1])
    decodes = tuple(dice.randint(1, max(drafts, 1)) for _ in range(count))
    return PassShape(
        prefills=tuple(rows + drafts for rows in prefills),
        decodes=decodes,
        samples=(*(drafts + 1,) * len(prefills), *decodes),
        reach=CAPACITY,
        moves=dice.randint(0, 40) if shift is Shift.COPY else 0,
    )


@pytest.mark.parametrize(
    ("shift", "graphs", "group"),
    some_by_day(
        ((shift, *served) for shift in Shift for served in SERVED),
        [(Shift.ROTATE, True, 0), (Shift.COPY, False, 32)],
    ),
)
def test_control_compiles_nothing_after_warm_up(compiled: set[Signature], shift: Shift, graphs: bool, group: int):
    policy = random_policy(SIZE, META, torch.bfloat16, table=in_triton(), group=group)
    program = MetaProgram.of_policy(policy)
    for shape in warmed_shapes(shift, graphs=graphs):
        program.run(shape)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_attend", "_turn", "_norm_row", "_gate", "_best_of_block", *OF_4_BITS[group]}
    dice = random.Random(3)
    for _ in range(100):
        program.run(any_shape(dice, shift, policy))
    assert compiled - warm == set()


@pytest.mark.parametrize(
    ("name", "graphs"),
    some_by_day(product(("SmolVLA", "π0", "π0.5"), (True, False)), [("SmolVLA", True), ("π0", False), ("π0.5", True)]),
)
def test_flow_policies_compile_nothing_after_warm_up(compiled: set[Signature], name: str, graphs: bool, monkeypatch):
    policy = random_flow(name, Placement(dtype=torch.bfloat16, device=META, table=in_triton()))
    nothing_comes_back(monkeypatch)
    options = {"graphs": graphs, "record": lambda program: (lambda: None, program())}
    engine, slots = FlowEngine(policy, 3, CAPACITY, **options), 3 * policy.sizes.program.passes
    record_passes(engine, lambda *_: None, required=True)
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    calibrate(engine)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_attend", "_gate", "_turn"}
    if graphs:
        engine.graphs.seal()
        FlowPassesAtRandom(engine, policy, slots).run_any(60)
        engine.drop_graphs()
    FlowPassesAtRandom(engine, policy, slots).run_any(60)
    assert compiled - warm == set()


@pytest.mark.parametrize("graphs", [True, False])
def test_batches_of_prompts_compile_nothing_after_warm_up(
    compiled: set[Signature], graphs: bool, tmp_path: Path, monkeypatch
):
    published = OPENVLA_OFT.load(write_oft(tmp_path / "tiny", TinyOFT()), TinyOFT().settings(), LoadOptions())
    policy = published.load(Placement(dtype=torch.bfloat16, device=META, table=in_triton()))
    nothing_comes_back(monkeypatch)
    robots, text_rows, dice = 5, 128, random.Random(3)
    policy.network.reserve(robots, policy.fixed_rows + text_rows)
    options = {"graphs": graphs, "record": lambda program: (lambda: None, program())}
    engine = OnePassEngine(policy, robots, text_rows, **options)
    record_passes(engine, lambda *_: None, required=True)
    warm_up(engine, Shift.ROTATE, lambda *_: None)
    calibrate(engine)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_attend", "_gate", "_turn", "_norm_row"}
    if graphs:
        engine.graphs.seal()
    example = engine._example()
    for _ in range(60):
        refs = [FrameRef(session, 1, 1) for session in range(dice.randint(1, robots))]
        frames = {ref: replace(example, prompt_ids=(1,) * dice.randint(1, text_rows)) for ref in refs}
        segments = [Segment(sequence=ref, slot=ref.session, start=0, length=1, stage=0) for ref in refs]
        engine.launch(Pass(0, tuple(segments)), frames)
    assert compiled - warm == set()


def nothing_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are zeros: tensors without contents have none."""
    zeros = lambda results: None if results is None else torch.zeros(results.shape, dtype=results.dtype)  # noqa: E731
    monkeypatch.setattr(executor, "_to_host", zeros)


KINDS = [
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=1, temperature=0.7, top_p=0.8, top_k=20),
    SamplingParams(max_tokens=1, logprobs=2),
    SamplingParams(max_tokens=1, temperature=1.3, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(max_tokens=1, frequency_penalty=0.5),
]  # fmt: skip


def any_step(dice: random.Random, capacity: int, rule: DraftRule = UNDRAFTED) -> Segment[int]:
    """A chunk of a prompt, a decode row or a verification, anywhere in a slot; half of them at its end."""
    stage = dice.randint(0, 1)
    rows = dice.choice((1, dice.randint(1, rule.rows if stage else CHUNK)))
    start = dice.choice((capacity - rows - dice.randint(0, 20), dice.randint(0, capacity - rows)))
    return Segment(
        sequence=0,
        slot=0,
        start=max(start, 0),
        length=rows,
        stage=stage,
        samples=rows if stage else dice.randint(0, 1),
        drafts=rows - 1 if stage else 0,
        form=rule.form,
    )


class ChatPasses:
    """What a chat engine launches, as shapes that run over tensors without contents: passes, and rows sampled apart."""

    def __init__(self, program: MetaProgram, engine: ChatEngine) -> None:
        self.program = program
        self.executor = engine._prompts
        self.vocabulary = engine.model.config.vocab_size

    def launch(self, planned: Pass[int], prompts: Any = None, *, waits: bool = False) -> Ticket[int]:
        shape = shape_of(
            planned, None if waits else self.executor.contract.kind(planned), self.executor.contract.kv.capacity
        )
        padded = self.executor._padded(planned, shape)
        if padded is None or self.executor.graphs is None or padded not in self.executor.graphs:
            outputs = self.program.run(padded or shape)
        else:
            outputs = self.program.run(padded) if padded.form is not DraftForm.NONE else PassOutputs(None, None)
            if any(shape.samples) and padded.sampling != shape.sampling:
                self._sample(planned, padded, outputs)
        self.waiting = padded or shape, outputs
        return Ticket(planned=planned, shape=self.waiting[0], results=None, started=None, done=None)

    def sample(self, ticket: Ticket[int], allowed: Tensor) -> Ticket[int]:
        self._sample(ticket.planned, *self.waiting, allowed.to(META))
        return ticket

    def _sample(
        self, planned: Pass[int], shape: PassShape, outputs: PassOutputs, allowed: Tensor | None = None
    ) -> None:
        """As the executor does, where each is recorded already."""
        kind, (segment,) = self.executor.contract.kind(planned), planned.segments
        if segment.form is not DraftForm.NONE:
            counts = torch.full((1,), segment.length, device=META)
            where = torch.zeros(1, dtype=torch.long, device=META)
            formed = replace(shape, form=segment.form)
            self.program.program.verify(formed, outputs, where, counts, kind, allowed, on_host=False)
            return
        logits = torch.empty(1, self.vocabulary, dtype=torch.bfloat16, device=META)
        slots = torch.zeros(1, dtype=torch.long, device=META)
        self.program.program.sample(logits, slots, kind, allowed)


@pytest.mark.parametrize(
    ("components", "kv_format", "graphs", "group"),
    some_by_day(
        [
            *((1, kv_format, graphs, group) for kv_format in (DENSE, INT8) for graphs, group in SERVED),
            *((3, kv_format, graphs, 0) for kv_format, graphs in ((DENSE, True), (INT8, False))),
        ],
        [(1, DENSE, False, 32), (1, INT8, True, 0), (3, DENSE, True, 0), (3, INT8, False, 0)],
    ),
)
def test_chat_compiles_nothing_after_warm_up(
    compiled: set[Signature], components: int, kv_format: KVFormat, graphs: bool, group: int, monkeypatch
):
    config = CHAT_SIZES[TINY]
    if components == 3:
        config = replace(config, rope=replace(config.rope, sections=(2, 3, 3)))
    model = random_chat(config, META, torch.bfloat16, table=in_triton(), group=group)
    here = random_chat(config, torch.device("cpu"), torch.float32)
    if components == 3:
        model.vision = here.vision = object()
    passes, engine = warmed_chat(monkeypatch, model, here, kv_format, graphs=graphs)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_turn", "_norm_row", "_gate", "_join", "_best_of_block", *OF_4_BITS[group]}
    run_any(passes, engine, 200)
    assert compiled - warm == set()


@pytest.mark.parametrize(
    ("kind", "graphs", "kv_format"),
    some_by_day(
        ((kind, *ran) for kind in ("lookup", "chain", "tree") for ran in ((True, DENSE), (False, INT8))),
        [("lookup", False, INT8), ("chain", False, INT8), ("tree", True, DENSE)],
    ),
)
def test_drafts_compile_nothing_after_warm_up(
    compiled: set[Signature], kind: str, kv_format: KVFormat, graphs: bool, monkeypatch
):
    config, likely = CHAT_SIZES[TINY], range(20)
    model = random_chat(config, META, torch.bfloat16, table=in_triton())
    here = random_chat(config, torch.device("cpu"), torch.float32)
    drafts = kind_of(kind, model, likely, in_triton()), kind_of(kind, here, likely)
    passes, engine = warmed_chat(monkeypatch, model, here, kv_format, drafts, graphs=graphs)
    warm = set(compiled)
    assert {each[0] for each in warm} >= {"_turn", "_norm_row", "_gate", "_best_of_block"}
    run_any(passes, engine, 100)
    assert compiled - warm == set()


def warmed_chat(
    monkeypatch: pytest.MonkeyPatch,
    model: ChatModel,
    here: ChatModel,
    kv_format: KVFormat,
    drafts: tuple[DraftKind | None, DraftKind | None] = (None, None),
    *,
    graphs: bool,
) -> tuple[ChatPasses, ChatEngine]:
    """A chat engine after its warm-up. here: the model with contents, whose engine plans; drafts: of both."""
    capacity, config = 3000, model.config
    rows = 1 if drafts[0] is None else drafts[0].rows
    sampling = SamplingState(3, capacity + rows, config.vocab_size, META)
    contract = TextTokens(model, keeps_ids=drafts[0] is not None)
    program = MetaProgram(contract, model.decoder.kv_slots(3, capacity, kv_format), sampling, drafts[0])
    outputs = PassOutputs(None, None)
    engine = ChatEngine(
        here,
        here.decoder.kv_slots(3, capacity),
        drafts=drafts[1],
        chunk=CHUNK,
        graphs=graphs,
        record=lambda _: (lambda: None, outputs),
    )
    passes = ChatPasses(program, engine)
    monkeypatch.setattr(engine._prompts, "launch", passes.launch)
    monkeypatch.setattr(engine._prompts, "collect", lambda _: [])
    monkeypatch.setattr(engine._prompts, "sample", passes.sample)
    engine.record_all(lambda *_: None)
    for shape in engine._prompts.graphs._by_shape if graphs else ():
        program.run(shape)
    engine.seal()
    run_each_kind(engine, CHUNK)
    return passes, engine


def run_any(passes: ChatPasses, engine: ChatEngine, count: int) -> None:
    """Passes of any request, with tokens sampled in any way, some of them under a mask."""
    dice = random.Random(4)
    prompt = Prompt((1,), torch.zeros(1, 1, dtype=torch.long))
    for _ in range(count):
        engine.begin(0, dice.choice(KINDS), prompt)
        segment, waits = (
            any_step(dice, engine.kv.capacity, engine.rule(constrained=dice.random() < 0.5)),
            dice.random() < 0.2,
        )
        ticket = passes.launch(Pass(0, (segment,)), waits=waits)
        if waits and segment.samples:
            rows = dice.randint(1, segment.samples)
            passes.sample(ticket, torch.empty(rows, engine.model.config.vocab_size, dtype=torch.bool, device=META))
