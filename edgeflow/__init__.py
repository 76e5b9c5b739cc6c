"""edgeflow: a robot-control inference service.

Names are imported on first use: neither `import edgeflow` nor the processes of the service load torch by it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from edgeflow.version import __version__ as __version__

if TYPE_CHECKING:
    from edgeflow.contract import Chunk
    from edgeflow.in_process.chat import LocalChat
    from edgeflow.in_process.load import load, load_chat
    from edgeflow.in_process.policy import LocalPolicy

__all__ = ["Chunk", "LocalChat", "LocalPolicy", "load", "load_chat"]
_MODULES = {
    "Chunk": "contract",
    "LocalChat": "in_process.chat",
    "LocalPolicy": "in_process.policy",
    "load": "in_process.load",
    "load_chat": "in_process.load",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
