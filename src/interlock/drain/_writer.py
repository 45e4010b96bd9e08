"""The writers of a drain: its lanes, of which there may be more as it goes on, and their end."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, final

from interlock.drain._growth import Growth
from interlock.drain._jobs import Ended, FlushJob, Stop
from interlock.drain._lane import Lane
from interlock.drain._null import NullStore
from interlock.drain._publish import Published
from interlock.errors import SinkError

if TYPE_CHECKING:
    from interlock.drain._lane import WriterSettings
    from interlock.drain._link import Link
    from interlock.drain._store import Store

_EXIT_BOUND_S = 10.0


@final
class Writer:
    """The threads that touch the store after it was opened. They always end, and then the store is closed.

    All end when one fails: each commits the shard that is full, if it has one, and gives up the open one.

    Args:
        store: The opened folder, or what stands for it.
        link: Shared with the owner.
        settings: Bounds and policies.

    Attributes:
        lanes: The threads that there are so far.
        first: How many there were from the begin.
    """

    def __init__(self, store: Store | NullStore, link: Link, settings: WriterSettings) -> None:
        self._store = store
        self._link = link
        self._settings = settings
        wanted = 1 if isinstance(store, NullStore) else settings.writers
        self._growth = Growth(usable_writers()) if wanted == "auto" else None
        self._copies = 0 if isinstance(store, NullStore) else int(getattr(store.sink, "working_copies", 0))
        self._lock = threading.Lock()
        self._closed = False
        self.lanes: tuple[Lane, ...] = ()
        self.pid = os.getpid()
        link.jobs.shard_bytes = settings.shard_bytes
        link.jobs.limit = 1 if wanted == "auto" else wanted
        link.waited = self._waited
        self.first = link.jobs.limit
        for _ in range(self.first):
            self._add_lane()

    def start(self) -> None:
        """Start the threads, and have them stopped when the interpreter exits."""
        _register(self)
        try:
            for lane in self.lanes:
                lane.thread.start()
        except BaseException:
            self.stop(_EXIT_BOUND_S)
            for lane in self.lanes:
                if lane.thread.ident is None:
                    self._ended(lane)
            raise

    def stop(self, timeout_s: float) -> bool:
        """Make the threads give up what is not committed; return whether they ended within `timeout_s`.

        Takes no lock: a collector may run it on any thread, at any point.
        """
        deadline_s = time.monotonic() + timeout_s
        self._link.stop.set()
        for lane in self.lanes:
            lane.tell(Stop())
        for lane in self.lanes:
            if lane.thread is not threading.current_thread() and lane.thread.ident is not None:
                lane.thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(lane.thread.is_alive() for lane in self.lanes)

    @property
    def done(self) -> Published:
        """What the lanes committed."""
        return sum((lane.done for lane in self.lanes), Published())

    @property
    def written_rows(self) -> int:
        """Rows that are with the sink."""
        return sum(lane.written_rows for lane in self.lanes)

    @property
    def lost_rows(self) -> int:
        """Rows handed over that are neither committed nor recorded as failed."""
        return self._link.accepted_rows - sum(lane.rejected_rows + lane.done.rows for lane in self.lanes)

    def _add_lane(self) -> Lane:
        lane = Lane(self._store, self._link, self._settings, self._failed, self._ended)
        self.lanes = (*self.lanes, lane)
        return lane

    def _waited(self, waited_s: float) -> None:
        """Start another lane if those that there are were behind, and the last one helped."""
        if self._growth is None:
            return
        copied_bytes = self._copies * self._link.jobs.largest_bytes
        if copied_bytes:
            most = max(1, self._settings.budget_bytes // copied_bytes)
            self._growth.most = min(self._growth.most, most)
        limit = self._growth.observe(
            time.monotonic(),
            waited_s,
            sum(lane.written_bytes for lane in self.lanes),
            sum(lane.written_jobs for lane in self.lanes),
        )
        if limit > len(self.lanes):
            with suppress(RuntimeError):  # the system gives no thread: those that there are go on
                self._add_lane().thread.start()
        taken_back = self.lanes[limit:] if limit < self._link.jobs.limit else ()
        self._link.jobs.limit = limit
        for lane in taken_back:  # nobody would fill the shard that it has open
            lane.tell(FlushJob(0))

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            self._link.failure = self._link.failure or error
        self._link.stop.set()
        for lane in self.lanes:
            lane.tell(Stop())

    def _ended(self, lane: Lane) -> None:
        """Close the store behind the last lane; whoever waits hears why."""
        with self._lock:
            lane.ended = True
            last = all(one.ended or one.thread.ident is None for one in self.lanes) and not self._closed
            self._closed = self._closed or last
        if last:
            with suppress(Exception):
                self._store.close()
            cause = self._link.failure or SinkError(f"{self._store.text} was closed before these rows were committed")
            self._link.written.fail(cause)
            self._link.committed.fail(cause)
            _live.discard(self)
        self._link.owner.post(Ended())


def usable_writers() -> int:
    """Return how many lanes are worth trying: more than processors would wait for each other."""
    count = getattr(os, "process_cpu_count", None)  # from Python 3.13 on
    usable = count() if count is not None else len(os.sched_getaffinity(0))
    return min(_MOST_BY_THEMSELVES, usable or 1)


_MOST_BY_THEMSELVES = 4

_live: set[Writer] = set()
_registered = False


def _register(writer: Writer) -> None:
    global _registered  # noqa: PLW0603 - one hook for the process, and none before the first drain
    if not _registered:
        atexit.register(_stop_all)
        _registered = True
    _live.add(writer)


def _stop_all() -> None:
    """At exit: end the writers of drains that nobody closed, in bounded time."""
    until_s = time.monotonic() + _EXIT_BOUND_S
    writers = [writer for writer in tuple(_live) if writer.pid == os.getpid()]
    for writer in writers:
        writer.stop(0.0)
    for writer in writers:
        abandon(writer, max(0.0, until_s - time.monotonic()))


def leave(writer: Writer) -> bool:
    """Do not wait at exit for a writer that hangs, and was waited for: the system ends it, and its locks, with us."""
    _live.discard(writer)
    return False


def abandon(writer: Writer, timeout_s: float) -> None:
    """End the writers of a drain that was not closed; say how many rows that loses."""
    writer.stop(timeout_s)
    warnings.warn(
        f"a drain was not closed: {writer.lost_rows} rows that were put are not committed; use it in a with block",
        ResourceWarning,
        stacklevel=2,
    )


def forget(writer: Writer) -> None:
    """End the writer of a drain that was dropped without being closed."""
    if writer.pid == os.getpid():
        abandon(writer, 0.0)
