"""AWQ's search against round to nearest, and against what AutoAWQ and llm-awq chose on the same tokens.

python -m benchmarks.awq_search --json FILE           three calibration seeds of both models, then the recorded choices
python -m benchmarks.awq_search --models chat --json FILE

Needs the bundles awq-search and stories260K-hf (docs/develop/testing.md). Groups of 64, duo, scales and clipping;
without s = 1, as the recordings were made, but for one line. Exits with code 1 where a bar is missed.
"""

from __future__ import annotations

import json
import sys
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.awq_search.recorded import GROUP, LENGTH, NEAR, ROWS, Recorded, comparison, float_decoder, model_folder
from benchmarks.command import keep, machine_facts, options
from edgeflow.lab.quantize.fidelity import Fidelity, measure
from edgeflow.lab.quantize.search.block_search import SearchSettings, run_batches, search_block
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.lab.quantize.search.scales import ScaleForm
from tests.oracles import ORACLES

SEEDS = (0, 1, 2)
BARS = {"chat": {"linear_error": 0.25, "kl_per_token": 0.15}, "stories": {"kl_per_token": 0.20}}
"""Least share by which AWQ's error is below round to nearest's, mean of the seeds."""
PUBLISHED = {
    "chat": {"linear_error": 0.00350, "kl_per_token": 0.0698},
    "stories": {"linear_error": 0.00604, "kl_per_token": 0.0880},
}
"""AutoAWQ's own search on the same texts, mean of the same seeds."""
LARGEST_SHARE_OFF = 0.05
FIGURES = ("linear_error", "kl_per_token")


@torch.inference_mode()
def searched(decoder: DecoderTensors, ids: torch.Tensor, settings: SearchSettings) -> list[BlockChoice]:
    """The choices of every block."""
    hidden, rotation, found = list(torch.split(decoder.embed(ids), ROWS)), decoder.rotation(LENGTH), []
    for block in decoder.blocks():
        runs = run_batches(block, hidden, rotation)
        found.append(search_block(block, runs, rotation, settings))
        hidden = [run.hidden for run in runs]
    return found


def figures(fidelity: Fidelity) -> dict[str, float]:
    values = fidelity.as_json()
    return {name: values[name] for name in (*FIGURES, "agreement")}


def seeds_of(model: str) -> dict[str, Any]:
    """Round to nearest and three calibration seeds on held-out text, with the bars."""
    bundle = ORACLES / "awq-search"
    decoder = float_decoder(model_folder(ORACLES, model))
    calibration = load_file(bundle / f"{model}_calibration.safetensors")
    settings = SearchSettings(group=GROUP, form=ScaleForm.DUO, identity=False)
    variants = {"nearest": [BlockChoice()] * decoder.config.num_hidden_layers}
    for seed in SEEDS:
        variants[f"seed {seed}"] = searched(decoder, calibration[f"seed{seed}"].long(), settings)
        print(f"{model}: seed {seed} searched", flush=True)
    variants["seed 0 with s = 1"] = searched(
        decoder, calibration["seed0"].long(), SearchSettings(group=GROUP, form=ScaleForm.DUO)
    )
    rows = json.loads((bundle / f"{model}_heldout.json").read_text())["rows"]
    found = {
        name: figures(each) for name, each in measure(decoder, GROUP, variants, list(map(torch.tensor, rows))).items()
    }
    mean = {name: fmean(found[f"seed {seed}"][name] for seed in SEEDS) for name in FIGURES}
    return {"variants": found, "mean": mean, "bars": bars(model, found["nearest"], mean)}


def bars(model: str, nearest: dict[str, float], mean: dict[str, float]) -> list[dict[str, Any]]:
    """Each bar, what was measured, and whether it holds."""
    rows = []
    for name in FIGURES:
        saved = 1 - mean[name] / nearest[name]
        if name in BARS[model]:
            least = BARS[model][name]
            rows.append(
                {"bar": f"{name} below round to nearest by {least:.0%}", "measured": saved, "ok": saved >= least}
            )
        off = abs(mean[name] / PUBLISHED[model][name] - 1)
        wanted = f"{name} within {LARGEST_SHARE_OFF:.0%} of {PUBLISHED[model][name]}"
        rows.append({"bar": wanted, "measured": mean[name], "ok": off <= LARGEST_SHARE_OFF})
    return rows


def recorded_of(model: str, form: ScaleForm) -> dict[str, Any]:
    """All blocks compared with the recorded ones: the largest errors of each step, see `Comparison`."""
    recorded = Recorded(ORACLES, model, form)
    found = [comparison(recorded, index) for index in range(recorded.decoder.config.num_hidden_layers)]
    worst = {name: max(getattr(each, name) for each in found) for name in ("statistics", "losses", "scales")}
    limits = {name: sum(getattr(each, name) for each in found) for name in ("limits_equal", "limits")}
    ratios = all(each.ratios_equal for each in found)
    near = worst["statistics"] <= 1e-6 and worst["losses"] <= NEAR and worst["scales"] <= 1e-6
    ok = ratios and near and limits["limits_equal"] >= 0.999 * limits["limits"]
    return {"ratios_equal": ratios, **worst, **limits, "ok": ok}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted(BARS), default=sorted(BARS))
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine_facts(), "group": GROUP}
    missed = []
    for model in arguments.models:
        report[model] = seeds_of(model)
        report[model]["recorded"] = {form.value: recorded_of(model, form) for form in ScaleForm}
        for name, each in report[model]["variants"].items():
            print(f"{model:>8} {name:>18}: linear error {each['linear_error']:.5f}, KL {each['kl_per_token']:.4f}")
        for bar in report[model]["bars"]:
            print(f"{model:>8} {'ok ' if bar['ok'] else 'OFF'} {bar['bar']}: {bar['measured']:.4f}")
        for form, each in report[model]["recorded"].items():
            print(f"{model:>8} {'ok ' if each['ok'] else 'OFF'} recorded choices, {form}: {each}")
        missed += [bar for bar in (*report[model]["bars"], *report[model]["recorded"].values()) if not bar["ok"]]
    keep(arguments.json, report)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
