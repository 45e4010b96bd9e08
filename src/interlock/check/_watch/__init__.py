"""Watch: hazards that need no device: shared NumPy memory, producers that recycle, donation, snapshots by reference.

`_lines` follows the program's lines, `_ledger` keeps who holds which bytes (`_memory`), and `_jax`, `_torch`,
`_threads` open and close loans. A change of lent bytes is judged by the rule of its loan, and becomes events.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from interlock._core._queue import OperationQueue
from interlock.check._watch._ledger import Ledger
from interlock.check._watch._lines import Lines
from interlock.check._watch._numpy import ProducerWatch
from interlock.check._watch._patches import Patches, when_loaded
from interlock.check._watch._threads import ThreadWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["activate"]


@contextmanager
def activate(session: Any = None) -> Iterator[None]:
    """Watch the program until the block is left.

    Args:
        session: Gets a note where something cannot be watched; may be None.
    """
    note = session.note if session is not None else _nobody
    ledger = Ledger()
    lines = Lines(ledger)
    lines.on_failure = lambda error: note(f"shared memory was not watched throughout: {error!r}")
    patches = Patches()
    with ExitStack() as stack:
        stack.callback(patches.undo)
        ThreadWatch(ledger, lines).install(patches)
        ProducerWatch(ledger, lines).install()
        patches.wrap(OperationQueue, "run_one", lambda original: _apart(ledger, original))
        stack.enter_context(when_loaded("jax", lambda: _watch_jax(ledger, lines, patches, stack, note)))
        stack.enter_context(when_loaded("torch", lambda: _watch_torch(ledger, lines, patches)))
        if not stack.enter_context(lines.active()):
            note("another tracer was active, so lines that change shared memory are named less exactly")
        yield


def _nobody(text: str) -> None:
    """Take a note for nobody."""


def _apart(ledger: Ledger, run_one: Callable[[OperationQueue], None]) -> Callable[[OperationQueue], None]:
    """Keep what a simulated stream writes from being taken for the work of the line that waits for it."""

    def run(queue: OperationQueue) -> None:
        if not len(ledger):
            run_one(queue)
            return
        ledger.settle()
        with ledger.nobody_looks():
            run_one(queue)
            ledger.absorb()

    return run


def _watch_jax(ledger: Ledger, lines: Lines, patches: Patches, stack: ExitStack, note: Callable[[str], None]) -> None:
    try:
        from interlock.check._watch._jax import JaxWatch  # noqa: PLC0415 - loads jax, which the program has loaded

        JaxWatch(ledger, lines).install(patches, stack)
    except (ImportError, AttributeError) as error:  # parts of JAX that are private, and move
        note(f"this version of JAX is not watched: {error}")


def _watch_torch(ledger: Ledger, lines: Lines, patches: Patches) -> None:
    from interlock.check._watch._torch import TorchWatch  # noqa: PLC0415 - loads torch, which the program has loaded

    TorchWatch(ledger, lines).install(patches)
