"""Writing a trained memory gate."""

from __future__ import annotations

import json
from pathlib import Path

from edgeflow.lab.outputs import write_tensors
from edgeflow.models.memory_gate import (
    DIGEST,
    FORMAT,
    JSON_FILE,
    MLP_ACTIVATION,
    TENSOR_FILE,
    VERSION,
    MemoryGate,
    tensor_name,
)
from edgeflow_client.files import sha256_of


def write_gate(folder: Path, gate: MemoryGate) -> None:
    """Write gate.json and gate.safetensors, the tensors first; each file is either new or unchanged.

    Between the two writes the folder holds new tensors with old rules, which the digest reveals when they are read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        tensor_name(index, part): tensor.detach().cpu()
        for index, layer in enumerate(gate.layers)
        for part, tensor in layer.tensors().items()
    }
    write_tensors(folder / TENSOR_FILE, tensors, {"format": "pt"})
    values = {"format": FORMAT, "version": VERSION, "gate_file": TENSOR_FILE, **gate.rules.to_json()}
    values[DIGEST] = sha256_of(folder / TENSOR_FILE)
    values |= {"mlp_hidden": gate.mlp_hidden, "mlp_activation": MLP_ACTIVATION}
    if gate.base_fingerprint:
        values["base_fingerprint"] = gate.base_fingerprint
    draft = folder / f"{JSON_FILE}.partial"
    draft.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / JSON_FILE)
