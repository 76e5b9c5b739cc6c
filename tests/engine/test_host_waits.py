"""The host waits for the device once per pass, for what it gave, and never before the next pass is launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.chat.memory import folding_of, memory_format
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.executor import Executor
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.memory_gate import CHOICES, GateRules
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.engine.chat.constrained import constrained, under
from tests.engine.control.test_lossless import make_frames
from tests.engine.recorded_graphs import READS_ON_THE_HOST, record
from tests.random_gates import random_gate
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
REPLAYABLE = built_in_table().forcing(packed_attention="masked", shift_kv_chain="indexed", linear="gemm")
READ, COPIED, LAUNCH, COLLECT = "read", "copied", "launch", "collect"


class HostTraffic(TorchDispatchMode):
    """Notes launches and collections, values that the host reads, and copies to the host that leave a pass.

    A read of a tensor that a ticket copied to the host waits for no device. What an executor stages is made on the host
    and is never read back.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.events: list[str] = []
        self._here: set[int] = set()
        self._kept: list[Tensor] = []
        to, tolist = Tensor.to, Tensor.tolist

        def noted_to(tensor: Tensor, *given: Any, **options: Any) -> Tensor:
            result = to(tensor, *given, **options)
            if "cpu" in given and options.get("copy"):
                self.events.append(COPIED)
                assert options.get("non_blocking"), "a copy that waits"
                self._here.add(id(result))
                self._kept.append(result)
            return result

        def noted_tolist(tensor: Tensor) -> Any:
            assert id(tensor) in self._here, "the host reads what no pass has copied to it"
            with torch.utils._python_dispatch._disable_current_modes():
                return tolist(tensor)

        monkeypatch.setattr(Tensor, "to", noted_to)
        monkeypatch.setattr(Tensor, "tolist", noted_tolist)
        for name in (LAUNCH, COLLECT):
            monkeypatch.setattr(Executor, name, self._noting(name, getattr(Executor, name)))

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **options: Any) -> Any:
            self.events.append(name)
            return function(*given, **options)

        return noted

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__.startswith(READS_ON_THE_HOST):
            self.events.append(READ)
        return function(*args, **(kwargs or {}))

    def between_launches(self) -> list[Counter[str]]:
        """What happens from each launch to the next, and from the last one to the end."""
        found: list[Counter[str]] = []
        for event in self.events:
            if event == LAUNCH:
                found.append(Counter())
            elif found:
                found[-1][event] += 1
        return found


class EvenOnHost:
    """A constraint whose mask is made on the host."""

    def __init__(self, vocabulary: int) -> None:
        self.mask = torch.arange(vocabulary)[None] % 2 == 0

    def allowed(self) -> Tensor:
        return self.mask

    def accept(self, tokens: Sequence[int], drafts: Sequence[int] = ()) -> None: ...


@pytest.fixture(scope="module")
def model(chat_directory) -> ChatModel:
    return load_chat_model(chat_directory, torch.float32, CPU, table=REPLAYABLE)


def engine_of(model: ChatModel, *, graphs: bool) -> ChatEngine:
    engine = ChatEngine(model, model.decoder.kv_slots(2, 80), chunk=16, graphs=graphs, record=record)
    engine.record_all(lambda *_: None)
    engine.seal()
    for executor in engine._executors:
        executor.launch_ahead = 1
    return engine


PARAMS = {
    "greedy": SamplingParams(max_tokens=8),
    "drawn": SamplingParams(max_tokens=8, temperature=0.9, top_p=0.9, top_k=20, seed=1),
    "all": SamplingParams(max_tokens=8, temperature=0.9, min_p=0.1, repetition_penalty=1.2, seed=1, logprobs=3),
}


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", PARAMS)
def test_chat_reads_nothing_and_copies_once_per_pass(model: ChatModel, name: str, graphs: bool, monkeypatch):
    """The prompt in two chunks, then seven decode rows; each pass is collected after the launch of the next one."""
    engine = engine_of(model, graphs=graphs)
    generation = Generation(engine, model.text_prompt("abcdefgh" * 3), PARAMS[name], ignore_stop=True)
    with HostTraffic(monkeypatch) as watched:
        list(generate(engine, generation, 16))
    steps = watched.between_launches()
    assert len(steps) == 2 + 7 and len(generation.tokens) == 8
    assert all(step[READ] == 0 for step in steps)
    assert [step[COPIED] for step in steps] == [0] + [1] * 8, "a part of a prompt gives nothing"
    assert [step[COLLECT] for step in steps] == [0] + [1] * 7 + [2]
    launches, collected = (
        [at for at, event in enumerate(watched.events) if event == name] for name in (LAUNCH, COLLECT)
    )
    assert len(launches) == len(collected) and all(map(int.__gt__, collected, launches[1:]))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("fold", CHOICES["fold"])
def test_a_fold_reads_nothing(model: ChatModel, fold: str, graphs: bool, monkeypatch):
    """In a prompt of four segments and an answer with one."""
    gate = random_gate(model.config, GateRules(sink=3, window=4, segment=6, fold=fold))
    kv = model.decoder.kv_slots(2, gate.rules.threshold, memory_format(gate, 80))
    engine = ChatEngine(model, kv, folding=folding_of(gate.rules), chunk=16, graphs=graphs, record=record)
    engine.record_all(lambda *_: None)
    for executor in engine._executors:
        executor.launch_ahead = 1
    generation = Generation(engine, model.text_prompt("abcdefgh" * 4), PARAMS["greedy"], ignore_stop=True)
    with HostTraffic(monkeypatch) as watched:
        list(generate(engine, generation, 16))
    assert generation.plan.folds == 5
    assert all(step[READ] == 0 for step in watched.between_launches())


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", PARAMS)
def test_a_grammar_adds_no_host_read_and_no_copy(model: ChatModel, name: str, graphs: bool, monkeypatch):
    """Each token is collected before the next pass: the grammar must know it."""
    engine = engine_of(model, graphs=graphs)
    even = EvenOnHost(model.config.vocab_size)
    generation = constrained(engine, model.text_prompt("abcdefgh"), PARAMS[name], ignore_stop=True)
    with HostTraffic(monkeypatch) as watched:
        list(under(even, engine, generation, 16))
    assert len(generation.tokens) == 8 and not any(token % 2 for token in generation.tokens)
    assert watched.between_launches() == [Counter({COPIED: 1, COLLECT: 1})] * 8


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("graphs", [False, True])
def test_control_reads_nothing_and_copies_once_per_pass(tmp_path, graphs: bool, shift: Shift, monkeypatch):
    path = write_checkpoint(tmp_path / "tiny", TinySize(kv_heads=2))
    policy = load_openvla(path, torch.float32, CPU, table=REPLAYABLE)
    options = {"table": REPLAYABLE, "graphs": graphs, "record": record, "shift": shift}
    engine = PolicyEngine(policy, policy.K, 128, **options)
    engine.launch_ahead = 1
    frames = make_frames(policy, 12, seed=2)
    run = OfflineRun(engine, Scheduler(limits_for(policy.K, shift=shift)), [Mode.PIPELINED])
    if graphs:
        engine.record_all(lambda *_: None)
    tickets, answers, seq = [], [], 0
    with HostTraffic(monkeypatch) as watched:
        while len(answers) < len(frames):
            if seq < len(frames) and not run.waiting(0):
                run.offer(0, seq + 1, frames[seq])
                seq += 1
            ticket = run.step()
            tickets += [] if ticket is None else [ticket]
            while len(tickets) > (engine.launch_ahead if ticket is not None else 0):
                answers += run.collect(tickets.pop(0))
    steps = watched.between_launches()
    assert len(steps) > 12 and all(step == Counter({COPIED: 1, COLLECT: 1}) for step in steps[1:-1])
    assert steps[0] == Counter({COPIED: 1}) and steps[-1] == Counter({COPIED: 1, COLLECT: 2})


def test_a_read_is_seen(monkeypatch):
    """That the tests above can fail."""
    with HostTraffic(monkeypatch) as watched:
        assert torch.ones(2)[0].item() == 1.0
        with pytest.raises(AssertionError, match="no pass has copied"):
            torch.ones(2).tolist()
    assert watched.events == [READ]
