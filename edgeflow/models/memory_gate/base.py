"""The fingerprint by which a gate knows its base."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgeflow.text.weight_files import find_weights
from edgeflow_client.errors import CheckpointError

SAMPLES = 64
SAMPLE_BYTES = 1 << 14


def base_fingerprint(directory: Path) -> str:
    """SHA-256 over sizes and samples of a checkpoint's weights files; CheckpointError where one cannot be read.

    A gate fits the weights, so other files do not count: those of the gate may lie beside them, and a changed chat
    template does no harm. The samples are spread evenly over each file, because models that were trained further often
    share their first tensors. A file of up to SAMPLES * SAMPLE_BYTES counts whole.
    """
    digest = hashlib.sha256()
    for file in find_weights(directory).paths:
        try:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode())
            step = max(SAMPLE_BYTES, (size - SAMPLE_BYTES) // (SAMPLES - 1))
            with file.open("rb") as stream:
                for start in range(0, size, step):
                    stream.seek(start)
                    digest.update(stream.read(SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(f"{file} is unreadable: copy the checkpoint again") from error
    return digest.hexdigest()
