"""Options that several commands of the laboratory share. Typer reads these types at run time."""

from __future__ import annotations

from typing import Annotated, Literal, Optional

import typer

from edgeflow.contract import KVName

DEPTH_HELP = "Pipeline depth in mode depth: 1 (serial) to K (pipelined)."
TOLERANCE_HELP = (
    "In mode speculative, the distance in bins at which a draft still counts as verified, 0 to 2; 0: exact tokens only."
)
PASSES_HELP = "In mode speculative, the most passes per frame, 1 to K; 0: K, after which all tokens are verified."
AGE_HELP = "Limit on the action age in ms: mode auto plans for it, and older actions become HOLD."
Embedded = Annotated[
    Literal["tokens", "flow"],
    typer.Option(metavar="NAME", help="Embedded policy: tokens (actions as tokens) or flow (chunks by flow matching)."),
]
OptionalEmbedded = Annotated[
    Optional[Literal["tokens", "flow"]],  # noqa: UP045
    typer.Option(
        metavar="NAME",
        help="Embedded policy: tokens (actions as tokens, the default) or flow (chunks by flow matching). With "
        "--model: the kind that the model must be.",
    ),
]
ChosenKV = Annotated[
    KVName, typer.Option(metavar="NAME", help="KV format: model (the model's dtype), int8, fp8 or int4.")
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(metavar="NAME", help="auto, cpu or cuda.")]
EMBEDDED_POLICIES = {"tokens": "demo", "flow": "demo-flow"}
"""Model names of the embedded policies."""
