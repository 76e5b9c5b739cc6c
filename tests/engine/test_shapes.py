"""Passes are padded to few shapes, whoever shares them, and a full pipeline never costs a GEMM tile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeflow.engine.chat.engine import recorded_shapes
from edgeflow.engine.graphs import MOST_GRAPHS
from edgeflow.engine.sampling.sample import GREEDY, SamplingKind
from edgeflow.engine.shapes import ROW_STEP, SEVERAL_STEP, PassShape, ShapeClasses
from edgeflow.scheduler.plan import DraftForm
from edgeflow.scheduler.session import Shift

CAPACITY = 391
SHORTEST = 257


def of_rings(stages: int = 7, sessions: int = 4, shift: Shift = Shift.ROTATE) -> ShapeClasses:
    return ShapeClasses.of_rings(stages, sessions, SHORTEST, 384 + stages, shift)


def asked(prefills: tuple[int, ...], decodes: int) -> PassShape:
    segments = len(prefills) + decodes
    return PassShape(
        prefills=prefills, decodes=(1,) * decodes, samples=(1,) * segments, reach=CAPACITY if decodes else 300
    )


def fitted(classes: ShapeClasses, prefills: tuple[int, ...], decodes: int) -> tuple[tuple[int, ...], int]:
    found = classes.fit(asked(prefills, decodes))
    assert found is not None
    return found.prefills, len(found.decodes)


def test_one_session():
    classes = of_rings()
    assert fitted(classes, (266,), 6) == ((266,), 6), "a full pass that fills its tiles is not padded"
    assert fitted(classes, (276,), 6) == ((282,), 6)
    assert fitted(classes, (276,), 2) == ((282,), 6)
    assert fitted(classes, (), 5) == ((), 8)
    assert fitted(classes, (276,), 0) == ((288,), 0)


def test_several_sessions_of_equal_and_of_different_prompts():
    classes = of_rings()
    assert fitted(classes, (276, 276), 12) == ((288, 288), 12)
    assert fitted(classes, (276, 301, 258), 7) == ((320, 320, 320), 12)
    assert classes.fit(asked((260,) * 5, 0)) is None, "more prefills than are recorded"


@pytest.mark.parametrize("stages", [7, 32])
@pytest.mark.parametrize("sessions", [1, 2, 4])
@pytest.mark.parametrize("shift", Shift)
def test_four_robots_need_few_recordings(stages: int, sessions: int, shift: Shift):
    """Of OpenVLA-7B: 128 prompt lengths after 256 image tokens, whatever the modes, arrivals and instructions."""
    shapes = of_rings(stages, sessions, shift).all()
    assert len(shapes) == len(set(shapes)) <= 192
    assert sum(shape.most_samples == 1 for shape in shapes) <= 96, "those of modes without drafts"


@given(st.lists(st.integers(SHORTEST, CAPACITY - 7), max_size=4), st.integers(0, 24), st.sampled_from(Shift), st.data())
def test_every_pass_of_four_sessions_is_recorded(prefills: list[int], decodes: int, shift: Shift, data: st.DataObject):
    decodes = max(decodes, not prefills)
    classes = of_rings(shift=shift)
    padded = classes.fit(asked(tuple(prefills), decodes))
    assert padded is not None and padded in classes.all()
    assert classes.fit(padded) == padded, "a padded pass is its own shape"
    assert len(padded.prefills) == len(prefills) and len(padded.decodes) >= decodes
    assert all(rows <= found <= CAPACITY - 7 for rows, found in zip(prefills, padded.prefills, strict=True))
    assert padded.moves == (padded.segments if shift is Shift.COPY else 0)


@given(st.integers(SHORTEST, CAPACITY - 7))
def test_a_full_pipeline_stays_within_its_tiles(rows: int):
    (padded,), decodes = fitted(of_rings(), (rows,), 6)
    assert decodes == 6 and padded - rows < ROW_STEP
    assert all(-(-(rows + 6) // size) == -(-(padded + 6) // size) for size in (64, 128, 256))


@given(st.lists(st.integers(SHORTEST, CAPACITY - 7), min_size=2, max_size=4))
def test_several_prefills_are_padded_to_the_longest(prefills: list[int]):
    padded, _ = fitted(of_rings(), tuple(prefills), 0)
    assert len(set(padded)) == 1 and padded[0] - max(prefills) < SEVERAL_STEP


@given(
    rows=st.integers(1, 256), start=st.integers(0, 999), samples=st.integers(0, 1), chunk=st.sampled_from([7, 40, 256])
)
def test_every_chunk_of_a_request_is_recorded_but_those_whose_padding_leaves_the_slot(
    rows: int, start: int, samples: int, chunk: int
):
    classes, rows = ShapeClasses.of_requests(chunk, 1000), min(rows, chunk, 1000 - start)
    shape = PassShape(prefills=(rows,), decodes=(), samples=(samples,), reach=start + rows)
    padded = classes.fit(shape, start)
    longest = next(each for each in classes.lone if each >= rows)
    if start + longest > 1000:
        assert padded is None
        return
    assert padded is not None and padded in classes.all([(0, GREEDY), (1, GREEDY)])
    assert padded.prefills == (longest,) and start + longest <= padded.reach <= 1000
    assert padded.reach in (256, 512, 1000) and (padded.reach == 256 or padded.reach // 2 < start + longest)
    assert rows > longest // 2 or longest == min(chunk, ROW_STEP), "no more than twice the rows"


@given(
    prompts=st.lists(st.tuples(st.integers(SHORTEST, CAPACITY - 7), st.booleans()), max_size=2),
    decodes=st.lists(st.integers(1, 6), max_size=8),
    shift=st.sampled_from(Shift),
)
def test_every_pass_with_drafts_of_two_sessions_is_recorded(prompts, decodes: list[int], shift: Shift):
    """Beside sessions that do not draft, as well: their segments are given rows that only pad."""
    prefills = tuple(rows + 6 * drafts for rows, drafts in prompts)
    samples = (*(1 + 6 * drafts for _, drafts in prompts), *decodes)
    if max(samples, default=1) == 1:
        return
    shape = PassShape(prefills=prefills, decodes=tuple(decodes), samples=samples, reach=CAPACITY)
    classes = of_rings(shift=shift)
    padded = classes.fit(shape)
    assert padded is not None and padded in classes.all()
    assert classes.fit(padded) == padded, "a padded pass is its own shape"
    for (rows, _), found in zip(prompts, padded.prefills, strict=True):
        assert rows + 6 <= found <= CAPACITY - 1, "drafts fit behind any prompt, and in the slot"
    assert len(padded.decodes) >= len(decodes) and set(padded.decodes) <= {6}
    assert padded.samples == (7,) * len(prefills) + (6,) * len(padded.decodes)
    assert padded.moves == (padded.segments if shift is Shift.COPY else 0)


def test_more_drafts_than_are_recorded_and_mixed_samples_run_as_they_are():
    many = PassShape(prefills=(), decodes=(2,) * 9, samples=(2,) * 9, reach=300)
    three = PassShape(prefills=(270,) * 3, decodes=(), samples=(7,) * 3, reach=300)
    mixed = PassShape(prefills=(260, 260), decodes=(), samples=(1, 0), reach=300)
    chunk = PassShape(prefills=(20,), decodes=(3,), samples=(1, 3), reach=300)
    assert [of_rings().fit(shape) for shape in (many, three, mixed)] == [None] * 3
    assert ShapeClasses.of_requests(64, 1000).fit(chunk) is None


BOTH = {DraftForm.CHAIN: 9, DraftForm.TREE: 60}
WAYS = [(0, GREEDY), (0, None), (1, GREEDY), (1, SamplingKind(drawn=True)), (1, None)]


@given(
    form=st.sampled_from(list(BOTH)),
    rows=st.integers(2, 60),
    start=st.integers(0, 999),
    sampling=st.sampled_from([GREEDY, None]),
    gated=st.booleans(),
)
def test_every_verification_is_recorded_but_those_whose_padding_leaves_the_slot(form, rows, start, sampling, gated):
    classes, most = ShapeClasses.of_requests(256, 1000, BOTH), BOTH[form]
    rows = min(rows, most, 1000 - start)
    shape = PassShape(
        prefills=(),
        decodes=(rows,),
        samples=(rows,),
        reach=start + rows,
        sampling=sampling,
        gated=(True,) if gated else (),
        form=form,
    )
    padded = classes.fit(shape, start)
    if rows > 1 and start + most > 1000:
        assert padded is None
        return
    assert padded is not None
    assert padded in recorded_shapes(classes, GREEDY, gated=gated)
    assert padded.lengths == padded.samples == (most if rows > 1 else 1,) and padded.gated == shape.gated
    assert padded.form is form or (rows == 1 and sampling is None), "apart, a row without drafts is alike in both forms"
    assert padded.reach in (256, 512, 1000) and padded.reach >= start + padded.lengths[0]


@given(rows=st.integers(1, 256), samples=st.integers(0, 1), sampling=st.sampled_from([GREEDY, None]))
def test_chunks_are_alike_in_both_forms_until_they_are_sampled(rows: int, samples: int, sampling):
    classes = ShapeClasses.of_requests(256, 1000, BOTH)
    chunk, tree = (
        classes.fit(
            PassShape(prefills=(rows,), decodes=(), samples=(samples,), reach=rows, sampling=sampling, form=form)
        )
        for form in BOTH
    )
    assert chunk is not None and tree is not None
    assert (chunk == tree) == (samples == 0 or sampling is None)
    assert chunk.form is DraftForm.CHAIN and {chunk, tree} <= set(classes.all(WAYS))


@pytest.mark.parametrize(("capacity", "plain", "lookup", "eagle"), [(2048, 52, 64, 84), (4096, 65, 80, 105)])
def test_drafts_need_few_more_recordings(capacity: int, plain: int, lookup: int, eagle: int):
    """With chunks of 256 rows; also where every one is recorded for rows that read a memory, too."""
    drawn = SamplingKind(drawn=True)
    for count, verified in ((plain, {}), (lookup, {DraftForm.CHAIN: 9}), (eagle, BOTH)):
        classes = ShapeClasses.of_requests(256, capacity, verified)
        shapes, gated = (recorded_shapes(classes, drawn, gated=each) for each in (False, True))
        assert len(shapes) == len(set(shapes)) == count and len(set(gated)) == 2 * count <= MOST_GRAPHS
        assert {each.form for each in shapes} == (set(verified) or {DraftForm.NONE})


def test_a_form_without_a_drafter_runs_unpadded():
    tree = PassShape(prefills=(), decodes=(5,), samples=(5,), reach=64, form=DraftForm.TREE)
    two = PassShape(prefills=(), decodes=(5, 5), samples=(5, 5), reach=64, form=DraftForm.CHAIN)
    classes = ShapeClasses.of_requests(64, 1000, {DraftForm.CHAIN: 9})
    assert [classes.fit(each) for each in (tree, two)] == [None, None]
