"""Quantises a policy from end to end: recorded frames, the search of every block, the files, the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from torch import Tensor

from edgeflow.contract import Observation
from edgeflow.hub import HUB_FILES
from edgeflow.lab.outputs import write_json
from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.fidelity import passed_through
from edgeflow.lab.quantize.files.quantised import check_outside
from edgeflow.lab.quantize.files.search_state import FOLDER, SearchState, check_folder
from edgeflow.lab.quantize.files.source import Source
from edgeflow.lab.quantize.files.writing import weights_bytes, write_checkpoint
from edgeflow.lab.quantize.outcome import AWQ, NEAREST, QuantisationError, QuantisedCheckpoint
from edgeflow.lab.quantize.policies.closed_loop import record_frames
from edgeflow.lab.quantize.policies.frames import CalibrationFrames, check_kept, chosen, read_frames, write_frames
from edgeflow.lab.quantize.policies.served import ServedPolicy, action_rows, prefix_rows
from edgeflow.lab.quantize.policies.sources import PolicySource, open_policy
from edgeflow.lab.quantize.policy_fidelity import ChunkFidelity, measure_tokens
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.run import BUILT_IN, REPORT_FILE, search_decoder
from edgeflow.lab.quantize.search.block_search import Counted
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY
from edgeflow.models.checkpoint import CONFIG_FILE
from edgeflow.text.weight_files import INDEX_FILE
from edgeflow_client.errors import ConfigError

CLOSED_LOOP = "closed-loop"


class Loss(str, Enum):
    """The rows whose outputs count in the losses of a search."""

    ALL = "all"
    ACTIONS = "actions"


def quantize_policy(request: Request, report: Report, *, loss: Loss, kept: Path | None = None) -> QuantisedCheckpoint:
    """Write the quantised checkpoint and its report; ConfigError or CheckpointError if something does not fit.

    kept: a file to write the frames to.
    """
    opened = open_policy(request.folder, request.group)
    _check_loss(loss, opened)
    source = opened.source
    group = source.grouping.group
    stated = {**request.stated(source.grouping), "loss": loss.value}
    check_folder(request.out, stated)
    if kept is not None:
        check_kept(kept, request.out)
    check_outside(source.decoder)
    frames = _frames(request, kept, report)
    state = SearchState(request.out, {**stated, "calibration": frames.name, "frames": frames.digest})
    hidden, counted = calibration_rows(opened, frames.shown, loss)
    choices = search_decoder(
        source.decoder, hidden, request.settings(group), state=state, report=report, counted=counted
    )
    _write(opened, choices, request.out, report)
    nearest, awq = _figures(request, opened, choices, frames.held_out, report)
    outcome = QuantisedCheckpoint(
        group=group,
        inner=source.grouping.inner,
        stored_inner=source.decoder.config.intermediate_size,
        calibration=f"{len(frames.shown)} frames of {frames.name}; losses count {_counted(loss)}",
        choices=choices,
        nearest=nearest,
        awq=awq,
        bytes_before=weights_bytes(request.folder),
        bytes_after=weights_bytes(request.out),
        exact=None,
    )
    write_json(request.out / REPORT_FILE, outcome.as_json())
    state.remove()
    return outcome


def calibration_rows(
    opened: PolicySource, observations: Sequence[Observation], loss: Loss
) -> tuple[tuple[Tensor, ...], Counted]:
    """The batches of rows [B, L, E] that a search runs, and the rows that count in its losses."""
    served = ServedPolicy(opened.source.folder, opened.family, observations)
    if opened.actions is None:
        return prefix_rows(served).hidden, None
    rows = action_rows(served)
    return rows.hidden, rows.counted if loss is Loss.ACTIONS else None


def _check_loss(loss: Loss, opened: PolicySource) -> None:
    if loss is Loss.ACTIONS and opened.actions is None:
        raise ConfigError(
            f"loss: actions counts the rows that give action tokens; the language model of the family "
            f"{opened.family.name} has none, it computes a prefix all of whose rows an expert reads: use all"
        )


def _frames(request: Request, kept: Path | None, report: Report) -> CalibrationFrames:
    """The frames of the search and of the report; they are saved if that was requested."""
    embedded = request.folder.resolve() in (EMBEDDED_POLICY.resolve(), EMBEDDED_FLOW_POLICY.resolve())
    if request.calibration == CLOSED_LOOP or (request.calibration == BUILT_IN and embedded):
        name, recorded = "the demo's closed loop", record_frames(request.folder, request.seed, report)
    elif request.calibration == BUILT_IN:
        raise ConfigError(
            f"calibration: built-in frames are those of the embedded policies; for this one give a file of recorded "
            f"frames, or {CLOSED_LOOP} if it was trained for the demo's robot"
        )
    else:
        name, recorded = request.calibration, read_frames(Path(request.calibration))
    if kept is not None:
        write_frames(kept, recorded)
    return chosen(name, recorded, request.seed)


def _write(opened: PolicySource, choices: Sequence[BlockChoice], out: Path, report: Report) -> None:
    files = len(opened.source.files)
    copy_rest(opened.source, out)
    write_checkpoint(opened.source, choices, out, lambda done: report("files", done, files))


def _figures(
    request: Request,
    opened: PolicySource,
    choices: Sequence[BlockChoice],
    held_out: Sequence[Observation],
    report: Report,
) -> tuple[QuantisationError, QuantisationError]:
    """The errors of round to nearest and of AWQ."""
    variants = {NEAREST: [BlockChoice()] * len(choices), AWQ: choices}
    decoder, group = opened.source.decoder, opened.source.grouping.group
    if opened.actions is not None:
        rows = action_rows(ServedPolicy(request.folder, opened.family, held_out))
        of_tokens = measure_tokens(decoder, group, variants, rows, opened.actions, report=report)
        return of_tokens[NEAREST], of_tokens[AWQ]
    wanted, hidden = _chunks_and_rows(ServedPolicy(request.folder, opened.family, held_out))
    linear = passed_through(decoder, group, variants, hidden, report).linear
    nearest = request.out / FOLDER / NEAREST
    _write(opened, variants[NEAREST], nearest, lambda *_: None)
    report("chunks", 0, 1)
    found = {
        name: ChunkFidelity.of(linear[name], ServedPolicy(folder, opened.family, held_out).chunks(), wanted)
        for name, folder in ((NEAREST, nearest), (AWQ, request.out))
    }
    return found[NEAREST], found[AWQ]


def _chunks_and_rows(served: ServedPolicy) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Chunks and prefix rows of the float policy, for the report; the policy itself is freed."""
    return served.chunks(), prefix_rows(served).hidden


def _counted(loss: Loss) -> str:
    return "all rows" if loss is Loss.ALL else "the rows that give action tokens"


def copy_rest(source: Source, out: Path) -> None:
    """Copy dataset statistics, processors, tokenizers and the like, also those in subfolders."""
    out.mkdir(parents=True, exist_ok=True)
    written = {*source.files, source.folder / CONFIG_FILE, source.folder / INDEX_FILE}
    for path in sorted(set(_served_files(source.folder)) - written):
        if out.resolve() in path.resolve().parents:
            continue
        copy = out / path.relative_to(source.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _served_files(folder: Path) -> Iterator[Path]:
    """Files of the kinds that checkpoints consist of; hidden folders are skipped."""
    for pattern in HUB_FILES:
        for path in folder.rglob(pattern):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path
