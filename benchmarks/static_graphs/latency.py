"""Milliseconds of prefills and denoising steps at SmolVLA-450M's sizes: static graphs beside the engine, on this CPU.

    .venv/bin/python -m benchmarks.static_graphs.latency --json FILE

In the form of EdgeFM's Tables 9 and 10, whose figures (INT16 on a Journey 6M) stand beside. Random weights; graphs of
float32 by ONNX Runtime, and the engine's packed pass by torch in float32 and in bfloat16. All take turns in every
round. Idle threads of ONNX Runtime sleep, those of torch spin as briefly as in the service. A tick is what a pipelined
robot needs at every frame: the engine packs it into one pass, and graphs take a prefill and one step of a batch.

cpu: processor time of all threads, which says more than the time that passed where other programs run. floor: the
least time for the FLOPs and bytes, at the rates that a product and a copy reach by torch in this run. A graph's masks
and positions are made beforehand, the engine's in its pass. Exit code 1 where both sides compute something else.
"""

from __future__ import annotations

import os
import sys

from edgeflow.openmp import limit_spinning


def main() -> int:
    """Limit how long torch's threads spin, which takes effect before torch is loaded, and measure."""
    limit_spinning(os.environ)
    from benchmarks.static_graphs.latency_rounds import measure

    return measure(__doc__)


if __name__ == "__main__":
    sys.exit(main())
