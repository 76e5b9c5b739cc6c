"""OpenVINO behind a pipe: a line {"prompt": [ids], "tokens": n} in, a line of token times and tokens out.

    PYTHON openvino_peer.py MODEL.gguf THREADS [GROUP]

The model is the one that OpenVINO GenAI makes of the file, with its 8-bit weights and KV; it is run by OpenVINO's own
runtime, greedily, with the head on the last row only as GenAI has it. GenAI's pipeline itself does not compile it in
the version tried (2026.4.1: "ReadValue contains dead weak ptr").

GROUP: NNCF compresses the projections to 4 bits with a scale and a zero point per so many inputs, the embedding, which
is also the head, to 8 bits; the file then has matrices in F16.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino import opset13


def main() -> None:
    model, threads, group = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    made = _model(_compressed(_converted(model), *map(int, group)) if group else _converted(model))
    request = openvino.Core().compile_model(made, "CPU", {"INFERENCE_NUM_THREADS": threads})
    run = request.create_infer_request()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_answer(run, asked["prompt"], asked["tokens"])), flush=True)


def _converted(model: Path) -> Path:
    """The model that GenAI converts from the file and saves beside it, once."""
    folder = model.parent / "openvino"
    if (folder / "openvino_model.xml").is_file():
        return folder / "openvino_model.xml"
    with contextlib.suppress(RuntimeError):
        openvino_genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
    folder.mkdir(exist_ok=True)
    for file in model.parent.glob("openvino_*"):
        shutil.move(file, folder / file.name)
    return folder / "openvino_model.xml"


def _compressed(model: Path, group: int) -> Path:
    """Once, in a separate process, so that the float weights do not count in this one's memory."""
    out = model.with_name(f"int4-{group}.xml")
    if out.is_file():
        return out
    code = (
        "import nncf, openvino, sys; model = openvino.Core().read_model(sys.argv[1]); "
        "mode = nncf.CompressWeightsMode.INT4_ASYM; "
        "made = nncf.compress_weights(model, mode=mode, group_size=int(sys.argv[3]), ratio=1.0); "
        "openvino.save_model(made, sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", code, str(model), str(out), str(group)], check=True, stdout=sys.stderr)
    return out


def _model(path: Path) -> openvino.Model:
    """A saved model; its head computes the last row only."""
    made = openvino.Core().read_model(path)
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
