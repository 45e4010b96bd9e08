"""`Feed`: any source to batches in a framework's arrays, each valid as long as anybody uses it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock._core._handover import Placement
from interlock._core._protocols import Source, SupportsReadInto
from interlock.devices import open_device
from interlock.errors import UsageError
from interlock.feed._iteration import Passes
from interlock.feed._readers import OnError, SampleReader
from interlock.feed._samples import FunctionSamples, IteratorSamples, MapSamples, Samples, as_source
from interlock.frameworks import framework_for

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from interlock._core._protocols import Device, Framework
    from interlock.feed._iteration import BatchIterator
    from interlock.feed._statistics import FeedStatistics
    from interlock.feed._work import Failure

_MOST_DEFAULT_WORKERS = 8


@final
class Feed:
    """Batches from a source, made ahead by worker threads, in an order that only the seed decides.

    Each batch lies in a slot; its arrays are views of the slot, and the slot is written again only when the last of
    them, and for JAX the last computation that reads them, has let go. A batch may be kept as long as you like: it
    takes its slot out of circulation, and the feed makes another within `budget_bytes`.

    Iterating gives one epoch. `len(feed)` is its number of batches where the source has a length.

    Args:
        source: What to read:

            - arrays (NumPy, or anything with `__array__`), or a dict or tuple of them: rows are samples;
            - an object with `__len__` and `__getitem__`, as a torch `Dataset` or a list: called on worker threads;
            - a function of a `SampleInfo`, called on worker threads; it ends the epoch by raising `StopIteration`;
            - an iterable of samples: read by one thread.

            A sample is an array or number, or a dict or tuple of them, nested or not. All samples have the shapes and
            dtypes of the first.
        batch_size: Samples in a batch.
        to: Whose arrays: `numpy`, `torch`, `jax` or `cupy`; or a `jax.sharding.Sharding`, as a `NamedSharding`: then
            each leaf is one global JAX array, and each shard is copied straight to its device.
        device: `auto` (where the framework puts arrays by default), `host`, `cuda`, `cuda:1`, `simulated:SCHEDULE`, or
            a `Device`.
        workers: Threads that read samples; 0 reads on the consumer's thread. Default: one per processor, at most 8.
        depth: Batches that are made ahead.
        shuffle: Whether each epoch has an order of its own, fixed by `seed` and the number of the epoch.
        seed: Seed of the order.
        drop_last: Leave out a last batch that is not full.
        ids: Whether iterating gives `(ids, batch)`; ids are the source's (`id_of`), else indices into it.
        on_error: `raise` ends the epoch at a sample that its source cannot give; `skip` leaves it out and adds it to
            `failures`.
        budget_bytes: Most bytes in slots. Reached when batches are kept; then the feed waits, and says for what.
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
        to: Literal["numpy", "torch", "jax", "cupy"] | Any = "numpy",
        device: str | Device = "auto",
        workers: int | None = None,
        depth: int = 2,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        ids: bool = False,
        on_error: OnError = "raise",
        budget_bytes: int = 1 << 30,
        timeout_s: float = 300.0,
        zero_copy: bool = False,
        fixed: bool = False,
        verify: bool = False,
    ) -> None:
        _require(batch_size >= 1, f"batch_size is {batch_size}", "give at least 1")
        _require(depth >= 1, f"depth is {depth}", "give at least 1")
        _require(workers is None or workers >= 0, f"workers is {workers}", "give 0 or more")
        _require(seed >= 0, f"seed is {seed}", "give 0 or more")
        _require(on_error in {"raise", "skip"}, f"on_error is {on_error!r}", "use 'raise' or 'skip'")
        self._source = as_source(source)
        self._by_index = isinstance(self._source, Source)
        _require(self._by_index or not shuffle, "only a source with a length can be shuffled", "shuffle in the source")
        self._batch_size = batch_size
        self._framework, sharding = framework_for(to)
        placement = Placement(zero_copy, fixed, sharding)
        self._workers = min(_MOST_DEFAULT_WORKERS, os.cpu_count() or 1) if workers is None else workers
        self._depth = depth
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._with_ids = ids
        self._on_error: OnError = on_error
        target = open_target(device, self._framework, sharding)
        self._passes = Passes(target, self._framework, budget_bytes, timeout_s, placement, verify=verify)
        self.failures: list[Failure] = []
        """Samples left out so far under `on_error="skip"`, in the order in which their batches came."""
        self.epoch = 0
        """Number of the epoch that the next iteration is; may be set, for a run that goes on from an earlier one."""

    def __repr__(self) -> str:
        return f"Feed({type(self._source).__name__}, batch_size={self._batch_size}, to={self._framework.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        if not self._by_index:
            raise TypeError("a feed over an iterable or a function has no length")
        full, rest = divmod(len(self._source), self._batch_size)
        return full + bool(rest and not self._drop_last)

    def __iter__(self) -> BatchIterator:
        epoch, self.epoch = self.epoch, self.epoch + 1
        samples = self._samples(epoch)
        workers = min(self._workers, 1) if samples.serial else self._workers
        reader = SampleReader(
            samples,
            self._batch_size,
            workers=workers,
            bulk=isinstance(self._source, SupportsReadInto),
            drop_last=self._drop_last,
            on_error=self._on_error,
        )
        return self._passes.start(
            reader,
            workers=workers,
            depth=self._depth,
            present=(lambda work, batch: (reader.ids(work), batch)) if self._with_ids else (lambda _, batch: batch),
            failed=lambda work: self.failures.extend(reader.failures(work)),
        )

    def _samples(self, epoch: int) -> Samples:
        if self._by_index:
            total = len(self._source)
            if not self._shuffle:
                return MapSamples(self._source, range(total))
            return MapSamples(self._source, np.random.default_rng([self._seed, epoch]).permutation(total))
        if hasattr(self._source, "__iter__"):
            iterator = iter(self._source)
            _require(
                iterator is not self._source or self._passes.begun == 0,
                "the source is an iterator and was read already",
                "pass something that can be iterated again, as a list or a class with __iter__",
            )
            return IteratorSamples(iterator)
        return FunctionSamples(self._source, self._batch_size, epoch)

    def statistics(self) -> FeedStatistics:
        """Return counts since the feed was made; see `FeedStatistics`."""
        return self._passes.statistics()

    def close(self) -> None:
        """End all iterations. Batches that were handed over stay valid."""
        self._passes.close()


def open_target(device: str | Device, framework: Framework, sharding: Any = None) -> Device:
    """Return the device that batches for `framework` go to; with a sharding the first of its devices.

    Raises:
        UsageError: There is no such device, or `device` is not the one that the sharding names.
    """
    if sharding is None:
        return open_device(framework.default_device() if device == "auto" else device)
    _require(device == "auto", f"device is {device!r}, and the sharding has devices of its own", "leave the device out")
    return open_device(framework.default_device(sharding))


def _require(condition: bool, what: str, hint: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise UsageError(what, hint=hint)
