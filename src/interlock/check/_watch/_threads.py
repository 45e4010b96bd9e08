"""Snapshots by reference: a thread is handed arrays, and another thread changes them before it is known to be done.

A thread holds what it was started with, what was submitted to it, and what it took from a queue, until somebody who
would change it has seen it done: by `join`, by the result of a future, or by anything that the thread signalled
afterwards (an event, a semaphore, a queue). A thread that is handed something to signal with from the start is one
that converses, and what it was started with is shared memory, not a snapshot. So is what the thread itself writes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, final

from interlock._core._sites import here
from interlock.check._watch._ledger import Loan
from interlock.check._watch._liveness import constant_keys, is_inside_with
from interlock.check._watch._memory import keeper_of, leaves, span_of
from interlock.check._watch._patches import named_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from interlock._core._events import Claim, Site
    from interlock.check._watch._ledger import Ledger, Mutation
    from interlock.check._watch._lines import Lines
    from interlock.check._watch._memory import Span
    from interlock.check._watch._patches import Patches

_SIGNALS = (
    queue.Queue,
    queue.SimpleQueue,
    threading.Event,
    threading.Condition,
    threading.Semaphore,
    threading.Barrier,
    type(threading.Lock()),
    type(threading.RLock()),
    concurrent.futures.Future,
)
_LOCKS = (threading.Condition, type(threading.Lock()), type(threading.RLock()))


@final
class _Parcel:
    """What was handed over at once.

    Attributes:
        loans: One for each array.
        holders: Idents of the threads that have it.
        sender: Ident of the thread that handed it over.
        channel: The queue that it travels in, or None.
        number: It is the item of this number in the queue.
        waiting: Changes to report once another thread turns out to be the one that takes it.
        is_given: Whether it is sure that another thread has it or will have it.
        is_done: Whether all is over.
    """

    __slots__ = ("channel", "holders", "is_done", "is_given", "loans", "number", "sender", "waiting")

    def __init__(self, *, is_given: bool) -> None:
        self.loans: list[Loan] = []
        self.holders: set[int] = set()
        self.sender = threading.get_ident()
        self.channel: _Channel | None = None
        self.number = 0
        self.waiting: list[tuple[Loan, Mutation]] = []
        self.is_given = is_given
        self.is_done = False


@final
class _Channel:
    """What is known of a queue.

    Attributes:
        parcels: What is in it, by the identity of the item.
        count: Items put so far.
        done: Items up to this number are done with, as far as those who put know: a bounded queue had room again, so
            the reader has taken the item after them, and asked for it when it was done with them.
        readers: Idents of the threads that took anything.
    """

    __slots__ = ("count", "done", "parcels", "readers")

    def __init__(self) -> None:
        self.parcels: dict[int, list[_Parcel]] = {}
        self.count = 0
        self.done = 0
        self.readers: set[int] = set()


@final
class ThreadWatch:
    """Opens loans for what is handed to threads.

    Args:
        ledger: Where loans are kept.
        lines: Who follows lines.
    """

    def __init__(self, ledger: Ledger, lines: Lines) -> None:
        self._ledger = ledger
        self._lines = lines
        self._lock = threading.RLock()
        self._held: dict[int, set[_Parcel]] = {}
        self._given: dict[int, list[Span]] = {}
        """All that a thread was ever handed: what it writes there is the purpose, also where others have it too."""
        self._channels: weakref.WeakKeyDictionary[Any, _Channel] = weakref.WeakKeyDictionary()
        self._signalled: weakref.WeakKeyDictionary[Any, set[_Parcel]] = weakref.WeakKeyDictionary()
        self._of_thread: weakref.WeakKeyDictionary[threading.Thread, _Parcel] = weakref.WeakKeyDictionary()

    def install(self, patches: Patches) -> None:
        """Replace what hands something to threads, and what shows that they are done."""
        patches.wrap(threading.Thread, "start", self._starting)
        patches.wrap(threading.Thread, "run", self._running)
        patches.wrap(threading.Thread, "join", self._joining)
        patches.wrap(concurrent.futures.ThreadPoolExecutor, "submit", self._submitting)
        for name in ("result", "exception"):
            patches.wrap(concurrent.futures.Future, name, self._acquiring)
        patches.wrap(concurrent.futures.Future, "done", self._acquiring_if_true)
        patches.wrap(concurrent.futures, "wait", self._waiting_for_all)
        patches.wrap(concurrent.futures, "as_completed", self._waiting_for_each)
        patches.wrap(queue.Queue, "put", self._putting)
        patches.wrap(queue.Queue, "get", self._getting)
        patches.wrap(queue.Queue, "task_done", self._releasing)
        patches.wrap(queue.Queue, "join", self._acquiring)
        patches.wrap(threading.Event, "set", self._releasing)
        patches.wrap(threading.Event, "wait", self._acquiring_if_true)
        patches.wrap(threading.Event, "is_set", self._acquiring_if_true)
        patches.wrap(threading.Semaphore, "release", self._releasing)
        patches.wrap(threading.Semaphore, "acquire", self._acquiring_if_true)
        patches.wrap(threading.Barrier, "wait", lambda original: self._acquiring(self._releasing(original)))

    # ---------------------------------------------------------------- handing over

    def _parcel(self, values: Iterable[Any], party: str, site: Site, *, is_given: bool) -> _Parcel | None:
        parcel = _Parcel(is_given=is_given)
        for value in leaves(list(values)):
            span = span_of(value)
            if span is None:
                continue
            memory = self._ledger.memory(span, keeper_of(value))
            loan = Loan(memory, party, "snapshot", site, partial(self._judge, parcel))
            parcel.loans.append(self._ledger.open(loan))
        return parcel if parcel.loans else None

    def _judge(self, parcel: _Parcel, loan: Loan, mutation: Mutation) -> Claim | None:
        with self._lock:
            channel = parcel.channel
            is_over = channel is not None and parcel.number <= channel.done and len(channel.readers) < 2  # noqa: PLR2004
            mine = self._given.get(mutation.thread, ())
            if parcel.is_done or is_over or any(loan.memory.span.touches(span) for span in mine):
                self._end([parcel])
                return None
            if _holds_a_lock(mutation):
                return None
            if parcel.is_given or parcel.holders:
                return "snapshot"
            parcel.waiting.append((loan, mutation))
            return None

    def _take(self, parcel: _Parcel, ident: int) -> None:
        """Thread `ident` has the parcel now."""
        with self._lock:
            parcel.holders.add(ident)
            self._held.setdefault(ident, set()).add(parcel)
            self._given.setdefault(ident, []).extend(loan.memory.span for loan in parcel.loans)
            waiting, parcel.waiting = parcel.waiting, []
        for loan, mutation in waiting:
            if mutation.thread != ident:
                self._ledger.report_mutation(loan, "snapshot", mutation)

    def _end(self, parcels: Iterable[_Parcel]) -> None:
        """Nobody holds the parcels any more, as far as the calling thread knows."""
        for parcel in tuple(parcels):
            with self._lock:
                is_done, parcel.is_done = parcel.is_done, True
                for ident in parcel.holders:
                    self._held.get(ident, set()).discard(parcel)
            if not is_done:
                for loan in parcel.loans:
                    self._ledger.close(loan)

    # ---------------------------------------------------------------- threads

    def _starting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def start(thread: Any) -> None:
            target = getattr(thread, "_target", None)
            given = (getattr(thread, "_args", ()), getattr(thread, "_kwargs", {}), _closure(target))
            if target is not None and self._lines.caller() is not None and not _converses(given):
                parcel = self._parcel(given, f"thread {thread.name}", here(1), is_given=True)
                if parcel is not None:
                    self._of_thread[thread] = parcel
            original(thread)

        return start

    def _running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def run(thread: Any) -> None:
            parcel = self._of_thread.get(thread)
            if parcel is not None:
                self._take(parcel, threading.get_ident())
            try:
                original(thread)
            finally:
                self._signal(thread)
                self._given.pop(threading.get_ident(), None)

        return run

    def _joining(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def join(thread: Any, timeout: float | None = None) -> None:
            original(thread, timeout)
            if not thread.is_alive():
                self._acquire(thread)

        return join

    def _submitting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def submit(executor: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
            given = (arguments, named, _closure(function))
            parcel = None
            if self._lines.caller() is not None and not _converses(given):
                parcel = self._parcel(given, "executor", here(1), is_given=True)
            if parcel is None:
                return original(executor, function, *arguments, **named)
            taken = parcel

            def work() -> Any:
                self._take(taken, threading.get_ident())
                return function(*arguments, **named)

            future = original(executor, work)
            with self._lock:
                self._signalled.setdefault(future, set()).add(taken)
            return future

        return submit

    def _waiting_for_all(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def wait(futures: Any, *arguments: Any, **named: Any) -> Any:
            result = original(futures, *arguments, **named)
            for future in result.done:
                self._acquire(future)
            return result

        return wait

    def _waiting_for_each(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def as_completed(futures: Any, timeout: float | None = None) -> Iterator[Any]:
            for future in original(futures, timeout):
                self._acquire(future)
                yield future

        return as_completed

    # ---------------------------------------------------------------- queues

    def _putting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def put(channel: Any, item: Any, *arguments: Any, **named: Any) -> None:
            parcel = None
            if self._lines.caller() is not None:
                parcel = self._parcel([item], "queue", here(1), is_given=False)
            self._signal(channel)
            with self._lock:
                known = self._channels.setdefault(channel, _Channel())
                known.count += 1
                number = known.count
                if parcel is not None:
                    parcel.channel, parcel.number = known, number
                    known.parcels.setdefault(id(item), []).append(parcel)
            original(channel, item, *arguments, **named)
            if channel.maxsize > 0 and type(channel) is queue.Queue:
                known.done = max(known.done, number - channel.maxsize - 1)

        return put

    def _getting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def get(channel: Any, *arguments: Any, **named: Any) -> Any:
            item = original(channel, *arguments, **named)
            self._acquire(channel)
            ident = threading.get_ident()
            with self._lock:
                known = self._channels.setdefault(channel, _Channel())
                known.readers.add(ident)
                parcels = known.parcels.get(id(item), [])
                parcel = parcels.pop(0) if parcels else None
                if not parcels:
                    known.parcels.pop(id(item), None)
            if parcel is not None:
                if parcel.sender == ident:
                    self._end([parcel])
                else:
                    self._take(parcel, ident)
            return item

        return get

    # ---------------------------------------------------------------- signals

    def _signal(self, what: Any) -> None:
        """Whoever sees `what` knows that this thread is done with what it holds."""
        held = self._held.get(threading.get_ident())
        if held:
            with self._lock:
                self._signalled.setdefault(what, set()).update(held)

    def _acquire(self, what: Any) -> None:
        """This thread has seen `what`, so it knows done with what others held when they signalled."""
        if what not in self._signalled:
            return
        ident = threading.get_ident()
        with self._lock:
            parcels = self._signalled.get(what, set())
            known = {parcel for parcel in parcels if ident not in parcel.holders}
            parcels -= known
        self._end(known)

    def _releasing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(what: Any, *arguments: Any, **named: Any) -> Any:
            self._signal(what)
            return original(what, *arguments, **named)

        return call

    def _acquiring(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(what: Any, *arguments: Any, **named: Any) -> Any:
            result = original(what, *arguments, **named)
            self._acquire(what)
            return result

        return call

    def _acquiring_if_true(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(what: Any, *arguments: Any, **named: Any) -> Any:
            result = original(what, *arguments, **named)
            if result:
                self._acquire(what)
            return result

        return call


def _closure(function: Any) -> list[Any]:
    """Return what a function refers to beyond its arguments: cells, the arguments of a partial; one level."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    found: list[Any] = []
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        found += _parts_that_are_read(value, constant_keys(code, name) if code is not None else None)
    return [*found, *getattr(function, "args", ()), *(getattr(function, "keywords", None) or {}).values()]


def _parts_that_are_read(value: Any, keys: frozenset[Any] | None) -> list[Any]:
    """Return the elements of a list or dict that a function asks for by constant keys, if it does nothing else."""
    if keys is None or not isinstance(value, (list, tuple, dict)):
        return [value]
    found = []
    for key in keys:
        with contextlib.suppress(LookupError, TypeError):
            found.append(value[key])
    return found


def _converses(given: Iterable[Any]) -> bool:
    """Tell whether a thread was handed something to signal with, or to be told by."""
    flat = [one for values in given for one in (values.values() if isinstance(values, dict) else values)]
    return any(isinstance(one, _SIGNALS) for one in flat)


def _holds_a_lock(mutation: Mutation) -> bool:
    """Tell whether a lock that the changing line can see is taken: then readers are taken to take it too."""
    frame = mutation.frame
    if frame is None or not is_inside_with(frame.f_code, mutation.site[0][1]):
        return False
    seen = [*frame.f_locals.values(), *getattr(frame.f_locals.get("self"), "__dict__", {}).values()]
    seen += [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]
    return any(isinstance(one, _LOCKS) and _is_locked(one) for one in seen)


def _is_locked(lock: Any) -> bool:
    inner = getattr(lock, "_lock", lock)
    if hasattr(inner, "locked"):
        return bool(inner.locked())
    return bool(inner._is_owned())  # noqa: SLF001 - an RLock tells no other way before Python 3.14
