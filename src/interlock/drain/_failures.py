"""Rows that could not be produced: which, why, and how often it was tried."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from interlock.drain._files import seal, unseal
from interlock.drain._ids import as_ids
from interlock.drain._idsets import EitherIds, IdSet
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from interlock.drain._ids import IdArray
    from interlock.drain._storage import Storage


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of one row.

    Attributes:
        id: Which row.
        reason: Why.
        attempts: How often it failed, over all runs.
    """

    id: int | str
    reason: str
    attempts: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"id": self.id, "reason": self.reason, "attempts": self.attempts}


def read_failures(storage: Storage) -> tuple[dict[int | str, Failure], int]:
    """Return the last failure of each row that a rank recorded, and the offset behind the last whole line.

    A damaged line counts as not there: the log explains, it decides nothing.
    """
    failures: dict[int | str, Failure] = {}
    whole = 0
    for end, line in storage.lines(storage.layout.failures):
        value = unseal(line)
        if value is not None:
            failures[value["id"]] = Failure(value["id"], value["reason"], value["attempts"])
        if value is not None or line.endswith(b"\n"):
            whole = end
    return failures, whole


def all_failures(storage: Storage) -> dict[int | str, Failure]:
    """Return the failure of each row in the logs of all ranks, of more than one that with the most attempts."""
    found: dict[int | str, Failure] = {}
    for rank in storage.ranks():
        for one, failure in read_failures(storage.of(rank))[0].items():
            if one not in found or found[one].attempts < failure.attempts:
                found[one] = failure
    return found


def still_failed(failures: Iterable[Failure], committed: IdSet) -> dict[int | str, Failure]:
    """Return the failures of rows that were not committed since, by id."""
    return {failure.id: failure for failure in failures if failure.id not in committed}


def or_given_up(committed: IdSet, failures: Iterable[Failure], max_attempts: int | None) -> IdSet | EitherIds:
    """Return which rows are committed, or failed so often that they are not tried again.

    Raises:
        UsageError: `max_attempts` is not positive.
    """
    if max_attempts is None:
        return committed
    if max_attempts < 1:
        raise UsageError(f"max_attempts is {max_attempts}", why="then no row would be tried", hint="use 1 or more")
    ids = [failure.id for failure in failures if failure.attempts >= max_attempts]
    given_up = IdSet()
    if ids:
        given_up.add_many(as_ids(ids))
    return EitherIds(committed, given_up)


@final
class FailureLog:
    """The failures of a sink, while it is written.

    Args:
        storage: Its folder, as the rank that writes sees it.
        syncs: Whether `sync` does so.
    """

    def __init__(self, storage: Storage, *, syncs: bool = True) -> None:
        self._syncs = syncs
        self._known = all_failures(storage)
        storage.cut_log(storage.layout.failures, read_failures(storage)[1])
        self._log = storage.log(storage.layout.failures)
        self._this_run: set[int | str] = set()
        self._unsynced = False
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Rows that failed in this run and were not committed since."""
        return len(self._this_run)

    def known(self) -> list[Failure]:
        """Return the last failure of each row that ever failed, whatever became of it."""
        with self._lock:
            return list(self._known.values())

    def record(self, ids: IdArray, reason: str) -> None:
        """Append a failure of each id."""
        lines = []
        with self._lock:
            for one in ids.tolist():
                known = self._known.get(one)
                failure = Failure(one, reason, known.attempts + 1 if known else 1)
                self._known[one] = failure
                self._this_run.add(one)
                lines.append(seal(failure.as_dict()))
        self._log.append(b"".join(lines))
        self._unsynced = True

    def forget(self, ids: IdArray) -> None:
        """Say that rows are committed after all."""
        with self._lock:
            if self._this_run:
                self._this_run.difference_update(ids.tolist())

    def sync(self) -> None:
        """Wait until everything recorded is on the storage, if that is wanted."""
        if self._unsynced and self._syncs:
            self._log.sync()
            self._unsynced = False

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()
