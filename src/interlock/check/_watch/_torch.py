"""Tensors that are NumPy memory.

Sharing is legal in torch, and programs write through either name on purpose. So a change is reported only if the memory
belongs to a producer that writes its output again while somebody still holds the tensor made of the last one; and if a
state that was kept by reference is loaded as if it had been a copy.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from interlock._core._events import Access, host_timeline
from interlock._core._sites import here
from interlock.check._watch._ledger import Loan
from interlock.check._watch._memory import is_plain_tensor, keeper_of, leaves, span_of
from interlock.check._watch._patches import named_like
from interlock.check._watch._producers import is_held, is_producer, is_shared_by_owner, is_wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from interlock._core._events import Claim
    from interlock.check._watch._ledger import Ledger, Mutation
    from interlock.check._watch._lines import Lines
    from interlock.check._watch._patches import Patches

_ALONE = 2
"""Uses of a storage that has one tensor: that one, and the one who asks."""
_IMPORTS = ("from_numpy", "frombuffer", "as_tensor", "asarray", "from_dlpack")


@final
class TorchWatch:
    """Opens loans for tensors over memory of others, and for states that are handed out by reference.

    Args:
        ledger: Where loans are kept.
        lines: Who follows lines.
    """

    def __init__(self, ledger: Ledger, lines: Lines) -> None:
        self._ledger = ledger
        self._lines = lines
        self._inside = threading.local()
        self._states: dict[int, list[tuple[weakref.ref[Any], Loan, list[Mutation]]]] = {}

    def install(self, patches: Patches) -> None:
        """Replace what imports memory, and what hands out and takes back the state of a module."""
        for name in _IMPORTS:
            patches.wrap(torch, name, self._importing)
        patches.wrap(torch.utils.dlpack, "from_dlpack", self._importing)
        patches.wrap(torch.nn.Module, "state_dict", self._handing_out)
        patches.wrap(torch.nn.Module, "load_state_dict", self._taking_back)

    def _importing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def call(source: Any, *arguments: Any, **named: Any) -> Any:
            result = original(source, *arguments, **named)
            frame = self._lines.caller()
            if frame is not None and result is not source and is_plain_tensor(torch, result):
                span, theirs = span_of(result), span_of(source)
                if span is not None and theirs is not None and span.touches(theirs):
                    self._lend(result, source, self._lines.serial(frame))
            return result

        return call

    def _lend(self, tensor: Any, source: Any, serial: int) -> None:
        span = span_of(tensor)
        if span is None:
            return
        reference = weakref.ref(tensor)
        storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call] # of torch
        memory = self._ledger.memory(span, reference, *((keeper_of(source),) if _is_array(source) else ()))

        def judge(loan: Loan, mutation: Mutation) -> Claim | None:
            if storage.expired():
                self._ledger.close(loan)
                return None
            frame = mutation.frame
            if not is_producer(frame, memory, serial_of=self._lines.serial, lent_in=loan.serial):
                return None
            held = reference()
            if is_shared_by_owner(frame, memory):
                return None
            if is_held(memory, torch.Tensor, frame):
                return "recycle"
            return "recycle" if held is not None and _is_alone(held) and is_wanted(held, 1) else None

        loan = self._ledger.open(Loan(memory, "torch", "recycle", here(1), judge, serial=serial))
        loan.ends_with = storage.expired

    # ---------------------------------------------------------------- states that are handed out by reference

    def _handing_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @named_like(original)
        def state_dict(module: Any, *arguments: Any, **named: Any) -> Any:
            if getattr(self._inside, "state", False):
                return original(module, *arguments, **named)
            self._inside.state = True
            try:
                state = original(module, *arguments, **named)
            finally:
                self._inside.state = False
            if self._lines.caller() is not None and isinstance(state, OrderedDict):
                self._remember(state)
            return state

        return state_dict

    def _remember(self, state: Any) -> None:
        """Follow what becomes of the tensors of a state while the state is alive."""
        site, entries = here(1), []
        for tensor in leaves(state):
            span = span_of(tensor)
            if span is None:
                continue
            memory = self._ledger.memory(span, keeper_of(tensor))
            changes: list[Mutation] = []

            def judge(_: Loan, mutation: Mutation, changes: list[Mutation] = changes) -> Claim | None:
                if not changes:
                    changes.append(mutation)
                return None

            loan = self._ledger.open(Loan(memory, "state_dict", "snapshot", site, judge))
            entries.append((weakref.ref(tensor), loan, changes))
        key = id(state)
        self._states[key] = entries
        weakref.finalize(state, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        for _, loan, _ in self._states.pop(key, ()):
            loan.ends_with = _now

    def _taking_back(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A state is loaded into the tensors that it refers to: it was meant as a copy, and has changed with them."""

        @named_like(original)
        def load_state_dict(module: Any, state_dict: Any, *arguments: Any, **named: Any) -> Any:
            self._ledger.settle()
            for _, loan, changes in self._states.get(id(state_dict), ()):
                if changes and any(_same_place(loan, one) for one in module.state_dict().values()):
                    mutation = changes[0]
                    access = Access(host_timeline(), mutation.region, "write", "changed", site=mutation.site)
                    self._ledger.report(loan, "snapshot", access)
            return original(module, state_dict, *arguments, **named)

        return load_state_dict


def _is_alone(tensor: Any) -> bool:
    """Tell whether no view of `tensor` exists: one refers to the tensor in a way that cannot be followed."""
    count: Any = torch._C._storage_Use_Count  # noqa: SLF001 - nothing public says it
    return bool(count(tensor.untyped_storage()._cdata) <= _ALONE)  # noqa: SLF001 - as above


def _same_place(loan: Loan, tensor: Any) -> bool:
    return span_of(tensor) == loan.memory.span


def _now() -> bool:
    return True


def _is_array(source: Any) -> bool:
    return type(source).__module__ == "numpy" or isinstance(source, (bytearray, memoryview))
