"""Headless OpenGL for MuJoCo; the library is chosen before mujoco is first imported."""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

from edgeflow_client.errors import DependencyError, how_to_install

_HOW_TO_INSTALL = (
    "headless rendering needs an OpenGL library: run `apt-get install libegl1 libgl1 libgl1-mesa-dri` "
    "(or `apt-get install libosmesa6 libgl1` and set MUJOCO_GL=osmesa)"
)
_CANDIDATES = (("egl", ("libEGL.so.1", "libGL.so.1")), ("osmesa", ("libOSMesa.so", "libGL.so.1")))
_OSMESA_NAMES = ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6")


def _loadable(name: str) -> bool:
    names = _OSMESA_NAMES if "OSMesa" in name else (name,)
    for candidate in names:
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return True
    return False


def load_mujoco() -> ModuleType:
    """Import mujoco with a headless GL backend; an existing MUJOCO_GL is respected.

    Raises DependencyError when neither EGL nor OSMesa is installed.
    """
    if "MUJOCO_GL" not in os.environ:
        found = next((name for name, needs in _CANDIDATES if all(map(_loadable, needs))), None)
        if found is None:
            raise DependencyError(_HOW_TO_INSTALL)
        os.environ["MUJOCO_GL"] = found
    try:
        import mujoco
    except ImportError as error:
        raise DependencyError(f"the demo needs MuJoCo; {how_to_install('demo')}") from error
    except (AttributeError, RuntimeError) as error:
        raise DependencyError(_HOW_TO_INSTALL) from error
    return mujoco  # type: ignore[no-any-return]


def open_context(width: int, height: int) -> Any:
    """Create an off-screen GL context, current in this thread; the caller frees it with `free`."""
    load_mujoco()
    from mujoco import gl_context

    try:
        context = gl_context.GLContext(width, height)
        context.make_current()
    except (AttributeError, RuntimeError, ImportError) as error:
        raise DependencyError(_HOW_TO_INSTALL) from error
    return context
