"""`Feed`: any source to batches in a framework's arrays, each valid as long as anybody uses it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, final

from interlock._core._handover import Placement
from interlock._core._processors import one_thread_at_a_time, processors
from interlock._core._protocols import Source, SupportsReadInto
from interlock._reporting import Report
from interlock.devices import open_device
from interlock.errors import UsageError
from interlock.feed._attribution import Setting
from interlock.feed._auto import decide
from interlock.feed._explain import explain
from interlock.feed._iteration import Passes
from interlock.feed._metrics import prometheus_text
from interlock.feed._order import ChunkShuffle, Indices, chunk_edges, digest_of, parse_shuffle
from interlock.feed._process_errors import refuse_in_a_starting_worker
from interlock.feed._processes import Remote
from interlock.feed._ragged import ragged_of
from interlock.feed._readers import SampleReader
from interlock.feed._report import Meter
from interlock.feed._samples import FunctionSamples, IteratorSamples, MapSamples, Samples, as_source
from interlock.feed._stages import chain_of
from interlock.feed._state import Progress, Shard, Share, Terms
from interlock.feed._together import apart, batches_together
from interlock.feed._tolerance import Account, Ledger, Tolerance, tolerance_of
from interlock.feed._workers import workers_of
from interlock.frameworks import framework_for

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from interlock._core._protocols import Device, Framework
    from interlock.feed._explain import Explanation
    from interlock.feed._iteration import BatchIterator
    from interlock.feed._order import ShuffleQuality
    from interlock.feed._ragged import Offsets, Padded
    from interlock.feed._report import Record
    from interlock.feed._stages import Stage
    from interlock.feed._statistics import FeedStatistics
    from interlock.feed._tolerance import Action
    from interlock.feed._work import Failure, Work


@final
class Feed:
    """Batches from a source, made ahead by threads or processes, in an order that only the seed decides.

    Each batch lies in a slot; its arrays are views of the slot, and the slot is written again only when the last of
    them, and for JAX the last computation that reads them, has let go. A batch may be kept as long as you like: it
    takes its slot out of circulation, and the feed makes another within `budget_bytes`. Small batches of arrays share a
    slot with their neighbours, up to 2 MiB in all.

    Iterating gives one epoch. `len(feed)` is its number of batches where the source has a length. `state_dict()` says
    how far the consumer is, and a feed of any number of processes and workers goes on from there.

    Args:
        source: What to read:

            - arrays (NumPy, or anything with `__array__`), or a dict or tuple of them: rows are samples;
            - an object with `__len__` and `__getitem__`, as a torch `Dataset` or a list: called on worker threads;
            - a function of a `SampleInfo`, called on worker threads; it ends the epoch by raising `StopIteration`;
            - an iterable of samples: read by one thread.

            A sample is an array or number, or a dict or tuple of them, nested or not. All samples have the shapes and
            dtypes of the first, but for what `ragged` names.

            A function with a parameter `out` gets `out=None` for the first sample, which fixes shapes and dtypes, and
            wherever a sample has no place yet. Else it gets writable NumPy arrays, in a tree like a sample: the row of
            the sample in its slot, with bytes of an earlier batch in it. It fills all of them and returns `out` or
            None, or returns another sample, which is copied as ever. It must not keep `out`, nor write to it later.
        batch_size: Samples in a batch.
        ragged: Leaves whose first dimension differs from sample to sample, by dotted name (`""` for the only one), and
            what becomes of them: `Padded(512)` gives a dict of `values` and `lengths`, `Offsets(512)` one of `values`
            and `offsets`. Such a leaf may also be a list of numbers.
        to: Whose arrays: `numpy`, `torch`, `jax` or `cupy`; or a `jax.sharding.Sharding`, as a `NamedSharding`: then
            each leaf is one global JAX array, and each shard is copied straight to its device.
        device: `auto` (where the framework puts arrays by default), `host`, `cuda`, `cuda:1`, `simulated:SCHEDULE`, or
            a `Device`.
        stages: Functions that each sample goes through after the source, one behind the other: each takes what the one
            before returned. A function has one thread of its own, a `Stage` as many as it says; with `workers=0` they
            are called on the consumer's thread, and worker processes make whole samples. The last one may have a
            parameter `out`, as a sample function.
        workers: Who reads samples. Default: a thread per processor, at most 8.

            - a number, `threads` or `threads:4`: so many threads;
            - `processes` or `processes:4`: so many processes, which write into the slots themselves; for samples by
              index or of a function, of which each process gets a copy. They run the script once more when they start,
              so that the loop must be under `if __name__ == "__main__":`;
            - 0 or `inline`: the thread that iterates;
            - `auto` or `auto:4`: the first iteration makes a few samples on one thread and on two, which takes half a
              second at most for quick ones, and chooses one of these; `explain()` says which and why.
        depth: Batches that are made ahead.
        shuffle: Whether each epoch has an order of its own, fixed by `seed` and the number of the epoch:

            - `True`: uniform. An order is computed where it is needed, so a long source starts as fast as a short one.
            - `"chunks"`, or `"chunks:16"`: for sources of chunks that are read as a whole (row groups of Parquet; any
              source with `chunk_starts()`). Chunks come in random order, and the samples of 4, or so many, are mixed at
              a time. `shuffle_quality()` says how far from uniform that is.
        seed: Seed of the order.
        drop_last: Leave out a last batch that is not full, with several processes unless it is full on each of them.
        shard: Which part of each epoch is read, where several processes share a source: a `Shard(rank, world, tail)`,
            or `auto`: by the rank in `torch.distributed` or `jax.distributed` if one is initialised by now, else all.
            Only a source with a length can be shared.
        ids: Whether iterating gives `(ids, batch)`; ids are the source's (`id_of`), else indices into it.
        on_error: What becomes of a sample that its source cannot give; each is added to `failures`:

            - `raise` ends the epoch;
            - `skip` leaves it out, so that its batch has a row less;
            - `substitute` fills its row with the next sample of the epoch's order that can be read, under the id of
              that; only for a source with a length;
            - `retry(3)` asks for it up to three times more and then raises, or does what `then` says; not for an
              iterable, which cannot be asked again;
            - a `Tolerance` has all of that, bounds on how many may be bad, and a file to write them to.
        budget_bytes: Most bytes in slots. Reached when batches are kept; then the feed waits, and says for what. Small
            batches of arrays share a slot of up to 2 MiB, which is in use as long as one of them is.
        timeout_s: How long it waits then.
        zero_copy: For JAX on CUDA: the arrays are the slot itself, which stays lent as long as they live. Else JAX gets
            arrays of its own, which cost one more copy inside the device, and may be donated.
        fixed: For torch and CuPy on CUDA: the arrays of every batch are the same memory, as a CUDA graph needs; the
            next batch overwrites them in the order of the consumer's stream.
        verify: Compare every batch with what was written into its slot, and overwrite slots that come back with 0xFF.
            JAX arrays, which no program can write to, are compared once more when the next batch is asked for. This
            is for finding faults: every batch is copied back to the host, and waited for.

    Raises:
        UsageError: An argument that cannot be meant.

    Ordering:
        All reads of a batch come after its bytes are written; the slot's next write comes after the last use is done.
        On CUDA that is an order between streams: no host thread waits. The consumer is the stream that is its
        framework's current one when it asks for the batch.

    Copies:
        Each sample once, into the slot. None from there to the framework on the CPU; one over the link to CUDA.

    Example:
        >>> import numpy as np
        >>> feed = Feed({"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}, batch_size=2)
        >>> [batch["y"].tolist() for batch in feed]
        [[0, 1], [2]]
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int,
        ragged: dict[str, Padded | Offsets] | None = None,
        to: Literal["numpy", "torch", "jax", "cupy"] | Any = "numpy",
        device: str | Device = "auto",
        stages: Sequence[Callable[..., Any] | Stage] = (),
        workers: int | str | None = None,
        depth: int = 2,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        shard: Shard | Literal["auto"] | None = None,
        ids: bool = False,
        on_error: Action | Tolerance = "raise",
        budget_bytes: int = 1 << 30,
        timeout_s: float = 300.0,
        zero_copy: bool = False,
        fixed: bool = False,
        verify: bool = False,
    ) -> None:
        _require(batch_size >= 1, f"batch_size is {batch_size}", "give at least 1")
        _require(depth >= 1, f"depth is {depth}", "give at least 1")
        _require(seed >= 0, f"seed is {seed}", "give 0 or more")
        self._tolerance = tolerance_of(on_error)
        self._source = as_source(source)
        self._by_index = isinstance(self._source, Source)
        _require(self._by_index or not shuffle, "only a source with a length can be shuffled", "shuffle in the source")
        self._shuffle = parse_shuffle(shuffle)
        self._edges = chunk_edges(self._source) if self._shuffle.kind == "chunks" else None
        self._chunks = "" if self._edges is None else digest_of(self._edges)
        self._shard = _shard(shard)
        _require(
            self._by_index or self._shard.world == 1,
            "only a source with a length can be shared by several processes",
            "give each process an iterable of its own, and leave out shard",
        )
        _check_tolerance(self._tolerance, by_index=self._by_index, again=not hasattr(self._source, "__iter__"))
        self._chain = chain_of(stages)
        self._ledger = None if self._tolerance.ledger is None else Ledger(self._tolerance.ledger)
        self._batch_size = batch_size
        self._framework, sharding = framework_for(to)
        placement = Placement(zero_copy, fixed, sharding)
        name, sharded = self._framework.name, sharding is not None
        self._ragged = ragged_of(ragged, batch_size, framework=name, fixed=fixed, sharded=sharded)
        self._workers = workers_of(workers)
        self.workers_choice = ""
        """Who reads and why, where `workers` is `auto` and the first iteration has begun; else empty."""
        if self._workers.kind == "processes":
            _check_processes(self._source)
        self._depth = depth
        self._seed = seed
        self._drop_last = drop_last
        self._with_ids = ids
        target = open_target(device, self._framework, sharding)
        self._passes = Passes(target, self._framework, budget_bytes, timeout_s, placement, verify=verify)
        self._share_slots = not (verify or self._ragged or self._chain)
        self.failures: list[Failure] = []
        """Samples that could not be read so far, in the order in which their batches came; the first 100,000. A ledger
        (see `Tolerance`) has them all. The list may be cleared."""
        self.epoch = 0
        """Number of the epoch that the next iteration is; may be set, for a run that goes on from an earlier one."""
        self._resume = (0, 0)
        self._progress: Progress | None = None

    def __repr__(self) -> str:
        source, name, workers = type(self._source).__name__, self._framework.name, str(self._workers)
        workers = f"{workers!r}, by auto" if self.workers_choice else repr(workers)
        return f"Feed({source}, batch_size={self._batch_size}, to={name!r}, workers={workers})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        if not self._by_index:
            raise TypeError("a feed over an iterable or a function has no length")
        return self._share(0).batches

    def __iter__(self) -> BatchIterator:
        epoch, first = self.epoch, self._first()
        share = self._share(first) if self._by_index else None
        samples = self._samples(epoch, first) if share is None else self._indexed(epoch, first, share)
        bulk = isinstance(self._source, SupportsReadInto) and not self._ragged and self._chain is None
        self._choose_workers(samples, bulk=bulk)
        remote = self._remote(epoch, first)
        count = self._workers.count
        workers = min(count, 1) if samples.serial else count
        shares = self._share_slots and remote is None
        together = batches_together(self._source, self._batch_size, self._passes) if shares else 1
        reader = SampleReader(
            samples,
            self._batch_size,
            together=together,
            workers=workers,
            bulk=bulk,
            drop_last=self._drop_last and together == 1,
            tolerance=self._tolerance,
            ragged=self._ragged,
            chain=self._chain,
            remote=remote,
        )
        progress = Progress(epoch, first, self._batch_size, share)
        account = Account(self._tolerance, self._ledger, self.failures, samples.total)
        with_ids, batch_size, lend = self._with_ids, self._batch_size, self._framework.lend

        def present(work: Work, batch: Any) -> Any:
            shown = (reader.ids(work), batch) if with_ids else batch
            progress.consumed(work)
            return shown

        def split(work: Work, batches: Any) -> Iterator[Any]:
            ids = reader.ids(work) if with_ids else None
            first = work.number * together
            for number, (rows, batch) in enumerate(apart(batches, work.rows, batch_size, lend), first + 1):
                progress.came(number)
                yield batch if ids is None else (ids[rows], batch)

        batches = self._passes.start(
            reader,
            workers=workers,
            kind="threads" if remote is None else "processes",
            depth=self._depth,
            present=present,
            judge=lambda work: account.take(work.rows_seen, reader.failures(work, epoch)),
            exhausted=progress.exhausted,
            split=None if together == 1 else split,
        )
        self.epoch, self._progress, self._resume = epoch + 1, progress, (0, 0)
        return batches

    def _choose_workers(self, samples: Samples, *, bulk: bool) -> None:
        if self._workers.kind == "auto":
            refuse_in_a_starting_worker()  # whose measurement may differ: then it would run the loop
            choice = decide(samples, self._source, self._chain, self._workers, self._batch_size, bulk=bulk)
            self._workers, self.workers_choice = choice.workers, str(choice)

    def _remote(self, epoch: int, first: int) -> Remote | None:
        if self._workers.kind != "processes":
            return None
        refuse_in_a_starting_worker()
        processes = self._passes.processes(self._workers.count, self._source, self._chain)
        length = len(self._source) if self._by_index else None
        number = self._passes.begun + 1
        return Remote(processes, number, batch_size=self._batch_size, epoch=epoch, first=first, length=length)

    def _first(self) -> int:
        """Return the position at which the next pass begins."""
        epoch, position = self._resume
        return position if epoch == self.epoch else 0

    def _share(self, first: int) -> Share:
        return Share(len(self._source), first, self._batch_size, self._shard, drop_last=self._drop_last)

    def _indexed(self, epoch: int, first: int, share: Share) -> Samples:
        order = self._shuffle.order(len(self._source), self._edges, (self._seed, epoch))
        if order is None and self._shard.world == 1:
            return MapSamples(self._source, range(first, first + len(share)))
        return MapSamples(self._source, Indices(order, share))

    def _samples(self, epoch: int, first: int) -> Samples:
        if hasattr(self._source, "__iter__"):
            iterator = iter(self._source)
            _require(
                iterator is not self._source or self._passes.begun == 0,
                "the source is an iterator and was read already",
                "pass something that can be iterated again, as a list or a class with __iter__",
            )
            if first:
                warnings.warn(
                    f"an iterable has no index: its first {first} samples are read again and dropped",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return IteratorSamples(iterator, first)
        return FunctionSamples(self._source, self._batch_size, epoch, first)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the consumer is: what `next` gave it counts, what was made ahead does not.

        A state is a dict of eight plain values for JSON, below 1 KB, the same on all ranks after the same step: save
        that of one, or all. It tells of the iteration begun last. When that has ended, or has given its last batch, it
        stands at the beginning of the next epoch; when it was left early, at the place where it was left.

        Blocks: never. It costs some microseconds.

        Example:
            >>> import numpy as np
            >>> feed, later = (Feed(np.arange(6), batch_size=2) for _ in range(2))
            >>> next(iter(feed)).tolist()
            [0, 1]
            >>> later.load_state_dict(feed.state_dict())
            >>> [batch.tolist() for batch in later]
            [[2, 3], [4, 5]]
        """
        progress = self._progress
        if progress is None or progress.finished:
            return self._terms().state(self.epoch, self._first())
        return self._terms().state(progress.epoch, progress.position)

    def load_state_dict(self, state: Any) -> None:
        """Go on where a state was taken: the next iteration is the rest of its epoch, and `epoch` is its number.

        The number of processes, of workers and the size of batches may differ from those of the run that saved it. No
        sample is read for it, save where the source is an iterable: that is read again up to there, with a warning.
        What already iterates goes on by itself.

        Args:
            state: What `state_dict()` returned; or a list of what it returned on each rank.

        Raises:
            UsageError: The state is of a feed with another length, seed or shuffle, of another version, or no state; or
                the ranks were not at the same step.
        """
        self._resume = self._terms().place(state)
        self.epoch = self._resume[0]
        self._progress = None

    def _terms(self) -> Terms:
        samples = len(self._source) if self._by_index else None
        seed = None if self._shuffle.kind == "none" else self._seed
        return Terms(samples, seed, str(self._shuffle), self._chunks)

    def shuffle_quality(self) -> ShuffleQuality:
        """Return how far `shuffle="chunks"` is from a uniform shuffle; printing it says so in a sentence.

        Raises:
            UsageError: The feed does not shuffle by chunks.
        """
        if self._edges is None:
            raise UsageError(f"the feed has shuffle={str(self._shuffle)!r}", hint="only 'chunks' is not uniform")
        return ChunkShuffle(self._edges, self._shuffle.window, (self._seed, self.epoch)).quality()

    def statistics(self) -> FeedStatistics:
        """Return counts since the feed was made; see `FeedStatistics`."""
        return self._passes.statistics()

    def explain(self, since: FeedStatistics | None = None) -> Explanation:
        """Return why the consumer waits for batches, and what would change that; `str` of it is a few sentences.

        Args:
            since: Statistics from before; then what was done until then does not count. Default: all that was done.

        Example:
            >>> import numpy as np
            >>> feed = Feed(np.arange(6), batch_size=2)
            >>> _ = next(iter(feed))
            >>> print(feed.explain())
            1 batch so far: too few to tell what the consumer waits for.
        """
        statistics = self.statistics()
        setting = Setting(
            self._batch_size,
            self._depth,
            processors(),
            serial=not self._by_index and hasattr(self._source, "__iter__"),
            locked=one_thread_at_a_time(),
            device=self._passes.device.name,
            chosen=self.workers_choice,
        )
        return explain(statistics if since is None else statistics.since(since), setting)

    def report(
        self, to: str | os.PathLike[str] | Callable[[Record], object], every_s: float = 10.0
    ) -> Report[Feed, Record]:
        """Tell what the feed does every so often while a `with` block runs, and once more at its end.

        A thread does it, and nothing that goes wrong there ends the block: it is said once in a warning.

        Args:
            to: A file that gets an object of JSON per line, appended; or a function that is called with each `Record`.
            every_s: Seconds between records.

        Raises:
            UsageError: `to` is neither, or a file in no folder; `every_s` is not positive.

        Example:
            >>> import numpy as np
            >>> feed = Feed(np.arange(6), batch_size=2)
            >>> with feed.report(lambda record: print(record.samples, "samples")):
            ...     batches = list(feed)
            6 samples
        """
        return Report(self, _begin_report, to, every_s, "the feed")

    def metrics(self) -> str:
        """Return the statistics in the text format of Prometheus. Nothing of the data is in it."""
        return prometheus_text(self.statistics(), self._shard.rank)

    def close(self) -> None:
        """End all iterations. Batches that were handed over stay valid."""
        self._passes.close()


def _begin_report(feed: Feed) -> Callable[[Feed, bool], Record]:
    meter = Meter(feed.statistics())

    def read(feed: Feed, last: bool) -> Record:  # noqa: FBT001 - as reports call it
        progress = feed._progress  # noqa: SLF001 - a method of the feed, but one that a thread may keep
        return meter.read(feed.statistics(), feed.epoch if progress is None else progress.epoch, last=last)

    return read


def open_target(device: str | Device, framework: Framework, sharding: Any = None) -> Device:
    """Return the device that batches for `framework` go to; with a sharding the first of its devices.

    Raises:
        UsageError: There is no such device, or `device` is not the one that the sharding names.
    """
    if sharding is None:
        return open_device(framework.default_device() if device == "auto" else device)
    _require(device == "auto", f"device is {device!r}, and the sharding has devices of its own", "leave the device out")
    return open_device(framework.default_device(sharding))


def _shard(shard: Shard | Literal["auto"] | None) -> Shard:
    if shard == "auto":
        return Shard.of_process()
    _require(
        shard is None or isinstance(shard, Shard),
        f"shard is {shard!r}",
        "use 'auto' or, as in Shard(0, 4), rank of world",
    )
    return shard or Shard()


def _check_processes(source: Any) -> None:
    _require(
        isinstance(source, Source) or not hasattr(source, "__iter__"),
        "an iterable cannot be read by worker processes: it is one order that one reader follows",
        "pass an object with __len__ and __getitem__ or a function of a SampleInfo, or use threads",
    )


def _check_tolerance(tolerance: Tolerance, *, by_index: bool, again: bool) -> None:
    _require(
        by_index or tolerance.action != "substitute",
        "only a source with a length has samples to put in place of others",
        "use 'skip', or catch the error in the source and give another sample there",
    )
    _require(
        by_index or again or tolerance.attempts == 1,
        "an iterable cannot be asked for a sample again",
        "retry in the iterable, or pass an object with __len__ and __getitem__",
    )


def _require(condition: bool, what: str, hint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise UsageError(what, hint=hint)
