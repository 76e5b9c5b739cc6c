"""The written checkpoint: what AutoAWQ would have written, read back by what serves it."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.awq_search.recorded import GROUP, Recorded, model_folder
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.quantize.files.quantised import quantised_block
from edgeflow.lab.quantize.files.source import Source, open_chat_source
from edgeflow.lab.quantize.files.writing import write_checkpoint
from edgeflow.lab.quantize.search.block_search import SearchSettings, run_batches, search_block
from edgeflow.lab.quantize.search.choices import BlockChoice, GroupChoice
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow.models.chat import load_chat_model
from edgeflow.models.checkpoint import Weights
from edgeflow.models.published import read_published
from edgeflow_client.errors import CheckpointError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.lab.quantize.cases import CPU, random_ids
from tests.lab.quantize.checkpoints import CONFIG, INNER, write_source
from tests.oracles import ORACLES

PACKING = "EDGEFLOW_AUTOAWQ_PACKING"
"""The variable that names AutoAWQ's awq/utils/packing_utils.py (in the package on PyPI and in its repository)."""
EXACT = built_in_table().forcing(linear=REFERENCE)
"""Products in float32; those of a CPU round the rows to 8 bits."""
LENGTH = 24


@torch.inference_mode()
def choices_of(source: Source) -> list[BlockChoice]:
    decoder = source.decoder
    hidden, rotation = [decoder.embed(random_ids(decoder.config, 2, LENGTH))], decoder.rotation(LENGTH)
    found = []
    for block in decoder.blocks():
        runs = run_batches(block, hidden, rotation)
        settings = SearchSettings(group=source.grouping.group, identity=False)
        found.append(search_block(block, runs, rotation, settings))
        hidden = [run.hidden for run in runs]
    return found


def write(folder: Path, out: Path) -> tuple[Source, list[BlockChoice]]:
    source = open_chat_source(folder)
    choices = choices_of(source)
    out.mkdir()
    write_checkpoint(source, choices, out)
    return source, choices


@torch.inference_mode()
def quantised_logits(source: Source, choices: list[BlockChoice], ids: torch.Tensor) -> torch.Tensor:
    decoder = source.decoder
    hidden, rotation = decoder.embed(ids[None]), decoder.rotation(LENGTH)
    for block, choice in zip(decoder.blocks(), choices, strict=True):
        hidden = quantised_block(block, choice, source.grouping.group).run(hidden, rotation).hidden
    return decoder.read_head().logits(hidden)[0]


@torch.inference_mode()
def served_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = load_chat_model(folder, torch.float32, CPU, table=EXACT).decoder
    kv = model.kv_slots(1, LENGTH)
    layout = PackedLayout.of([Span(slot=0, start=0, length=LENGTH)], CPU)
    return model.logits(model.forward(model.embed(ids), layout, kv), "prefill")


@pytest.mark.parametrize("shards", [1, 2])
def test_the_checkpoint_that_is_served_is_the_one_that_was_measured(tmp_path: Path, shards: int):
    """Embedding, final norm and head are float16 in the file. Round to nearest instead is off by 0.05 and more."""
    folder = write_source(tmp_path / "floats", shards=shards)
    source, choices = write(folder, tmp_path / "out")
    ids = random_ids(CONFIG, 1, LENGTH)[0]
    found, wanted = served_logits(tmp_path / "out", ids), quantised_logits(source, choices, ids)
    assert (found - wanted).abs().max() <= 1e-3 * wanted.abs().max()
    assert (quantised_logits(source, [BlockChoice()] * 2, ids) - wanted).abs().max() > 0.05 * wanted.abs().max()


def test_files_are_those_of_the_source(tmp_path: Path):
    folder, out = write_source(tmp_path / "floats", shards=2), tmp_path / "out"
    write(folder, out)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in folder.iterdir())
    assert (out / "model-0.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())
    for shard in ("model-0.safetensors", "model-1.safetensors"):
        names = {name for name, place in index["weight_map"].items() if place == shard}
        assert names == set(load_file(out / shard))


def test_the_configuration_states_groups_and_padding(tmp_path: Path):
    write(write_source(tmp_path / "floats"), tmp_path / "out")
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["intermediate_size"] == INNER and values["torch_dtype"] == "float16"
    assert values["quantization_config"] == {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": 64,
        "zero_point": True,
        "modules_to_not_convert": None,
    }
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    prefix = "model.layers.1.mlp.down_proj."
    assert tensors[prefix + "qweight"].shape == (INNER, 64 // 8) and tensors[prefix + "scales"].shape == (2, 64)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.int32, torch.float16}


def test_a_quantised_model_is_rejected(tmp_path: Path):
    write(write_source(tmp_path / "floats"), tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"out is quantised already \(awq\)"):
        open_chat_source(tmp_path / "out")


def test_another_family_is_rejected(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(CheckpointError, match="'mamba'; supported: llama"):
        open_chat_source(tmp_path)


def test_the_vision_tower_stays_as_it_is(tmp_path: Path):
    write_chat_checkpoint(
        tmp_path / "floats", "qwen2_5_vl", hidden_size=64, num_attention_heads=8, intermediate_size=96
    )
    published = read_published(tmp_path / "floats")
    assert published.vision is not None
    write(tmp_path / "floats", tmp_path / "out")
    floats, found = load_file(tmp_path / "floats/model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    tower = [name for name in floats if "visual." in name]
    assert tower and all(torch.equal(found[name], floats[name]) for name in tower)
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["quantization_config"]["modules_to_not_convert"] == ["visual"]


def recorded_choices(recorded: Recorded, index: int) -> BlockChoice:
    """AutoAWQ's own scales and limits."""
    prefix, tensors = recorded.decoder.block_prefix(index), recorded.tensors
    scaled = {
        "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attn.v_proj": ("self_attn.o_proj",),
        "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.up_proj": ("mlp.down_proj",),
    }
    groups = tuple(
        GroupChoice(
            previous=previous,
            scaled=linears,
            ratio=None,
            scales=tensors[f"{prefix}{previous}.scales"],
            losses=tensors[f"{prefix}{previous}.losses"],
        )
        for previous, linears in scaled.items()
        if f"{prefix}{previous}.scales" in tensors
    )
    limits = {name.removeprefix(prefix).removesuffix(".max_val"): each for name, each in tensors.items()}
    clipped = {name: limits[name] for linears in scaled.values() for name in linears if name in limits}
    return BlockChoice(groups, clipped)


@pytest.mark.oracle("awq-search", "awq-chat-g64", "awq-stories-g64", "stories260K-hf")
@pytest.mark.parametrize("model", ["chat", "stories"])
def test_recorded_choices_give_the_tensors_that_autoawq_wrote(model: str, tmp_path: Path):
    """Bit for bit, norms and biases with them."""
    recorded = Recorded(ORACLES, model, ScaleForm.DUO)
    source = open_chat_source(model_folder(ORACLES, model), GROUP)
    layers = source.decoder.config.num_hidden_layers
    write_checkpoint(source, [recorded_choices(recorded, index) for index in range(layers)], tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    wanted = load_file(ORACLES / f"awq-{model}-g64" / "model.safetensors")
    differing = [name for name, tensor in wanted.items() if not torch.equal(found.get(name, torch.empty(0)), tensor)]
    assert differing == [] and set(found) == set(wanted)


@pytest.fixture
def packing_utils() -> ModuleType:
    path = Path(os.environ.get(PACKING, ""))
    if not path.is_file():
        pytest.skip(f"{PACKING} does not name AutoAWQ's packing_utils.py")
    spec = importlib.util.spec_from_file_location("packing_utils", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_autoawq_unpacks_the_same_numbers(packing_utils: ModuleType, tmp_path: Path):
    write(write_source(tmp_path / "floats"), tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    weights = Weights(tmp_path / "out", torch.float16, CPU)
    for name in ("model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj"):
        parts = (tensors[f"{name}.{part}"] for part in ("qweight", "qzeros", "scales"))
        theirs = packing_utils.dequantize_gemm(*parts, 4, 64)
        inputs, outputs = theirs.shape
        assert torch.equal(theirs.t(), weights.linear(name, outputs, inputs).floats())
