"""Everything that Interlock raises, in one tree; the branch says whose fault it is.

::

    InterlockError
    ├── UsageError            the caller's mistake; also a ValueError
    │   ├── LeaseError        a lease, slot or ticket was used out of turn
    │   ├── SourceError       a source cannot be read, or is not what it said
    │   └── SinkConflictError the sink holds something else, or was written under other conditions
    ├── PeerError             code or storage that we were handed failed
    │   ├── SampleError       the source failed at one sample; carries its index
    │   ├── WorkerError       what a source or a stage raised in a worker process
    │   ├── ModelError        the model failed, or returned something that does not fit its batch
    │   └── SinkError         writing failed (full disk, no permission, an encoder)
    ├── DeviceError           a device refused or lost work; every fence behind it fails with this cause
    │   └── CorruptionError   bytes changed on their way: found by `verify=True`; carries batch or put, and leaf
    ├── BoundError            a bound was reached (time or bytes); also a TimeoutError
    └── InternalError         our bug: please report it

A message has three parts: what happened, why, and the next step. They live on the exception; the text is made in
``__str__``.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BoundError",
    "CorruptionError",
    "DeviceError",
    "InterlockError",
    "InternalError",
    "LeaseError",
    "ModelError",
    "PeerError",
    "SampleError",
    "SinkConflictError",
    "SinkError",
    "SourceError",
    "UsageError",
    "WorkerError",
]


class InterlockError(Exception):
    """Root of the tree.

    Args:
        what: What happened, naming the culprit. One clause, no full stop.
        why: The reason or the value that was seen. May be empty.
        hint: The next step for the reader. May be empty.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}; {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Arguments by keyword do not survive the default way, and errors come from worker processes too.
        return _restore, (type(self), self.args, dict(vars(self)))


def _restore(kind: type[InterlockError], args: tuple[Any, ...], data: dict[str, Any]) -> InterlockError:
    error = kind.__new__(kind, *args)
    vars(error).update(data)
    return error


class UsageError(InterlockError, ValueError):
    """The caller's mistake."""


class LeaseError(UsageError):
    """A lease, slot or ticket was used out of turn."""


class SourceError(UsageError):
    """A source cannot be read, or is not what it said."""


class SinkConflictError(UsageError):
    """The sink holds something else, or was written under other conditions."""


class PeerError(InterlockError):
    """Code or storage that we were handed failed; the cause is chained."""


class SampleError(PeerError):
    """The source failed at one sample.

    Args:
        what: As in `InterlockError`.
        index: Index of the sample in its source (after shuffling: the index that the source was asked for).
        why: As in `InterlockError`.
        hint: As in `InterlockError`.
    """

    def __init__(self, what: str, *, index: int, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.index = index


class WorkerError(PeerError):
    """What a source or a stage raised in a worker process; its traceback there is a note on this exception.

    Args:
        kind: Name of the type of exception.
        message: Its text.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, why=message)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


class ModelError(PeerError):
    """The model failed, or returned something that does not fit its batch."""


class SinkError(PeerError):
    """Writing failed."""


class DeviceError(InterlockError):
    """A device refused or lost work."""


class CorruptionError(DeviceError):
    """Bytes are not what they were when they were handed over.

    Args:
        what: As in `InterlockError`.
        number: Number of the batch in its epoch, or of the put in its drain.
        leaf: Name of the leaf; empty for a lone array.
        why: As in `InterlockError`.
        hint: As in `InterlockError`.
    """

    def __init__(self, what: str, *, number: int, leaf: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.number = number
        self.leaf = leaf


class BoundError(InterlockError, TimeoutError):
    """A bound on time or bytes was reached; the message names the likely cause and the knob."""


class InternalError(InterlockError):
    """Our bug."""

    def __init__(self, what: str, *, why: str = "") -> None:
        super().__init__(what, why=why, hint="this is a bug in Interlock: please report it with this message")
