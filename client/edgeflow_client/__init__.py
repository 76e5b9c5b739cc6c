"""edgeflow-client: the robot's side of edgeflow.

Names are imported on first use, because parts of the service that must not load gRPC also import this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeflow_client.connection.credentials import Credentials
    from edgeflow_client.errors import EdgeflowError
    from edgeflow_client.pose import Pose
    from edgeflow_client.rate import RateKeeper
    from edgeflow_client.robot import RobotClient
    from edgeflow_client.types import ActionSchema, CameraSpec, Execution, ImageFormat, Mode, StateSpec

__version__ = "0.2.0"
__all__ = [
    "ActionSchema",
    "CameraSpec",
    "Credentials",
    "EdgeflowError",
    "Execution",
    "ImageFormat",
    "Mode",
    "Pose",
    "RateKeeper",
    "RobotClient",
    "StateSpec",
]
_MODULES = {
    "Credentials": "connection.credentials",
    "EdgeflowError": "errors",
    "Pose": "pose",
    "RateKeeper": "rate",
    "RobotClient": "robot",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'types')}"), name)
