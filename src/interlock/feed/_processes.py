"""Worker processes as their feed sees them: started, given rows to make, replaced when they die, ended."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.reduction
import os
import queue
import select
import signal
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock._core._memory import HostMemory
from interlock.errors import InternalError, PeerError, UsageError
from interlock.feed import _wire
from interlock.feed._parcel import Parcel, UnpackedError
from interlock.feed._process_errors import (
    fate,
    killed,
    reap,
    refuse_in_a_starting_worker,
    stillborn,
    unsendable,
)
from interlock.feed._wire import Reply, Request
from interlock.feed._worker import PassTerms, serve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    import numpy.typing as npt

    from interlock._core._pool import SlotMemory
    from interlock.feed._layout import Layout
    from interlock.feed._stages import Chain

END_S = 2.0
"""How long a worker that is inside the source may take to end before it is killed."""
_DEAD_S = 5.0
"""How long the system may take to end a process that was killed."""
_MOST_STARTS = 20
"""A worker that is killed while it starts is started so often."""
_MOST_DEATHS = 32
"""So many workers may die with no row made between; a bad sample, and each tried in its place, may kill two."""
_MOST_TRIES = 2
"""A sample is given to so many workers if each of them dies of it."""


class _DiedError(Exception):
    """The worker is gone."""


class _UnbornError(Exception):
    """A process died while it was being told what to do."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class ClosedError(PeerError):
    """The workers were ended while somebody waited for one."""

    def __init__(self) -> None:
        super().__init__(
            "the worker processes were ended", why="the program ends, or closed the feed on another thread"
        )


@final
@dataclass(frozen=True, slots=True)
class Made:
    """What became of rows that a worker was asked for.

    Attributes:
        reply: What it said, summed up if it took several workers.
        error: What failed, where the reply says that something did.
    """

    reply: Reply
    error: Exception | None = None


@final
@dataclass(frozen=True, slots=True)
class _Job:
    """Rows to make, of the pass with a number, whose terms are packed for a worker that does not know them."""

    number: int
    terms: bytes
    slot: SlotMemory
    row: int
    asked: npt.NDArray[np.int64]
    at_once: bool


@final
class _Deaths:
    """Counts workers that died since the last row was made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def none(self) -> None:
        """A row was made."""
        self._count = 0

    def one(self, cause: str) -> None:
        """A worker died.

        Raises:
            PeerError: There were too many.
        """
        with self._lock:
            self._count += 1
        if self._count > _MOST_DEATHS:
            raise PeerError(
                f"{self._count} worker processes died, and no sample came from any of them",
                why=f"the last one {cause}",
                hint="read one sample in a program of its own to see what kills it, or use threads",
            )


@final
class _Worker:
    """One process, and the next one when that has died. One thread uses it at a time."""

    def __init__(self, parcel: Parcel, deaths: _Deaths, name: str) -> None:
        self._parcel = parcel
        self._deaths = deaths
        self._name = name
        self._using = threading.Lock()
        self._changing = threading.RLock()  # a finaliser that hangs up may come while this thread has it
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._pidfd = -1
        self._poll: select.poll | None = None
        self._passes: list[int] = []
        self._attached: dict[int, weakref.ref[SlotMemory]] = {}
        self._closed = False
        self._control_memory: HostMemory | None = None
        self._control: npt.NDArray[np.int64] = np.zeros(_wire.CONTROL_BYTES // 8, np.int64)

    def stop(self, number: int) -> None:
        """Ask the worker to leave off making rows of a pass. Never blocks."""
        self._control[_wire.STOPPED] = number

    def fill(self, job: _Job) -> Made:
        """Let the worker make rows. If it dies, another one goes on from the row that it was at.

        Raises:
            ClosedError: It was ended meanwhile.
            UsageError: It cannot be started.
            PeerError: Too many die, or the source ended its process.

        Blocks: until the rows are made, or one failed.
        """
        with self._using:
            made = tries = 0
            while True:
                self._control[_wire.MADE] = 0
                try:
                    reply = self._ask(job, made)
                except _DiedError:
                    more = int(self._control[_wire.MADE])
                    tries = 1 if more else tries + 1
                    made += more
                    cause = self._bury()
                    if self._closed:
                        raise ClosedError from None
                    if more:
                        self._deaths.none()
                    self._deaths.one(cause)
                    if tries == _MOST_TRIES:
                        return Made(Reply(_wire.FAILED, made), killed(cause, tries))
                    continue
                if reply.made:
                    self._deaths.none()
                return self._result(reply, made)

    def _result(self, reply: Reply, before: int) -> Made:
        pid = self._process.pid if self._process is not None else None
        if reply.how == _wire.BROKEN:
            raise _wire.heard(reply.error, pid)
        whole = Reply(reply.how, before + reply.made, reply.fetch_s, reply.copy_s, reply.cpu_s, reply.stages)
        return Made(whole, _wire.heard(reply.error, pid) if reply.error else None)

    def _ask(self, job: _Job, made: int) -> Reply:
        if self._closed:
            raise _DiedError
        connection = self._connection or self._start()
        try:
            self._show(connection, job)
            what = _wire.FILL_AT_ONCE if job.at_once else _wire.FILL
            key = job.slot.staging.region.allocation
            request = Request(what, job.number, key, row=job.row + made, asked=job.asked[made:])
            connection.send_bytes(request.packed())
            return Reply.unpacked(self._receive(connection))
        except (OSError, EOFError):
            raise _DiedError from None

    def _show(self, connection: Connection, job: _Job) -> None:
        """Tell the worker what it does not know of a job: its pass, the memory of its slot."""
        for key in [key for key, slot in self._attached.items() if slot() is None]:
            del self._attached[key]
            connection.send_bytes(Request(_wire.DETACH, key=key).packed())
        if job.number not in self._passes:
            connection.send_bytes(Request(_wire.PASS).packed())
            connection.send_bytes(job.terms)
            self._passes = [*self._passes, job.number][-_wire.MOST_PASSES :]
        memory = job.slot.staging
        key = memory.region.allocation
        if key not in self._attached:
            if not isinstance(memory, HostMemory) or memory.fd < 0:
                raise InternalError("a worker process is to write into memory that it cannot see")
            self._attach(connection, key, memory)
            self._attached[key] = weakref.ref(job.slot)

    def _attach(self, connection: Connection, key: int, memory: HostMemory) -> None:
        connection.send_bytes(Request(_wire.ATTACH, key=key, size_bytes=memory.size_bytes).packed())
        multiprocessing.reduction.send_handle(connection, memory.fd, None)

    def _receive(self, connection: Connection) -> bytes:
        if self._poll is None:
            raise _DiedError
        ready = [fd for fd, _ in self._poll.poll()]
        if connection.fileno() not in ready:  # it is dead, though what it has started may keep its connection open
            raise _DiedError
        return connection.recv_bytes()

    # ------------------------------------------------------------ beginning and end

    def _start(self) -> Connection:
        cause = ""
        for _ in range(_MOST_STARTS):
            code: int | None
            try:
                apart = self._parcel.apart
                connection = self._spawn(apart=apart)
                if apart:
                    self._parcel.send(connection)
                if self._receive(connection) != _wire.HELLO:
                    raise InternalError("a worker process said something unknown when it started")
                self._attach(connection, 0, self._shared_control())
            except _UnbornError as error:
                code, cause = error.code, fate(error.code)
            except UnpackedError:
                self._bury()
                continue
            except (_DiedError, OSError, EOFError):
                code, cause = self._exit_code(), self._bury()
            else:
                return connection
            if self._closed:
                raise ClosedError
            if code is None or code >= 0:
                raise stillborn(cause)
        raise PeerError(f"{_MOST_STARTS} worker processes were killed before they were ready", why=f"the last {cause}")

    def _shared_control(self) -> HostMemory:
        if self._control_memory is None:
            size_bytes = _wire.CONTROL_BYTES
            self._control_memory = HostMemory.allocate(size_bytes, "the feed", on_device=False, shared=True)
            self._control = np.frombuffer(self._control_memory.view(), np.int64)
        return self._control_memory

    def _spawn(self, *, apart: bool) -> Connection:
        refuse_in_a_starting_worker()
        context = multiprocessing.get_context("spawn")
        near, far = context.Pipe()
        parcel = self._parcel
        given = None if apart else (parcel.source, parcel.chain)
        process = context.Process(target=serve, args=(far, given), name=self._name, daemon=True)
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it, until it ignores it
        try:
            process.start()
        except BaseException as error:
            near.close()
            if isinstance(error, BrokenPipeError):
                raise _UnbornError(reap(error)) from error
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise unsendable(parcel.source, parcel.chain, error) from error
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, masked)
            far.close()
        self._take(process, near)
        return near

    def _take(self, process: SpawnProcess, connection: Connection) -> None:
        pid = process.pid or 0
        with self._changing:
            self._process, self._connection, self._poll = process, connection, select.poll()
            self._poll.register(connection.fileno(), select.POLLIN)
            try:
                self._pidfd = os.pidfd_open(pid)
                self._poll.register(self._pidfd, select.POLLIN)
            except (OSError, AttributeError):
                self._poll.register(process.sentinel, select.POLLIN)
            closed = self._closed
        if closed:
            process.kill()
            raise _DiedError

    def _exit_code(self) -> int | None:
        process = self._process
        if process is None:
            return None
        process.join(_DEAD_S)
        return process.exitcode

    def _bury(self) -> str:
        """Make sure that the process is gone, forget it, and return what became of it. For who uses the worker."""
        with self._changing:
            process, connection, pidfd = self._process, self._connection, self._pidfd
            self._process = self._connection = self._poll = None
            self._pidfd = -1
            self._passes.clear()
            self._attached.clear()
        if connection is not None:
            connection.close()
        if pidfd >= 0:
            os.close(pidfd)
        if process is None:
            return "is gone"
        process.join(0.2)  # it has hung up; so it is about to end, if nobody holds it
        if process.is_alive():
            process.kill()
            process.join(_DEAD_S)
        code = process.exitcode
        if code is not None:
            process.close()
        return fate(code)

    def hang_up(self) -> None:
        """Let the worker end when it has done what it is at. Never blocks."""
        with self._changing:
            self._closed = True
            if self._connection is not None:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                    line.shutdown(socket.SHUT_WR)

    def end(self, deadline: float) -> None:
        """Wait until `deadline` on the monotonic clock for the worker to end, then kill it. Blocks."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ValueError):  # somebody else has seen to it
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
        with self._using:  # nobody waits long for a process that is gone
            self._bury()


@final
class Processes:
    """The worker processes of a feed, over all its passes.

    They are started when they are first needed, and are gone when this is closed or the program ends.

    Args:
        count: How many.
        source: What each of them gets a copy of.
        chain: The stages, likewise.
    """

    def __init__(self, count: int, source: Any, chain: Chain | None) -> None:
        deaths, parcel = _Deaths(), Parcel(source, chain, count)
        self._workers = [_Worker(parcel, deaths, f"interlock-feed-{number}") for number in range(count)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._pid = os.getpid()
        self._ended: threading.Event | None = None
        _undertaker.begin()

    def fill(self, job: _Job) -> Made:
        """Let a free worker make rows; see `_Worker.fill`."""
        worker = self._idle.get()
        try:
            return worker.fill(job)
        finally:
            self._idle.put(worker)

    def stop(self, number: int) -> None:
        """Ask all workers to leave off what they do for a pass. Never blocks."""
        for worker in self._workers:
            worker.stop(number)

    def end(self) -> threading.Event:
        """Let the workers end; return what tells when they are gone. Never blocks: a finaliser may call it."""
        if self._ended is None:
            self._ended = _undertaker.take(self._workers, self._pid)
        return self._ended

    def close(self) -> None:
        """End the workers.

        Blocks: until they are gone: at most some seconds, after which those are killed that do not end by themselves.
        """
        self.end().wait(END_S + _DEAD_S)

    def end_at_exit(self) -> None:
        """See to it that the workers are gone when the program ends. To be called after its threads are started."""
        _undertaker.end_at_exit(self)


@final
class Remote:
    """The workers, for one pass.

    Args:
        processes: The workers.
        number: Number of the pass.
        batch_size: As in `PassTerms`, with what follows.
        epoch: ...
        first: ...
        length: ...
    """

    def __init__(
        self, processes: Processes, number: int, *, batch_size: int, epoch: int, first: int, length: int | None
    ) -> None:
        self._processes = processes
        self._number = number
        self._rest = batch_size, epoch, first, length
        self._terms: bytes | None = None
        self._stopped = False

    def fill(
        self, layout: Layout, slot: SlotMemory, row: int, asked: npt.NDArray[np.int64], *, at_once: bool = False
    ) -> Made:
        """Make rows of a slot, from `row` on.

        Args:
            layout: How the slot is laid out; the same in the whole pass.
            slot: The slot; its staging memory is shared.
            row: The first row.
            asked: What the source is asked for, for each of them.
            at_once: Whether the source shall write them all by itself.

        Ordering: what the worker wrote comes before the return.

        Copies: each sample once, by the worker, into the slot.

        Blocks: until the rows are made, or one failed.

        Raises:
            Exception: As `_Worker.fill`.
        """
        if self._terms is None:
            self._terms = _packed(PassTerms(self._number, layout, *self._rest))
        try:
            return self._processes.fill(_Job(self._number, self._terms, slot, row, asked, at_once))
        except ClosedError:
            if self._stopped:
                return Made(Reply(_wire.DONE, 0))
            raise

    def stop(self) -> None:
        """No more rows are wanted: from now on fewer may be made than are asked for. Never blocks."""
        self._stopped = True
        self._processes.stop(self._number)


@final
class _Undertaker:
    """A thread that ends workers which nobody needs any more: a finaliser may not wait for them itself."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[list[_Worker], threading.Event]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._living: weakref.WeakSet[Processes] = weakref.WeakSet()
        self._registered = False

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._serve, name="interlock-undertaker", daemon=True)
                self._thread.start()

    def take(self, workers: list[_Worker], pid: int) -> threading.Event:
        """End workers; return what tells when they are gone. May be called by a finaliser."""
        ended = threading.Event()
        if pid != os.getpid():  # they are the parent's of this forked process
            ended.set()
            return ended
        for worker in workers:
            worker.hang_up()
        self._tasks.put((workers, ended))
        return ended

    def _serve(self) -> None:
        while True:
            _end(*self._tasks.get())  # nothing of them stays in this frame: they have the source

    def end_at_exit(self, processes: Processes) -> None:
        """End these processes when the program ends."""
        with self._lock:
            self._living.add(processes)
            if not self._registered:
                atexit.register(self._end_all)
                self._registered = True

    def _end_all(self) -> None:
        for processes in list(self._living):
            processes.close()


_undertaker = _Undertaker()


def _end(workers: list[_Worker], ended: threading.Event) -> None:
    deadline = time.monotonic() + END_S
    for worker in workers:
        worker.end(deadline)
    ended.set()


def _packed(terms: PassTerms) -> bytes:
    try:
        return bytes(multiprocessing.reduction.ForkingPickler.dumps(terms))
    except Exception as error:
        raise UsageError(
            "the form of the samples cannot be sent to a worker process",
            why=f"{type(error).__name__}: {error}",
            hint="define the classes of its parts (named tuples, dicts) at module level, or use threads",
        ) from error
