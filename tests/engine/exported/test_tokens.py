"""Decoders of tokens as graphs of fixed shapes, after the executor: the tokens of the networks that were exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

from edgeflow.artifacts.manifest import StageName
from edgeflow.artifacts.sessions import GraphSession, Runtime
from edgeflow.engine.chat.engine import TextTokens
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.offline import OfflineRun, limits_for
from edgeflow.engine.exported.chat import ExportedTextNetwork
from edgeflow.engine.exported.tokens import ExportedGraphs
from edgeflow.engine.policy import LoadOptions, Placement, PreparedFrame
from edgeflow.kernels.kv.formats import CONFIGURED
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.export.graphs.shapes import ExportShapes
from edgeflow.lab.export.graphs.static import static_table
from edgeflow.lab.export.graphs.tokens import TokenExport, token_program
from edgeflow.lab.export.policies.openvla import export_openvla
from edgeflow.lab.verify.chat_modes import ChatModes, PromptCase
from edgeflow.models.chat import ChatModel
from edgeflow.models.checkpoint import fingerprint
from edgeflow.models.network import Taps, TokenRows
from edgeflow.models.published import GenerationConfig
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.scheduler.session import Shift
from edgeflow_client.types import Mode
from tests.artifacts.exported import write_program
from tests.models.test_llama import CPU, VARIANTS, decoder
from tests.tiny_checkpoint import write_checkpoint

CLOSE = 1e-4
POSITIONS, CHUNKS = 48, (4, 9)
TEXT = 72


def chat_model(made: Any) -> ChatModel:
    generation = GenerationConfig.of({}, {})
    return ChatModel(
        name="llama", network=made, tokenizer=None, template=None, generation=generation, vision=None, device=CPU
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatModel, ChatModel]:
    """The networks, and their graphs."""
    torch.set_num_threads(1)
    folder, config = tmp_path_factory.mktemp("chat"), next(iter(VARIANTS.values()))
    exported = decoder(config, table=static_table())
    program = token_program(
        TokenExport(
            decoder=exported,
            embed=lambda ids: exported.embed(ids[0])[None],
            images={},
            fixed_rows=0,
            text=CHUNKS,
            positions=POSITIONS,
            chunks=True,
            batches=(1, 3),
        )
    )
    manifest = write_program(folder, program)
    towers, prefills, steps = (
        tuple(GraphSession(folder, each, Runtime()) for each in manifest.of(stage)) for stage in StageName
    )
    graphs = ExportedGraphs(kv=manifest.kv, towers=towers, prefills=prefills, steps=steps)
    own = replace(config, max_position_embeddings=POSITIONS)
    return chat_model(decoder(config)), chat_model(ExportedTextNetwork(graphs, "llama", own))


def test_an_exported_chat_model_answers_like_its_network_in_every_mode(models: tuple[ChatModel, ChatModel]):
    prompts = [[(7 * at + seed) % 50 for at in range(rows)] for seed, rows in ((1, 1), (2, 5), (3, 23), (4, 30))]
    asked = [PromptCase(models[0].prompt(ids), 8) for ids in prompts]
    for name, run in ChatModes(models[0]).all().items():
        for (wanted, exact), (found, logits) in zip(run(asked), ChatModes(models[1]).all()[name](asked), strict=True):
            assert found == wanted, name
            assert max((a - b).abs().max().item() for a, b in zip(exact, logits, strict=True)) < CLOSE


def test_a_prompt_reaches_the_graphs_as_integers(models: tuple[ChatModel, ChatModel]):
    exact, static = (TextTokens(each).payload_bytes(3) for each in models)
    assert (exact, static) == (3 * 4 * models[0].config.hidden_size, 3 * 8)


def prompt(model: ChatModel, rows: int) -> TokenRows:
    return TokenRows(prompts=[model.network.prompt_rows(torch.arange(rows))])


def test_the_remains_of_a_sequence_that_is_not_finite_are_not_seen(models: tuple[ChatModel, ChatModel]):
    """Also not after the end of the slot's next sequence, which is shorter."""
    exact, static = models
    kv = static.network.kv_slots(2, POSITIONS)
    kv.data[:, :, 1] = torch.nan
    for start, rows, finite in ((1, 20, False), (0, 3, True)):
        layout = PackedLayout.of([Span(1, start, rows)], CPU)
        logits = static.network.next_logits(prompt(static, rows), layout, kv)
        assert bool(logits.isfinite().all()) == finite
    own = exact.decoder.kv_slots(1, POSITIONS)
    layout = PackedLayout.of([Span(0, 0, 3)], CPU)
    wanted = exact.decoder.next_logits(prompt(exact, 3), layout, own)
    assert (logits - wanted).abs().max() < CLOSE


def test_drafts_taps_and_other_formats_are_rejected(models: tuple[ChatModel, ChatModel]):
    made = models[1].network
    kv, span = made.kv_slots(1, POSITIONS), Span(0, 0, 3)
    for samples, taps in (([2], None), ([1], Taps((0,)))):
        with pytest.raises(ValueError, match="verify no drafts"):
            made.next_logits(prompt(models[1], 3), PackedLayout.of([span], CPU, samples=samples), kv, taps)
    with pytest.raises(ValueError, match="not in int8"):
        made.kv_slots(1, POSITIONS, CONFIGURED["int8"])
    with pytest.raises(ValueError, match="exported graphs have no decoder"):
        _ = models[1].decoder


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A tiny OpenVLA: its networks, and their graphs."""
    source = write_checkpoint(tmp_path_factory.mktemp("openvla") / "checkpoint")
    folder = source.with_name("artifact")
    folder.mkdir()
    for file in source.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    program = export_openvla(source, ExportShapes(text=(TEXT,)))
    write_program(folder, program, family="openvla", fingerprint=fingerprint(source))
    return loaded(source), loaded(folder)


def loaded(folder: Path) -> Any:
    placement = Placement(dtype=torch.float32, device=CPU, table=built_in_table())
    return OPENVLA.load(folder, {}, LoadOptions()).load(placement)


def frames_of(policy: Any, count: int) -> list[PreparedFrame]:
    generator = torch.Generator().manual_seed(3)
    words = ("pick up the cube", "open", "go left", "stop")
    return [
        PreparedFrame(torch.randn(policy.pixel_shape, generator=generator), policy.prompt_ids(words[at % len(words)]))
        for at in range(count)
    ]


@pytest.mark.parametrize("shift", Shift)
@pytest.mark.parametrize("modes", [[Mode.SERIAL], [Mode.PIPELINED, Mode.DEPTH, Mode.SERIAL]], ids=["alone", "three"])
def test_robots_get_the_tokens_of_the_networks(policies: tuple[Any, Any], modes: list[Mode], shift: Shift):
    answers = []
    for policy in policies:
        options = EngineOptions(sessions=len(modes), text_rows=TEXT, table=built_in_table())
        engine = OPENVLA.prepare(policy, options)
        limits = limits_for(policy.K, sessions=len(modes), shift=shift)
        run = OfflineRun(engine, Scheduler(limits), modes, depth=2)
        streams = [frames_of(policy, policy.K + 2 - at) for at in range(len(modes))]
        answers.append([[each.sampled.token_ids for each in stream] for stream in run.decode(streams)])
    assert answers[0] == answers[1]


def test_nothing_is_drafted(policies: tuple[Any, Any]):
    networks, graphs = (policy.program() for policy in policies)
    assert (networks.drafts, graphs.drafts, graphs.passes) == (networks.passes - 1, 0, networks.passes)
