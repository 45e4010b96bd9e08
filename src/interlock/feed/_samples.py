"""What a feed can read from: samples by index, iterables, functions of a `SampleInfo`, arrays."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import numpy as np

from interlock._core._protocols import Source, SupportsIds, SupportsReadInto
from interlock._core._tree import flatten
from interlock.errors import SourceError, UsageError
from interlock.feed._stages import takes_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from interlock.feed._order import Indices


@final
class SampleInfo(NamedTuple):
    """Which sample a sample function is asked for; the fields are those of DALI's `external_source`.

    Attributes:
        idx_in_epoch: Position in the epoch.
        idx_in_batch: Position in the batch.
        iteration: Number of the batch in the epoch.
        epoch_idx: Number of the epoch.
    """

    idx_in_epoch: int
    idx_in_batch: int
    iteration: int
    epoch_idx: int


class Samples(Protocol):
    """The samples of one epoch, by their position in it."""

    @property
    def total(self) -> int | None:
        """How many there are, or None if only the source knows when it ends."""
        ...

    @property
    def serial(self) -> bool:
        """Whether they must be fetched one after the other, in order."""
        ...

    def fetch(self, position: int) -> Any:
        """Return the sample at `position`; called on several threads at once unless `serial`.

        Raises:
            StopIteration: The epoch ended before it.
        """
        ...

    def read_into(self, first: int, last: int, out: Any) -> bool:
        """Write the samples from position `first` to before `last` into a tree of arrays at once.

        Returns:
            False if the source cannot do that; nothing was written then.
        """
        ...

    def index_at(self, position: int) -> int:
        """Return what the source calls the sample at `position`."""
        ...

    def ids(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """Return the ids of the samples at `positions`: int64 or Unicode."""
        ...


@final
class MapSamples:
    """Samples by index, in a given order.

    Args:
        source: The samples.
        order: Their indices; a `range` where nothing is shuffled and nobody shares the source.

    Attributes:
        length: Samples of the source, when it was given.
    """

    serial = False

    def __init__(self, source: Source, order: range | Indices | npt.NDArray[np.int64]) -> None:
        self.total: int | None = len(order)
        self._source = source
        self.length = len(source)
        self._order = order
        self._names = source if isinstance(source, SupportsIds) else None
        self._read_into = source.read_into if isinstance(source, SupportsReadInto) else None

    def fetch(self, position: int) -> Any:
        """As in `Samples`.

        Raises:
            SourceError: The source has fewer samples than it said, or no such sample.
        """
        return self.fetch_index(int(self._order[position]))

    def fetch_index(self, index: int) -> Any:
        """Return the sample with an index.

        Raises:
            SourceError: As above.
        """
        try:
            return self._source[index]
        except (IndexError, StopIteration) as error:
            length = len(self._source)
            if index >= length:
                raise SourceError(
                    f"the source had {self.length} samples when the epoch began and has {length} now",
                    hint="do not change a source while it is read",
                ) from error
            if isinstance(error, StopIteration):  # it would end the epoch, and the rest would be missing unseen
                raise SourceError("the source raised StopIteration for a sample that it has") from error
            raise

    def read_into(self, first: int, last: int, out: Any) -> bool:
        """As in `Samples`."""
        if self._read_into is None:
            return False
        self._read_into(self._order[first:last], out)  # type: ignore[arg-type] # an index array is a sequence
        return True

    def index_at(self, position: int) -> int:
        """As in `Samples`."""
        return int(self._order[position])

    def asked(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return what a worker process is to ask its source for, from position `first` to before `last`: indices."""
        return np.asarray(self._order[first:last], np.int64)

    def index_after(self, position: int, steps: int) -> int:
        """Return the index so many steps after `position` in the order of the epoch; after the last comes the first.

        It may be a sample of another rank.
        """
        if isinstance(self._order, range):
            return (self._order[position] + steps) % self.length
        if isinstance(self._order, np.ndarray):
            return int(self._order[(position + steps) % len(self._order)])
        return self._order.after(position, steps)

    def id_of(self, index: int) -> int | str:
        """Return the id of the sample with an index."""
        return index if self._names is None else self._names.id_of(index)

    def ids(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """As in `Samples`: the source's own, else its indices."""
        if self._names is not None:
            return np.array([self.id_of(self.index_at(int(position))) for position in positions])
        if isinstance(self._order, range):
            return positions * self._order.step + self._order.start
        return self._order[positions]


@final
class IteratorSamples:
    """Samples in the order in which an iterator gives them.

    Args:
        iterator: Gives them.
        first: How many to read and drop before the first that counts.
    """

    serial = True
    total: int | None = None

    def __init__(self, iterator: Iterator[Any], first: int = 0) -> None:
        self._iterator = iterator
        self._first = self._to_drop = first

    def fetch(self, position: int) -> Any:  # noqa: ARG002 - they come in order
        """As in `Samples`."""
        while self._to_drop:
            next(self._iterator)
            self._to_drop -= 1
        return next(self._iterator)

    def read_into(self, first: int, last: int, out: Any) -> bool:  # noqa: ARG002
        """As in `Samples`: False."""
        return False

    def index_at(self, position: int) -> int:
        """As in `Samples`: the position in the epoch."""
        return self._first + position

    def ids(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """As in `Samples`: the positions in the epoch."""
        return self._first + positions


@final
class FunctionSamples:
    """Samples that a function makes; `StopIteration` ends the epoch at the lowest position that raised it.

    Attributes:
        takes_out: Whether the function has a parameter `out`.
    """

    serial = False
    total: int | None = None

    def __init__(self, function: Callable[..., Any], batch_size: int, epoch: int, first: int = 0) -> None:
        self.takes_out = takes_out(function)
        self._call = function
        self._function = partial(function, out=None) if self.takes_out else function
        self._batch_size = batch_size
        self._epoch = epoch
        self._first = first

    def fetch(self, position: int) -> Any:
        """As in `Samples`."""
        return self._function(self._info(position))

    def fetch_into(self, position: int, out: Any) -> Any:
        """Return the sample at `position`, as `fetch` does, or what the function made of `out`."""
        return self._call(self._info(position), out=out)

    def asked(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return what a worker process is to ask its function for: positions."""
        return np.arange(first, last, dtype=np.int64)

    def _info(self, position: int) -> SampleInfo:
        place = self._first + position
        number, row = divmod(place, self._batch_size)
        return SampleInfo(place, row, number, self._epoch)

    def read_into(self, first: int, last: int, out: Any) -> bool:  # noqa: ARG002
        """As in `Samples`: False."""
        return False

    def index_at(self, position: int) -> int:
        """As in `Samples`: the position in the epoch."""
        return self._first + position

    def ids(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """As in `Samples`: the positions in the epoch."""
        return self._first + positions


@final
class ArraySource:
    """Arrays side by side: sample `i` is row `i` of each.

    Args:
        tree: An array, or a dict or tuple of arrays, with the same number of rows.

    Attributes:
        row_bytes: Bytes of a sample.

    Raises:
        UsageError: The numbers of rows differ.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = flatten(tree)
        self._arrays = [np.asarray(leaf) for leaf in leaves]
        lengths = {name: len(array) for name, array in zip(self._structure.names(), self._arrays, strict=True)}
        if len(set(lengths.values())) > 1:
            raise UsageError(
                "the arrays of a source differ in rows",
                why=", ".join(f"{name!r} has {length}" for name, length in lengths.items()),
                hint="for a list of samples of any length pass a list, not a tuple",
            )
        self._length = next(iter(lengths.values()))
        self.row_bytes = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in self._arrays)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._structure.rebuild([array[index] for array in self._arrays])

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """As in `SupportsReadInto`. Copies: each row once, straight into `out`."""
        targets, _ = flatten(out)
        for array, target in zip(self._arrays, targets, strict=True):
            if isinstance(indices, range) and indices.step == 1:
                np.copyto(target, array[indices.start : indices.stop], casting="no")
            else:
                array.take(np.asarray(indices), axis=0, out=target, mode="clip")


def is_array(value: object) -> bool:
    """Tell whether NumPy can see `value` as an array with rows."""
    return hasattr(value, "__array__") and bool(getattr(value, "shape", ()))


@final
class _Iterated:
    """An object of which only the iterator is used."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)


def _only_iterates(source: Any) -> bool:
    """Tell whether `source` is a torch `IterableDataset` with a length: its `__getitem__` is there only to raise."""
    getter = getattr(type(source), "__getitem__", None)
    abstract = (getattr(getter, "__module__", ""), getattr(getter, "__qualname__", ""))
    return abstract == ("torch.utils.data.dataset", "Dataset.__getitem__") and hasattr(source, "__iter__")


def as_source(source: Any) -> Any:
    """Return `source` as something that a feed reads: arrays become a source of their rows, the rest stays.

    Raises:
        UsageError: It is none of the things that a feed can read.
    """
    if is_array(source):
        return ArraySource(source)
    if isinstance(source, (dict, tuple)):
        leaves, _ = flatten(source)
        if leaves and all(is_array(leaf) for leaf in leaves):
            return ArraySource(source)
    if isinstance(source, dict):
        raise UsageError("a dict is a source only if all its values are arrays", hint="pass a list of samples instead")
    if isinstance(source, Source) and _only_iterates(source):
        return _Iterated(source)
    if isinstance(source, Source) or hasattr(source, "__iter__") or callable(source):
        return source
    raise UsageError(
        f"a {type(source).__name__} is no source",
        hint="pass arrays, an object with __len__ and __getitem__, an iterable, or a function of a SampleInfo",
    )
