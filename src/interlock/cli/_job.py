"""One run of `interlock predict`: source to model to sink, and what to do when one of them fails."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

from interlock.cli._attempts import Attempts, Chosen
from interlock.cli._waits import Limits, Waits
from interlock.drain import Drain
from interlock.errors import InterlockError, ModelError, SinkConflictError, UsageError
from interlock.feed import Feed, retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from interlock.cli._metrics import Metrics
    from interlock.cli._models import Model
    from interlock.cli._progress import Progress
    from interlock.cli._signals import Stop
    from interlock.drain import DrainStatistics, Explanation
    from interlock.drain._resume import PendingSource
    from interlock.lowlevel import Source


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What the options say about how to run; none of it changes values.

    Attributes:
        batch_size: Rows of a batch.
        workers: Threads that read; None for the feed's default.
        depth: Batches made ahead.
        rank: Which of how many processes this is.
        restart: Discard what the sink holds.
        max_attempts: Leave out rows that failed so often; None: none.
        retries: How often a sample that cannot be read, or a batch on which the model fails, is tried again.
        max_failures: End the run when the model failed on so many rows in a row.
        allow_nan: Write rows that hold NaN.
        writers: Threads that write; None: as many as help.
        shard_bytes: Size at which a shard is committed.
        fsync: As in `Drain`.
    """

    batch_size: int
    workers: int | None
    depth: int
    rank: tuple[int, int]
    restart: bool
    max_attempts: int | None
    retries: int
    max_failures: int
    allow_nan: bool
    writers: int | None
    shard_bytes: int
    fsync: Literal["commit", "never"]


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        summary: As `--json` prints it.
        explanation: Where the drain's time went.
        missing: Rows asked for that are not committed.
        reason: Why the first row that failed did, with its id; empty if none did.
        error: What ended the run early, or None.
    """

    summary: dict[str, Any]
    explanation: Explanation
    missing: int
    reason: str
    error: InterlockError | None


@final
class Job:
    """A run, from an opened sink to its summary.

    Args:
        source: All rows asked for.
        model: What is called.
        sink: Text of the sink.
        settings: How to run.
        fingerprint: Conditions that the rows are made under.
        total: Rows of the whole source.
        metrics: Told what the run does.

    Raises:
        UsageError: The sink is not fit for it.
        SinkError: The storage refused.
    """

    def __init__(
        self,
        source: Source,
        model: Model,
        sink: str,
        settings: Settings,
        *,
        fingerprint: dict[str, Any],
        total: int,
        metrics: Metrics,
    ) -> None:
        self._began_s = time.monotonic()
        self._source = source
        self._model = model
        self._settings = settings
        self._waits = Waits()
        self._reason = ""
        self._given_up = self._retried = 0
        self._metrics = metrics
        self._drain = Drain(
            sink,
            fingerprint=fingerprint,
            total=total,
            restart=settings.restart,
            rank=settings.rank,
            nan="keep" if settings.allow_nan else "fail",
            writers=settings.writers or "auto",
            shard_bytes=settings.shard_bytes,
            fsync=settings.fsync,
        )
        self._limits = Limits(self._drain)

    def run(self, stop: Stop, open_progress: Callable[[int], Progress]) -> Outcome:
        """Predict what is not committed yet.

        Args:
            stop: Says when to end early.
            open_progress: Called with the number of rows asked for.
        """
        error: InterlockError | None = None
        missing = len(self._source)
        before = 0
        try:
            self._metrics.rows_total = missing
            with self._metrics.of(self._drain), self._drain, open_progress(missing) as progress:
                todo = self._drain.pending(self._source)
                missing, before = len(todo), len(self._source) - len(todo)
                if self._settings.max_attempts is not None:
                    todo = self._drain.pending(self._source, max_attempts=self._settings.max_attempts)
                self._given_up = missing - len(todo)
                self._predict(todo, before, stop, progress)
                with self._waits.on("sink"):
                    self._drain.flush()
        except InterlockError as failure:
            error = failure
        drained = self._drain.statistics()
        missing -= drained.rows_committed + drained.rows_duplicate
        explanation = self._explained(drained)
        return Outcome(self._summary(drained, explanation), explanation, missing, self._reason, error)

    def _explained(self, drained: DrainStatistics) -> Explanation:
        """Return where the drain's time went; its producer is what the loop itself waited for most."""
        found, waits = self._drain.explain(), self._waits.seconds(drained)
        producer = "source" if waits["source"] > waits["model"] else "model"
        return replace(found, setting=replace(found.setting, producer=producer))

    def _predict(self, todo: PendingSource, before: int, stop: Stop, progress: Progress) -> None:
        """Run batch after batch until the rows end, or somebody asks to stop."""

        def tell() -> bool:
            """Show how far the run is; return whether it is to stop."""
            if progress.due():
                drained = self._drain.statistics()
                under_way = drained.rows_put - drained.rows_committed
                waits, limit = self._waits.seconds(drained), self._limits.text(drained)
                progress.update(before + drained.rows_committed, under_way, waits, limit)
            return stop.signal is not None

        attempts = Attempts(
            self._predict_batch,
            lambda samples: self._read_again(Chosen(todo, samples)),
            todo,
            self._fail,
            retries=self._settings.retries,
            max_failures=self._settings.max_failures,
            is_over=tell,
        )
        try:
            with self._feed(todo, self._settings.batch_size) as feed:
                self._metrics.watch(feed)
                batches = self._batches(feed)
                while not tell() and (entry := next(batches, None)) is not None:
                    ids, batch = entry
                    del entry
                    if len(ids):
                        attempts.run(ids, batch)
                    del batch  # so that the slot is free while the next batch is waited for
        finally:
            self._retried = attempts.again

    def _feed(self, source: Source, batch_size: int) -> Feed:
        return Feed(
            source,
            batch_size=batch_size,
            to=self._model.to,
            device=self._model.device,
            workers=self._settings.workers,
            depth=self._settings.depth,
            ids=True,
            on_error=retry(self._settings.retries, then="skip"),
        )

    def _batches(self, feed: Feed) -> Iterator[tuple[npt.NDArray[Any], Any]]:
        """Yield (ids, batch), recording the rows that the source could not give."""
        batches = iter(feed)
        while True:
            with self._waits.on("source"):
                entry = next(batches, None)
            for failure in feed.failures:
                self._fail([failure.id], failure.reason)
            feed.failures.clear()  # the list has a bound
            if entry is None:
                return
            yield entry
            del entry  # as above

    @contextmanager
    def _read_again(self, source: Chosen) -> Iterator[tuple[npt.NDArray[Any], Any] | None]:
        """Make one batch of a source."""
        with self._feed(source, len(source)) as feed:
            yield next(self._batches(feed), None)

    def _predict_batch(self, ids: npt.NDArray[Any], batch: Any) -> None:
        with self._waits.on("model"):
            outputs = self._model(ids, batch)
        with self._waits.on("sink"):
            self._put(ids, outputs)

    def _put(self, ids: npt.NDArray[Any], outputs: Any) -> None:
        try:
            self._drain.put(ids, outputs)
        except SinkConflictError:
            raise
        except UsageError as error:
            raise ModelError(
                f"the sink cannot take what {self._model.text} returned",
                why=f"{error.what}: {error.why}" if error.why else error.what,
                hint=error.hint,
            ) from error

    def _fail(self, ids: Sequence[int | str], reason: str) -> None:
        self._reason = self._reason or f"{ids[0]}: {reason}"
        self._drain.fail(ids, reason)

    def _summary(self, drained: DrainStatistics, explanation: Explanation) -> dict[str, Any]:
        seconds = time.monotonic() - self._began_s
        return {
            "rows_total": len(self._source),
            "rows_committed": drained.rows_resumed + drained.rows_committed,
            "rows_resumed": drained.rows_resumed,
            "rows_failed": drained.rows_failed,
            "rows_given_up": self._given_up,
            "retries": self._retried,
            "bytes_written": drained.bytes_written,
            "seconds": round(seconds, 3),
            "rows_per_second": round(drained.rows_committed / seconds, 1) if seconds > 0 else 0.0,
            "waits": {party: round(waited, 3) for party, waited in self._waits.seconds(drained).items()},
            "writers": drained.writers,
            "writer": {phase: round(part, 4) for phase, part in explanation.findings.writers},
            "limit": explanation.findings.limit,
            "explanation": str(explanation),
        }
