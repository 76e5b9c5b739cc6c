"""The shapes of passes, and the few that passes are padded to where they are replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from edgeflow.engine.sampling.sample import GREEDY, SamplingKind
from edgeflow.kernels.table.dimensions import stage_of
from edgeflow.scheduler.plan import DraftForm, Pass
from edgeflow.scheduler.session import Shift

ROW_STEP = 16
"""The rows of a pass with one prefill, decode rows included, are padded to a multiple of it. A GEMM's tiles have 64
rows or a multiple of that, so no tile is added."""
SEVERAL_STEP = 32
"""The rows of each of several prefills are padded to a multiple of it."""
MOST_LENGTHS = 8
"""The most lengths of prompts that are distinguished; where prompts differ more, the steps are longer."""
MOST_PREFILLS = 4
MOST_DRAFTED_PREFILLS = 2
DRAFTED = (0, 1, 2, 3, 4, 8)
"""The numbers of decode segments in passes with drafts. Each has K-1 rows, as many as the drafts after a prompt."""
REACH_STEP = 64
"""Ends of segments are rounded up to a multiple of it, or to the end of the slot."""
LEAST_REACH = 256
"""The shortest part of a slot, in positions, that chat's recordings tell apart."""


@dataclass(frozen=True, kw_only=True)
class PassShape:
    """Everything about a pass that the host branches on; all else that differs between passes lies on the device."""

    prefills: tuple[int, ...]
    """Rows of each prefill."""
    decodes: tuple[int, ...]
    """Rows of each segment after its prompt."""
    samples: tuple[int, ...]
    """Sampled rows of each segment."""
    reach: int
    """An upper bound on where segments end."""
    moves: int = 0
    """Slot copies after the pass."""
    sampling: SamplingKind | None = GREEDY
    """How rows are sampled; None where they are sampled later, under a mask (`Executor.sample`)."""
    is_continuation: bool = False
    """True when all segments begin where their slots end."""
    gated: tuple[bool, ...] = ()
    """For each segment, True when its rows read the memory of their slot; empty where none does."""
    form: DraftForm = DraftForm.NONE
    """The form of the drafts of a drafter, which all segments have or none."""

    @property
    def is_verification(self) -> bool:
        """True when the rows are newest tokens with the drafts of a drafter."""
        return self.form is not DraftForm.NONE and not self.prefills and self.most_samples > 1

    @property
    def tree(self) -> bool:
        """True when rows see those before them on their path of a tree."""
        return self.is_verification and self.form is DraftForm.TREE

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each segment."""
        return self.prefills + self.decodes

    @property
    def segments(self) -> int:
        return len(self.lengths)

    @cached_property
    def stage(self) -> str:
        """The stage of the pass, by which operators are chosen."""
        return stage_of(self.lengths)

    @cached_property
    def all_single(self) -> bool:
        """True when every segment is one row."""
        return set(self.lengths) == {1}

    @cached_property
    def most_samples(self) -> int:
        return max(self.samples)

    @cached_property
    def drafts(self) -> int:
        """Draft rows after each prompt."""
        return max((1, *self.samples[: len(self.prefills)])) - 1

    @cached_property
    def one_sample_each(self) -> bool:
        """True when one row of each segment is sampled."""
        return set(self.samples) == {1}


def shape_of(planned: Pass[Any], sampling: SamplingKind | None, capacity: int) -> PassShape:
    """The unpadded shape of a pass. capacity: of its slots, in positions."""
    reach = max(segment.start + segment.length for segment in planned.segments)
    gated = tuple(segment.gated for segment in planned.segments)
    forms = {segment.form for segment in planned.segments}
    if len(forms) > 1:
        raise ValueError("segments with drafts of different forms cannot share a pass")
    return _shape(
        tuple(segment.length for segment in planned.segments if segment.stage == 0),
        tuple(segment.length for segment in planned.segments if segment.stage > 0),
        tuple(segment.samples for segment in planned.segments),
        reach=min(reach + -reach % REACH_STEP, capacity),
        moves=len(planned.moves),
        sampling=sampling,
        gated=gated if any(gated) else (),
        form=forms.pop(),
    )


@lru_cache(maxsize=1024)
def _shape(prefills: tuple[int, ...], decodes: tuple[int, ...], samples: tuple[int, ...], **rest: Any) -> PassShape:
    """The shape itself, cached: passes are much alike, and its properties are computed once."""
    return PassShape(prefills=prefills, decodes=decodes, samples=samples, is_continuation=not prefills, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeClasses:
    """The shapes to which passes of a model are padded, in ascending sizes; a pass beyond the largest runs unpadded."""

    lone: tuple[int, ...]
    """Rows of a pass with one prefill, its decode rows included."""
    shortest: int
    """Rows of the shortest prefill, without drafts."""
    longest: int
    """Rows of the longest prefill, without drafts."""
    alone: tuple[int, ...]
    """Decode rows of a pass without prefills."""
    reaches: tuple[int, ...]
    """Upper bounds on where segments end (`PassShape.reach`)."""
    beside: tuple[int, ...] = (0,)
    """Decode rows of a pass with prefills."""
    several: tuple[int, ...] = ()
    """Rows of each prefill of a pass with up to `most_prefills`."""
    most_prefills: int = 1
    drafts: int = 0
    """K-1 rows, where passes may have drafts."""
    verified: tuple[tuple[DraftForm, int], ...] = ()
    """The forms of a drafter's drafts, and the rows of a verification in each."""
    moves: bool = False
    """True when slots are copied after each pass, as many as it has segments."""

    @classmethod
    def of_requests(cls, chunk: int, capacity: int, verified: Mapping[DraftForm, int] | None = None) -> ShapeClasses:
        """The classes of chat: one request at a time, in chunks of at most `chunk` rows, then row by row, or by
        verifications. verified: rows of a verification in each form; chains are one, where there is any.
        """
        chunk = min(chunk, capacity)
        lone = tuple(size for size in doubling(min(ROW_STEP, chunk), chunk) if size < chunk)
        reaches = tuple(size for size in doubling(min(LEAST_REACH, capacity), capacity) if size < capacity)
        return cls(
            lone=(*lone, chunk),
            shortest=1,
            longest=chunk,
            alone=(1,),
            reaches=(*reaches, capacity),
            verified=tuple((verified or {}).items()),
        )

    @classmethod
    def of_rings(cls, stages: int, sessions: int, shortest: int, capacity: int, shift: Shift) -> ShapeClasses:
        """The classes of control: sessions of K slots each, prompts of `shortest` rows and more.

        Decode rows beside prefills are those of full pipelines of one, two and four sessions.
        """
        longest, most, prefills = capacity - stages, max(sessions * (stages - 1), 1), min(MOST_PREFILLS, sessions)
        drafts = stages - 1
        beside = (0, *doubling(drafts, prefills * drafts)) if drafts else (0,)
        return cls(
            lone=multiples(_step(ROW_STEP, longest - shortest), shortest, longest + drafts * (1 + DRAFTED[-1])),
            several=multiples(_step(SEVERAL_STEP, 2 * (longest - shortest)), shortest, longest + drafts),
            shortest=shortest,
            longest=longest,
            beside=beside,
            alone=doubling(1, most),
            most_prefills=prefills,
            drafts=drafts,
            reaches=(capacity,),
            moves=shift is Shift.COPY,
        )

    def fit(self, shape: PassShape, start: int = 0) -> PassShape | None:
        """The shape that a pass is padded to; None where it runs as it is. start: the furthest position at which a
        prefill begins, or any segment where there are no prefills.
        """
        if shape.is_verification:
            return self._fit_verification(shape, start)
        if shape.most_samples > 1:
            return self._fit_drafted(shape)
        decodes = least(self.beside if shape.prefills else self.alone, len(shape.decodes))
        rows = self._prefill_rows(shape.prefills, decodes) if decodes is not None else None
        samples = set(shape.samples)
        if rows is None or decodes is None or set(shape.decodes) - {1} or len(samples) > 1:
            return None
        # Padding rows are written too, so the padded rows must end within the slot, not only the real ones.
        reach = least(self.reaches, max(shape.reach, start + max(rows, default=0)))
        if reach is None:
            return None
        fitted = self._made(rows, decodes, reach=reach, samples=samples.pop(), sampling=shape.sampling, form=shape.form)
        gated = (*shape.gated, *[False] * (fitted.segments - shape.segments)) if shape.gated else ()
        return replace(fitted, moves=fitted.segments if shape.moves else fitted.moves, gated=gated)

    def _fit_verification(self, shape: PassShape, start: int) -> PassShape | None:
        """As `fit`, for drafts of a drafter: a segment is padded to the rows of its form."""
        rows = dict(self.verified).get(shape.form, 0)
        reach = least(self.reaches, max(shape.reach, start + rows))
        if shape.segments not in self.alone or shape.most_samples > rows or reach is None:
            return None
        return replace(_verification(shape.form, rows, reach, shape.sampling), gated=shape.gated)

    def _fit_drafted(self, shape: PassShape) -> PassShape | None:
        """As `fit`, for frames with drafts: every segment of the pass is padded to all K-1 of them."""
        prompts = zip(shape.prefills, shape.samples, strict=False)
        longest = tuple(rows - samples + 1 + self.drafts for rows, samples in prompts)
        segments = least(DRAFTED, len(shape.decodes))
        fits = self.drafts and len(longest) <= MOST_DRAFTED_PREFILLS and all(shape.samples)
        if not fits or segments is None or max(shape.decodes, default=0) > self.drafts:
            return None
        rows = self._prefill_rows(longest, segments * self.drafts, self.drafts)
        if rows is None:
            return None
        fitted = self._drafted(rows, segments, shape.sampling)
        return replace(fitted, moves=fitted.segments) if shape.moves else fitted

    def all(self, samplings: Iterable[tuple[int, SamplingKind | None]] = ((1, GREEDY),)) -> list[PassShape]:
        """Every shape that `fit` returns. samplings: sampled rows per segment, and how they are sampled."""
        plain: dict[tuple[tuple[int, ...], int], None] = {((), decodes): None for decodes in self.alone}
        for count, decodes in product(range(1, self.most_prefills + 1), self.beside):
            plain |= {(rows, decodes): None for rows in self._all_prefills(count, decodes)}
        forms, samplings = [form for form, _ in self.verified] or [DraftForm.NONE], tuple(samplings)
        shapes = [
            self._made(prefills, decodes, reach=reach, samples=samples, sampling=sampling, form=form)
            for (prefills, decodes), reach, (samples, sampling), form in product(plain, self.reaches, samplings, forms)
            if reach >= max(prefills, default=1) and (samples or prefills)
        ]
        shapes += [
            _verification(form, rows, reach, sampling)
            for (form, rows), reach, (samples, sampling) in product(self.verified, self.reaches, samplings)
            if reach >= rows and samples
        ]
        return list(dict.fromkeys([*shapes, *self._all_drafted()] if self.drafts else shapes))

    def _all_drafted(self) -> Iterable[PassShape]:
        yield from (self._drafted((), segments, GREEDY) for segments in DRAFTED if segments and self.drafts > 1)
        prefills = range(1, min(self.most_prefills, MOST_DRAFTED_PREFILLS) + 1)
        for count, segments in product(prefills, DRAFTED):
            for rows in self._all_prefills(count, segments * self.drafts, self.drafts):
                yield self._drafted(rows, segments, GREEDY)

    def _all_prefills(self, count: int, beside: int, drafts: int = 0) -> Iterable[tuple[int, ...]]:
        """The padded rows of so many prefills, for any length."""
        lengths = range(self.shortest + drafts, self.longest + drafts + 1)
        found = (self._prefill_rows((rows,) * count, beside, drafts) for rows in lengths)
        return dict.fromkeys(rows for rows in found if rows is not None)

    def _prefill_rows(self, prefills: Sequence[int], beside: int, drafts: int = 0) -> tuple[int, ...] | None:
        """The padded rows of prefills. beside: rows of other segments. drafts: those after each prompt, among its
        rows.
        """
        if not prefills:
            return ()
        if len(prefills) == 1:
            total = least(self.lone, prefills[0] + beside)
            rows = None if total is None else total - beside
        else:
            rows = least(self.several, max(prefills)) if len(prefills) <= self.most_prefills else None
        return None if rows is None else (min(rows, self.longest + drafts),) * len(prefills)

    def _made(
        self,
        prefills: tuple[int, ...],
        decodes: int,
        *,
        reach: int,
        samples: int,
        sampling: SamplingKind | None,
        form: DraftForm,
    ) -> PassShape:
        """A shape without verification. The form matters only where drafts are made after sampled rows: others are
        chains.
        """
        segments = len(prefills) + decodes
        alike = form is not DraftForm.NONE and not (samples and sampling)
        return PassShape(
            prefills=prefills,
            decodes=(1,) * decodes,
            samples=(samples,) * segments,
            reach=reach,
            moves=segments if self.moves else 0,
            sampling=sampling,
            form=DraftForm.CHAIN if alike else form,
        )

    def _drafted(self, prefills: tuple[int, ...], segments: int, sampling: SamplingKind | None) -> PassShape:
        return PassShape(
            prefills=prefills,
            decodes=(self.drafts,) * segments,
            samples=(self.drafts + 1,) * len(prefills) + (self.drafts,) * segments,
            reach=self.reaches[-1],
            moves=len(prefills) + segments if self.moves else 0,
            sampling=sampling,
        )


def _verification(form: DraftForm, rows: int, reach: int, sampling: SamplingKind | None) -> PassShape:
    return PassShape(prefills=(), decodes=(rows,), samples=(rows,), reach=reach, sampling=sampling, form=form)


def least(classes: Sequence[int], size: int) -> int | None:
    """The first of ascending classes that holds a size; None where none does."""
    return next((each for each in classes if each >= size), None)


def _step(unit: int, rows: int) -> int:
    """The multiple of `unit` that divides a range of rows into at most MOST_LENGTHS parts."""
    return unit * max(-(-rows // (unit * MOST_LENGTHS)), 1)


def multiples(step: int, first: int, last: int) -> tuple[int, ...]:
    """Multiples of `step` from the first that holds `first` to the first that holds `last`."""
    return tuple(range(-(-first // step) * step, -(-last // step) * step + 1, step))


def doubling(first: int, most: int) -> tuple[int, ...]:
    """first, twice that, … to the first that holds `most`."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)
