"""The files of a recording: one after another, within a budget, given up and tried again if they cannot be written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import foxglove
from foxglove.mcap import MCAPCompression, MCAPWriteOptions

from edgeflow_client.clock import Clock, MonotonicClock
from edgeflow_client.files import open_regular
from edgeflow_client.recording.recorder import RecorderSettings
from edgeflow_client.recording.records import FACTS, FORMAT
from edgeflow_client.recording.runs import file_name, recorded_files
from edgeflow_client.recording.supervision import RecorderNews

RETRY_NS = 5_000_000_000
ROOM_NS = 2_000_000_000  # between looks at the directory
BUFFER_BYTES = 1 << 20
LEAST_FILES = 4  # within the budget, so that deleting one leaves most of it


class RecordingFile:
    """A file as foxglove-sdk writes to it, locked until it is closed. The first error is kept, and what follows is
    discarded.

    If a write raised, the SDK would log every later message as an error.
    """

    def __init__(self, path: Path) -> None:
        """Create it with mode 0600; OSError if that fails."""
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._status = os.fstat(self._descriptor)
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._buffer = bytearray()
        self.bytes = self.whole_bytes = 0  # taken; taken when all of them were whole records, and written
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Take bytes, and write them once there are BUFFER_BYTES."""
        self._buffer += data
        self.bytes += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write what was taken."""
        data, self._buffer = bytes(self._buffer), bytearray()
        while data and self.error is None:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self.error = error

    def tell(self) -> int:
        """Bytes that were taken."""
        return self.bytes

    def seek(self, *_: int) -> int:
        """Stay: without seeking, the SDK asks only where it is."""
        return self.bytes

    def close(self) -> None:
        """Write what was taken and close it. After an error, cut off what may be half a record."""
        self.flush()
        if self.error is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.whole_bytes)
        try:
            os.close(self._descriptor)
        except OSError as error:  # network file systems tell some errors only now
            self.error = self.error or error

    @property
    def exists(self) -> bool:
        """False if it was deleted or replaced."""
        try:
            return os.path.samestat(self.path.stat(), self._status)
        except OSError:
            return False


class RecordingFiles:
    """Writes whatever is logged to a context, while there is a file."""

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
        self._rotate_bytes = min(settings.rotate_bytes, settings.budget_bytes // LEAST_FILES)
        self._file: RecordingFile | None = None
        self._writer: foxglove.MCAPWriter | None = None
        self._failing = False
        self._began_ns = self._room_ns = 0
        self._retry_ns = self._clock.now_ns()

    @property
    def due(self) -> bool:
        """True if a file should begin now."""
        return self._file is None and self._clock.now_ns() >= self._retry_ns

    def begin(self, counter: int) -> bool:
        """Begin a file; False if that fails, which is reported once."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            self._file = RecordingFile(self._directory / file_name(self._run, counter))
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return False
        self._writer = foxglove.open_mcap(
            self._file,  # type: ignore[arg-type]
            context=self._context,
            writer_options=MCAPWriteOptions(
                compression=MCAPCompression.Zstd,
                compression_level=1,  # images hardly compress, whatever the level
                compression_threads=0,  # the worker needs the processors
                disable_seeking=True,  # a killed writer leaves whole chunks
                calculate_data_section_crc=False,  # chunks have theirs
            ),
        )
        settings = self._settings
        facts = {"format": FORMAT, "source": settings.source, "run": self._run, "counter": str(counter)}
        self._writer.write_metadata(FACTS, {**settings.facts, **facts, "cameras": settings.cameras})
        self._began_ns = self._clock.now_ns()
        path = self._file.path
        if not self._write():
            with contextlib.suppress(OSError):
                path.unlink()  # nothing is in it, and there may be many tries
            return False
        kind, text = ("recovered", f"recording again, to {path}") if self._failing else ("file", f"recording to {path}")
        self._failing = False
        self._tell(RecorderNews(kind, text, str(path)))
        return True

    def flush(self) -> bool:
        """Write what was logged since the last time; False if that is lost. Closes a file that is due to be."""
        before = 0 if self._file is None else self._file.whole_bytes
        if not self._write() or self._file is None:
            return False
        now_ns, idle = self._clock.now_ns(), self._file.bytes == before
        old = now_ns - self._began_ns >= self._settings.rotate_s * 1e9
        if self._file.bytes >= self._rotate_bytes or (old and not idle):
            self.close()
        elif now_ns - self._room_ns >= ROOM_NS:
            try:
                self._make_room()
            except OSError as error:
                self._give_up(error.strerror or str(error))
        return True

    def close(self) -> None:
        """Close the file, with its index."""
        if self._writer is None or self._file is None:
            return
        file, writer = self._file, self._writer
        self._file = self._writer = None
        writer.close()
        file.close()
        if file.error is not None:
            self._give_up(file.error.strerror or str(file.error))

    def _write(self) -> bool:
        """Write what was logged; False if that fails, and the file is given up."""
        if self._writer is None or self._file is None:
            return False
        self._writer.flush()
        self._file.flush()
        if self._file.error is not None:
            self._give_up(self._file.error.strerror or str(self._file.error))
            return False
        self._file.whole_bytes = self._file.bytes
        if not self._file.exists:
            self._give_up(f"{self._file.path.name} was deleted", wait_ns=0)
            return False
        return True

    def _give_up(self, reason: str, wait_ns: int = RETRY_NS) -> None:
        self._retry_ns = self._clock.now_ns() + wait_ns
        if not self._failing:
            self._failing = True
            directory = str(self._directory)
            self._tell(RecorderNews("failing", f"cannot record to {directory}: {reason}; records are lost", directory))
        self.close()

    def _make_room(self) -> None:
        """Delete the oldest files until budget and free space are kept; OSError if the space cannot be.

        Files that other recorders write stay, and so does all that cannot be deleted.
        """
        self._room_ns = self._clock.now_ns()
        least = self._settings.least_free_bytes
        paths = recorded_files(self._directory)
        own = self._file.path.name if self._file is not None else ""
        others = [(path, size) for path in paths if path.name != own and (size := _size(path)) is not None]
        total = (self._file.bytes if self._file is not None else 0) + sum(size for _, size in others)
        for path, size in others:
            if total <= self._settings.budget_bytes and self._free_bytes() >= least:
                return
            if not _is_written(path):
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= size
                    self._tell(
                        RecorderNews("deleted", f"deleted {path}, the oldest recording, to make room", str(path))
                    )
        if self._free_bytes() < least:
            raise OSError(errno.ENOSPC, f"less than {least / 1e9:.1f} GB are free on its disk")

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize


def _size(path: Path) -> int | None:
    """The bytes of a file; None for anything else, a link among it."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None


def _is_written(path: Path) -> bool:
    """True if a recorder has this file open."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
