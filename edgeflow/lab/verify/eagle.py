"""Checks of an EAGLE-3 head with its base against recorded runs, in float32, on the executor that serves.

With trees of the recorded sizes every value is compared: the features that the head reads, the trees, what of them is
accepted, and the tokens. Other drafts and narrower passes must give the recorded tokens too; over INT8 KV all drafts
must give the tokens that come without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation, run_pass
from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.kernels.kv.formats import DENSE, INT8, KVFormat
from edgeflow.lab.verify.eagle_bundle import BASE, HEAD, EagleBundle, EagleCase, read_eagle_bundle
from edgeflow.lab.verify.eagle_runs import EagleRun, NotedEagle, Notes, check_run, run_noted
from edgeflow.lab.verify.recorded.comparison import CheckResult, mismatches, mismatches_but_ties
from edgeflow.models.chat import ChatModel, load_chat_model
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.published import read_published

Progress = Callable[[str, int, int], None]
Check = Callable[[EagleCase], Iterator[CheckResult]]
CPU = torch.device("cpu")
CHUNK = 5
WHOLE = 1 << 20  # more rows than any prompt has


def verify_eagle(
    directory: Path, progress: Progress = lambda *_: None, device: torch.device = CPU
) -> list[tuple[str, CheckResult]]:
    """Every comparison with the way in which it was computed; CheckpointError when the directory is not a bundle."""
    bundle, ways = prepare(directory, device)
    checks = {**ways.recorded(), **ways.tokens()}
    results: list[tuple[str, CheckResult]] = []
    for index, (name, check) in enumerate(checks.items()):
        progress(name, index, len(checks))
        results += [(name, result) for case in bundle.cases for result in check(case)]
    return results


def prepare(directory: Path, device: torch.device = CPU) -> tuple[EagleBundle, EagleWays]:
    """Read a bundle and its checkpoints; CheckpointError or ConfigError where they are broken or do not fit."""
    base = read_published(directory / BASE).text
    config = read_eagle3(directory / HEAD, base)
    bundle = read_eagle_bundle(directory, base, config)
    model = load_chat_model(directory / BASE, torch.float32, device, text=False)
    head = Eagle3Head.read(directory / HEAD, config, model.decoder, torch.float32, device)
    return bundle, EagleWays(model, head, bundle)


@dataclass(frozen=True, slots=True)
class EagleWays:
    """The checks of each way to run the cases of a bundle."""

    model: ChatModel
    head: Eagle3Head
    bundle: EagleBundle

    def recorded(self) -> dict[str, Check]:
        """Ways to run trees, by name; all that was recorded is compared."""
        return {
            "trees": lambda case: check_run(case, self.alone(case, WHOLE)),
            f"trees, chunks of {CHUNK}": lambda case: check_run(case, self.alone(case, CHUNK)),
            "trees, prefix": lambda case: check_run(case, self._behind_prefix(case, 0)),
            "trees, prefix, copied": lambda case: check_run(case, self._behind_prefix(case, 1)),
        }

    def tokens(self) -> dict[str, Check]:
        """Ways to run with other drafts, or none, by name; tokens alone are compared."""
        checks = {
            "no drafts": lambda case: self._check_tokens(case, None, WHOLE),
            "chains": lambda case: self._check_tokens(case, self._chains, WHOLE),
            "look-up": lambda case: self._check_tokens(case, Lookup(), WHOLE),
            f"trees, passes of {CHUNK}": lambda case: self._check_tokens(case, self._trees, CHUNK),
        }
        dense = self.model.config.attention.kv_format is DENSE
        return checks | {"INT8 KV": self._check_int8} if dense else checks

    @property
    def _trees(self) -> Eagle:
        return Eagle(head=self.head, tree=self.bundle.sizes, depth=self.bundle.sizes.depth)

    @property
    def _chains(self) -> Eagle:
        return Eagle(head=self.head, tree=None, depth=self.bundle.sizes.depth)

    def _check_tokens(self, case: EagleCase, kind: DraftKind | None, chunk: int) -> Iterator[CheckResult]:
        """Compare with the recorded ones. chunk: the most rows of a pass, whatever it runs."""
        tokens, _ = self._answer(case, kind, chunk)
        yield CheckResult(case.name, "tokens", mismatches(tokens, case.answer), 0)

    def _check_int8(self, case: EagleCase) -> Iterator[CheckResult]:
        """Compare with the tokens that come without drafts."""
        wanted, logits = self._answer(case, None, WHOLE, INT8)
        kinds: dict[str, DraftKind] = {"trees": self._trees, "chains": self._chains, "look-up": Lookup()}
        for name, kind in kinds.items():
            tokens, _ = self._answer(case, kind, WHOLE, INT8)
            yield CheckResult(case.name, f"tokens, {name}", mismatches_but_ties(tokens, wanted, logits, INT8.name), 0)

    def alone(self, case: EagleCase, chunk: int) -> EagleRun:
        """Run a case with trees. chunk: rows of the prompt in a pass."""
        notes = Notes()
        engine = self._engine(case, NotedEagle(self._trees, notes))
        return run_noted(engine, notes, case, self._noted(case, engine), chunk)

    def _behind_prefix(self, case: EagleCase, slot: int) -> EagleRun:
        """Half of the prompt is computed once, in slot 0; behind it, or a copy of it, the case runs twice."""
        notes, prompt = Notes(), self.model.prompt(case.prompt)
        engine = self._engine(case, NotedEagle(self._trees, notes), slots=2)
        prefix = FixedPrefix(prompt.head(max(1, len(prompt) // 2)), 0)
        for _ in prefix.compute(engine, WHOLE):
            pass
        computed = tuple(notes.reads)
        for _ in range(2):
            notes.begin(computed)
            known = prefix.lend(engine, prompt, slot)
            run = run_noted(engine, notes, case, self._noted(case, engine, slot, known), WHOLE)
        return run

    def _answer(
        self, case: EagleCase, kind: DraftKind | None, chunk: int, kv_format: KVFormat | None = None
    ) -> tuple[list[int], list[Tensor]]:
        """As many tokens as were recorded, and without drafts the logits [V] of each."""
        engine = self._engine(case, kind, kv_format=kv_format)
        request, logits = self._request(engine, case, len(case.answer)), list[Tensor]()
        while request.finish is None:
            (step,) = run_pass(engine, [request], chunk)
            logits += [] if step.logits is None else [step.logits[-1]]
        return request.tokens, logits

    def _noted(self, case: EagleCase, engine: ChatEngine, slot: int = 0, known: int = 0) -> Generation:
        """A request that goes on behind the recorded tokens, so that no verification is cut short."""
        return self._request(engine, case, self._most(case), slot, known)

    def _request(self, engine: ChatEngine, case: EagleCase, tokens: int, slot: int = 0, known: int = 0) -> Generation:
        prompt, params = self.model.prompt(case.prompt), SamplingParams(max_tokens=tokens)
        return Generation(engine, prompt, params, slot, known=known, ignore_stop=True)

    def _engine(
        self, case: EagleCase, kind: DraftKind | None, *, slots: int = 1, kv_format: KVFormat | None = None
    ) -> ChatEngine:
        """An engine whose slots hold NaN, where the format can."""
        kv = self.model.decoder.kv_slots(slots, len(case.prompt) + self._most(case), kv_format)
        if kv.data.is_floating_point():
            kv.data.fill_(torch.nan)
        engine = ChatEngine(self.model, kv, drafts=kind, keep_logits=kind is None)
        engine.row_permille = 0  # all drafts are verified, as the original does
        return engine

    def _most(self, case: EagleCase) -> int:
        """The recorded tokens, and the rows of another tree behind them."""
        return len(case.answer) + self.bundle.sizes.rows
