"""A gymnasium environment as a robot: its observations by the policy's names, its actions in the policy's numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.world.scene import load_mujoco
from edgeflow.lab.sim.names import RENDERED, NameMap, known
from edgeflow_client.errors import ConfigError, DependencyError, EdgeflowError
from edgeflow_client.types import ActionSchema

RATE_SLACK = 0.05
"""The share by which the rates of policy and environment may differ."""
Picture: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GymFrame:
    """An observation."""

    images: Mapping[str, Picture]
    """`[height, width, 3]` RGB by name of the camera."""
    state: Mapping[str, Numbers]
    """Vectors by name."""
    instruction: str
    step: int
    """Control steps since the reset."""
    seconds: float
    """Simulated time since the reset."""
    raw: Any
    """The observation as the environment gave it."""


@dataclass(frozen=True, slots=True, eq=False)
class GymStep:
    """The outcome of a control step."""

    frame: GymFrame
    reward: float
    success: bool | None
    """None = the environment has no sign of success."""
    over: bool
    """The episode ended by success, by the environment or by its limit of steps."""


class GymRobot:
    """A gymnasium environment. ConfigError and DependencyError say what it lacks.

    arguments: of the environment, over those of the names. instruction: instead of the names'.
    """

    def __init__(
        self, environment: str, names: NameMap, arguments: Mapping[str, Any], instruction: str | None = None
    ) -> None:
        self.id = environment
        self.names = names
        self.arguments = {**names.make, **arguments}
        """Those that the environment was made with."""
        self._env = _made(environment, self.arguments)
        self.instruction = instruction or names.instruction or str(getattr(self.env, "instruction", ""))
        space = self._env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"env: {environment} takes {space}; only vectors of numbers can be served")
        self.dims = space.shape[0]
        """Numbers of an action."""
        rate_hz = names.rate_hz or self._env.metadata.get("render_fps")
        if not rate_hz:
            raise ConfigError(f"names.rate_hz: {environment} states no control rate: give it")
        self.rate_hz = float(rate_hz)
        """Control steps per simulated second."""
        self._held: Numbers | None = None

    def close(self) -> None:
        self._env.close()

    def reset(self, seed: int) -> GymFrame:
        """Begin an episode."""
        self._env.action_space.seed(seed)
        with _naming(self.id, "be reset"):
            observation, _ = self._env.reset(seed=seed)
        self._steps, self._held, self._last = 0, None, np.zeros(self.dims)
        self._has_success = False
        return self._frame(observation)

    def step(self, action: Numbers | None) -> GymStep:
        """Execute an action `[dims]` in the environment's numbers; None = keep still."""
        if action is None:
            self._held = self._still() if self._held is None else self._held
            action = self._held
        else:
            self._held, self._last = None, action
        with _naming(self.id, "execute an action"):
            observation, reward, terminated, truncated, info = self._env.step(
                action.astype(self._env.action_space.dtype)
            )
        self._steps += 1
        success = self._success(info)
        over = bool(terminated or truncated or success)
        if over and not self._has_success and self.names.success:
            raise self._missing("success", "info", self.names.success, info)
        return GymStep(self._frame(observation), float(reward), success, over)

    def random_action(self) -> Numbers:
        return np.asarray(self._env.action_space.sample(), np.float64)

    def action_of(self, values: Numbers) -> Numbers:
        """A row of a policy's answer, `[dims]`, as an action of the environment."""
        taken = values if self.names.take is None else values[self.names.take]
        return np.asarray(taken * np.asarray(self.names.scale) + np.asarray(self.names.offset), np.float64)

    def check(self, schema: ActionSchema, *, lockstep: bool) -> None:
        """ConfigError unless the policy's answers can be actions of this environment.

        lockstep: a row takes a step of the environment, whatever its time.
        """
        names = self.names
        policy_hz = 1000 / schema.step_ms if schema.horizon > 1 else self.rate_hz
        if lockstep and abs(policy_hz / self.rate_hz - 1) > RATE_SLACK:
            raise ConfigError(
                f"names.rate_hz: {self.id} takes {self.rate_hz:g} steps per second, and the policy's chunks have "
                f"{policy_hz:g} rows per second: make both the rate of the training's data, by rate_hz in the names "
                "and by policy.control_rate_hz in the policy's configuration"
            )
        indices = range(len(schema.names)) if names.take is None else names.take
        wrong = [index for index in indices if not 0 <= index < len(schema.names)]
        answers = f"the policy answers {len(schema.names)} numbers: {', '.join(schema.names)}"
        if wrong:
            raise ConfigError(f"names.take: {wrong[0]} is not an index of the policy's numbers; {answers}")
        if len(indices) != self.dims:
            raise ConfigError(f"names.take: {self.id} takes {self.dims} numbers, and it gets {len(indices)}; {answers}")
        for key in ("scale", "offset"):
            given = getattr(names, key)
            if isinstance(given, list) and len(given) != self.dims:
                raise ConfigError(f"names.{key}: has {len(given)} numbers; {self.id} takes {self.dims}")

    def picture(self, frame: GymFrame) -> Picture:
        """A picture to show: of the first camera, or rendered."""
        return next(iter(frame.images.values())) if frame.images else self._rendered()

    @property
    def env(self) -> gymnasium.Env[Any, Any]:
        """The environment itself, without its wrappers."""
        return self._env.unwrapped

    def _frame(self, observation: Any) -> GymFrame:
        self._observation = observation
        images = {name: self._image(name, path) for name, path in self.names.cameras.items()}
        state = {name: self._vector(name, path) for name, path in self.names.state.items()}
        return GymFrame(
            images=images,
            state=state,
            instruction=self.instruction,
            step=self._steps,
            seconds=self._steps / self.rate_hz,
            raw=observation,
        )

    def _image(self, name: str, path: str) -> Picture:
        field = f"cameras.{name}"
        image = self._rendered() if path == RENDERED else np.asarray(self._part(field, path))
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ConfigError(
                f"names.{field}: {path!r} is {image.dtype} {list(image.shape)}; a picture is uint8 [H, W, 3]"
            )
        return np.ascontiguousarray(image[::-1, ::-1] if name in self.names.upside_down else image)

    def _vector(self, name: str, paths: str | list[str]) -> Numbers:
        field = f"state.{name}"
        parts = [np.ravel(self._part(field, path)) for path in ([paths] if isinstance(paths, str) else paths)]
        if any(part.dtype.kind not in "bfiu" for part in parts):
            raise ConfigError(f"names.{field}: {paths!r} is not a vector of numbers")
        return np.concatenate(parts, dtype=np.float64)

    def _part(self, field: str, path: str) -> Any:
        try:
            return part_of(self._observation, path)
        except (LookupError, ValueError):
            raise self._missing(field, "observation", path, self._observation) from None

    def _missing(self, key: str, what: str, path: str, given: Any) -> ConfigError:
        none = ', or "" if it has none' if key == "success" else ""
        return ConfigError(
            f"names.{key}: the {what} of {self.id} has no {path!r}; it has {_list(given)}: give one of these in the "
            f"names{none}"
        )

    def _rendered(self) -> Picture:
        with _naming(self.id, "render"):
            picture: Any = self._env.render()
        if not isinstance(picture, np.ndarray):
            raise ConfigError(f"env: {self.id} renders no picture: give --set render_mode=rgb_array")
        return picture

    def _still(self) -> Numbers:
        hold = self.names.hold
        if isinstance(hold, str):
            still = np.ravel(self._part("hold", hold)).astype(np.float64)
        else:
            numbers = hold or [None] * self.dims
            still = np.array([last if each is None else each for each, last in zip(numbers, self._last, strict=False)])
        if still.shape != (self.dims,):
            raise ConfigError(f"names.hold: has {len(still)} numbers; {self.id} takes {self.dims}")
        return still

    def _success(self, info: Mapping[str, Any]) -> bool | None:
        if not self.names.success:
            return None
        try:
            success = bool(part_of(info, self.names.success))
        except (LookupError, ValueError):
            return False
        self._has_success = True
        return success


def part_of(observation: Any, path: str) -> Any:
    """The part that a path names; LookupError or ValueError without one."""
    keys, bracket, span = path.partition("[")
    part = observation
    for key in filter(None, keys.split("/")):
        if not isinstance(part, Mapping):
            raise LookupError(key)
        part = part[key]
    if not bracket:
        return part
    first, _, end = span.removesuffix("]").partition(":")
    numbers = np.asarray(part)
    if max(int(first or 0), int(end or 0)) > len(numbers):
        raise LookupError(span)
    return numbers[int(first or 0) : int(end) if end else None]


def _list(observation: Any) -> str:
    """The paths of an observation and their shapes, as text."""
    return ", ".join(_paths(observation)) or "nothing"


def _paths(part: Any, path: str = "") -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, inner in part.items():
            yield from _paths(inner, f"{path}/{key}".lstrip("/"))
        return
    shape = getattr(part, "shape", ())
    yield f"{path or '[:]'} {list(shape)}" if shape else path or "a number"


def _made(environment: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Import the package that registers an environment, and make it."""
    entry = known(environment)
    namespace = "" if ":" in environment else environment.rpartition("/")[0]
    module = entry.registry or entry.module if entry else namespace.replace("-", "_")
    if entry and importlib.util.find_spec(entry.module) is None:
        raise DependencyError(f"env: {environment} needs {entry.package}: pip install {entry.package}")
    if entry and entry.opengl:
        load_mujoco()  # chooses the library for rendering, which is read at import
    imported = f"{module}:" if module and importlib.util.find_spec(module) is not None else ""
    with _naming(environment, "be made"):
        try:
            return gymnasium.make(imported + environment, disable_env_checker=True, **arguments)
        except gymnasium.error.UnregisteredEnv as error:
            near = [name for name in gymnasium.registry if namespace and name.startswith(f"{namespace}/")]
            there = f"; registered: {', '.join(near)}" if near else ""
            raise ConfigError(f"env: {str(error).splitlines()[0]}{there}") from None


@contextmanager
def _naming(environment: str, what: str) -> Iterator[None]:
    """Turn whatever an environment raises into a ConfigError of one line."""
    try:
        yield
    except EdgeflowError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"env: {environment} lacks its file {error.filename}: install its assets") from None
    except Exception as error:
        text = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"env: {environment} cannot {what}: {type(error).__name__}: {text:.300}") from None
