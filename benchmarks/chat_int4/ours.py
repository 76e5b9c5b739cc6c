"""edgeflow behind a pipe: a line {"prompt": [ids], "tokens": n} in, a line of token times and tokens out.

PYTHON ours.py CHECKPOINT THREADS WEIGHTS HEAD CAPACITY      # WEIGHTS: float or int8; 4-bit checkpoints: float
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from edgeflow.openmp import limit_spinning


def main() -> None:
    """Load a checkpoint in bfloat16 and answer until the input ends."""
    limit_spinning(os.environ)  # as the worker does, before torch is loaded
    import torch

    from benchmarks.chat.systems import Ours

    checkpoint, threads, weights, head, capacity = sys.argv[1:6]
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    folder = Path(checkpoint)
    ours = Ours(folder, torch.bfloat16, int8=weights == "int8", capacity=int(capacity), head=head)
    for line in sys.stdin:
        asked = json.loads(line)
        timed = asdict(ours(asked["prompt"], asked["tokens"]))
        print(json.dumps({"times": timed["at"], "tokens": timed["tokens"]}), flush=True)


if __name__ == "__main__":
    main()
