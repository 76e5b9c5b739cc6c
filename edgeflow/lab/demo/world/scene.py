"""The MuJoCo world of table, handles and arm: loading, placing and rendering it, without a display."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.world.layout import COLOURS, HANDLES, Handle
from edgeflow_client.errors import DependencyError, how_to_install
from edgeflow_client.pose import Vector

Image = NDArray[np.uint8]

POLICY_CAMERA: Final = "wrist"
POLICY_SIZE: Final = 96
_BUFFER: Final = (640, 480)  # width and height of the off-screen buffer of assets/scene.xml
_MAX_GEOMS = 200
_HOW_TO_INSTALL = (
    "headless rendering needs an OpenGL library: run `apt-get install libegl1 libgl1 libgl1-mesa-dri` "
    "(or `apt-get install libosmesa6 libgl1` and set MUJOCO_GL=osmesa)"
)
_CANDIDATES = (("egl", ("libEGL.so.1", "libGL.so.1")), ("osmesa", ("libOSMesa.so", "libGL.so.1")))
_OSMESA_NAMES = ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6")


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The state that a picture shows: joint positions, and position and orientation of every handle and post."""

    joints: Vector
    positions: Vector
    quaternions: Vector


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Spectator:
    """A camera beside the table."""

    target: Vector
    """The point in the middle of its picture, `[3]`, metres."""
    distance: float
    """Distance to that point in metres."""
    azimuth: float
    elevation: float
    """Both in degrees."""
    size: tuple[int, int]
    """Width and height of the picture, at most _BUFFER."""
    ball: tuple[Vector, float, tuple[float, float, float, float]]
    """A translucent ball in the scene: centre and radius in metres, and red, green, blue, opacity."""


class Scene:
    """One MuJoCo model and its state. It cannot be shared between threads: the GL context belongs to one."""

    def __init__(self) -> None:
        self.mujoco = load_mujoco()
        source = files("edgeflow.lab.demo").joinpath("assets").joinpath("scene.xml").read_text(encoding="utf-8")
        self.model: Any = self.mujoco.MjModel.from_xml_string(source)
        self.data: Any = self.mujoco.MjData(self.model)
        self._shown: Any = self.mujoco.MjData(self.model)
        self._posts = [self._mocap(f"post{i}") for i in range(HANDLES)]
        self._handles = [self._mocap(f"handle{i}") for i in range(len(self._posts))]
        self._plates = [self.model.geom(f"plate{i}").id for i in range(len(self._posts))]
        self._camera_view = CameraView(self.mujoco, self.model)

    def _mocap(self, name: str) -> int:
        return int(self.model.body(name).mocapid[0])

    def paint(self, handles: Sequence[Handle]) -> None:
        """Give the plates the colours of these handles."""
        for plate, handle in zip(self._plates, handles, strict=True):
            self.model.geom_rgba[plate, :3] = COLOURS[handle.colour]

    def place(self, handles: Sequence[Handle], time: float) -> None:
        """Put handles and posts where they are at `time` seconds of the episode."""
        for post, mocap, handle in zip(self._posts, self._handles, handles, strict=True):
            pose = handle.pose(time)
            self.data.mocap_pos[post] = pose.position
            self.data.mocap_pos[mocap] = pose.position
            self.data.mocap_quat[mocap] = pose.wxyz

    def moment(self) -> Moment:
        """A copy of the current state."""
        data = self.data
        return Moment(data.qpos.copy(), data.mocap_pos.copy(), data.mocap_quat.copy())

    def picture(self, moment: Moment, spectator: Spectator | None = None, side: int = POLICY_SIZE) -> Image:
        """A picture of a moment in the current colours of the plates, RGB: the wrist camera's frame `[side, side, 3]`,
        or the spectator's view.

        side: at most the height of _BUFFER.
        """
        shown = self._shown
        shown.qpos, shown.mocap_pos, shown.mocap_quat = moment.joints, moment.positions, moment.quaternions
        self.mujoco.mj_kinematics(self.model, shown)
        self.mujoco.mj_camlight(self.model, shown)
        return self._camera_view.picture(shown, spectator, side)

    def close(self) -> None:
        """Free the GL context; the scene cannot be rendered afterwards."""
        self._camera_view.close()


class CameraView:
    """Off-screen renderer of one model, without shadows, bit-equal for equal states."""

    def __init__(self, mujoco: Any, model: Any) -> None:
        self._mujoco, self._model = mujoco, model
        self._gl = open_context(*_BUFFER)
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(POLICY_CAMERA).id

    def picture(self, data: Any, spectator: Spectator | None = None, side: int = POLICY_SIZE) -> Image:
        mujoco = self._mujoco
        self._gl.make_current()
        camera = self._camera if spectator is None else _outside(mujoco, spectator)
        mujoco.mjv_updateScene(
            self._model, data, self._option, self._perturb, camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        if spectator is not None:
            _add_ball(mujoco, self._scene, spectator)
        width, height = (side, side) if spectator is None else spectator.size
        viewport = mujoco.MjrRect(0, 0, width, height)
        upside_down = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_render(viewport, self._scene, self._context)
        mujoco.mjr_readPixels(upside_down, None, viewport, self._context)
        return np.ascontiguousarray(upside_down[::-1])

    def close(self) -> None:
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._context = None
            self._gl.free()


def _outside(mujoco: Any, spectator: Spectator) -> Any:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = spectator.target
    camera.distance, camera.azimuth, camera.elevation = spectator.distance, spectator.azimuth, spectator.elevation
    return camera


def _add_ball(mujoco: Any, scene: Any, spectator: Spectator) -> None:
    centre, radius, colour = spectator.ball
    mujoco.mjv_initGeom(
        scene.geoms[scene.ngeom],
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=np.full(3, radius),
        pos=np.asarray(centre, np.float64),
        mat=np.eye(3).ravel(),
        rgba=np.array(colour, np.float32),
    )
    scene.ngeom += 1


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
