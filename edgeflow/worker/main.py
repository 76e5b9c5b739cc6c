"""The worker process, after its entry in start.py.

It owns the device, speaks edgeflow.ipc over the inherited socket, and is disposable: any failure ends it. Chat requests
arrive over sockets that control hands over (chat_link.py).
"""

from __future__ import annotations

import contextlib
import gc
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from edgeflow.config.service import ServiceConfig, load_config
from edgeflow.contract import PassTimes
from edgeflow.engine.chat.build import BuiltChat, chat_bytes, load_chat
from edgeflow.engine.control.offline import program_of
from edgeflow.engine.control.profile import Pacer, load_profile
from edgeflow.engine.control.warmup import warm_up
from edgeflow.engine.graphs import record_passes
from edgeflow.engine.placement import operators_line
from edgeflow.engine.policy import INSTRUCTION, bridged_rows
from edgeflow.ipc.channel import BlockingChannel, ChannelClosed
from edgeflow.ipc.messages import WarmupProgress, WorkerFailed, WorkerReady
from edgeflow.policies.registry import family_of, plugin_of
from edgeflow.scheduler.scheduler import Scheduler
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow.worker.calibrate import calibrate
from edgeflow.worker.chat_link import ChatLink
from edgeflow.worker.worker import Worker
from edgeflow_client.clock import MonotonicClock
from edgeflow_client.errors import EdgeflowError

if TYPE_CHECKING:
    from edgeflow.engine.control.recording import PassRecorder

SHOWN = 200  # characters of an exception of a plug-in


def main(
    fd: int, config: Path, known: PassTimes | None = None, handover: int | None = None, passes: int | None = None
) -> int:
    """Build, check and serve; returns the exit code of the process.

    fd: descriptor of the socket to control. known: pass times of an earlier worker, so that robots get actions sooner.
    handover: descriptor of the socket over which control sends sockets to chat fronts; None = no chat. passes:
    descriptor of the ring for the records of passes; None = none are recorded.
    """
    torch.set_grad_enabled(False)
    channel = BlockingChannel(socket.socket(fileno=fd))
    link = ChatLink(socket.socket(fileno=handover)) if handover is not None else None
    settings = None
    try:
        settings = load_config(config, {})
        return _serve(settings, channel, known, link, passes)
    except ChannelClosed:
        return 0
    except EdgeflowError as error:
        plugin = _plugin(settings)
        named = f" ({plugin})" if plugin and plugin not in error.text else ""
        failed = WorkerFailed(type(error).__name__, error.text + named)
    except (Exception, SystemExit) as error:
        plugin = _plugin(settings)
        if not plugin:
            raise
        traceback.print_exception(error)
        failed = WorkerFailed("CheckpointError", plugin_fault(plugin, error))
    with contextlib.suppress(ChannelClosed):
        channel.send(failed)
    return 2


def _plugin(settings: ServiceConfig | None) -> str:
    """The plug-in that brings the policy; "" for a built-in family."""
    if settings is None:
        return ""
    try:
        return plugin_of(family_of(settings.model_path, settings.policy.family).name)
    except EdgeflowError:
        return ""


def plugin_fault(plugin: str, error: BaseException) -> str:
    """An exception of a plug-in in one line, with the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = "".join(each if each.isprintable() else " " for each in str(error))[:SHOWN]
    return (
        f"policy.family: {plugin} failed: {type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"
    )


def _serve(
    config: ServiceConfig,
    channel: BlockingChannel,
    known: PassTimes | None,
    link: ChatLink | None,
    passes: int | None = None,
) -> int:
    channel.send(WarmupProgress("loading", 0, 2))
    profile = load_profile(config.profile)  # before the slow part, so that a wrong profile is reported at once
    built = build_engine(config, chat_bytes(config))

    def progress(step: str, done: int, total: int) -> None:
        channel.send(WarmupProgress(step, done, total))

    progress("warm-up", 1, 2)
    graphs = record_passes(built.engine, progress, required=config.graphs == "on")
    warm_up(built.engine, built.limits.shift, progress, rounds=built.rounds)
    chat = load_chat(config, progress, built.engine.record) if link else None
    clock = MonotonicClock()
    pacer = Pacer(profile.times_of(program_of(built.engine)), clock) if profile else None
    whole = built.engine.runs_whole and pacer is None
    if known is None or (known.whole_ns > 0) != whole:  # an earlier worker may have replayed passes
        known = calibrate(built.engine, row_budget=built.limits.row_budget, pacer=pacer, clock=clock)
    worker = Worker(
        built.engine,
        Scheduler(built.limits, whole=whole),
        clock,
        channel.send,
        default_unnorm_key=config.unnorm_key,
        pacer=pacer,
        chat=chat.loop(config.chat, clock, link.send) if chat and link else None,
        times=known,
        trajectory=config.trajectory,
        observer=_recorder(config, built, passes) if passes is not None else None,
        timed=config.trace.on or config.recording.on,
    )
    if chat:
        channel.send(chat.ready())
    gc.collect()
    gc.freeze()
    if built.engine.graphs is not None:
        built.engine.graphs.seal()
    channel.send(_ready(config, built, known, graphs, chat))
    channel.read_forever(worker.inbox.put, worker.inbox.close)
    if link:
        link.serve(worker.inbox, chat.ready() if chat else None)
    worker.run()
    channel.close()
    return 0


def _recorder(config: ServiceConfig, built: BuiltEngine, passes: int) -> PassRecorder:
    """Records the passes of this worker in the ring of a descriptor."""
    from edgeflow.engine.control.recording import PassRecorder  # needs the extra `record`
    from edgeflow.worker.facts import engine_facts
    from edgeflow_client.recording.ring import RecordRing

    return PassRecorder(RecordRing(passes), engine_facts(config, built))


def _ready(
    config: ServiceConfig, built: BuiltEngine, times: PassTimes, graphs: str, chat: BuiltChat | None
) -> WorkerReady:
    policy = built.engine.policy
    key = config.unnorm_key or policy.unnorm_keys[0]
    return WorkerReady(
        model=config.alias,
        model_fingerprint=built.model_fingerprint,
        max_sessions=built.limits.max_sessions,
        device=", ".join(filter(None, [built.device_name, graphs])),
        schema=policy.action_schema(key),
        unnorm_keys=list(policy.unnorm_keys),
        kv_bytes=built.engine.kv_bytes,
        prefill_rows=policy.fixed_rows + policy.text_rows(INSTRUCTION),
        pass_times=times,
        inputs=policy.inputs,
        programs=[policy.program(each) for each in policy.unnorm_keys],
        row_budget=built.limits.row_budget,
        operators=operators_line(config),
        memory=built.memory,
        bins=any(built.engine.near),
        continues=policy.rtc is not None,
        bridged_rows=bridged_rows(policy, policy.action_schema(key).horizon),
        family=built.family,
        plugin=plugin_of(built.family),
        warnings=[*built.remarks, *(chat.engine.model.remarks if chat else ())],
    )
