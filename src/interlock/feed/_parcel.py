"""What worker processes are given when they start: the source and the stages, packed."""

from __future__ import annotations

import io
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from interlock.feed._stages import Chain

_MOST_KEPT_BYTES = 64 << 20


class UnpackedError(Exception):
    """What a worker needs can be sent only as part of its process."""


@final
class Parcel:
    """What each worker gets a copy of.

    It is packed once for all that start together, and at once: the first sample of a pass is made in this process, and
    a source that opens its files when they are first needed cannot be packed after that. For the same reason it is kept
    for workers that replace others, unless it is large.

    Args:
        source: As in `Processes`.
        chain: As in `Processes`.
        workers: How many start together.

    Attributes:
        source: As given.
        chain: As given.
        apart: Whether it can be sent after a process was started. Locks and queues of `multiprocessing` cannot, and
            tensors of torch, which travel as shared memory.
    """

    def __init__(self, source: Any, chain: Chain | None, workers: int) -> None:
        self.source = source
        self.chain = chain
        self._left = workers
        self._lock = threading.Lock()
        self._packed = self._pack()
        self.apart = self._packed is not None

    def _pack(self) -> bytes | None:
        packed = io.BytesIO()
        packer = ForkingPickler(packed)
        ways = packer.dispatch_table.items()
        packer.dispatch_table = {kind: _refuse if _sent_once(kind) else how for kind, how in ways}
        try:
            packer.dump((self.source, self.chain))
        except Exception:  # noqa: BLE001 - any object may refuse in its own way; `unsendable` says it, if need be
            return None
        return packed.getvalue()

    def send(self, connection: Connection) -> None:
        """Send it to a worker.

        Raises:
            UnpackedError: It cannot be sent in this way.

        Blocks: until the worker has read nearly all of it.
        """
        with self._lock:
            packed = self._packed or self._pack()
            if packed is None:
                self.apart = False
                raise UnpackedError
            self._left -= 1
            self._packed = packed if self._left > 0 or len(packed) <= _MOST_KEPT_BYTES else None
        connection.send_bytes(packed)


def _sent_once(kind: type) -> bool:
    """Tell whether `multiprocessing`, or torch with it, sends such objects as descriptors: to one process only."""
    return kind.__module__.partition(".")[0] in {"multiprocessing", "socket", "torch"}


def _refuse(value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__} can be sent to one process only")
