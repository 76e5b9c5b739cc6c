"""Section: answers with verified drafts, in the shapes of Qwen2.5-7B and of an EAGLE-3 head for it.

A head with random weights is never right, so the number of tokens that each verification accepts is imposed: the head
runs in full, its time counts, and known next tokens replace its drafts on the device, in a chain or on the longest
path of a fixed tree. They come from an answer of the same engine, since with ties a pass of several rows may choose
another token than a pass of one. `base alone` verifies as many rows as a tree has, without a head. Floors count the
weights of the base and of each forward of the head, and the base's keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.drafts.kinds import DraftKind, Eagle, Lookup, chain_of
from edgeflow.engine.program import ReadRows
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.layout import Span
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import SectionSetting
from edgeflow.lab.gpu.subjects.floors import NUMBER_BYTES, attention_work, linear_work
from edgeflow.lab.gpu.subjects.random_chat import CHAT_SIZES, TINY, random_chat, random_request
from edgeflow.lab.gpu.subjects.random_weights import random_weights
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.config import Eagle3Config
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.llama import LlamaConfig
from edgeflow.scheduler.plan import DraftForm

MODEL = "qwen2.5-7b"
SETTLED = (2, 3, 4)
"""Verified tokens per pass, for each measurement."""
PATH = 3
"""Drafts on the longest path of the fixed tree; all others follow the root."""
ALIKE = 3
"""Attempts until two answers are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpeedSizes:
    """The sizes of a measurement."""

    prompt: int
    tokens: int
    """Both: of a request."""
    vocabulary: int
    """The vocabulary of the head."""
    tree: TreeSizes
    chain: int
    """Both: as in `kinds.Eagle`; depth of chains."""


WHOLE = DraftSpeedSizes(prompt=256, tokens=193, vocabulary=16000, tree=TreeSizes(rows=60, depth=7, width=10), chain=4)
SMALL = DraftSpeedSizes(prompt=16, tokens=25, vocabulary=40, tree=TreeSizes(rows=12, depth=3, width=3), chain=3)


def drafts(setting: SectionSetting) -> Found:
    """A row without drafts, and for each way of drafting one row per number of tokens that verifications accept."""
    sizes, name = (SMALL, TINY) if setting.small else (WHOLE, MODEL)
    table = setting.table(name)
    model = random_chat(CHAT_SIZES[name], setting.device, setting.dtype, table=table)
    head = random_head(model, sizes.vocabulary, table)
    ways: dict[str, DraftKind | None] = {
        "none": None,
        "tree": Eagle(head=head, tree=sizes.tree, depth=sizes.tree.depth),
        "chain": Eagle(head=head, tree=None, depth=sizes.chain),
        "base alone": Lookup(drafts=sizes.tree.rows - 1),
    }
    rows: list[Found] = []
    found: Found = {"model": name, "prompt": sizes.prompt, "answers": rows}
    for way, kind in ways.items():
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(way)
            continue
        for row in _Way(setting, model, sizes, kind).rows():
            rows.append({"drafts": way, **row, "against none": row["tokens/s"] / (rows or [row])[0]["tokens/s"]})
            setting.publish(found)
        setting.release()
    return found


class _Way:
    """One engine, whose requests are all equal."""

    def __init__(
        self, setting: SectionSetting, model: ChatModel, sizes: DraftSpeedSizes, kind: DraftKind | None
    ) -> None:
        self._setting = setting
        self._model = model
        self._sizes = sizes
        self._kind = kind
        most = 1 if kind is None else kind.rows
        places = sizes.prompt + sizes.tokens + most
        self._answer = torch.zeros(places + most, dtype=torch.long, device=model.device)
        self._settled = torch.ones((), dtype=torch.long, device=model.device)
        imposed = None if kind is None else ImposedDrafts(kind, self._answer, self._settled, model.config.vocab_size)
        kv = model.decoder.kv_slots(1 + setting.graphs, places)
        self._engine = ChatEngine(model, kv, drafts=imposed, chunk=sizes.prompt, graphs=setting.graphs)
        self._engine.row_permille = 0  # every tree is verified

    def rows(self) -> Iterator[Found]:
        for settled in SETTLED if self._kind is not None else (1,):
            self._settled.fill_(settled)
            self._know()
            request, seconds, passes = self._timed()
            tokens = len(request.tokens) - 1
            row: Found = {"rows": 1 if self._kind is None else self._kind.rows, "imposed": settled}
            row |= {"tokens per pass": tokens / passes, "ms/pass": 1e3 * seconds / passes, "tokens/s": tokens / seconds}
            yield row | self._shares(seconds / passes)

    def _know(self) -> None:
        """Repeat the answer until its tokens are the known ones."""
        known: list[int] = []
        for _ in range(ALIKE):
            request, _, _ = self._timed()
            if request.tokens == known:
                return
            known = request.tokens
            ids = torch.tensor([*request.source.prompt.ids, *known], device=self._answer.device)
            self._answer[: len(ids)] = ids

    def _timed(self) -> tuple[Generation, float, int]:
        """A request, the seconds after its first token, and the number of passes in them."""
        params = SamplingParams(max_tokens=self._sizes.tokens)
        request, stamps = random_request(self._engine, self._sizes.prompt, params), list[float]()
        for sampled in generate(self._engine, request, self._sizes.prompt):
            if sampled is not None:
                stamps.append(perf_counter())
        return request, stamps[-1] - stamps[0], len(stamps) - 1

    def _shares(self, pass_s: float) -> Found:
        """Bytes of a pass, relative to what a copy moves in the same time."""
        if self._setting.measured is None:
            return {}
        text, rows = self._model.config, 1 if self._kind is None else self._kind.rows
        spans = [Span(0, self._sizes.prompt + self._sizes.tokens // 2, rows)]
        moved = linear_work(text, spans * rows).bytes + attention_work(text, spans).bytes
        if isinstance(self._kind, Eagle):
            config, sizes = self._kind.head.config, self._kind.tree or chain_of(self._kind.depth)
            features = (
                config.feature_width * config.text.hidden_size
            )  # read once; all other weights are read in each forward
            moved += NUMBER_BYTES * (features + (1 + sizes.depth) * (config.parameters - features))
        return {"share of copy bandwidth": moved / pass_s / self._setting.measured.bandwidth}


@dataclass(frozen=True, slots=True, eq=False)
class ImposedDrafts:
    """The kind `within`, with its drafts replaced."""

    within: DraftKind
    answer: Tensor
    """[T]: the tokens of a sequence, including the prompt."""
    tokens: Tensor
    """[]: how many tokens each verification accepts, at most PATH + 1. Both are int64 on the device, so that a
    recorded pass reads new values.
    """
    vocabulary: int
    """V, the model's vocabulary size."""

    @property
    def name(self) -> str:
        return self.within.name

    @property
    def form(self) -> DraftForm:
        return self.within.form

    @property
    def rows(self) -> int:
        return self.within.rows

    def drafter(self, kv: KVSlots, state: SlotState) -> Drafter:
        return _ImposedDrafter(self, self.within.drafter(kv, state), state)


class _ImposedDrafter:
    """Runs the drafter `within`, then overwrites its drafts."""

    def __init__(self, kind: ImposedDrafts, within: Drafter, state: SlotState) -> None:
        self._kind = kind
        self._within = within
        self._state = state

    @property
    def taps(self) -> tuple[int, ...]:
        return self._within.taps

    @property
    def store(self) -> KVSlots | None:
        return self._within.store

    def width(self, form: DraftForm) -> int:
        return self._within.width(form)

    def rows(self, form: DraftForm) -> int:
        return self._within.rows(form)

    def draft(self, read: ReadRows) -> Tensor:
        found = self._within.draft(read)
        if not read.sampled:
            return found
        answer, drafts = self._kind.answer, self.rows(read.form) - 1
        newest = (read.firsts + read.counts)[:, None]
        at = torch.arange(1, drafts + 1, device=newest.device)
        on_path = at <= (PATH if read.form is DraftForm.TREE else drafts)
        known = answer[(newest + torch.where(on_path, at, 1)).clamp(max=len(answer) - 1)]
        wrong = torch.where(on_path, known + 1, known + 1 + at)  # siblings are different tokens
        right = on_path & (at < self._kind.tokens)
        self._state.ids[read.slots[:, None], newest + at] = torch.where(right, known, wrong % self._kind.vocabulary)
        if read.form is DraftForm.TREE:
            parents = torch.where(on_path, at - 1, 0).expand(len(read.slots), -1)
            self._state.tree.plant(read.slots, parents, PATH)
        return torch.full_like(found, drafts)


def head_config(base: LlamaConfig, *, tokens: int) -> Eagle3Config:
    """The head of a Qwen2.5 as SpecForge trains it: one layer like those of its base, with `tokens` in its
    vocabulary.
    """
    text = replace(base, num_hidden_layers=1, tie_word_embeddings=False, attention_bias=False)
    layers = base.num_hidden_layers
    return Eagle3Config(
        text=text,
        draft_vocabulary=tokens,
        taps=tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 0)})),
        target_hidden=base.hidden_size,
        norm_before_residual=False,
        own_embedding=False,
    )


def random_head(model: ChatModel, tokens: int, table: OperatorTable) -> Eagle3Head:
    """A head with random weights over the embedding of its base."""
    config, decoder = head_config(model.config, tokens=tokens), model.decoder
    weights = random_weights(config.shapes, model.device, decoder.dtype)
    targets = torch.arange(tokens, device=model.device) * (model.config.vocab_size // tokens)
    return Eagle3Head(config, weights, decoder.embedding, targets, table)
