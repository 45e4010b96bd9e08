"""JAX on the CPU reads NumPy memory after the call returned, and an array may be that memory for its whole life.

A computation holds the arrays that it was given until the program has *seen* it done: it waited for a result or read
it, or it waited for or read anything computed from it. Whether XLA has in fact finished earlier is luck, and says
nothing. An array made without a copy (`device_put`, `from_dlpack`) holds the memory as long as it lives, and after that
as long as the computations that it was given to.

Source: `jaxlib/py_values.cc` and `xla/pjrt`: NumPy arrays are imported as immutable and zero-copy; where that is not
possible small ones are copied at once and larger ones later. Arrays that are not contiguous, or whose type JAX
converts, are copied at once.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np
from jax._src import dispatch, literals, pjit
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jaxlib import xla_client

from interlock._core._events import Access, Region, host_timeline
from interlock._core._sites import here
from interlock.check._watch._buffers import heard
from interlock.check._watch._ledger import Loan, always
from interlock.check._watch._lines import site_at
from interlock.check._watch._liveness import names_in_line
from interlock.check._watch._memory import Span, keeper_of, root_of, span_of
from interlock.check._watch._patches import named_like
from interlock.check._watch._producers import is_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import ExitStack
    from types import FrameType

    from interlock._core._events import Claim, Site
    from interlock.check._watch._ledger import Ledger, Mutation
    from interlock.check._watch._lines import Lines
    from interlock.check._watch._patches import Patches

_ALIGNMENT = 64
"""XLA takes memory as it is if it is aligned to this."""
_READS = (
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__complex__",
    "item",
    "tolist",
    "__format__",
    "__repr__",
    "__str__",
    "__iter__",
    "__reduce__",
)
"""Methods of an array that wait for its value."""
_LUCKY_BYTES = 100 * 1024
"""Smaller arrays are aligned or not as the allocator likes, and are copied at once where they are not."""


@final
class _Execution:
    """One computation or transfer that the program has not seen done.

    Attributes:
        loans: What it reads.
        after: Executions whose results it was given: who sees it done has seen them done.
    """

    __slots__ = ("after", "is_seen", "loans")

    def __init__(self, loans: Iterable[_Held], after: Iterable[_Execution] = ()) -> None:
        self.loans = list(loans)
        self.after = list(after)
        self.is_seen = False
        for held in self.loans:
            held.readers.add(self)


@final
class _Held:
    """A loan of NumPy memory to JAX, with everything that keeps it open.

    Attributes:
        loan: In the ledger.
        readers: Executions that read it and were not seen done.
        array: The JAX array that is this memory, or None.
    """

    __slots__ = ("array", "is_closed", "loan", "readers")

    def __init__(self, loan: Loan) -> None:
        self.loan = loan
        self.is_closed = False
        self.readers: set[_Execution] = set()
        self.array: weakref.ref[Any] | None = None


class _Inside(threading.local):
    """What a thread is inside of.

    Attributes:
        donated: Identities of the arguments that the computation being started was given for good.
        importing: Whether an import is under way.
    """

    donated: frozenset[int] = frozenset()
    importing: bool = False


@final
class JaxWatch:
    """Opens loans for what JAX is given, and closes them when the program has seen that JAX is done.

    Args:
        ledger: Where loans are kept.
        lines: Who follows lines.
    """

    def __init__(self, ledger: Ledger, lines: Lines) -> None:
        self._ledger = ledger
        self._lines = lines
        self._lock = threading.RLock()
        self._pending: dict[int, tuple[weakref.ref[Any], _Execution]] = {}
        self._aliases: dict[int, list[_Held]] = {}
        self._inside = _Inside()
        self._dead: deque[_Held] = deque()
        """Whose arrays have died. That may happen anywhere, so nothing is done about it before the next look."""
        self._given: dict[int, _Donation] = {}

    def install(self, patches: Patches, stack: ExitStack) -> None:
        """Replace what JAX calls to run, to import and to wait, until `stack` is closed.

        Raises:
            AttributeError: This version of JAX is built otherwise.
        """
        array: Any = ArrayImpl
        patches.wrap(pjit, "_get_fastpath_data", lambda _: lambda *_args, **_named: None, is_needed=True)
        _forget_fast_paths()
        patches.wrap(pjit, "_pjit_call_impl_python", self._donating, is_needed=True)
        patches.wrap(pxla.ExecuteReplicated, "__call__", self._executing, is_needed=True)
        patches.wrap(dispatch, "_batched_device_put_impl", self._putting, is_needed=True)
        for module in (jax.dlpack, jax.numpy):
            patches.wrap(module, "from_dlpack", self._importing)
        patches.wrap(array, "block_until_ready", self._seeing)
        patches.wrap(array, "is_ready", self._seeing_if_true)
        patches.wrap(array, "__array__", self._reading)
        patches.wrap(array, "__dlpack__", self._exporting)
        for name in _READS:
            patches.wrap(array, name, self._seeing)
        patches.wrap(jax, "block_until_ready", self._seeing_tree)
        patches.wrap(jax, "device_get", self._seeing_tree)
        patches.wrap(xla_client, "batched_block_until_ready", self._seeing_tree)
        patches.wrap(jax, "effects_barrier", self._seeing_everything)
        patches.wrap(array, "delete", self._deleting)
        stack.enter_context(heard(array, self._see))
        self._lines.on_line.append(self._read_views)
        self._ledger.before_check.append(self._bury)

    # ---------------------------------------------------------------- what JAX is given

    def _executing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(executable: Any, *arguments: Any) -> Any:
            frame = self._lines.caller()
            if frame is None:
                return original(executable, *arguments)
            kept = [one for index, one in enumerate(arguments) if index in executable.kept_var_idx]
            site = here(1)
            loans = [held for one in kept if (held := self._lend(one, site, frame)) is not None]
            inherited = self._inherited(kept)
            results = original(executable, *arguments)
            loans += [held for one in kept for held in self._aliases.get(id(one), ())]
            self._note_donations(kept, site)
            if loans or inherited:
                execution = _Execution(loans, inherited)
                for result in _flat(results):
                    self._pend(result, execution)
            return results

        return call

    def _inherited(self, arguments: Iterable[Any]) -> set[_Execution]:
        with self._lock:
            entries = [self._pending.get(id(one)) for one in arguments if isinstance(one, jax.Array)]
        return {entry[1] for entry in entries if entry is not None and not entry[1].is_seen}

    def _lend(self, value: Any, site: Site, frame: FrameType) -> _Held | None:
        """Open a loan for memory of NumPy or torch, unless JAX copies it before the call returns."""
        span = span_of(value) if is_lent(value) else None
        if span is None or span.pattern is not None:
            return None
        memory = self._ledger.memory(span, keeper_of(value))
        loan = Loan(memory, "jax", "alias", site, self._judge, self._lines.serial(frame), is_shared=True)
        return _Held(self._ledger.open(loan))

    def _judge(self, loan: Loan, mutation: Mutation) -> Claim | None:
        if loan.claim == "alias" and is_producer(
            mutation.frame, loan.memory, serial_of=self._lines.serial, lent_in=loan.serial
        ):
            return "recycle"
        return loan.claim

    def _putting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`device_put`, with the leaves of what it was given."""

        @named_like(original)
        def call(*sources: Any, **named: Any) -> Any:
            frame = self._lines.caller()
            if frame is None:
                return original(*sources, **named)
            site = here(1)
            loans = [self._lend(source, site, frame) for source in sources]
            results = original(*sources, **named)
            for held, source, array in zip(loans, sources, results, strict=True):
                if held is not None:
                    self._alias(held, source, array)
                elif isinstance(source, jax.Array) and source is not array:
                    inherited = self._inherited([source])
                    if inherited:
                        self._pend(array, _Execution((), inherited))
            return results

        return call

    def _importing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`from_dlpack`: `jax.numpy` has one that calls the other."""

        @named_like(original)
        def call(source: Any, *arguments: Any, **named: Any) -> Any:
            frame = self._lines.caller()
            if frame is None or self._inside.importing:
                return original(source, *arguments, **named)
            self._inside.importing = True
            try:
                held = self._lend(source, here(1), frame)
                array = original(source, *arguments, **named)
            finally:
                self._inside.importing = False
            if held is not None:
                self._alias(held, source, array)
            return array

        return call

    def _alias(self, held: _Held, source: Any, array: Any) -> None:
        """Keep a loan open while `array` may be the source's memory, and until its transfer was seen."""
        aligned = held.loan.memory.span.address % _ALIGNMENT == 0
        if aligned or source.nbytes < _LUCKY_BYTES:
            held.loan.exact = aligned
            held.array = weakref.ref(array, lambda _: self._dead.append(held))
            if aligned:
                held.loan.memory.keep(held.array)
            with self._lock:
                self._aliases.setdefault(id(array), []).append(held)
                weakref.finalize(array, self._aliases.pop, id(array), None).atexit = False
        self._pend(array, _Execution([held]))

    def _ended(self, held: _Held) -> None:
        """Close a loan that nothing holds any more."""
        array = held.array() if held.array is not None else None
        is_alive = array is not None and not array.is_deleted()
        if not is_alive and not held.readers and not held.is_closed:
            held.is_closed = True
            self._ledger.close(held.loan)

    def _bury(self) -> None:
        while self._dead:
            self._ended(self._dead.popleft())

    def _pend(self, array: Any, execution: _Execution) -> None:
        if not isinstance(array, jax.Array):
            return
        key = id(array)
        with self._lock:
            known = self._pending.get(key)
            if known is not None and known[0]() is array:
                execution.after.append(known[1])
            reference = weakref.ref(array, lambda _: self._pending.pop(key, None))
            self._pending[key] = (reference, execution)

    # ---------------------------------------------------------------- what the program has seen

    def _see(self, array: Any) -> None:
        """The program knows that `array` is ready, and so everything that it was computed from."""
        if id(array) not in self._pending:
            return
        ended: list[_Held] = []
        with self._lock:
            entry = self._pending.pop(id(array), None)
            todo = [entry[1]] if entry is not None else []
            while todo:
                execution = todo.pop()
                if execution.is_seen:
                    continue
                execution.is_seen = True
                todo += execution.after
                for held in execution.loans:
                    held.readers.discard(execution)
                ended += execution.loans
                execution.after, execution.loans = [], []
        for held in ended:
            self._ended(held)

    def _seeing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(array: Any, *arguments: Any, **named: Any) -> Any:
            result = original(array, *arguments, **named)
            self._see(array)
            return result

        return call

    def _seeing_if_true(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def is_ready(array: Any) -> Any:
            ready = original(array)
            if ready:
                self._see(array)
            return ready

        return is_ready

    def _seeing_tree(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(tree: Any, *arguments: Any, **named: Any) -> Any:
            result = original(tree, *arguments, **named)
            for leaf in jax.tree_util.tree_leaves(tree):
                self._see(leaf)
            return result

        return call

    def _seeing_everything(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def effects_barrier() -> None:
            original()
            for reference, _ in list(self._pending.values()):
                self._see(reference())

        return effects_barrier

    # ---------------------------------------------------------------- what leaves JAX

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`np.asarray` calls this where the array's own memory cannot be shown."""

        @named_like(original)
        def __array__(array: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N807 - stands for that method
            self._read_given(array)
            result = original(array, *arguments, **named)
            self._see(array)
            return result

        return __array__

    def _exporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A DLPack export may be written by whoever imports it, and JAX's arrays never change."""

        @named_like(original)
        def __dlpack__(array: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N807 - stands for that method
            result = original(array, *arguments, **named)
            self._see(array)
            frame = self._lines.caller()
            if frame is not None and next(iter(array.devices())).platform == "cpu" and array.nbytes:
                span = Span(array.unsafe_buffer_pointer(), array.nbytes, None)
                memory = self._ledger.memory(span, weakref.ref(array))
                loan = Loan(memory, "jax", "alias", here(1), self._judge, serial=self._lines.serial(frame))
                held = _Held(self._ledger.open(loan))
                held.array = weakref.ref(array, lambda _: self._dead.append(held))
            return result

        return __dlpack__

    # ---------------------------------------------------------------- donation

    def _donating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember which arguments the next execution of this thread gives away."""

        @named_like(original)
        def call(*arguments: Any, donated_invars: Any, **named: Any) -> Any:
            flags = donated_invars[-len(arguments) :] if arguments else ()
            before = self._inside.donated
            self._inside.donated = frozenset(id(one) for one, donated in zip(arguments, flags, strict=True) if donated)
            try:
                return original(*arguments, donated_invars=donated_invars, **named)
            finally:
                self._inside.donated = before

        return call

    def _note_donations(self, arguments: Iterable[Any], site: Site) -> None:
        """Take note of what was given away, and of what else shows its memory."""
        donated = self._inside.donated
        for one in arguments:
            key = id(one)
            if key not in donated or not isinstance(one, jax.Array):
                continue
            for held in self._aliases.get(key, ()):
                held.loan.claim, held.loan.site = "donate", site
            self._given[key] = _Donation(weakref.ref(one), site, threading.get_ident())
            weakref.finalize(one, self._given.pop, key, None).atexit = False

    def _deleting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def delete(array: Any) -> None:
            original(array)
            for held in list(self._aliases.get(id(array), ())):
                self._ended(held)

        return delete

    def _read_views(self, frame: FrameType, line: int) -> None:
        """Find the line that reads a NumPy view of memory that was given away."""
        if not self._given:
            return
        for name in names_in_line(frame.f_code, line):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            base: Any = root_of(value).base if isinstance(value, np.ndarray) else None
            owner = base.obj if isinstance(base, memoryview) else None
            given = self._given.get(id(owner))
            if given is not None and given.array() is owner:
                self._report_read(span_of(value), keeper_of(value), given.site, site_at(frame, line), exact=False)

    def _report_read(self, span: Span | None, keeper: Any, given_at: Site, read_at: Site, *, exact: bool) -> None:
        if span is None:
            return
        memory = self._ledger.memory(span, keeper)
        loan = Loan(memory, "jax", "donate", given_at, always)
        region = Region(memory.allocation, 0, span.nbytes)
        access = Access(host_timeline(), region, "read", "numpy read", site=read_at, exact=exact)
        self._ledger.report(loan, "donate", access)

    def _read_given(self, array: Any) -> None:
        """A thread reads an array that another one has given away: which of them comes first is luck."""
        given = self._given.get(id(array))
        if given is None or given.array() is not array or given.thread == threading.get_ident():
            return
        bytes_of_it = np.zeros(max(int(array.nbytes), 1), np.uint8)
        self._report_read(span_of(bytes_of_it), keeper_of(bytes_of_it), given.site, here(1), exact=True)


@final
class _Donation:
    """An array that was given to a computation to write over."""

    __slots__ = ("array", "site", "thread")

    def __init__(self, array: Callable[[], Any], site: Site, thread: int) -> None:
        self.array = array
        self.site = site
        self.thread = thread


def is_lent(value: Any) -> bool:
    """Tell whether JAX may read the memory of `value` after the call that was given it has returned."""
    if isinstance(value, np.ndarray):
        is_copied = isinstance(value, literals.TypedNdArray)  # what `jnp.array` copies at once
        same_type = jax.dtypes.canonicalize_dtype(value.dtype) == value.dtype
        return same_type and not is_copied and bool(value.flags.c_contiguous)
    return not isinstance(value, jax.Array) and hasattr(value, "is_contiguous") and bool(value.is_contiguous())


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _forget_fast_paths() -> None:
    """Make functions that were called before ask Python again, without compiling them anew."""
    for name in ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"):
        cache = getattr(pjit, name, None)
        if cache is not None:
            with contextlib.suppress(AttributeError):
                cache.clear()
