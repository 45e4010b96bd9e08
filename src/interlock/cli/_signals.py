"""Ctrl-C and SIGTERM: the first ends the run after its batch, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self

_COMMITTING = "stopping after this batch and committing what is complete"


@final
class Stop:
    """Whether a signal asked to stop. Takes the signals while it is entered, on the main thread only.

    Args:
        doing: What is said after the first signal.

    Attributes:
        signal: Number of the first signal, or None.
    """

    def __init__(self, doing: str = _COMMITTING) -> None:
        self._note = f"\ninterlock: {doing}; once more stops at once\n".encode()
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int | None:
        """128 plus the number of the signal, or None."""
        return None if self.signal is None else 128 + self.signal

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what `signal` calls with
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        os.write(2, self._note)  # `print` may be what was interrupted
