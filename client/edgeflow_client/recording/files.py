"""The files of a recording: one after another, within a budget, given up and tried again when they cannot be written."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import foxglove
from foxglove.mcap import MCAPCompression, MCAPWriteOptions

from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.recording.recorder import RecorderNews, RecorderSettings

PATTERN = "edgeflow-*.mcap"
RETRY_NS = 5_000_000_000
BUFFER_BYTES = 1 << 20


class RecordingFile:
    """A file as foxglove-sdk writes to it. An error is kept, and what follows is swallowed: the SDK would log each."""

    def __init__(self, path: Path) -> None:
        """Create it for this user alone; OSError if it cannot be."""
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._status = os.fstat(self._descriptor)
        self._buffer = bytearray()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self._buffer += data
        self.bytes += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        try:
            view = memoryview(self._buffer)
            while view and self.error is None:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self.error = error
        finally:
            view.release()
        self._buffer = bytearray()

    def tell(self) -> int:
        return self.bytes

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: ARG002  # it never moves
        return self.bytes

    def close(self) -> None:
        self.flush()
        os.close(self._descriptor)

    @property
    def is_there(self) -> bool:
        """False if it was deleted."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(status, self._status)


class RecordingFiles:
    """Whatever is logged to a context goes to the current file, if there is one."""

    def __init__(
        self,
        settings: RecorderSettings,
        run: str,
        context: foxglove.Context,
        tell: Callable[[RecorderNews], None],
        clock: Clock | None = None,
    ) -> None:
        self._settings, self._run, self._context, self._tell = settings, run, context, tell
        self._clock = clock or MonotonicClock()
        self._directory = Path(settings.directory)
        self._file: RecordingFile | None = None
        self._writer: foxglove.MCAPWriter | None = None
        self._failing = False
        self._began_ns = self._retry_ns = 0

    @property
    def due(self) -> bool:
        """True if a file is to begin now."""
        return self._file is None and self._clock.now_ns() >= self._retry_ns

    def begin(self, counter: int) -> bool:
        """Begin a file; False if it cannot be, told once."""
        now = time.gmtime()
        name = f"edgeflow-{time.strftime('%Y%m%dT%H%M%S', now)}-{self._run}-{counter:04}.mcap"
        path = self._directory / name
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            self._file = RecordingFile(path)
        except OSError as error:
            self._give_up(error)
            return False
        self._writer = foxglove.open_mcap(
            self._file,  # type: ignore[arg-type]
            context=self._context,
            writer_options=MCAPWriteOptions(
                compression=MCAPCompression.Zstd, compression_level=1, compression_threads=0, disable_seeking=True
            ),
        )
        facts = {
            "format": "1",
            "source": self._settings.source,
            "run": self._run,
            "counter": str(counter),
            "cameras": self._settings.cameras,
        }
        self._writer.write_metadata("edgeflow", facts | self._settings.facts)
        self._began_ns = self._clock.now_ns()
        if not self.flush():
            return False
        if self._failing:
            self._failing = False
            self._tell(RecorderNews("recovered", f"recording again, to {path}", str(path)))
        else:
            self._tell(RecorderNews("file", f"recording to {path}", str(path)))
        return True

    def flush(self) -> bool:
        """Write what was logged; False if it is lost."""
        if self._writer is None or self._file is None:
            return False
        self._writer.flush()
        self._file.flush()
        if self._file.error is not None:
            self._give_up(self._file.error)
            return False
        if not self._file.is_there:
            self._close()
        elif (
            self._file.bytes >= self._settings.rotate_bytes
            or self._clock.now_ns() - self._began_ns >= self._settings.rotate_s * 1e9
        ):
            self.close()
        return True

    def close(self) -> None:
        """Close the file, with its index."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
        self._writer = self._file = None

    def _give_up(self, error: OSError) -> None:
        self._close()
        self._retry_ns = self._clock.now_ns() + RETRY_NS
        if not self._failing:
            self._failing = True
            text = error.strerror or str(error)
            self._tell(RecorderNews("failing", f"cannot record to {self._directory}: {text}", str(self._directory)))

    def _make_room(self) -> None:
        """Delete the oldest files until the directory is within its budget."""
        files = sorted(self._directory.glob(PATTERN))
        size = sum(path.stat().st_size for path in files)
        while files and size > self._settings.budget_bytes - self._settings.rotate_bytes:
            oldest = files.pop(0)
            with contextlib.suppress(FileNotFoundError):
                size -= oldest.stat().st_size
                oldest.unlink()
                self._tell(RecorderNews("deleted", f"deleted {oldest}: the recordings' budget is spent", str(oldest)))
