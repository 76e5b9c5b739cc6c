"""Quantises a checkpoint from end to end: calibration, the search of every block, the files, the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.lab.demo.chat.evaluate import evaluate_chat
from edgeflow.lab.kv260.macro_file import write_macro
from edgeflow.lab.outputs import write_json
from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.calibration.samples import (
    BUILT_IN_TEXT,
    CalibrationTokens,
    dialog_calibration,
    of_text,
    written_calibration,
)
from edgeflow.lab.quantize.fidelity import measure
from edgeflow.lab.quantize.files.quantised import check_block, check_outside
from edgeflow.lab.quantize.files.search_state import SearchState, check_folder
from edgeflow.lab.quantize.files.source import open_chat_source
from edgeflow.lab.quantize.files.writing import weights_bytes, write_checkpoint
from edgeflow.lab.quantize.outcome import AWQ, NEAREST, QuantisedCheckpoint
from edgeflow.lab.quantize.request import Request
from edgeflow.lab.quantize.search.block_search import Counted, SearchSettings, run_batches, search_block
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.text.chat_template import ChatTemplate
from edgeflow.text.tokenizer import TextTokenizer

BUILT_IN, WRITTEN = "built-in", "written"
REPORT_FILE = "quantization_report.json"
BATCH = 4
"""Calibration blocks that pass through the decoder together."""


def quantize(request: Request, report: Report, *, questions: int, macros: bool) -> QuantisedCheckpoint:
    """Write the quantised checkpoint and its report; ConfigError or CheckpointError if something does not fit.

    questions: for the report of the embedded chat model. macros: write a macro file too.
    """
    source = open_chat_source(request.folder, request.group)
    decoder, group = source.decoder, source.grouping.group
    stated = request.stated(source.grouping)
    check_folder(request.out, stated)
    check_outside(decoder)
    calibration = _calibration(request, decoder, report)
    state = SearchState(request.out, {**stated, "calibration": calibration.name, "tokens": calibration.digest})
    hidden = torch.split(decoder.embed(calibration.blocks), BATCH)
    choices = search_decoder(decoder, hidden, request.settings(group), state, report)
    files = len(source.files)
    write_checkpoint(source, choices, request.out, lambda done: report("files", done, files))
    if macros:
        write_macro(request.out, request.out, report)
    nearest = [BlockChoice()] * len(choices)
    found = measure(decoder, group, {NEAREST: nearest, AWQ: choices}, calibration.held_out, report)
    outcome = QuantisedCheckpoint(
        group=group,
        inner=source.grouping.inner,
        stored_inner=decoder.config.intermediate_size,
        calibration=calibration.name,
        choices=choices,
        nearest=found[NEAREST],
        awq=found[AWQ],
        bytes_before=weights_bytes(request.folder),
        bytes_after=weights_bytes(request.out),
        exact=_exact(request, questions, report),
    )
    write_json(request.out / REPORT_FILE, outcome.as_json())
    state.remove()
    return outcome


@torch.inference_mode()
def search_decoder(
    decoder: DecoderTensors,
    batches: Sequence[Tensor],
    settings: SearchSettings,
    state: SearchState,
    report: Report,
    counted: Counted = None,
) -> list[BlockChoice]:
    """The choices for every block, read from the state where it has them.

    batches: rows [B, L, E] that enter the first block. The unquantised output of a block is the next one's input, so
    errors do not accumulate. counted: the rows that count in the losses. CheckpointError for a block that does not fit
    into float16: before it is searched, and again with its scales.
    """
    count = decoder.config.num_hidden_layers
    kept = [state.load(index) for index in range(count)]
    found = [choice for choice in kept if choice is not None]
    if len(found) == count:
        return found
    hidden, rotation = list(batches), decoder.rotation(max(each.shape[1] for each in batches))
    found = []
    for index, block in enumerate(decoder.blocks()):
        report("blocks", index, count)
        prefix = decoder.block_prefix(index)
        check_block(block, BlockChoice(), settings.group, prefix)
        runs = run_batches(block, hidden, rotation)
        choice = kept[index]
        if choice is None:
            choice = search_block(block, runs, rotation, settings, counted)
            check_block(block, choice, settings.group, prefix)
            state.save(index, choice)
        found.append(choice)
        hidden = [run.hidden for run in runs]
        del runs  # the inputs of the block's linears are freed before those of the next block are computed
    return found


def _calibration(request: Request, decoder: DecoderTensors, report: Report) -> CalibrationTokens:
    if request.calibration == WRITTEN:
        return written_calibration(request.folder, request.seed, lambda done, all: report("texts", done, all))
    tokenizer = TextTokenizer(request.folder, decoder.config.vocab_size)
    if request.calibration != BUILT_IN:
        return of_text(Path(request.calibration), tokenizer, request.seed)
    template = ChatTemplate.load(request.folder)
    if is_embedded(request.folder) and template is not None:
        return dialog_calibration(tokenizer, template, request.seed)
    return of_text(BUILT_IN_TEXT, tokenizer, request.seed, "built-in text")


def _exact(request: Request, questions: int, report: Report) -> float | None:
    if not is_embedded(request.folder):
        return None
    graded = evaluate_chat(request.out, questions, progress=lambda done: report("questions", done, questions))
    return graded.share


def is_embedded(folder: Path) -> bool:
    """True for the embedded chat model, however its path is written."""
    return folder.resolve() == EMBEDDED_CHAT_MODEL.resolve()
