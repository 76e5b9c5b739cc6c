"""A policy quantised from end to end: its files, and that what is served has the figures of the report."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.kv.layout import PackedLayout, Span
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.quantize import policy_run
from edgeflow.lab.quantize.outcome import QuantisedCheckpoint
from edgeflow.lab.quantize.policies.frames import read_frames, write_frames
from edgeflow.lab.quantize.policies.served import ServedPolicy, action_rows
from edgeflow.lab.quantize.policies.sources import open_policy
from edgeflow.lab.quantize.policy_fidelity import ChunkFidelity, TokenFidelity
from edgeflow.lab.quantize.policy_run import Loss, quantize_policy
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow_client.errors import ConfigError
from tests.lab.quantize.policies.cases import KINDS, checkpoint, recorded

CPU = torch.device("cpu")
SHOWN, HELD_OUT = 16, 5


def quantized(kind: str, folder: Path, loss: Loss = Loss.ALL) -> tuple[Path, Path, QuantisedCheckpoint]:
    """The checkpoints before and after, and the outcome."""
    source = checkpoint(kind, folder / "source")
    (source / ".cache").mkdir()
    (source / ".cache/download.json").write_text("{}")
    write_frames(folder / "frames", recorded(kind, SHOWN, HELD_OUT))
    request = Request(
        folder=source,
        out=folder / "out",
        group=None,
        form=ScaleForm.DUO,
        identity=True,
        clip=True,
        calibration=str(folder / "frames"),
        seed=0,
    )
    return source, request.out, quantize_policy(request, lambda *_: None, loss=loss)


@pytest.fixture(scope="module", params=KINDS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path, QuantisedCheckpoint]:
    return request.param, *quantized(request.param, tmp_path_factory.mktemp(request.param))


def test_everything_but_the_language_model_is_kept(run: tuple[str, Path, Path, QuantisedCheckpoint]):
    _, source, out, _ = run
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()} - {Path(".cache/download.json")}
    assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == files | {
        Path("quantization_report.json")
    }
    for path in files - {Path("config.json"), Path("model.safetensors")}:
        assert (out / path).read_bytes() == (source / path).read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (source, out))
    stem = open_policy(source).source.decoder.stem
    linears = {name.removesuffix(".weight") for name in before if name.startswith(stem) and "_proj" in name}
    quantised = {f"{name}.{part}" for name in linears for part in ("qweight", "qzeros", "scales")}
    assert after.keys() == before.keys() - {f"{name}.weight" for name in linears} | quantised
    others = [name for name in before if not name.startswith(stem) and "lm_head" not in name]
    assert others and all(torch.equal(before[name], after[name]) for name in others)
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config")["group_size"] == 32
    assert config == json.loads((source / "config.json").read_text())


def test_the_report_is_kept_beside_the_checkpoint(run: tuple[str, Path, Path, QuantisedCheckpoint]):
    _, _, out, outcome = run
    stored = json.loads((out / "quantization_report.json").read_text())
    assert stored == json.loads(json.dumps(outcome.as_json()))
    assert 0 < stored["awq"]["linear_error"] < stored["nearest"]["linear_error"] < 0.05


def held_out(folder: Path, source: Path, checkpoint_of: Path) -> ServedPolicy:
    frames = [each.observation for each in read_frames(folder / "frames") if each.held_out]
    return ServedPolicy(checkpoint_of, open_policy(source).family, frames)


@torch.inference_mode()
def test_what_is_served_has_the_figures_of_the_report(run: tuple[str, Path, Path, QuantisedCheckpoint]):
    """For chunks the report compares the served ones; for tokens, the decoder that serves gives the same logits."""
    kind, source, out, outcome = run
    floats, four = (held_out(out.parent, source, each) for each in (source, out))
    if kind != "openvla":
        assert isinstance(outcome.awq, ChunkFidelity)
        found, wanted = four.chunks(), floats.chunks()
        share = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
        assert float((found - wanted).norm() / wanted.norm()) == pytest.approx(outcome.awq.chunk_error, rel=1e-6)
        assert sorted(share)[HELD_OUT // 2] == pytest.approx(outcome.awq.median_error, rel=1e-6)
        return
    assert isinstance(outcome.awq, TokenFidelity)
    actions, rows = open_policy(source).actions, action_rows(floats)
    kl, agreeing, near = 0.0, 0, 0
    for batch, counted, tokens in zip(rows.hidden, rows.counted, rows.tokens, strict=True):
        for hidden, mask, chosen in zip(batch, counted, tokens, strict=True):
            wanted, found = (logits(each, hidden)[mask] for each in (floats, four))
            among = [each[:, actions.start : actions.stop].log_softmax(-1) for each in (found, wanted)]
            kl += F.kl_div(*among, log_target=True, reduction="sum").item()
            off = (found.argmax(1) - chosen).abs()
            agreeing, near = agreeing + int((off == 0).sum()), near + int((off <= 1).sum())
    report = outcome.awq
    assert report.tokens == HELD_OUT * 7
    assert (agreeing, near) == (report.agreeing, report.near)
    assert kl == pytest.approx(report.kl, rel=1e-4)


def logits(served: ServedPolicy, hidden: torch.Tensor) -> torch.Tensor:
    """Those of the decoder that serves, of all rows."""
    decoder = served.policy.decoder
    kv, layout = decoder.kv_slots(1, len(hidden)), PackedLayout.of([Span(slot=0, start=0, length=len(hidden))], CPU)
    return decoder.logits(decoder.forward(hidden, layout, kv), "prefill")


def test_the_checkpoint_loads_with_the_default_operators(run: tuple[str, Path, Path, QuantisedCheckpoint]):
    kind, _, out, _ = run
    settings = {} if kind == "openvla" else {"control_rate_hz": 20.0}
    family = open_policy(out.parent / "source").family
    family.check(out, settings)
    placement = Placement(dtype=torch.float32, device=CPU, table=built_in_table())
    assert family.load(out, settings, LoadOptions()).load(placement).unnorm_keys


def test_losses_can_count_the_rows_of_actions_alone(tmp_path: Path):
    _, _, everything = quantized("openvla", tmp_path / "all")
    _, _, actions = quantized("openvla", tmp_path / "actions", Loss.ACTIONS)
    assert "losses count the rows that give action tokens" in next(actions.remarks())
    pairs = zip(everything.choices, actions.choices, strict=True)
    assert all(not torch.equal(a.groups[0].losses, b.groups[0].losses) for a, b in pairs)


def test_a_prefix_has_no_rows_of_actions(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"loss: actions counts the rows.* smolvla has none"):
        quantized("smolvla", tmp_path, Loss.ACTIONS)
    assert not (tmp_path / "out").exists()


def test_a_policy_without_frames_of_its_own_needs_a_file(tmp_path: Path):
    source = checkpoint("openvla", tmp_path / "source")
    request = Request(
        folder=source,
        out=tmp_path / "out",
        group=None,
        form=ScaleForm.DUO,
        identity=True,
        clip=True,
        calibration="built-in",
        seed=0,
    )
    with pytest.raises(ConfigError, match="calibration: built-in frames are those of the embedded policies"):
        quantize_policy(request, lambda *_: None, loss=Loss.ALL)


@pytest.mark.parametrize("kind", ["openvla", "smolvla"])
def test_one_policy_is_in_memory_at_a_time(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cache by contracts, or a name that is still bound, gives 1 and 2 policies besides the one that loads."""
    policies: WeakSet[Any] = WeakSet()
    alive: list[int] = []

    class WatchedRun(ServedPolicy):
        def __init__(self, *arguments: Any) -> None:
            gc.collect()
            alive.append(len(policies))
            super().__init__(*arguments)
            policies.add(self.policy)

    monkeypatch.setattr(policy_run, "ServedPolicy", WatchedRun)
    quantized(kind, tmp_path)
    gc.collect()
    assert [*alive, len(policies)] == [0] * (3 if kind == "openvla" else 5)
