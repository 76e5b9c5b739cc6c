"""The passes of chat that are recorded at the start."""

from __future__ import annotations

from dataclasses import replace

from edgeflow.engine.sampling.sample import GREEDY, SamplingKind
from edgeflow.engine.shapes import PassShape, ShapeClasses


def recorded_shapes(classes: ShapeClasses, recommended: SamplingKind, *, gated: bool) -> list[PassShape]:
    """Chunks, whose last row is sampled apart; decode rows and verifications: greedy, as recommended, and apart.

    Passes of every token come first, since those beyond the most recordings are run as they are. recommended: how the
    checkpoint recommends to sample. gated: also with rows that read the memory of their slot.
    """
    kinds = dict.fromkeys((GREEDY, recommended, None))
    shapes = classes.all([(0, GREEDY), *((1, kind) for kind in kinds)])
    needed = [each for each in shapes if not each.prefills or each.sampling is None or not any(each.samples)]
    both = [*needed, *(replace(each, gated=(True,)) for each in needed)] if gated else needed
    return sorted(both, key=lambda shape: bool(shape.prefills))
