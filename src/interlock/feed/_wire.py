"""What a feed and its worker processes say to each other: small records of fixed form, and text where something failed.

No sample travels: rows are written into memory that both sides see. Nothing that a worker sends is unpickled.
"""

from __future__ import annotations

import json
import struct
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from interlock import errors
from interlock.errors import InterlockError, SampleError, WorkerError
from interlock.feed._stages import StageFailure

if TYPE_CHECKING:
    from interlock.feed._work import Work

FILL: Final = 1
"""Make rows, one after the other."""
FILL_AT_ONCE: Final = 2
"""Make rows by the source's `read_into`."""
ATTACH: Final = 3
"""A descriptor follows: map the memory, and remember it by its key."""
DETACH: Final = 4
"""Let go of the memory with that key."""
PASS: Final = 5
"""A pickled `PassTerms` follows; only ever from the feed to its worker."""

HELLO: Final = b"ready"
"""First message of a worker: it has its source."""

DONE, FAILED, ENDED, BROKEN = range(4)
"""How a request ended: all rows made; the row behind those made failed; the epoch ended there; nothing more is made."""

MOST_PASSES: Final = 4
"""Passes whose terms a worker keeps, those that it was told last: as many as are likely to run side by side."""

CONTROL_BYTES: Final = 4096
MADE, STOPPED = range(2)
"""Words of the memory that a worker and its feed share: rows made of this request; number of the pass to leave off."""

_PLAIN = (
    errors.InterlockError,
    errors.UsageError,
    errors.LeaseError,
    errors.SourceError,
    errors.SinkConflictError,
    errors.PeerError,
    errors.ModelError,
    errors.SinkError,
    errors.DeviceError,
    errors.BoundError,
)
"""Errors that are made of their three parts alone."""

_REQUEST = struct.Struct("<Bxxxxxxxqqqqq")
_REPLY = struct.Struct("<Bxxxxxxxqdddq")


@final
@dataclass(frozen=True, slots=True)
class Request:
    """A message to a worker.

    Attributes:
        what: One of the constants above.
        number: Number of the pass.
        key: Name of the memory.
        size_bytes: Its size.
        row: First row to make.
        asked: What to ask the source for, one for each row: indices, or positions in the epoch for a function.
    """

    what: int
    number: int = 0
    key: int = 0
    size_bytes: int = 0
    row: int = 0
    asked: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def packed(self) -> bytes:
        """Return the bytes to send."""
        asked = b"" if self.asked is None else self.asked.tobytes()
        return _REQUEST.pack(self.what, self.number, self.key, self.size_bytes, self.row, len(asked) // 8) + asked

    @classmethod
    def unpacked(cls, data: bytes) -> Request:
        """Return the message that was sent."""
        what, number, key, size_bytes, row, count = _REQUEST.unpack_from(data)
        asked = np.frombuffer(data, np.int64, count, _REQUEST.size) if count else None
        return cls(what, number, key, size_bytes, row, asked)


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request to make rows.

    Attributes:
        how: `DONE`, `FAILED`, `ENDED` or `BROKEN`.
        made: Rows made, from the first one on.
        fetch_s: Time in the source.
        copy_s: Time of copying samples into their rows.
        cpu_s: Processor time of the worker.
        stages: Time in each stage.
        error: What was raised, as text; empty if nothing was.
    """

    how: int
    made: int
    fetch_s: float = 0.0
    copy_s: float = 0.0
    cpu_s: float = 0.0
    stages: tuple[float, ...] = ()
    error: str = ""

    def packed(self) -> bytes:
        """Return the bytes to send."""
        head = _REPLY.pack(self.how, self.made, self.fetch_s, self.copy_s, self.cpu_s, len(self.stages))
        return head + struct.pack(f"<{len(self.stages)}d", *self.stages) + self.error.encode("utf-8", "replace")

    def count(self, work: Work) -> float:
        """Add what it took to the counts of a batch; return how many seconds that was."""
        work.count(self.fetch_s, self.copy_s, [])
        for index, seconds in enumerate(self.stages):
            work.count_stage(index, seconds)
        work.count_cpu(self.cpu_s)
        return self.fetch_s + self.copy_s + sum(self.stages)

    @classmethod
    def unpacked(cls, data: bytes) -> Reply:
        """Return the reply that was sent."""
        how, made, fetch_s, copy_s, cpu_s, count = _REPLY.unpack_from(data)
        stages = struct.unpack_from(f"<{count}d", data, _REPLY.size)
        error = data[_REPLY.size + 8 * count :].decode("utf-8", "replace")
        return cls(how, made, fetch_s, copy_s, cpu_s, stages, error)


def told(error: BaseException) -> str:
    """Return an exception as text, for `heard`."""
    stage = error.stage if isinstance(error, StageFailure) else None
    inner: BaseException = error.error if isinstance(error, StageFailure) else error
    said: dict[str, Any] = {
        "stage": stage,
        "kind": type(inner).__name__,
        "message": str(inner),
        "traceback": "".join(traceback.format_exception(inner)),
    }
    if isinstance(inner, InterlockError):
        said |= {"what": inner.what, "why": inner.why, "hint": inner.hint, "index": getattr(inner, "index", None)}
    return json.dumps(said)


def heard(text: str, pid: int | None) -> Exception:
    """Return the exception that `told` made a text of; errors of Interlock become what they were."""
    said = json.loads(text)
    kind: Any = getattr(errors, said["kind"], None)
    error: InterlockError
    if "what" in said and kind is SampleError:
        error = SampleError(said["what"], index=said["index"], why=said["why"], hint=said["hint"])
    elif "what" in said and kind in _PLAIN:
        error = kind(said["what"], why=said["why"], hint=said["hint"])
    else:
        error = WorkerError(said["kind"], said["message"])
    error.add_note(f"In worker process {pid}:\n{said['traceback']}")
    return error if said["stage"] is None else StageFailure(said["stage"], error)
