"""Recorded inputs of stages: those of every step, as the formulas of a flow policy give them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from edgeflow.artifacts.manifest import StageName
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.export.graphs.tokens import TokenExport, token_program
from edgeflow.lab.export.quantised.frames import random_frames, spread
from edgeflow.lab.export.quantised.stage_inputs import record_stage_inputs
from edgeflow.lab.export.quantised.stage_runs import StageKey, run_torch, stage_key
from edgeflow.lab.export.quantised.token_loop import TokenLoop
from edgeflow_client.errors import ConfigError
from tests.engine.flow.tiny_flow import CROSS_SHAPE, Shape, TinyFlowPolicy
from tests.engine.flow.tiny_flow import random_frames as frames_of
from tests.engine.flow.twin import FlowTwin
from tests.lab.export.quantised.tiny_step import BATCHES, SHAPE, program_of
from tests.models.test_llama import VARIANTS, decoder

TOLERANCE = 1e-5
CHUNK, POSITIONS, TOKENS = 4, 24, 6


@pytest.mark.parametrize("shape", [SHAPE, CROSS_SHAPE], ids=["lead", "cross"])
@pytest.mark.parametrize("steps", ["all", "first"])
def test_recorded_latents_are_those_of_the_formulas(shape: Shape, steps):
    program, frames = program_of(shape), frames_of(shape, 3, seed=5)
    recorded = record_stage_inputs(program, frames, steps)
    twin = FlowTwin(shape, TinyFlowPolicy(shape).weights)
    count = shape.sizes.steps if steps == "all" else 1
    found = recorded[StageKey(StageName.STEP, shape.sizes.rows, 1)]
    assert [each["times"].tolist() for each in found[:count]] == [[[k] * shape.sizes.horizon] for k in range(count)]
    wanted = [x for frame in frames for x in _in_order(twin, frame, count)]
    for each, x in zip(found, wanted, strict=True):
        assert np.abs(each["x"][0] - x.numpy()).max() <= TOLERANCE * max(1.0, float(x.abs().max()))


def _in_order(twin: FlowTwin, frame, count: int):
    """x before the first so many steps, candidate by candidate."""
    steps = twin.steps(frame)[:count]
    return [x[candidate] for candidate in range(len(frame.noise)) for x in steps]


def test_every_stage_of_every_bucket_and_batch_is_recorded_as_it_takes_its_inputs():
    program, frames = program_of(), frames_of(SHAPE, 3)
    recorded = record_stage_inputs(program, frames)
    assert set(recorded) == {stage_key(stage) for stage in program.stages}
    for stage in program.stages:
        found = recorded[stage_key(stage)]
        groups = -(-len(frames) // stage.batch)
        assert len(found) == (groups * SHAPE.sizes.steps if stage.stage is StageName.STEP else len(frames))
        for each in found:
            assert list(each) == list(stage.inputs)
            assert all(each[name].shape == tuple(value.shape) for name, value in stage.inputs.items())
            assert all(torch.from_numpy(each[name]).dtype == value.dtype for name, value in stage.inputs.items())


def test_a_group_that_is_not_full_is_filled_up_with_the_first_candidates():
    program, frames = program_of(), frames_of(SHAPE, 3)
    last = record_stage_inputs(program, frames, "first")[StageKey(StageName.STEP, SHAPE.sizes.rows, BATCHES[-1])][-1]
    assert np.array_equal(last["x"][0], frames[2].noise[0].numpy())
    assert np.array_equal(last["x"][1], frames[0].noise[0].numpy())


def test_frames_that_do_not_fit_and_no_frames_are_rejected():
    program, (frame,) = program_of(), frames_of(SHAPE, 1)
    with pytest.raises(ConfigError, match="has no frames"):
        record_stage_inputs(program, [])
    with pytest.raises(ConfigError, match="9 tokens in a bucket of 2 images and 8 tokens: export a larger bucket"):
        record_stage_inputs(program, [replace(frame, prompt_ids=(1,) * 9)])


def test_random_frames_fit_and_frames_are_taken_from_all_of_a_recording():
    program = program_of()
    frames = random_frames(program, 2)
    assert all(frame.state.abs().max() > 0 for frame in frames)  # of nothing but zeros, the scale would be 1
    recorded = record_stage_inputs(program, frames, "first")
    assert all(len(recorded[stage_key(stage)]) for stage in program.stages)
    assert not torch.equal(frames[0].pixel_values, frames[1].pixel_values)
    assert spread(range(10), 4) == [0, 2, 5, 7]
    assert spread(range(3), 4) == [0, 1, 2]


def token_export(chunks: bool, text: tuple[int, ...]) -> TokenExport:
    model = decoder(VARIANTS["gqa"], table=static_table())
    return TokenExport(
        decoder=model,
        embed=lambda ids: model.embed(ids[0])[None],
        images={},
        fixed_rows=0,
        text=text,
        positions=POSITIONS,
        chunks=chunks,
        batches=(1, 2),
    )


def test_tokens_are_the_same_in_chunks_in_a_whole_bucket_and_by_the_decoder():
    whole, chunks = token_export(chunks=False, text=(12,)), token_export(chunks=True, text=(CHUNK,))
    programs = token_program(whole), token_program(chunks)
    frames = random_frames(programs[1], 2, seed=1)  # of two chunks
    frames[1] = replace(frames[1], prompt_ids=frames[1].prompt_ids[:5])
    found = [
        TokenLoop(export, program, export.text[0], 2).run(frames, run_torch, TOKENS)
        for export, program in zip((whole, chunks), programs, strict=True)
    ]
    assert found[0] == found[1] == [by_decoder(whole, frame.prompt_ids) for frame in frames]


def test_inputs_of_all_steps_share_their_slots_and_give_the_same_again():
    export = token_export(chunks=True, text=(CHUNK,))
    program = token_program(export)
    loop, recorded = TokenLoop(export, program, CHUNK, 2), []

    def run(stage, inputs):
        found = run_torch(stage, inputs)
        recorded.append((stage, inputs, found))
        return found

    loop.run(random_frames(program, 2), run, TOKENS)
    steps = [each for each in recorded if each[0].stage is StageName.STEP]
    assert len(steps) == TOKENS - 1
    assert all(np.shares_memory(each["key.0"], steps[0][1]["key.0"]) for _, each, _ in steps)
    for stage, inputs, found in recorded:
        for first, again in zip(found, run_torch(stage, inputs), strict=True):
            assert np.abs(first - again).max() <= TOLERANCE


@torch.inference_mode()
def by_decoder(export: TokenExport, prompt: tuple[int, ...]) -> list[int]:
    """The greedy answer, computed anew for every token by one prefill of all rows so far."""
    long = replace(export, text=(POSITIONS,))
    prefill = token_program(long).stages[1]
    ids = list(prompt)
    for _ in range(TOKENS):
        rows = torch.tensor(ids + [0] * (POSITIONS - len(ids)))
        hidden, seen = export.embed(rows[None]), torch.ones(POSITIONS, POSITIONS).tril().bool()
        logits = prefill.run(hidden, torch.arange(POSITIONS)[None], seen[None], torch.tensor([len(ids) - 1]))[0]
        ids.append(int(logits[0].argmax()))
    return ids[len(prompt) :]


def test_prefills_in_chunks_are_recorded_after_what_slots_hold():
    export = token_export(chunks=True, text=(CHUNK,))
    program = token_program(export)
    recorded = record_stage_inputs(program, random_frames(program, 3))
    first, second = recorded[StageKey(StageName.PREFILL, CHUNK, 1)][:2]
    assert not first["key.0"].any() and second["key.0"][0, :CHUNK].any() and not second["key.0"][0, CHUNK:].any()
    assert second["seen"][0, :, :CHUNK].all() and not second["seen"][0, :, CHUNK:POSITIONS].any()
    assert second["position"].tolist() == [[4, 5, 6, 7]]
    steps = recorded[StageKey(StageName.STEP, 1, 2)]
    assert {each["seen"].sum() for each in steps} > {2 * (2 * CHUNK + 1)}


def test_a_prompt_longer_than_its_slot_is_rejected():
    export = token_export(chunks=True, text=(CHUNK,))
    program = token_program(export)
    (frame,) = random_frames(program, 1)
    with pytest.raises(ConfigError, match="a frame has 24 tokens and 2 to answer"):
        record_stage_inputs(program, [replace(frame, prompt_ids=(1,) * POSITIONS)])
