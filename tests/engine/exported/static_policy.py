"""The tiny flow policy served by graphs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from edgeflow.artifacts.manifest import StageName
from edgeflow.artifacts.sessions import GraphSession, Runtime
from edgeflow.engine.exported.flow import Bucket, FlowGraphs
from edgeflow.engine.flow.policy import FlowStages
from edgeflow.lab.export.graphs.flow import FlowExport, flow_program
from edgeflow.lab.export.graphs.static import static_table
from tests.artifacts.exported import write_program
from tests.engine.flow.tiny_flow import PATCHES, SHAPES, SIDE, STATE, TinyFlowPolicy

TEXT = (3, 6)
BATCHES = (1, 4)


class StaticFlowPolicy(TinyFlowPolicy):
    """edgeflow.engine.flow.policy.FlowPolicy of graphs."""

    def __init__(self, name: str) -> None:
        super().__init__(SHAPES[name])
        self._graphs = graphs_of(name)

    def stages(self, slots: int, capacity: int) -> FlowStages:
        return self._graphs.stages(self.sizes, slots, capacity)


@lru_cache
def graphs_of(name: str) -> FlowGraphs:
    """The graphs of a shape, written once."""
    sizes, folder = SHAPES[name].sizes, Path(mkdtemp(prefix="edgeflow-"))
    export = FlowExport(
        network=TinyFlowPolicy(SHAPES[name], table=static_table()).network,
        sizes=sizes,
        images=2,
        side=SIDE,
        state=STATE,
        image_rows=PATCHES,
        text=TEXT,
        batches=BATCHES,
    )
    manifest = write_program(folder, flow_program(export))
    sessions = {
        stage: tuple(GraphSession(folder, each, Runtime()) for each in manifest.of(stage)) for stage in StageName
    }
    return FlowGraphs(
        kv=manifest.kv,
        buckets=tuple(Bucket(images=2, image_rows=PATCHES, text=text, closing=sizes.closing) for text in TEXT),
        towers=sessions[StageName.TOWERS],
        prefills=sessions[StageName.PREFILL],
        steps=sessions[StageName.STEP],
    )
