"""A whole training run: the base, the data, the trainer, the files that it writes, and what it prints."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from edgeflow.engine.placement import choose_device, choose_dtype
from edgeflow.lab.outputs import check_writable, make_folder, writing
from edgeflow.lab.plain_attention import read_with_heads
from edgeflow.lab.training.gate.gate_files import write_gate
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.text_files import GateData, Line, ModelText
from edgeflow.lab.training.gate.trainer import GatePlan, GateTrainer, initial_gate
from edgeflow.lab.training.learner import ANEW
from edgeflow.lab.training.run import cpu_seconds, run_training, training_progress
from edgeflow.model_paths import resolve_model
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import GateRules, base_fingerprint
from edgeflow.models.published import unfit_for_gates
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer
from edgeflow_client.errors import CheckpointError, ConfigError

STATE: Final = "gate-state.safetensors"
EPOCHS: Final = 2
KEPT_BYTES: Final = 1 << 30  # bytes kept for the gradients of a batch; above, layers are computed twice
POOL: Final = 32  # batches whose lines are sorted together


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """A training run."""

    model: str
    """A checkpoint's folder, a hub id, demo-chat or demo-logs."""
    data: tuple[Path, ...]
    """JSONL files."""
    out: Path
    """The folder to write."""
    rules: GateRules
    rate: float
    batch_tokens: int
    """Most tokens of a batch."""
    seed: int
    device: str
    epochs: int | None = None
    steps: int | None = None
    """Both: the length of the run; at most one is given, by default EPOCHS."""
    resume: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The result of a run."""

    weights: int
    """Count of the base's numbers."""
    gate: int
    """Count of the gate's numbers."""
    lines: int
    """Number of used lines."""
    short: int
    """Number of lines too short to be used."""
    steps: int
    loss: float | None
    """Mean over the learned tokens of the last step, None if no step was left to do."""
    cpu_seconds: float

    @property
    def share(self) -> float:
        """The trained share of all weights."""
        return self.gate / (self.weights + self.gate)

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "share": self.share}


def train_gate(request: GateRequest, progress: Progress, report: Callable[[str], None]) -> GateReport:
    """Train a gate and write it; ConfigError or CheckpointError if something does not fit.

    report: called with each line about the run, before it starts.
    """
    started = cpu_seconds()
    if request.epochs is not None and request.steps is not None:
        raise ConfigError(f"epochs and steps: give one of them, got {request.epochs} and {request.steps}")
    check_writable(request.out)
    device, folder = choose_device(request.device), resolve_model(request.model, chat=True)
    data = _read_data(request, folder, progress)
    base = PlainBase.read(folder, choose_dtype("auto", device), device)
    trainer = _trainer(request, data, base, base_fingerprint(folder))
    outcome = GateReport(
        weights=base.weights,
        gate=trainer.gate.parameters,
        lines=len(data.lines),
        short=data.short,
        steps=trainer.plan.steps,
        loss=None,
        cpu_seconds=0.0,
    )
    for line in _announced(request, data, base.config, outcome):
        report(line)
    make_folder(request.out)
    state = request.out / STATE
    run_training(trainer, trainer.plan.steps, state=state, resume=request.resume, progress=progress, cpu_before=started)
    with writing(request.out):
        write_gate(request.out, trainer.gate)
    learner = trainer.learner
    return replace(outcome, steps=learner.done_steps, loss=trainer.last_loss, cpu_seconds=round(learner.cpu_seconds, 1))


def train_gate_command(request: GateRequest, *, as_json: bool) -> None:
    """Train and print the result; with `as_json`, standard output has nothing else."""
    errors = Console(stderr=True)
    with training_progress(errors) as progress:
        report = train_gate(request, progress, lambda line: errors.print(line, highlight=False, soft_wrap=True))
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        ending = f": already finished, {ANEW}" if report.loss is None else f", loss {report.loss:.3f}"
        steps = f"{report.steps} step" if report.steps == 1 else f"{report.steps} steps"
        print(f"{request.out}: {report.gate} weights ({report.share:.3%}) after {steps}{ending}")


def _read_data(request: GateRequest, folder: Path, progress: Progress) -> GateData:
    """The texts, with a progress bar over their lines."""
    published = read_with_heads(folder, "train-gate")
    unfit = unfit_for_gates(published)
    if unfit:
        raise CheckpointError(f"{folder}: a gate cannot serve {unfit}")
    tokenizer = TextTokenizer(folder, published.text.vocab_size)
    ends = published.generation.stop_ids | ({tokenizer.end} if tokenizer.end is not None else set())
    text = ModelText(tokenizer, ChatTemplate.load(folder), ends)
    bar = progress.add_task("reading", total=None, note="")
    data = GateData(request.data, text, request.rules, lambda count: progress.update(bar, completed=count))
    progress.update(bar, total=len(data.lines) + data.short)
    return data


def _trainer(request: GateRequest, data: GateData, base: PlainBase, fingerprint: str) -> GateTrainer:
    epochs = Epochs(data.lines, request.batch_tokens, request.seed)
    most = max(request.batch_tokens, max(line.tokens for line in data.lines))
    plan = GatePlan(
        steps=request.steps or epochs.steps(request.epochs or EPOCHS),
        rate=request.rate,
        seed=request.seed,
        checkpointing=kept_bytes(base.config, most) > KEPT_BYTES,
    )
    return GateTrainer(
        base,
        initial_gate(base.config, request.rules, request.seed, fingerprint),
        lambda step: [data.read(index) for index in epochs.batch(step)],
        plan,
        settings=_settings(request),
        contents={"data": data.digest, "base": fingerprint},
    )


def _announced(request: GateRequest, data: GateData, config: LlamaConfig, outcome: GateReport) -> Iterator[str]:
    """Lines about a run that is about to start."""
    yield f"{outcome.gate} of {outcome.weights + outcome.gate} weights are trained, {outcome.share:.3%}"
    short = f"; {_counted(data.short, 'text is', 'texts are')} too short for a gate and left out" if data.short else ""
    yield f"{_counted(outcome.lines, 'text', 'texts')}, {_counted(outcome.steps, 'step', 'steps')}{short}"
    trained = config.max_position_embeddings
    beyond = sum(line.tokens > trained for line in data.lines)
    if beyond and request.rules.positions == "absolute":
        leave = _counted(beyond, "text leaves", "texts leave")
        yield f"{leave} the {trained} positions that the base was trained for: positions are absolute"


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def kept_bytes(config: LlamaConfig, tokens: int) -> int:
    """Rough number of bytes that a batch keeps for its gradients if nothing is computed twice."""
    a_row = 10 * config.hidden_size + 6 * config.intermediate_size + 12 * config.q_width
    return 4 * tokens * config.num_hidden_layers * a_row


def _settings(request: GateRequest) -> dict[str, str]:
    """The settings that must equal those of a resumed run."""
    rules = {name: str(value) for name, value in asdict(request.rules).items()}
    return {**rules, "lr": str(request.rate), "batch-tokens": str(request.batch_tokens)}


class Epochs:
    """Batches of indices into lines.

    batch_tokens: an upper limit, but a batch has at least one line.
    """

    def __init__(self, lines: Sequence[Line], batch_tokens: int, seed: int) -> None:
        self._lines, self._batch_tokens, self._seed = lines, batch_tokens, seed
        self._made: list[list[list[int]]] = []

    def steps(self, epochs: int) -> int:
        """Number of batches of the first `epochs` epochs."""
        return sum(len(self._epoch(index)) for index in range(epochs))

    def batch(self, step: int) -> list[int]:
        """The lines of a step, for any number of steps."""
        epoch = 0
        while step >= len(self._epoch(epoch)):
            step -= len(self._epoch(epoch))
            epoch += 1
        return self._epoch(epoch)[step]

    def _epoch(self, index: int) -> list[list[int]]:
        while len(self._made) <= index:
            self._made.append(self._shuffled(len(self._made)))
        return self._made[index]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        """One epoch: every line once."""
        draw = random.Random(f"{self._seed} {epoch}")
        order = list(range(len(self._lines)))
        draw.shuffle(order)
        batches = [batch for pool in self._cut(order, POOL) for batch in self._cut(self._sorted(pool), 1)]
        draw.shuffle(batches)
        return batches

    def _sorted(self, indices: list[int]) -> list[int]:
        return sorted(indices, key=lambda index: (self._lines[index].segments, self._lines[index].tokens, index))

    def _cut(self, order: list[int], batches: int) -> list[list[int]]:
        """Split neighbours into chunks with the tokens of `batches` batches."""
        cut: list[list[int]] = []
        room = 0
        for index in order:
            room -= self._lines[index].tokens
            if room < 0 or not cut:
                cut.append([])
                room = batches * self._batch_tokens - self._lines[index].tokens
            cut[-1].append(index)
        return cut
