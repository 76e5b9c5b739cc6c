"""A policy as clients see it: its inputs and the form of its answers, a part of its entry in /v1/models."""

from __future__ import annotations

from typing import Any

from edgeflow.ipc.messages import WorkerReady


def policy_summary(worker: WorkerReady) -> dict[str, Any]:
    """The policy's cameras and state, its horizon and step. Sizes are null where any will do.

    named: false for a camera that is the robot's first one, whatever its name.
    """
    return {
        "cameras": [
            {"name": each.name, "width": each.width or None, "height": each.height or None, "named": each.named}
            for each in worker.inputs.cameras
        ],
        "state": [
            {"name": each.name, "size": each.size, "elements": list(each.elements), "units": list(each.units)}
            for each in worker.inputs.state
        ],
        "horizon": worker.schema.horizon,
        "step_ms": worker.schema.step_ms,
    }
