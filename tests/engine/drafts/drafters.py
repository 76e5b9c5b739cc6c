"""Drafters for tests: one that knows the answer and is wrong at random, and heads of EAGLE-3 for any small model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import Generation, generate
from edgeflow.engine.drafts.drafters import Drafter
from edgeflow.engine.drafts.kinds import DraftKind, Eagle
from edgeflow.engine.program import ReadRows
from edgeflow.engine.sampling.params import SamplingParams
from edgeflow.engine.slots import SlotState
from edgeflow.kernels.kv.formats import KVFormat
from edgeflow.kernels.kv.slots import KVSlots
from edgeflow.kernels.table.operator_table import OperatorTable
from edgeflow.models.chat import ChatModel
from edgeflow.models.eagle3.config import read_eagle3
from edgeflow.models.eagle3.head import Eagle3Head
from edgeflow.models.eagle3.trees import TreeSizes
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import DraftForm
from tests.models.eagle3.random_head import write_head

CPU = torch.device("cpu")
CAPACITY = 80


@dataclass(kw_only=True)
class Knowing:
    """A kind of drafts that knows what each slot's sequence will be, prompt included, and errs at random.

    truth: by slot. sure: how often a draft after true ones is the true one. fixed: as many rows as it may; otherwise
    chains are found in any length.
    """

    form: DraftForm = DraftForm.TREE
    rows: int = 12
    sure: float = 0.8
    seed: int = 0
    fixed: bool = False
    name: str = "knowing"
    truth: dict[int, list[int]] = field(default_factory=dict)

    def drafter(self, kv: KVSlots, state: SlotState) -> KnowingDrafter:
        return KnowingDrafter(self, state)


class KnowingDrafter:
    """What a `Knowing` makes, on the host."""

    taps = ()
    store = None

    def __init__(self, kind: Knowing, state: SlotState) -> None:
        self._kind, self._state = kind, state
        self._choose = random.Random(kind.seed)

    def width(self, form: DraftForm) -> int:
        return self._kind.rows

    def rows(self, form: DraftForm) -> int:
        return self._kind.rows

    def draft(self, read: ReadRows) -> Tensor:
        found = [0] * len(read.slots)
        if not read.sampled:
            return torch.tensor(found)
        for index, slot in enumerate(read.slots.tolist()):
            newest = int(read.firsts[index] + read.counts[index])
            folded = 0 if self._state.folded is None else int(self._state.folded[slot])
            truth = self._kind.truth.get(slot, [])
            parents, tokens = self._tree(truth[newest + folded + 1 :], chain=read.form is DraftForm.CHAIN)
            self._state.ids[slot, newest + 1 : newest + self._kind.rows] = torch.tensor(tokens)
            if read.form is DraftForm.TREE:
                self._state.tree.plant(read.slots[index : index + 1], torch.tensor([parents]), self._kind.rows)
            chosen = not self._kind.fixed and read.form is DraftForm.CHAIN
            found[index] = self._choose.randint(0, len(tokens)) if chosen else len(tokens)
        return torch.tensor(found)

    def _tree(self, future: list[int], *, chain: bool) -> tuple[list[int], list[int]]:
        """The parent and the token of each draft; siblings are different tokens."""
        choose, vocabulary = self._choose, 256
        parents: list[int] = []
        tokens = [-1]
        true_depth = {0: 0}  # rows on the true path, and how many drafts they are from the root
        children: dict[int, set[int]] = {}
        for row in range(1, self._kind.rows):
            deepest = max(true_depth)
            parent = row - 1 if chain else choose.choice([choose.randrange(row), deepest, deepest])
            depth, said = true_depth.get(parent), children.setdefault(parent, set())
            right = future[depth] if depth is not None and depth < len(future) else None
            if right is not None and right not in said and choose.random() < self._kind.sure:
                token = right
                true_depth[row] = 0 if depth is None else depth + 1
            else:
                token = choose.choice([each for each in range(vocabulary) if each != right and each not in said])
            said.add(token)
            parents.append(parent)
            tokens.append(token)
        return parents, tokens[1:]


@dataclass(kw_only=True)
class Helped:
    """EAGLE-3 with a hand: tokens on one path of what the head has drafted are replaced by true ones.

    truth: as in `Knowing`. made: by slot, what the head itself drafted last, and the row that each follows.
    """

    eagle: Eagle
    seed: int = 0
    truth: dict[int, list[int]] = field(default_factory=dict)
    made: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    name: str = "helped"

    @property
    def form(self) -> DraftForm:
        return self.eagle.form

    @property
    def rows(self) -> int:
        return self.eagle.rows

    def drafter(self, kv: KVSlots, state: SlotState) -> HelpedDrafter:
        return HelpedDrafter(self, self.eagle.drafter(kv, state), state)


class HelpedDrafter:
    """What a `Helped` makes."""

    def __init__(self, kind: Helped, drafter: Drafter, state: SlotState) -> None:
        self._kind, self._drafter, self._state = kind, drafter, state
        self._choose = random.Random(kind.seed)
        self.taps, self.store = drafter.taps, drafter.store
        self.width, self.rows = drafter.width, drafter.rows

    def draft(self, read: ReadRows) -> Tensor:
        found = self._drafter.draft(read)
        for index, slot in enumerate(read.slots.tolist() if read.sampled else ()):
            newest, count = int(read.firsts[index] + read.counts[index]), self.rows(read.form)
            drafts = self._state.ids[slot, newest + 1 : newest + count]
            tree = read.form is DraftForm.TREE
            parents = self._state.tree.parent[slot, 1:count].tolist() if tree else list(range(count - 1))
            self._kind.made[slot] = drafts.tolist(), parents
            folded = 0 if self._state.folded is None else int(self._state.folded[slot])
            row = 0
            for token in self._kind.truth.get(slot, [])[newest + folded + 1 :]:
                children = [child for child, parent in enumerate(parents, start=1) if parent == row]
                if not children or self._choose.random() < 0.2:
                    break
                row = self._choose.choice(children)
                drafts[row - 1] = token
        return found


def eagle_head(folder: Path, model: ChatModel, table: OperatorTable | None = None, drafts: int = 60) -> Eagle3Head:
    """A random head that reads three layers of a model, with `drafts` tokens of its vocabulary."""
    width, vocabulary, layers = model.config.hidden_size, model.config.vocab_size, model.config.num_hidden_layers
    taps = sorted({0, layers // 2, layers - 1})
    entries = {
        "hidden_size": width,
        "intermediate_size": 36,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocabulary,
        "draft_vocab_size": drafts,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "eagle_aux_hidden_state_layer_ids": taps,
    }
    tensors = _tensors(width, len(taps), vocabulary, drafts)
    config = read_eagle3(write_head(folder, entries, tensors), model.config)
    return Eagle3Head.read(folder, config, model.decoder, model.decoder.dtype, CPU, table)


def _tensors(width: int, taps: int, vocabulary: int, drafts: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(11)
    shapes = {
        "fc": (width, taps * width),
        "midlayer.self_attn.q_proj": (32, 2 * width),
        "midlayer.self_attn.k_proj": (16, 2 * width),
        "midlayer.self_attn.v_proj": (16, 2 * width),
        "midlayer.self_attn.o_proj": (width, 32),
        "midlayer.mlp.gate_proj": (36, width),
        "midlayer.mlp.up_proj": (36, width),
        "midlayer.mlp.down_proj": (width, 36),
        "lm_head": (drafts, width),
    }
    tensors = {f"{name}.weight": torch.randn(size, generator=draw) * size[1] ** -0.5 for name, size in shapes.items()}
    norms = [f"midlayer.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    tensors |= {f"{name}.weight": 1 + 0.3 * torch.randn(width, generator=draw) for name in (*norms, "norm")}
    targets = torch.randperm(vocabulary, generator=draw)[:drafts].sort().values
    seen = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, targets, True)
    return {**tensors, "d2t": targets - torch.arange(drafts), "t2d": seen}


def eagle(head: Eagle3Head, *, tree: bool = True) -> Eagle:
    """Small trees, or chains."""
    return Eagle(head=head, tree=TreeSizes(rows=10, depth=3, width=3) if tree else None, depth=4)


def poisoned(model: ChatModel, slots: int, capacity: int = CAPACITY, kv_format: KVFormat | None = None) -> KVSlots:
    """Slots that hold what no answer may depend on."""
    kv = (
        model.decoder.kv_slots(slots, capacity)
        if kv_format is None
        else model.decoder.kv_slots(slots, capacity, kv_format)
    )
    for tensor in kv.tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0x7F)
    return kv


def engine_of(
    model: ChatModel,
    drafts: DraftKind | None = None,
    slots: int = 1,
    capacity: int = CAPACITY,
    kv_format: KVFormat | None = None,
    **options: object,
) -> ChatEngine:
    engine = ChatEngine(model, poisoned(model, slots, capacity, kv_format), drafts=drafts, **options)
    engine.row_permille = 0  # all drafts are verified
    return engine


def answer(
    engine: ChatEngine, prompt: Prompt, params: SamplingParams, chunk: int = 50, **options: object
) -> Generation:
    """A whole answer; stop tokens are passed over."""
    generation = Generation(engine, prompt, params, ignore_stop=True, **options)
    for _ in generate(engine, generation, chunk):
        pass
    return generation


def taught(kind: Knowing | Helped, prompt: Prompt, tokens: list[int], slot: int = 0) -> Any:
    """The kind, that knows now what follows a prompt."""
    kind.truth[slot] = [*prompt.ids, *tokens]
    return kind


def knowing_kinds(count: int, seed: int = 0) -> Iterator[Knowing]:
    """Trees and chains of many sizes."""
    choose = random.Random(seed)
    for index in range(count):
        yield Knowing(
            form=choose.choice([DraftForm.CHAIN, DraftForm.TREE]),
            rows=choose.choice([2, 3, 7, 12, 30, 63]),
            sure=choose.choice([0.5, 0.8, 0.95, 1.0]),
            seed=index,
            fixed=choose.random() < 0.5,
        )
