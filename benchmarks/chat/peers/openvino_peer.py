"""OpenVINO behind a pipe: a line {"prompt": [ids], "tokens": n} in, a line of token times and tokens out.

    PYTHON openvino_peer.py MODEL.gguf THREADS

The model is the one that OpenVINO GenAI makes of the file, with its 8-bit weights and KV; it is run by OpenVINO's own
runtime, greedily, with the head on the last row only as GenAI has it. GenAI's pipeline itself does not compile it in
the version tried (2026.4.1: "ReadValue contains dead weak ptr").
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino import opset13


def main() -> None:
    model, threads = Path(sys.argv[1]), int(sys.argv[2])
    request = openvino.Core().compile_model(_model(model), "CPU", {"INFERENCE_NUM_THREADS": threads})
    run = request.create_infer_request()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_answer(run, asked["prompt"], asked["tokens"])), flush=True)


def _model(model: Path) -> openvino.Model:
    """The model that GenAI converts from the file and saves beside it; its head computes the last row only."""
    with contextlib.suppress(RuntimeError):
        openvino_genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
    folder = model.parent / "openvino"
    folder.mkdir(exist_ok=True)
    for file in model.parent.glob("openvino_*"):
        shutil.move(file, folder / file.name)
    made = openvino.Core().read_model(folder / "openvino_model.xml")
    head = made.outputs[0].get_node().input_value(0).get_node()
    rows = head.input_value(0)
    last = opset13.slice(rows, np.array([-1]), np.array([np.iinfo(np.int64).max]), np.array([1]), np.array([1]))
    head.input(0).replace_source_output(last.output(0))
    made.validate_nodes_and_infer_types()
    return made


def _answer(run: openvino.InferRequest, prompt: list[int], count: int) -> dict[str, list[float] | list[int]]:
    run.reset_state()
    ids, place = np.array([prompt]), 0
    times: list[float] = []
    tokens: list[int] = []
    started = time.perf_counter()
    for _ in range(count):
        length = ids.shape[1]
        run.infer(
            {
                "input_ids": ids,
                "attention_mask": np.ones((1, place + length), np.int64),
                "position_ids": np.arange(place, place + length)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        place += length
        tokens.append(int(run.get_output_tensor(0).data[0, -1].argmax()))
        ids = np.array([tokens[-1:]])
        times.append(time.perf_counter() - started)
    return {"times": times, "tokens": tokens}


if __name__ == "__main__":
    main()
