"""Commands that read recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from edgeflow.commands.options import (
    Json,
    OptionalPath,
    OptionalText,
    Settings,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    number,
    overrides_of,
)
from edgeflow.lab.commands.options import Device

TOLERANCE = 1e-4
Recorded = Annotated[Path, typer.Argument(help="File of a recording, or a folder of recordings.")]
Run = Annotated[
    str, typer.Option(help="In a folder, the run to read, such as 1f2e3d4c; default: the one written last.")
]
Sessions = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--session", metavar="N", help="Session to take, as `info` lists it; default: all. Repeatable."),
]
Tolerance = Annotated[float, number("Largest difference that counts as equal, in the unit of each dimension.", 0)]


def recording_info(path: Recorded, run: Run = "", as_json: Json = False) -> None:
    """Show what is in a recording.

    When and how long, by which versions and model, its sessions with their frames, answers and HOLDs, and what is lost
    or damaged.
    """
    from edgeflow.lab.recordings.command import info_command

    info_command(path, run, as_json)


def recording_replay(
    path: Recorded,
    to: Annotated[OptionalText, typer.Option(metavar="HOST:PORT", help="gRPC address of a service.")] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Instead, run the recorded passes in this process and compare every bit.")
    ] = False,
    model: Annotated[
        OptionalText, typer.Option(help="With --exact, the place of the checkpoint, if not where it was.")
    ] = None,
    rate: Annotated[
        str,
        typer.Option(help="recorded; full: each frame once the one before it is answered; or a factor, such as 2."),
    ] = "recorded",
    run: Run = "",
    sessions: Sessions = None,
    tolerance: Tolerance = TOLERANCE,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Replay a recording, and show where answers part.

    Sessions are opened with their recorded
    contracts, side by side as they were, and get the recorded frames with their stamps.

    --exact needs no service: the engine runs the recorded passes, on this machine, with the recorded model. On a
    machine like the recorded one every action must be the same bit for bit; on another the report says what differs,
    and actions are compared by tolerance.

    Exits with code 1 if answers to the same frame differ by more than the tolerance, or a session was ended early.
    """
    from edgeflow.lab.recordings.command import RECORDED, exact_command, replay_command, speed_of
    from edgeflow.lab.recordings.replay import ReplayPlan
    from edgeflow_client.connection.credentials import Credentials, check_address
    from edgeflow_client.errors import ConfigError

    if (to is None) is not exact:
        raise ConfigError("to: give --to HOST:PORT, the address of a service, or --exact")
    if to is None:
        ignored = {
            "rate": rate != RECORDED,
            "session": sessions,
            "tolerance": tolerance != TOLERANCE,
            "tls-ca": tls_ca,
            "tls-cert": tls_cert,
            "tls-key": tls_key,
            "token-file": token_file,
        }
        if named := [name for name, given in ignored.items() if given]:
            raise ConfigError(f"{named[0]}: is for --to; --exact runs every recorded pass, so leave it out")
        raise typer.Exit(exact_command(path, run, model, as_json))
    if model is not None:
        raise ConfigError("model: is for --exact; a service has its own")
    check_address(to)
    credentials = Credentials.of(tls_ca, tls_cert, tls_key, token_file)
    plan = ReplayPlan(address=to, speed=speed_of(rate), tolerance=tolerance, credentials=credentials)
    raise typer.Exit(replay_command(path, plan, run=run, chosen=sessions or [], as_json=as_json))


def recording_compare(
    path: Recorded,
    models: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--model", help="Checkpoint directory, hub id, demo or demo-flow. Give it twice."),
    ] = None,
    given: Settings = [],  # noqa: B006 - typer reads it
    device: Device = "auto",
    every: Annotated[int, number("Take every N-th frame.", 1)] = 1,
    run: Run = "",
    sessions: Sessions = None,
    tolerance: Tolerance = TOLERANCE,
    plot: Annotated[
        OptionalPath, typer.Option(metavar="FILE", help="Write a plot of both models' actions (PNG).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run two models on the frames of a recording.

    It shows where their actions part, and by how much. Both answer the recorded frames in this process, one frame at a
    time and with the recorded stamps, so that noise is the same. --set applies to both.
    """
    from edgeflow.lab.recordings.command import compare_command
    from edgeflow.lab.recordings.compare import ComparePlan

    if plot is not None:
        import matplotlib  # noqa: F401 - missing? say so before anything is computed
    plan = ComparePlan(
        models=tuple(models or ()),
        settings=overrides_of(given, {"device": device}),
        every=every,
        tolerance=tolerance,
    )
    compare_command(path, plan, run=run, chosen=sessions or [], plot=plot, as_json=as_json)


def recording_export(
    path: Recorded,
    out: Annotated[Path, typer.Argument(help="Folder to write the dataset to; it must not exist.")],
    fps: Annotated[
        Optional[int],  # noqa: UP045
        number("Frames per second of the dataset; default: the recorded rate, to the nearest whole number.", 1, 1000),
    ] = None,
    video: Annotated[bool, typer.Option("--video", help="Write videos (mp4) instead of images (PNG).")] = False,
    run: Run = "",
    sessions: Sessions = None,
    as_json: Json = False,
) -> None:
    """Export a recording as a LeRobot dataset.

    An epoch becomes an episode at a fixed rate: per frame the newest observation, and the action that was executed or
    commanded at its time. Frames without an action are left out, and a pause of a second begins another episode.
    """
    from edgeflow.lab.recordings.command import export_command

    export_command(path, run, out, fps=fps, video=video, chosen=sessions or [], as_json=as_json)
