"""Graphs of an artifact in ONNX Runtime, over arrays that stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgeflow.artifacts.files import check_contents, compare_tensors
from edgeflow.artifacts.manifest import Array, Graph, Manifest, StageName, TensorSpec
from edgeflow_client.errors import CheckpointError, ConfigError, DependencyError, WorkerError, how_to_install

CPU_PROVIDER = "CPUExecutionProvider"
ERRORS = 3
"""The least severity that the library logs itself."""
EXACT = ("session.qdq_matmulnbits_accuracy_level", "1")
"""Products with weights of 8 bits take activations as they are; by default the library rounds these to 8 bits too."""
TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """How graphs run."""

    providers: tuple[str, ...] = (CPU_PROVIDER,)
    """The providers of ONNX Runtime, the preferred one first."""
    threads: int = 1
    """The threads of one graph; graphs run one at a time."""


class GraphSession:
    """A loaded graph. CheckpointError where the file is damaged, or has other tensors than its entry states;
    ConfigError for a provider that does not start."""

    def __init__(self, folder: Path, graph: Graph, runtime: Runtime) -> None:
        library, path = onnxruntime(), folder / graph.file
        self.graph = graph
        try:
            self._session = library.InferenceSession(
                str(path), session_options(runtime), providers=list(runtime.providers)
            )
        except _failures() as error:
            raise CheckpointError(
                f"model: {path} is not loaded by onnxruntime {library.__version__} ({type(error).__name__}): export "
                "the model again, or install a newer onnxruntime"
            ) from error
        check_started(runtime.providers, self._session.get_providers())
        compare_tensors(f"model: {path}", "input", _specs(self._session.get_inputs()), list(graph.inputs))
        compare_tensors(f"model: {path}", "output", _specs(self._session.get_outputs()), list(graph.outputs))

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundGraph:
        """The graph over arrays, read and written in place whenever it runs; they must be contiguous."""
        library, binding = onnxruntime(), self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, library.OrtValue.ortvalue_from_numpy(_checked(name, array)))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, library.OrtValue.ortvalue_from_numpy(_checked(name, array)))
        return BoundGraph(self._session, binding, [*inputs.values(), *outputs.values()], self.graph.file)


class BoundGraph:
    """A graph with its inputs and outputs. arrays: are kept alive."""

    def __init__(self, session: Any, binding: Any, arrays: Sequence[Array], name: str) -> None:
        self._session = session
        self._binding = binding
        self._arrays = arrays
        self._name = name

    def run(self) -> None:
        """Compute the outputs; WorkerError where the library cannot."""
        try:
            self._session.run_with_iobinding(self._binding)
        except _failures() as error:
            raise WorkerError(f"{self._name} failed in onnxruntime ({type(error).__name__})") from error


def load_sessions(folder: Path, manifest: Manifest, runtime: Runtime) -> dict[str, tuple[GraphSession, ...]]:
    """The loaded graphs `towers`, `prefills` and `steps`, in the order of `Manifest.of`.

    CheckpointError or ConfigError for a provider that is not there, and for files that the manifest does not name.
    """
    check_providers(runtime.providers)
    check_contents(folder, manifest)
    stages = {"towers": StageName.TOWERS, "prefills": StageName.PREFILL, "steps": StageName.STEP}
    return {
        name: tuple(GraphSession(folder, each, runtime) for each in manifest.of(stage))
        for name, stage in stages.items()
    }


def onnxruntime() -> Any:
    """The library; DependencyError where it is not installed."""
    try:
        import onnxruntime as library
    except ImportError:
        raise DependencyError(
            f"an exported artifact is run by onnxruntime, which is not installed; {how_to_install('onnx')}"
        ) from None
    library.disable_telemetry_events()
    return library


def available_providers() -> tuple[str, ...]:
    """Execution providers of the installed library."""
    return tuple(onnxruntime().get_available_providers())


def check_providers(asked: Sequence[str]) -> None:
    """ConfigError for a provider that the installed library does not have."""
    there = available_providers()
    for name in asked:
        if name not in there:
            raise ConfigError(f"artifact.providers: {name} is not there; possible: {', '.join(there)}")


def check_started(asked: Sequence[str], used: Sequence[str]) -> None:
    """ConfigError for a provider that the library left out, as it does where an accelerator's libraries are missing."""
    for name in asked:
        if name not in used:
            raise ConfigError(
                f"artifact.providers: {name} did not start, and onnxruntime would compute by {', '.join(used)}: "
                "install what it needs, or remove it"
            )


def session_options(runtime: Runtime) -> Any:
    """The options of every session: a graph that is served computes what it did when it was checked."""
    library = onnxruntime()
    options = library.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    options.inter_op_num_threads = 1
    options.execution_mode = library.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(*EXACT)
    return options


@lru_cache(maxsize=1)
def _failures() -> tuple[type[Exception], ...]:
    """The errors of the library, which have no base in common."""
    onnxruntime()
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = [each for each in vars(state).values() if isinstance(each, type) and issubclass(each, Exception)]
    return (*own, RuntimeError, ValueError)


def _specs(found: Sequence[Any]) -> list[TensorSpec]:
    return [
        TensorSpec(name=each.name, dtype=TYPES.get(each.type, each.type), shape=_fixed(each.shape)) for each in found
    ]


def _fixed(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape, whose free dimensions are 0."""
    return tuple(each if isinstance(each, int) else 0 for each in shape)


def _checked(name: str, array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} of shape {list(array.shape)} is not contiguous")
    return array
