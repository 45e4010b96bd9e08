"""The reader of a feed: samples become rows of a slot, each in the place that its position fixes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock.errors import InternalError
from interlock.feed._failures import reason_of, sample_error, stage_of
from interlock.feed._ragged_layout import require_fit
from interlock.feed._recipe import WRITTEN, Recipe
from interlock.feed._samples import FunctionSamples, MapSamples
from interlock.feed._stages import StageFailure
from interlock.feed._wire import ENDED, FAILED
from interlock.feed._work import Bad, Failure, Piece, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from interlock._core._pool import SlotMemory
    from interlock.errors import SampleError
    from interlock.feed._layout import Layout
    from interlock.feed._processes import Remote
    from interlock.feed._ragged import Ragged
    from interlock.feed._samples import Samples
    from interlock.feed._stages import Chain, Step
    from interlock.feed._tolerance import Tolerance

_BULK_PIECE_BYTES = 256 << 10
"""Below this a piece of a bulk read costs more to hand to a worker than to copy."""
_MOST_ROWS = 8
_MOST_ROWS_SENT = 64
_QUICK_S = 1e-3
"""Samples that come sooner than this are handed to workers several at a time; slow ones one by one, so that no worker
is left with many."""
_MOST_SUBSTITUTES = 16
"""Samples that are tried in place of a bad one: a source that has none in so many is broken itself."""
_OUTCOMES: dict[str, Literal["raised", "skipped", "substituted"]] = {
    "raise": "raised",
    "skip": "skipped",
    "substitute": "substituted",
}


@final
@dataclass(frozen=True, slots=True)
class _Settled:
    """A sample that goes through no stage any more: it is through all of them, or it is bad after so many attempts."""

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
        together: Batches that are read into one slot, as if they were one.
        ragged: Leaves that differ in their number of rows.
        chain: What samples go through; None for nothing.
        remote: Worker processes that make the rows; None where the threads that call `run` do it themselves.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        workers: int,
        bulk: bool,
        drop_last: bool,
        tolerance: Tolerance,
        together: int = 1,
        ragged: Mapping[str, Ragged] | None = None,
        chain: Chain | None = None,
        remote: Remote | None = None,
    ) -> None:
        self._samples = samples
        self._remote = remote
        self._together = together
        self._batch_size = batch_size * together
        self._recipe = Recipe(samples, chain, readers=workers)
        self.steps: Sequence[Step] = () if chain is None else chain.steps
        self._workers = max(1, workers, *(step.workers for step in self.steps if workers and remote is None))
        self._bulk = bulk
        self._sample_s = _QUICK_S
        self._drop_last = drop_last
        self._tolerance = tolerance
        self._ragged = ragged or {}
        self._others = samples if isinstance(samples, MapSamples) and tolerance.action == "substitute" else None
        self._total = samples.total
        self._total_lock = threading.Lock()
        self._layout: Layout | None = None
        self._early: dict[int, _Settled] = {}
        self._early_retries = 0
        self._stop = threading.Event()

    @property
    def slot_bytes(self) -> int:
        """As in `Reader`."""
        return self._layout.size_bytes if self._layout is not None else 1

    def stop(self) -> None:
        """As in `Reader`."""
        self._stop.set()
        if self._remote is not None:
            self._remote.stop()

    def plan(self, number: int) -> Work | None:
        """As in `Reader`. Blocks: for the first batch, while one sample is fetched to learn the layout."""
        start = number * self._batch_size
        if self._layout is None:
            self._learn_layout(start)
            self._check_layout()
        rows = self._batch_size if self._total is None else min(self._batch_size, self._total - start)
        if rows <= 0 or (self._drop_last and rows < self._batch_size):
            return None
        retried, self._early_retries = self._early_retries, 0
        batches = -(-rows * self._together // self._batch_size)
        units, whole = self._units(rows), self._together == 1
        return Work(number, start, rows, units, batches, whole=whole, layout=self._layout, retried=retried)

    def _units(self, rows: int) -> int:
        if self._samples.serial and not self.steps:
            return 1
        if not self._bulk or self._layout is None:
            most = _MOST_ROWS if self._sample_s < _QUICK_S else 1
            if self._remote is not None and most > 1:  # a message costs as much as some of them
                most = int(min(_MOST_ROWS_SENT, max(_MOST_ROWS, _QUICK_S / max(self._sample_s, 1e-9))))
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
            self._early[position] = _Settled(None, error, attempts)  # for the worker that comes to this sample
            if self._tolerance.action == "raise":
                return
        self._learn_from_others(start)

    def _check_layout(self) -> None:
        """Refuse names of ragged leaves that no sample has; that is no fault of the sample."""
        if self._ragged and self._layout is not None:
            require_fit(self._ragged, self._layout)

    def _learn_from(self, position: int) -> None:
        sample = self._recipe.whole(position)
        self._layout = self._recipe.lay_out(sample, self._batch_size, self._ragged)
        if not self._bulk:
            self._early[position] = _Settled(sample)

    def _learn_from_others(self, position: int) -> None:
        """Look for the layout in the samples that may come in place of a bad one."""
        if self._others is None:
            return

        def learn(index: int, others: MapSamples) -> None:
            sample = self._recipe.other(others, index)
            self._layout = self._recipe.lay_out(sample, self._batch_size, self._ragged)

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
        """As in `Reader`: a piece is a run of samples. With stages each sample goes through all of them in turn."""
        rows = _rows(work, unit)
        if self._remote is not None and work.layout is not None:
            self._run_elsewhere(work, work.layout, rows, memory, self._remote)
        elif not (self._bulk and work.layout is not None and self._run_bulk(work, rows.start, rows.stop, memory)):
            self._run_each(work, rows, memory)

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
        clock, layout, stopped = time.perf_counter, work.layout, self._stop.is_set
        fetch, spent = self._fetch, [0.0] * len(self.steps)
        views: list[npt.NDArray[Any]] = []
        if layout is not None:
            views, write = work.views(memory), partial(self._recipe.write, layout) if spent else layout.write
        if spent or self._recipe.takes_out:
            fetch = partial(self._fetch_through, work, views, spent)
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
                if layout is not None and sample is not WRITTEN:
                    write(views, row, sample)
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
        work.count(max(0.0, fetch_s - sum(spent)) if spent else fetch_s, copy_s, errors)
        for index, seconds in enumerate(spent):
            work.count_stage(index, seconds)

    def _run_elsewhere(
        self, work: Work, layout: Layout, rows: range, memory: Callable[[int], SlotMemory], remote: Remote
    ) -> None:
        """Let worker processes make rows; what fails is dealt with here, as if it had failed here."""
        views, row, at_once, raises = work.views(memory), rows.start, self._bulk, self._tolerance.action == "raise"
        spent_s = 0.0
        while row < rows.stop and not self._over(work.start + row):
            early = min((one - work.start for one in list(self._early) if one >= work.start + row), default=rows.stop)
            if early == row:
                self._run_each(work, range(row, row + 1), memory)
                row += 1
                if raises and work.errors:
                    break
                continue
            asked = self._asked(work.start + row, work.start + min(early, rows.stop))
            made = remote.fill(layout, memory(layout.size_bytes), row, asked, at_once=at_once)
            reply = made.reply
            if reply.how != FAILED or not at_once:
                row += reply.made
            spent_s += reply.count(work)
            if reply.how == ENDED:
                self._end_at(work.start + row)
            elif made.error is not None and at_once:
                at_once = False  # going through them one by one says which
            elif made.error is not None:
                found = self._failed(work, views, row, made.error)
                work.count(0.0, 0.0, found)
                row += 1
                if raises and found:
                    break
        self._sample_s = spent_s / len(rows)

    def _asked(self, first: int, last: int) -> npt.NDArray[np.int64]:
        if isinstance(self._samples, (MapSamples, FunctionSamples)):
            return self._samples.asked(first, last)
        raise InternalError("an iterable cannot be read by worker processes")

    def _make_elsewhere(self, work: Work, row: int, asked: npt.NDArray[np.int64], remote: Remote) -> None:
        """Let a worker process make one row.

        Raises:
            StopIteration: The epoch ended before it.
            Exception: It cannot be made.
        """
        if work.layout is None or work.slot is None:
            raise InternalError(f"batch {work.number} is written before its slot is known")
        made = remote.fill(work.layout, work.slot, row, asked)
        made.reply.count(work)
        if made.error is not None:
            raise made.error
        if made.reply.how == ENDED:
            raise StopIteration

    def _fetch(self, position: int) -> Any:
        early = self._early.get(position)
        if early is None:  # nearly always: it is the sample that the layout was learnt from
            return self._samples.fetch(position)
        if early.error is not None:
            raise early.error
        del self._early[position]
        return early.sample

    def _fetch_through(self, work: Work, views: list[npt.NDArray[Any]], spent: list[float], position: int) -> Any:
        """As `_fetch`, for samples that go through stages, or that a function may write into the slot by itself."""
        if position in self._early:
            return self._fetch(position)
        make = partial(self._recipe.whole, position, seconds=spent or None)
        if work.layout is None:
            return make()
        return self._recipe.made(work.layout, views, position - work.start, make)

    def read(self, work: Work, unit: int) -> Piece:
        """As in `StagedReader`."""
        return self._read(work, _rows(work, unit))

    def _read(self, work: Work, rows: range) -> Piece:
        began = time.perf_counter()
        piece = Piece(work, rows, [])
        for position in range(work.start + rows.start, work.start + rows.stop):
            if self._over(position):
                break
            try:
                sample = self._early.get(position) or self._recipe.raw(position)
            except StopIteration:
                self._end_at(position)
                break
            except Exception as error:  # noqa: BLE001 - concerns this sample
                sample = _Settled(None, error)
            piece.samples.append(sample)
        piece.busy_s = time.perf_counter() - began
        work.count(piece.busy_s, 0.0, [])
        return piece

    def advance(self, piece: Piece, index: int, memory: Callable[[int], SlotMemory]) -> None:
        """As in `StagedReader`."""
        began = time.perf_counter()
        step, work, samples = self.steps[index], piece.work, piece.samples
        layout = work.layout if step.takes_out else None
        views = work.views(memory) if layout is not None else []
        for place, (row, sample) in enumerate(zip(piece.rows, samples, strict=False)):
            if self._stop.is_set():
                break
            if type(sample) is _Settled:
                continue
            try:
                if layout is None:
                    samples[place] = step(sample)
                else:
                    samples[place] = self._recipe.made(layout, views, row, partial(step, sample))
            except StageFailure as error:
                samples[place] = _Settled(None, error)
        busy_s = time.perf_counter() - began
        piece.busy_s += busy_s
        work.count_stage(index, busy_s)

    def land(self, piece: Piece, memory: Callable[[int], SlotMemory]) -> None:
        """As in `StagedReader`."""
        began = time.perf_counter()
        work, layout, errors = piece.work, piece.work.layout, list[Bad]()
        views = work.views(memory) if layout is not None else []
        for row, sample in zip(piece.rows, piece.samples, strict=False):
            if self._over(work.start + row):
                break
            settled = sample if type(sample) is _Settled else _Settled(sample)
            error = settled.error
            if error is None and layout is not None:
                try:
                    self._recipe.write(layout, views, row, settled.sample)
                except Exception as wrong:  # noqa: BLE001 - concerns this sample
                    error = wrong
            if error is not None:
                errors += self._failed(work, views, row, error)
            self._early.pop(work.start + row, None)
        self._sample_s = piece.busy_s / len(piece.rows)
        work.count(0.0, time.perf_counter() - began, errors)

    def _over(self, position: int) -> bool:
        """Tell whether nobody wants the sample at a position: the pass was stopped, or the epoch ended before."""
        return self._stop.is_set() or (self._total is not None and position >= self._total)

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
        recipe, layout, position = self._recipe, work.layout, work.start + row
        if layout is None:
            recipe.whole(position)
        elif self._remote is not None:
            self._make_elsewhere(work, row, self._asked(position, position + 1), self._remote)
        else:
            recipe.write(layout, views, row, recipe.made(layout, views, row, partial(recipe.whole, position)))

    def _substitute(self, work: Work, views: list[npt.NDArray[Any]], row: int) -> int | None:
        """Fill a row with another sample; return its index, or None if there is none."""
        layout = work.layout
        if layout is None:
            return None

        def write(index: int, others: MapSamples) -> None:
            if self._remote is not None:
                self._make_elsewhere(work, row, np.array([index], np.int64), self._remote)
                return
            made = self._recipe.made(layout, views, row, partial(self._recipe.other, others, index))
            self._recipe.write(layout, views, row, made)

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
                work.kept = np.delete(np.arange(work.rows), [bad.row for bad in work.errors])
                work.rows = len(work.kept)
        elif (fatal := next((bad for bad in work.errors if bad.substitute is None), None)) is not None:
            work.errors = [fatal]
            raise self._sample_error(work, fatal)
        work.void = work.rows == 0
        if work.layout is not None and not work.void:
            work.trim = work.layout.settle(partial(work.views, memory), work.rows, work.kept)
            work.nbytes = work.layout.nbytes(work.trim)

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
            reason=reason_of(bad.error),
            attempts=bad.attempts,
            action="raised" if work.cause is not None else _OUTCOMES[self._tolerance.action],
            substitute_index=other,
            substitute_id=None if other is None or self._others is None else self._others.id_of(other),
            epoch=epoch,
            stage=stage_of(bad.error),
        )

    def _sample_error(self, work: Work, bad: Bad) -> SampleError:
        positions = np.array([work.start + bad.row])
        index, name = self._samples.index_at(work.start + bad.row), self._samples.ids(positions).tolist()[0]
        tried = None if self._others is None else min(_MOST_SUBSTITUTES, self._others.length - 1)
        return sample_error(index, name, bad.error, tried)


def _rows(work: Work, unit: int) -> range:
    """Return the rows of a piece."""
    return range(work.rows * unit // work.units, work.rows * (unit + 1) // work.units)
