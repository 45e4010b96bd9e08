"""The same samples through each loader, with the loader's usual means."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from _contest import Loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from interlock.feed import SampleInfo

Use = Callable[[Any], object]
"""What a consumer does with a batch; the function of a module."""

MANY = 10**7
"""Samples of an epoch: more than any run takes."""


def ignore(batch: Any) -> None:
    """Let go of a batch at once."""


class Task(Protocol):
    """Samples by number; can be pickled."""

    @property
    def batch(self) -> int:
        """Samples in a batch."""
        ...

    def sample(self, index: int) -> npt.NDArray[Any]:
        """Return a sample."""
        ...

    def fill(self, index: int, out: npt.NDArray[Any]) -> None:
        """Write a sample into an array."""
        ...


def first_batch(task: Task) -> npt.NDArray[Any]:
    """Return what every loader must give first."""
    return np.stack([task.sample(index) for index in range(task.batch)])


@dataclass(frozen=True)
class Mapped:
    """The samples as an object with a length, for loaders that want one."""

    task: Task

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        return self.task.sample(int(index))


@dataclass(frozen=True)
class Returned:
    """A sample function of a feed that returns its samples."""

    task: Task

    def __call__(self, info: SampleInfo) -> npt.NDArray[Any]:
        return self.task.sample(info.idx_in_epoch)


@dataclass(frozen=True)
class Filled:
    """A sample function of a feed that writes into the batch."""

    task: Task

    def __call__(self, info: SampleInfo, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        if out is None:
            return self.task.sample(info.idx_in_epoch)
        self.task.fill(info.idx_in_epoch, out)
        return out


def feed(task: Task, workers: int | str, depth: int, *, out: bool = True, use: Use = ignore, **options: Any) -> Loop:
    """`Feed` over a sample function."""
    from interlock import Feed  # noqa: PLC0415 - each loader is imported in its own process alone

    source = Filled(task) if out else Returned(task)
    made = Feed(source, batch_size=task.batch, workers=workers, depth=depth, **options)
    return Loop(iter(made), first_batch(task), made.close, use=use)


def dataloader(
    task: Task, workers: int, ahead: int | None = None, method: str | None = None, use: Use = ignore
) -> Loop:
    """PyTorch's `DataLoader` with its own collation; `ahead` is its `prefetch_factor`."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)  # else collation without workers keeps a second processor spinning
    warnings.filterwarnings("ignore", message=".*suggested max number of worker.*")
    batches = iter(
        torch.utils.data.DataLoader(
            Mapped(task),
            batch_size=task.batch,
            num_workers=workers,
            prefetch_factor=ahead,
            persistent_workers=workers > 0,
            multiprocessing_context=method,
        )
    )
    return Loop(batches, first_batch(task), partial(dataloader_end, batches), use=use)


def dataloader_end(batches: Any) -> None:
    """Stop the workers of a DataLoader in the middle of its epoch; it has no public way."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()  # noqa: SLF001 - see above


def _stack(samples: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.stack(samples)


@dataclass(frozen=True)
class Stacked:
    """Whole batches, for loaders that run a function on threads."""

    task: Task

    def __call__(self, first: int) -> npt.NDArray[Any]:
        return np.stack([self.task.sample(first + row) for row in range(self.task.batch)])


def spdl(task: Task, threads: int, *, whole: bool, use: Use = ignore) -> Loop:
    """SPDL's pipeline on threads, in order: a sample or a whole batch to a call."""
    pipeline = importlib.import_module("spdl.pipeline")
    builder = pipeline.PipelineBuilder()
    if whole:
        builder = builder.add_source(count(0, task.batch)).pipe(
            Stacked(task), concurrency=threads, output_order="input"
        )
    else:
        builder = (
            builder.add_source(count())
            .pipe(task.sample, concurrency=threads, output_order="input")
            .aggregate(task.batch)
            .pipe(_stack)
        )
    built = builder.add_sink(3).build(num_threads=threads if whole else threads + 1, max_failures=0)
    built.start()
    return Loop(iter(built), first_batch(task), built.stop, use=use)


def grain_end(batches: Any) -> Any:
    """Return what closes a Grain iterator; older ones have no way."""
    return getattr(batches, "close", lambda: None)


def grain_threads(task: Task, threads: int, *, whole: bool, use: Use = ignore) -> Loop:
    """Grain's read threads: a sample or a whole batch to a read. With 0 threads all is done in the consumer's."""
    grain = importlib.import_module("grain")
    read = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8 if whole else 4 * task.batch)
    if not threads:
        read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    samples = grain.MapDataset.source(Mapped(task))
    if whole:
        batches = iter(samples.batch(task.batch).to_iter_dataset(read))
    else:
        batches = iter(samples.to_iter_dataset(read).batch(task.batch))
    return Loop(batches, first_batch(task), grain_end(batches), use=use)


def grain_processes(task: Task, workers: int, ahead: int, use: Use = ignore) -> Loop:
    """Grain's worker processes."""
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # else it refuses to start them
    grain = importlib.import_module("grain")
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=ahead)
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    dataset = grain.MapDataset.source(Mapped(task)).batch(task.batch).to_iter_dataset(read).mp_prefetch(options)
    batches = iter(dataset)
    return Loop(batches, first_batch(task), grain_end(batches), use=use)


def nodes(task: Task, workers: int, *, whole: bool, use: Use = ignore) -> Loop:
    """Nodes of torchdata on threads: a sample or a whole batch to a call."""
    module = importlib.import_module("torchdata.nodes")
    if whole:
        node = module.IterableWrapper(range(0, MANY, task.batch))
        node = module.ParallelMapper(node, Stacked(task), num_workers=workers, in_order=True, method="thread")
    else:
        node = module.IterableWrapper(range(MANY))
        node = module.ParallelMapper(node, task.sample, num_workers=workers, in_order=True, method="thread")
        node = module.Mapper(module.Batcher(node, task.batch), _stack)
    batches: Iterator[Any] = iter(module.Loader(module.Prefetcher(node, 2)))
    return Loop(batches, first_batch(task), use=use)
