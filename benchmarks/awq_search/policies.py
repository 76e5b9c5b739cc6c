"""AWQ's search on the embedded policies: errors on held-out frames, for round to nearest and for several searches.

python -m benchmarks.awq_search.policies --json FILE

Two calibrations, each of 128 frames of the demo's closed loop; 300 held-out frames of other episodes. Groups of 32,
duo, scales and clipping. Of the policy with action tokens: losses over all rows, the same without s = 1 (as AutoAWQ
searches), and over the rows that give action tokens only. Of the flow policy: the error of its chunks.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import keep, machine_facts, options
from edgeflow.lab.quantize.files.search_state import SearchState
from edgeflow.lab.quantize.outcome import AWQ, NEAREST
from edgeflow.lab.quantize.policies.closed_loop import record_frames
from edgeflow.lab.quantize.policies.frames import CalibrationFrames, chosen, write_frames
from edgeflow.lab.quantize.policies.served import ServedPolicy, action_rows
from edgeflow.lab.quantize.policies.sources import PolicySource, open_policy
from edgeflow.lab.quantize.policy_fidelity import measure_tokens
from edgeflow.lab.quantize.policy_run import Loss, calibration_rows, quantize_policy
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.run import search_decoder
from edgeflow.lab.quantize.search.block_search import SearchSettings
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow.lab.verify.comparison import silent
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY

CALIBRATIONS = (0, 1)
GROUP = 32
SETTINGS = SearchSettings(group=GROUP)
SEARCHES = {
    "all rows": (SETTINGS, Loss.ALL),
    "all rows, without s = 1": (replace(SETTINGS, identity=False), Loss.ALL),
    "action rows": (SETTINGS, Loss.ACTIONS),
}


def searched(
    opened: PolicySource, frames: CalibrationFrames, settings: SearchSettings, loss: Loss
) -> list[BlockChoice]:
    """The choices of every block."""
    hidden, counted = calibration_rows(opened, frames.shown, loss)
    with tempfile.TemporaryDirectory() as folder:
        state = SearchState(Path(folder), {})
        return search_decoder(opened.source.decoder, hidden, settings, state=state, report=silent, counted=counted)


def tokens() -> dict[str, Any]:
    """The figures of the policy with action tokens."""
    opened = open_policy(EMBEDDED_POLICY, GROUP)
    decoder = opened.source.decoder
    frames = {  # with the held-out frames, which are the same for all
        each: chosen("the demo's closed loop", record_frames(EMBEDDED_POLICY, each, silent), each)
        for each in CALIBRATIONS
    }
    variants = {NEAREST: [BlockChoice()] * decoder.config.num_hidden_layers}
    for calibration, shown in frames.items():
        for name, (settings, loss) in SEARCHES.items():
            variants[f"{name}, calibration {calibration}"] = searched(opened, shown, settings, loss)
            print(f"tokens: {name}, calibration {calibration} searched", flush=True)
    served = ServedPolicy(EMBEDDED_POLICY, opened.family, frames[0].held_out)
    assert opened.actions is not None
    found = measure_tokens(decoder, GROUP, variants, action_rows(served), opened.actions)
    return {name: _without_linears(each.as_json()) for name, each in found.items()}


def flow() -> dict[str, Any]:
    """The figures of the flow policy: as `edgeflow quantize` reports them."""
    found: dict[str, Any] = {}
    for calibration in CALIBRATIONS:
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "frames.safetensors"
            write_frames(kept, record_frames(EMBEDDED_FLOW_POLICY, calibration, silent))
            request = Request(
                folder=EMBEDDED_FLOW_POLICY,
                out=Path(folder) / "out",
                group=GROUP,
                form=ScaleForm.DUO,
                identity=True,
                clip=True,
                calibration=str(kept),
                seed=calibration,
            )
            outcome = quantize_policy(request, silent, loss=Loss.ALL).as_json()
        found[NEAREST] = _without_linears(outcome[NEAREST])
        found[f"all rows, calibration {calibration}"] = _without_linears(outcome[AWQ])
        print(f"flow: calibration {calibration} searched", flush=True)
    return found


def _without_linears(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name != "linears"}


def main() -> None:
    arguments = options(__doc__).parse_args()
    report = {"machine": machine_facts(), "group": GROUP}
    report |= {"demo": tokens(), "demo-flow": flow()}
    for policy in ("demo", "demo-flow"):
        for name, figures in report[policy].items():
            shown = ", ".join(f"{key} {value:.5g}" for key, value in figures.items())
            print(f"{policy:>9} {name:>40}: {shown}")
    keep(arguments.json, report)


if __name__ == "__main__":
    main()
