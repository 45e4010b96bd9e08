"""The sink `null:`, for measuring: rows come to the host, are counted, and are forgotten. Nothing is on any storage."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.drain._ids import kind_of
from interlock.drain._idsets import IdSet
from interlock.drain._publish import Published
from interlock.drain._run import RunRecord
from interlock.drain._schema import Column
from interlock.drain._times import WRITER_PHASES, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from interlock._core._rows import Rows
    from interlock.drain._failures import Failure
    from interlock.drain._ids import IdArray

NULL = "null:"


@final
class ForgottenFailures:
    """Counts rows that failed."""

    def __init__(self) -> None:
        self._ids = IdSet()

    @property
    def count(self) -> int:
        """Rows that failed and did not come since."""
        return len(self._ids)

    def known(self) -> list[Failure]:
        """As in `FailureLog`: nothing is kept."""
        return []

    def record(self, ids: IdArray, reason: str) -> None:  # noqa: ARG002 - as a log that keeps it
        """Count a failure of each id."""
        self._ids.add_many(ids)

    def forget(self, ids: IdArray) -> None:
        """Say that rows came after all."""
        if len(self._ids):
            self._ids.discard_many(ids)

    def sync(self) -> None:
        """Do nothing: there is no file."""


class NullStore:
    """Stands where a sink's folder would.

    Args:
        fingerprint: As in `Store`; nothing is compared with it.
        total: As in `Store`.

    Attributes:
        text: `null:`, or what stands for it.
        place: Shown in messages.
        run: What the rows look like.
        committed: Ids of the rows that came.
        resumed_rows: 0.
        failures: Failures of rows.
        committing: As in `Store`.
    """

    resumed_rows = 0

    def __init__(self, *, fingerprint: dict[str, Any] | None, total: int | None) -> None:
        self.text = self.place = NULL
        self.run = RunRecord.new("null", fingerprint, total)
        self.committed = IdSet()
        self.failures = ForgottenFailures()
        self.committing = threading.Lock()

    def publisher(self) -> NullPublisher:
        """Return what counts rows."""
        return NullPublisher(self)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class NullPublisher:
    """Counts rows in place of writing shards.

    Args:
        store: What keeps the ids.

    Attributes:
        done: Only `rows` moves: nothing is written, so there are no bytes and no shards.
        times: As in `Publisher`.
        is_sealed: False: rows are committed as soon as a shard of them is full.
        open_bytes: Bytes of rows since the last `seal`.
        begun_s: When the first of them came; None if there is none.
        number: As in `Publisher`.
    """

    is_sealed = False

    def __init__(self, store: NullStore) -> None:
        self._store = store
        self._ids: list[IdArray] = []
        self.done = Published()
        self.times = Stopwatch(WRITER_PHASES)
        self.open_bytes = 0
        self.begun_s: float | None = None
        self.number = 0

    def write(self, ids: IdArray, columns: Mapping[str, Rows]) -> None:
        """Count rows."""
        if self._store.run.schema is None:
            schema = tuple(Column(name, column.dtype.name, column.shape[1:]) for name, column in columns.items())
            self._store.run = self._store.run.with_schema(schema, kind_of(ids))
        if self.begun_s is None:
            self.begun_s = time.monotonic()
        self._ids.append(ids)
        self.open_bytes += ids.nbytes + sum(column.nbytes for column in columns.values())

    def seal(self) -> None:
        """Keep the ids of the rows so far, so that they are not taken again."""
        if self._ids:
            ids = np.concatenate(self._ids)
            self._store.committed.add_many(ids)
            self._store.failures.forget(ids)
            self.done.rows += len(ids)
        self.abandon()

    def finish(self) -> None:
        """Do nothing: `seal` was all."""

    def abandon(self) -> None:
        """Forget the rows since the last `seal`."""
        self._ids = []
        self.open_bytes = 0
        self.begun_s = None
