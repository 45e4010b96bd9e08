"""The reader of a feed: samples become rows of a slot, each in the place that its position fixes."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock.errors import InterlockError, SampleError
from interlock.feed._layout import Layout
from interlock.feed._samples import MapSamples
from interlock.feed._work import Bad, Failure, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from interlock._core._pool import SlotMemory
    from interlock.feed._samples import Samples
    from interlock.feed._tolerance import Tolerance

_BULK_PIECE_BYTES = 256 << 10
"""Below this a piece of a bulk read costs more to hand to a worker than to copy."""
_MOST_ROWS = 8
_QUICK_S = 1e-3
"""Samples that come sooner than this are handed to workers several at a time; slow ones one by one, so that no worker
is left with many."""
_MOST_SUBSTITUTES = 16
"""Samples that are tried in place of a bad one: a source that has none in so many is broken itself."""
_LONGEST_REASON = 500
_OUTCOMES: dict[str, Literal["raised", "skipped", "substituted"]] = {
    "raise": "raised",
    "skip": "skipped",
    "substitute": "substituted",
}


@final
@dataclass(frozen=True, slots=True)
class _Early:
    """What was asked for to learn the layout: a sample, or an error that is final after so many attempts."""

    sample: Any
    error: Exception | None = None
    attempts: int = 1


@final
class SampleReader:
    """Batches of samples. The order is that of the samples' positions, whatever the number of workers.

    Args:
        samples: The samples of the epoch.
        batch_size: Rows of a batch.
        workers: How many workers share a batch.
        bulk: Whether the source may read many samples at once.
        drop_last: Leave out a batch that is not full.
        tolerance: What to do with a sample whose source raises. Substitutes come from samples by index only.
    """

    def __init__(
        self, samples: Samples, batch_size: int, *, workers: int, bulk: bool, drop_last: bool, tolerance: Tolerance
    ) -> None:
        self._samples = samples
        self._batch_size = batch_size
        self._workers = max(1, workers)
        self._bulk = bulk
        self._sample_s = _QUICK_S
        self._drop_last = drop_last
        self._tolerance = tolerance
        self._others = samples if isinstance(samples, MapSamples) and tolerance.action == "substitute" else None
        self._total = samples.total
        self._total_lock = threading.Lock()
        self._layout: Layout | None = None
        self._early: dict[int, _Early] = {}
        self._early_retries = 0
        self._stop = threading.Event()

    @property
    def slot_bytes(self) -> int:
        """As in `Reader`."""
        return self._layout.size_bytes if self._layout is not None else 1

    def stop(self) -> None:
        """As in `Reader`."""
        self._stop.set()

    def plan(self, number: int) -> Work | None:
        """As in `Reader`. Blocks: for the first batch, while one sample is fetched to learn the layout."""
        start = number * self._batch_size
        if self._layout is None:
            self._learn_layout(start)
        rows = self._batch_size if self._total is None else min(self._batch_size, self._total - start)
        if rows <= 0 or (self._drop_last and rows < self._batch_size):
            return None
        retried, self._early_retries = self._early_retries, 0
        return Work(number, start, rows, units=self._units(rows), layout=self._layout, retried=retried)

    def _units(self, rows: int) -> int:
        if self._samples.serial:
            return 1
        if not self._bulk or self._layout is None:
            most = _MOST_ROWS if self._sample_s < _QUICK_S else 1
            return -(-rows // max(1, min(most, rows // self._workers)))
        return max(1, min(self._workers, rows, self._layout.size_bytes // _BULK_PIECE_BYTES))

    def _learn_layout(self, start: int) -> None:
        """Fetch the first sample that the source can give; all others must look like it."""
        for position in range(start, start + self._batch_size):
            if self._total is not None and position >= self._total:
                return
            try:
                error, attempts = self._persist(partial(self._learn_from, position))
            except StopIteration:
                self._end_at(position)
                return
            self._early_retries += attempts - 1
            if error is None:
                return
            self._early[position] = _Early(None, error, attempts)  # for the worker that comes to this sample
            if self._tolerance.action == "raise":
                return
        self._learn_from_others(start)

    def _learn_from(self, position: int) -> None:
        sample = self._samples.fetch(position)
        self._layout = Layout.of_sample(sample, self._batch_size)
        if not self._bulk:
            self._early[position] = _Early(sample)

    def _learn_from_others(self, position: int) -> None:
        """Look for the layout in the samples that may come in place of a bad one."""
        if self._others is None:
            return

        def learn(index: int, others: MapSamples) -> None:
            self._layout = Layout.of_sample(others.fetch_index(index), self._batch_size)

        self._first_other(position, learn)

    def _first_other(self, position: int, take: Callable[[int, MapSamples], None]) -> tuple[int | None, int]:
        """Return the index of the first sample after `position` that can be taken, if any, and attempts made again."""
        retried = 0
        if self._others is not None:
            for steps in range(1, min(_MOST_SUBSTITUTES, self._others.length - 1) + 1):
                if self._stop.is_set():
                    break
                index = self._others.index_after(position, steps)
                try:
                    error, attempts = self._persist(partial(take, index, self._others))
                except StopIteration:  # a source of known length has nothing to end
                    continue
                retried += attempts - 1
                if error is None:
                    return index, retried
        return None, retried

    def _persist(self, act: Callable[[], None], error: Exception | None = None) -> tuple[Exception | None, int]:
        """Do something as often as is tolerated, until it succeeds; `error` is that of an attempt made before.

        Returns:
            The last error, None after success; and the attempts, with the one before.

        Raises:
            StopIteration: It did.
        """
        attempts = 0 if error is None else 1
        while attempts < self._tolerance.attempts:
            attempts += 1
            if attempts > 1 and self._stop.wait(self._tolerance.pause_before(attempts)):
                return error, attempts - 1
            try:
                act()
            except StopIteration:
                raise
            except Exception as again:  # noqa: BLE001 - concerns this sample
                error = again
            else:
                return None, attempts
        return error, attempts

    def run(self, work: Work, unit: int, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`: a piece is a run of samples."""
        first, last = work.rows * unit // work.units, work.rows * (unit + 1) // work.units
        if not (self._bulk and work.layout is not None and self._run_bulk(work, first, last, memory)):
            self._run_each(work, range(first, last), memory)

    def _run_bulk(self, work: Work, first: int, last: int, memory: Callable[[int], SlotMemory]) -> bool:
        began = time.perf_counter()
        layout = work.layout
        assert layout is not None  # noqa: S101 - checked by the caller
        out = layout.structure.rebuild([view[first:last] for view in work.views(memory)])
        try:
            done = self._samples.read_into(work.start + first, work.start + last, out)
        except Exception:  # noqa: BLE001 - one of many: going through them one by one says which
            return False
        if done:
            work.count(time.perf_counter() - began, 0.0, [])
        return done

    def _run_each(self, work: Work, rows: range, memory: Callable[[int], SlotMemory]) -> None:
        """Make rows one by one. Each sample is copied before the next is asked for, so a source may recycle memory."""
        clock, fetch, layout = time.perf_counter, self._fetch, work.layout
        stopped = self._stop.is_set
        views = work.views(memory) if layout is not None else []
        fetch_s = copy_s = 0.0
        errors: list[Bad] = []
        done = clock()
        for row in rows:
            position = work.start + row
            if stopped() or (self._total is not None and position >= self._total):
                break
            began = fetched = done
            try:
                sample = fetch(position)
                fetched = clock()
                if layout is not None:
                    layout.write(views, row, sample)
            except StopIteration:
                self._end_at(position)
                break
            except Exception as error:  # noqa: BLE001 - concerns this sample
                errors += self._failed(work, views, row, error)
            done = clock()
            fetch_s += fetched - began
            copy_s += done - fetched
            if errors and self._tolerance.action == "raise":
                break
        self._sample_s = fetch_s / len(rows)
        work.count(fetch_s, copy_s, errors)

    def _fetch(self, position: int) -> Any:
        early = self._early.get(position)
        if early is None:  # nearly always: it is the sample that the layout was learnt from
            return self._samples.fetch(position)
        if early.error is not None:
            raise early.error
        del self._early[position]
        return early.sample

    def _failed(self, work: Work, views: list[npt.NDArray[Any]], row: int, error: Exception) -> list[Bad]:
        """Make a row again after its first attempt, or put another sample into it; return it if its sample is bad."""
        position = work.start + row
        early = self._early.pop(position, None)
        if early is not None and early.error is not None:
            final, attempts = early.error, early.attempts
        else:
            try:
                failed, attempts = self._persist(partial(self._make_row, work, views, row), error)
            except StopIteration:
                self._end_at(position)
                return []
            work.count_retries(attempts - 1)
            if failed is None:
                return []
            final = failed
        return [Bad(row, final, attempts, self._substitute(work, views, row))]

    def _make_row(self, work: Work, views: list[npt.NDArray[Any]], row: int) -> None:
        sample = self._samples.fetch(work.start + row)
        if work.layout is not None:
            work.layout.write(views, row, sample)

    def _substitute(self, work: Work, views: list[npt.NDArray[Any]], row: int) -> int | None:
        """Fill a row with another sample; return its index, or None if there is none."""
        layout = work.layout
        if layout is None:
            return None

        def write(index: int, others: MapSamples) -> None:
            layout.write(views, row, others.fetch_index(index))

        index, retried = self._first_other(work.start + row, write)
        work.count_retries(retried)
        return index

    def _end_at(self, position: int) -> None:
        with self._total_lock:
            self._total = position if self._total is None else min(position, self._total)

    def finish(self, work: Work, memory: Callable[[int], SlotMemory]) -> None:
        """As in `Reader`: cuts the batch at the end of the epoch and closes the gaps that failed samples left.

        Raises:
            SampleError: A sample failed, and is neither left out nor replaced: the first one in the batch's order.
        """
        if self._total is not None:
            work.rows = max(0, min(work.rows, self._total - work.start))
        if self._drop_last and work.rows < self._batch_size:
            work.rows = 0
        work.errors = sorted((bad for bad in work.errors if bad.row < work.rows), key=lambda bad: bad.row)
        if self._tolerance.action == "skip":
            if work.errors:
                self._close_gaps(work, memory)
        elif (fatal := next((bad for bad in work.errors if bad.substitute is None), None)) is not None:
            work.errors = [fatal]
            raise self._sample_error(work, fatal)
        work.trim = work.rows
        work.void = work.rows == 0
        if work.layout is not None:
            row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in work.layout.leaves)
            work.nbytes = work.rows * row_bytes

    @staticmethod
    def _close_gaps(work: Work, memory: Callable[[int], SlotMemory]) -> None:
        work.kept = np.delete(np.arange(work.rows), [bad.row for bad in work.errors])
        work.rows = len(work.kept)
        if work.rows:
            for view in work.views(memory):
                view[: work.rows] = view[work.kept]

    def ids(self, work: Work) -> npt.NDArray[Any]:
        """Return the ids of a finished batch, int64 or Unicode, shape (rows,)."""
        rows = np.arange(work.rows) if work.kept is None else work.kept
        ids = self._samples.ids(work.start + rows)
        if self._others is None or not work.errors:
            return ids
        named = ids.tolist()  # a list: an array of names cannot hold longer ones
        for bad in work.errors:
            if bad.substitute is not None:
                named[bad.row] = self._others.id_of(bad.substitute)
        return np.array(named)

    def failures(self, work: Work, epoch: int) -> list[Failure]:
        """Return what failed in a finished batch, or ended it."""
        if not work.errors:
            return []
        ids = self._samples.ids(work.start + np.array([bad.row for bad in work.errors], dtype=np.intp))
        return [self._failure(work, bad, name, epoch) for bad, name in zip(work.errors, ids.tolist(), strict=True)]

    def _failure(self, work: Work, bad: Bad, name: int | str, epoch: int) -> Failure:
        other = bad.substitute
        return Failure(
            index=self._samples.index_at(work.start + bad.row),
            id=name,
            reason=_reason(bad.error),
            attempts=bad.attempts,
            action="raised" if work.cause is not None else _OUTCOMES[self._tolerance.action],
            substitute_index=other,
            substitute_id=None if other is None or self._others is None else self._others.id_of(other),
            epoch=epoch,
        )

    def _sample_error(self, work: Work, bad: Bad) -> SampleError:
        index, error = self._samples.index_at(work.start + bad.row), bad.error
        if isinstance(error, SampleError) and self._others is None:
            return error
        what = f"sample {index} could not be read"
        why, hint = f"{type(error).__name__}: {error}", ""
        if isinstance(error, InterlockError):
            what, why, hint = f"sample {index}: {error.what}", error.why, error.hint
        if self._others is not None:
            tried = min(_MOST_SUBSTITUTES, self._others.length - 1)
            hint = f"none of the {tried} samples after it can be read either"
        found = SampleError(what, index=index, why=why, hint=hint)
        found.__cause__ = error
        return found


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, InterlockError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_LONGEST_REASON]
