"""Puts into a drain from a loop whose ids may be on the device."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, final

from interlock.errors import InterlockError
from interlock.integrations._calls import Calls
from interlock.integrations._torch_trees import Tree, in_order, is_on_device, map_leaves

if TYPE_CHECKING:
    from interlock.drain import Drain


@final
class Puts:
    """Puts rows into a drain, and waits for no device to learn their ids.

    Args:
        drain: Where rows go; closed with this.
        device: Where the program works.
        budget_bytes: Most bytes of rows whose ids have not landed.
        timeout_s: Bound on every wait.
    """

    def __init__(self, drain: Drain, device: Any, *, budget_bytes: int, timeout_s: float) -> None:
        self.drain = drain
        self._device = device
        self._budget_bytes = budget_bytes
        self._timeout_s = timeout_s
        self._calls: Calls | None = None

    def put(self, ids: Any, outputs: Any, label: str) -> None:
        """Take rows, with the values that they have now in the order of their producer.

        Args:
            ids: As in `Drain.put`, or a tensor on a device: then the rows come to the host with it, and are put from
                there, on a thread.
            outputs: As in `Drain.put`.
            label: Which batch, for messages.

        Raises:
            InterlockError: As in `Drain.put`; where ids are on a device, for a batch before.
        """
        if self._calls is not None:
            self._calls.raise_failure()
        outputs = in_order(outputs, self._device)
        if not isinstance(ids, (list, tuple)):
            ids = in_order(ids, self._device)
        if not is_on_device(ids):
            self.drain.put(ids, outputs)
            return
        self.drain.fail((), "")  # records nothing, and raises what went wrong
        if self._calls is None:
            name = f"the drain of {self.drain.sink}"
            self._calls = Calls(name, budget_bytes=self._budget_bytes, timeout_s=self._timeout_s)
        drain = self.drain
        self._calls.put(lambda rows: drain.put(*rows), Tree((ids, outputs), map_leaves, self._device), label)

    def flush(self) -> None:
        """Commit everything that was put so far, as `Drain.flush` does."""
        if self._calls is not None:
            self._calls.finish()
        self.drain.flush()

    def close(self, error: BaseException | None = None) -> None:
        """Commit everything that was put and let go of the sink; what fails then is told, or noted on `error`."""
        try:
            with closing(self.drain):
                if self._calls is not None:
                    self._calls.close()
        except InterlockError as second:
            if error is None:
                raise
            if second is not error:
                error.add_note(f"and the drain could not commit what was put: {second}")
