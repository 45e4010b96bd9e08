"""Who makes batches: the steps from a plan to a filled slot, and the worker threads that take them."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, final

from interlock._core._fence import Fence
from interlock._core._spans import Span, about, host_track, report, traced
from interlock.feed._stages import READ
from interlock.feed._work import StagedReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._pool import SlotMemory
    from interlock.feed._staging import Staging
    from interlock.feed._work import Piece, Reader, Work

_EXIT_JOIN_S = 5.0
"""How long the exit of the program waits for workers that are inside the source."""

_CPU_EVERY = 8
"""The processor time of every so many batches is asked for: a call costs most of a microsecond."""


def make(work: Work, reader: Reader, staging: Staging, *, stopped: Callable[[], bool] = lambda: False) -> None:
    """Make pieces of a batch until none is left; whoever makes the last one finishes it and reports it."""
    memory = staging.memory_of(work.lease)
    made = 0
    failed: BaseException | None = None
    start_ns = time.perf_counter_ns() if traced() else 0
    timed = work.number % _CPU_EVERY == 0
    cpu_began_s = time.thread_time() if timed else 0.0
    while (unit := work.take()) < work.units:
        made += 1
        if failed is None and not stopped():
            try:
                reader.run(work, unit, memory)
            except BaseException as error:  # noqa: BLE001 - SystemExit too: it must reach the consumer, not end a worker
                failed = error
    if start_ns and made:
        size_bytes = work.layout.size_bytes * made // work.units if work.layout is not None else 0
        report(Span(host_track(), "fill", start_ns, time.perf_counter_ns(), work.number, size_bytes, work.subject))
    if made and work.settle(made, failed, time.thread_time() - cpu_began_s if timed else 0.0):
        _finish(work, reader, staging, memory)


def _finish(work: Work, reader: Reader, staging: Staging, memory: Callable[[int], SlotMemory]) -> None:
    cause = work.cause
    if cause is None:
        try:
            reader.finish(work, memory)
            if not work.void and work.layout is not None:
                work.ready = _carry(work, staging, memory(work.layout.size_bytes))
        except BaseException as error:  # noqa: BLE001 - as above
            cause = error
    if cause is not None:
        work.cause = cause
        work.ready = Fence.failed(cause)
    work.made_s = time.perf_counter()
    staging.inbox.post(work)


def _carry(work: Work, staging: Staging, memory: SlotMemory) -> Fence:
    if not traced():
        return staging.carry(work, memory)
    start_ns = time.perf_counter_ns()
    with about(work.subject, work.number):
        ready = staging.carry(work, memory)
    if ready.points:
        report(Span(host_track(), "queue copy", start_ns, time.perf_counter_ns(), work.number, subject=work.subject))
    return ready


def _read(work: Work, onward: _Lane, reader: StagedReader, staging: Staging, *, stopped: Callable[[], bool]) -> None:
    """Ask the source for pieces of a batch until none is left, and give each to the first stage as it comes."""
    memory = staging.memory_of(work.lease)
    while (unit := work.take()) < work.units:
        failed: BaseException | None = None
        clock = _Clock(work)
        if not stopped() and work.cause is None:
            try:
                piece = reader.read(work, unit)
                work.count_cpu(clock.spent(READ))
                onward.tasks.put((piece, memory))
                continue  # whoever has the piece settles it
            except BaseException as error:  # noqa: BLE001 - as above
                failed = error
        if work.settle(1, failed):
            _finish(work, reader, staging, memory)


def _advance(
    task: tuple[Piece, Callable[[int], SlotMemory]],
    index: int,
    onward: _Lane | None,
    reader: StagedReader,
    staging: Staging,
    *,
    stopped: Callable[[], bool],
) -> None:
    """Let a piece go through a stage, and on to the next one; whoever lands the last piece of a batch finishes it."""
    piece, memory = task
    work = piece.work
    failed: BaseException | None = None
    if not stopped() and work.cause is None:
        clock = _Clock(work)
        try:
            reader.advance(piece, index, memory)
            work.count_stage(index, 0.0, clock.spent(reader.steps[index].name))
            if onward is not None:
                onward.tasks.put(task)
                return
            clock = _Clock(work)
            reader.land(piece, memory)
            work.count_stage(index, 0.0, clock.spent("fill", len(piece.rows)))
        except BaseException as error:  # noqa: BLE001 - as above
            failed = error
    if work.settle(1, failed):
        _finish(work, reader, staging, memory)


@final
class _Clock:
    """Takes the time of one step: of a processor for some batches, and for a trace if there is one."""

    __slots__ = ("_cpu_s", "_start_ns", "_work")

    def __init__(self, work: Work) -> None:
        self._work = work
        self._start_ns = time.perf_counter_ns() if traced() else 0
        self._cpu_s = time.thread_time() if work.number % _CPU_EVERY == 0 else 0.0

    def spent(self, name: str, rows: int = 0) -> float:
        """Report the step, which moved so many rows into the slot, and return its processor time if it was taken."""
        cpu_s = time.thread_time() - self._cpu_s if self._cpu_s else 0.0
        if self._start_ns:
            work = self._work
            size_bytes = work.layout.size_bytes * rows // work.rows if work.layout is not None else 0
            end_ns = time.perf_counter_ns()
            report(Span(host_track(), name, self._start_ns, end_ns, work.number, size_bytes, work.subject))
        return cpu_s


@final
class _Lane:
    """The queue of threads that do the same. When the last of them has ended, so do those of the next lane.

    Args:
        name: Their name.
        workers: How many they are.
        onward: The lane that they give their work to.
    """

    def __init__(self, name: str, workers: int, onward: _Lane | None = None) -> None:
        self.name = name
        self.workers = workers
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._onward = onward
        self._left = workers
        self._lock = threading.Lock()

    def serve(self, act: Callable[[Any], None]) -> None:
        """Do what comes until the end does."""
        while (task := self.tasks.get()) is not None:
            act(task)
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and self._onward is not None:
            self._onward.end()

    def end(self) -> None:
        """Let the threads end when they have done what is in the queue."""
        for _ in range(self.workers):
            self.tasks.put(None)


@final
class Crew:
    """Worker threads of one pass. They hold no reference to the feed, so that dropping a feed ends them.

    Without stages each worker makes whole pieces of a batch. With stages some read, and each stage has some of its own.

    Args:
        reader: Knows the batches.
        staging: Has the slots.
        workers: How many read.
        staged: Whether stages have workers of their own.
    """

    def __init__(self, reader: Reader, staging: Staging, workers: int, *, staged: bool = True) -> None:
        self._stop = threading.Event()
        common: dict[str, Any] = {"reader": reader, "staging": staging, "stopped": self._stop.is_set}
        steps = reader.steps if staged and isinstance(reader, StagedReader) else ()
        lanes: list[tuple[_Lane, Callable[[Any], None]]] = []
        onward: _Lane | None = None
        for index in reversed(range(len(steps))):
            lane = _Lane(f"interlock-feed-{steps[index].name}", steps[index].workers, onward)
            lanes.append((lane, partial(_advance, index=index, onward=onward, **common)))
            onward = lane
        act = partial(make, **common) if onward is None else partial(_read, onward=onward, **common)
        self._first = _Lane("interlock-feed", workers, onward)
        lanes.append((self._first, act))
        self._threads = [
            threading.Thread(target=lane.serve, args=(act,), name=f"{lane.name}-{index}", daemon=True)
            for lane, act in lanes
            for index in range(lane.workers)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            for lane, _ in lanes:
                lane.end()
            raise
        _stop_at_exit(self)

    def give(self, work: Work) -> None:
        """Let as many workers as can help make a batch."""
        for _ in range(min(self._first.workers, work.units)):
            self._first.tasks.put(work)

    def stop(self) -> None:
        """Ask the threads to end. Never blocks."""
        self._stop.set()
        self._first.end()

    def join(self, deadline: float) -> None:
        """Wait for the threads until `deadline` on the monotonic clock. Blocks."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()
_at_exit_lock = threading.Lock()
_at_exit_registered = False


def _stop_at_exit(crew: Crew) -> None:
    """End the workers before the interpreter takes their world away: a thread cut short inside C++ would abort."""
    global _at_exit_registered  # noqa: PLW0603 - registered with the first crew, not at import
    with _at_exit_lock:
        _crews.add(crew)
        if not _at_exit_registered:
            atexit.register(_end_crews)
            _at_exit_registered = True


def _end_crews() -> None:
    deadline = time.monotonic() + _EXIT_JOIN_S
    crews = list(_crews)
    for crew in crews:
        crew.stop()
    for crew in crews:
        crew.join(deadline)
