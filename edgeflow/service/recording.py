"""Recording a service: the observer of sessions, the memory for records of passes, the process that writes both, its
news.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from edgeflow.config.sections import RecordingConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.pass_records import PASS_TOPIC, pass_schema
from edgeflow.service.host.listen import bind
from edgeflow.service.host.preflight import check_recording
from edgeflow.service.observe.log import EventLog
from edgeflow.service.sessions.observers import Metrics
from edgeflow.service.sessions.recording import SessionRecorder
from edgeflow.version import __version__
from edgeflow_client.errors import ConfigError, StartError
from edgeflow_client.recording.recorder import Recorder, RecorderSettings, wall_clock
from edgeflow_client.recording.records import TOPIC, session_schema
from edgeflow_client.recording.supervision import RecorderNews

STOP_S = 2.0  # for what is not written yet
IMAGES = {"none": "no images", "thumbnails": "thumbnails of the images", "all": "all images as they came"}


class ServiceRecording:
    """Records what robots send and receive, and the passes of all workers. Its `observer` belongs to the sessions.

    Made before anything slow starts: DependencyError without the extra `record`, ConfigError for a directory that
    cannot be written, AddressError for a port that is in use.
    """

    def __init__(self, config: ServiceConfig, metrics: Metrics, log: EventLog) -> None:
        check_recording(config.recording)
        self._config = config.recording
        self._metrics = metrics
        self._log = log
        self._address = f"ws://127.0.0.1:{self._config.live_port}" if self._config.live_port else ""
        if self._config.live_port:
            bind("recording.live_port", "127.0.0.1", self._config.live_port).close()  # is it free?
        schemas = {TOPIC: session_schema(), PASS_TOPIC: pass_schema()}
        try:
            self._recorder = Recorder(_settings(config), schemas, self._take)
        except ConfigError as error:
            raise ConfigError(f"recording.directory: {error}") from None
        except OSError as error:
            raise StartError(f"recording: no memory for records that are not written yet: {error.strerror}") from None
        self.observer = SessionRecorder(
            self._recorder.ring(TOPIC),
            model=config.alias,
            cameras=self._config.cameras,
            wall=wall_clock(self._recorder.ring(TOPIC)),
            log=log,
        )

    @property
    def passes(self) -> int:
        """Descriptor of the ring for the records of passes, which one worker after the other writes."""
        return self._recorder.ring(PASS_TOPIC).descriptor

    @property
    def summary(self) -> str:
        """Where records go, what they hold and when they are deleted, in one line."""
        where, config = [], self._config
        if config.directory:
            kept = f"the oldest are deleted beyond {config.budget_gib:g} GiB"
            where.append(f"to {Path(config.directory).expanduser().absolute()}, where {kept}")
        if config.live_port is not None:
            where.append(f"live for Foxglove on {self._address or 'a free port of 127.0.0.1'}")
        return f"{' and '.join(where)}: instructions, states, actions, {IMAGES[config.cameras]}"

    def start(self) -> None:
        """Start the process that writes."""
        self._metrics.watch(
            "recording_records_lost", "Records not written for lack of room in memory or on disk.", lambda: self.lost
        )
        self._log.event("recording", text=self.summary)
        self._recorder.start()

    @property
    def lost(self) -> int:
        """Records that were not written."""
        return self._recorder.lost

    async def stop(self) -> None:
        """Write what is left and end the process."""
        self.observer.write()
        await asyncio.to_thread(self._recorder.stop, STOP_S)

    def _take(self, news: RecorderNews) -> None:
        """Log and count a message of the recorder. Its thread calls this."""
        event, metrics, text = self._log.event, self._metrics, news.text
        match news.kind:
            case "file":
                metrics.recording_files.inc()
                event("recording_file", path=news.path)
            case "deleted":
                event("recording_deleted", path=news.path, text=text)
            case "failing":
                metrics.recording_failing.set(1)
                event("recording_failing", path=news.path, text=text)
            case "recovered":
                metrics.recording_failing.set(0)
                event("recording_recovered", path=news.path)
            case "lost":
                event("recording_lost", text=text)
            case "restarted":
                metrics.recorder_restarts.inc()
                event("recorder_restarted", text=text)
            case "live":
                self._address = news.path
                event("recording_live", address=news.path)


def _settings(config: ServiceConfig) -> RecorderSettings:
    recording: RecordingConfig = config.recording
    return RecorderSettings(
        directory=str(Path(recording.directory).expanduser()) if recording.directory else "",
        live_port=recording.live_port,
        cameras=recording.cameras,
        source="service",
        facts={"edgeflow": __version__, "model": config.alias},
        budget_bytes=round(recording.budget_gib * (1 << 30)),
        rotate_bytes=recording.file_mib << 20,
        rotate_s=recording.file_minutes * 60,
    )
