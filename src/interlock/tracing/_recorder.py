"""From reports to a file: the thread that reports only appends, one thread of our own formats and writes."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, final

from interlock._core import _spans
from interlock._waiting import wait
from interlock.errors import InterlockError, SinkError, UsageError
from interlock.tracing._format import Formatter

if TYPE_CHECKING:
    from pathlib import Path

    from interlock._core._spans import Report

_PAUSE_S = 0.02
"""Devices are asked for what is due as often as that, off everybody's hot path."""
_MOST_TEXT_CHARACTERS = 1 << 20
_MOST_WAITING = 1 << 16
_MANY_WAITING = 1 << 12


@final
class Recorder:
    """Writes reports to a temporary file beside `path`, and renames it when it is whole.

    Args:
        path: The file.
        most_spans: Reports after so many are counted and left out.

    Attributes:
        dropped: Reports that were left out.
    """

    def __init__(self, path: Path, most_spans: int) -> None:
        self.dropped = 0
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._left = most_spans
        self._pid = os.getpid()
        self._origin_ns = time.perf_counter_ns()
        self._formatter = Formatter(self._origin_ns)
        self._waiting: deque[tuple[Report, threading.Thread]] = deque()
        self._wake = threading.Event()
        self._asking = threading.Lock()
        self._stopped = False
        self._failure: Exception | None = None
        self._file = self._open()
        self._text: list[str] = ['{"displayTimeUnit": "ms", "traceEvents": [']
        self._text_characters = 0
        self._thread = threading.Thread(target=self._run, name="interlock-trace", daemon=True)
        self._thread.start()
        self._unlisten = _spans.listen(self._hear)

    def _open(self) -> IO[bytes]:
        """Open the file, without a buffer: `_text` is one, and a child made by fork has no other to write again."""
        try:
            if self._path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return self._temporary.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(
                f"the trace {str(self._path)!r} cannot be written",
                why=f"{error.strerror or error}",
                hint="give the path of a file, in a folder that is there and may be written to",
            ) from error

    def _hear(self, what: Report) -> None:
        """Take a report. Called on any thread; appends and does nothing else."""
        if len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append((what, threading.current_thread()))
        if len(self._waiting) == _MANY_WAITING:
            self._wake.set()

    def stop(self, *, timeout_s: float) -> None:
        """End the recording and make the file whole.

        Args:
            timeout_s: How long to wait for work that was marked on devices.

        Raises:
            SinkError: It could not be written.

        Blocks: until what was marked on devices is done, at most `timeout_s`, and until all is written.
        """
        if os.getpid() != self._pid:  # a child made by fork: the file is its parent's
            self._unlisten()
            return
        try:
            self._settle(timeout_s)
        finally:  # an interrupt while it waits, too
            self._unlisten()
            self._stopped = True
            self._wake.set()
            self._thread.join()
            self._end()

    def _end(self) -> None:
        """Make the file whole, or remove it and say why."""
        if self._failure is None:
            try:
                self._finish()
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            with suppress(OSError):
                self._file.close()
            self._temporary.unlink(missing_ok=True)
            why = f"{getattr(self._failure, 'strerror', None) or self._failure}"
            raise SinkError(f"the trace {str(self._path)!r} could not be written", why=why) from self._failure

    def _settle(self, timeout_s: float) -> None:
        """Wait for marked work, so that its spans are in the file."""
        self._ask()
        for device in _spans.expected():
            with suppress(InterlockError):  # a lost device: its spans are missing, the others are there
                wait(device.unreported(), timeout_s=timeout_s, what="what the trace marked")
        self._ask()

    def _run(self) -> None:
        try:
            self._record()
        except Exception as error:  # noqa: BLE001 - whatever it is, the end of the block must say it
            self._failure = error

    def _record(self) -> None:
        separator = "\n"
        for event in self._formatter.begin():
            separator = self._add(separator, event)
        stopped = False
        while not stopped:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            stopped = self._stopped
            if not stopped:
                self._ask()
            for _ in range(len(self._waiting)):
                what, thread = self._waiting.popleft()
                if self._left <= 0:
                    self.dropped += 1
                    continue
                self._left -= 1
                for event in self._formatter.events(what, thread):
                    separator = self._add(separator, event)
            self._write()

    def _ask(self) -> None:
        with self._asking:  # so that nobody thinks a span reported that another thread is just about to report
            for device in _spans.expected():
                with suppress(InterlockError):  # a lost device
                    device.report_due()

    def _add(self, separator: str, event: dict[str, Any]) -> str:
        text = separator + json.dumps(event, separators=(",", ":"))
        self._text.append(text)
        self._text_characters += len(text)
        if self._text_characters >= _MOST_TEXT_CHARACTERS:
            self._write()
        return ",\n"

    def _write(self) -> None:
        left = memoryview("".join(self._text).encode())
        self._text, self._text_characters = [], 0
        while left:
            left = left[self._file.write(left) :]

    def _finish(self) -> None:
        data = {"made by": "interlock", "clock": "time.perf_counter_ns from the start", "spans left out": self.dropped}
        self._text.append(f'\n], "otherData": {json.dumps(data)}}}\n')
        self._write()
        self._file.close()
        self._temporary.replace(self._path)
