"""A batch on which the model fails: tried again, then halved, until the rows are known that fail by themselves."""

from __future__ import annotations

import itertools
import re
import traceback
from typing import TYPE_CHECKING, Any, final

from interlock.cli._exits import one_line
from interlock.errors import DeviceError, InterlockError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from interlock.drain._resume import PendingSource

    Ids = npt.NDArray[Any]
    Entry = tuple[Ids, Any]
    Part = tuple[Sequence[int], int]
    """Numbers of samples, and how often they may be tried together once more."""

_LOST = re.compile(r"CUDA error|cudaError|CUDA_ERROR_|HIP error")
"""In what libraries raise when a device refused or lost work; its context is mostly of no use from then on."""

_OF_LIBRARIES = (RuntimeError, ValueError)
"""As what libraries raise what a device said: JAX what it learns during a call as the second, the rest as the first."""


@final
class Attempts:
    """Has a model do batches, and where it fails finds the rows that fail by themselves.

    Rows that are tried again are read again, since the model may have written to its batch before it failed. So nothing
    is copied while all goes well.

    Args:
        predict: Has the model do a batch. If it raises `ModelError`, nothing of the batch was put.
        read: Makes a batch of some samples of `source` inside a `with` block; None if no one of them can be read, which
            it has recorded then.
        source: Where the batches come from, in its order.
        fail: Records rows, with the reason.
        retries: How often a batch is tried again before it is halved. 0: an error ends the run.
        max_failures: The run ends when so many rows failed by themselves, with none between them that did not.
        is_over: Asked before each further attempt; if so, what is left of the batch stays pending.

    Attributes:
        again: Calls of the model after the first of each batch.
    """

    def __init__(
        self,
        predict: Callable[[Ids, Any], None],
        read: Callable[[Sequence[int]], AbstractContextManager[Entry | None]],
        source: PendingSource,
        fail: Callable[[Sequence[int | str], str], None],
        *,
        retries: int,
        max_failures: int,
        is_over: Callable[[], bool],
    ) -> None:
        self._predict = predict
        self._read = read
        self._source = source
        self._fail = fail
        self._retries = retries
        self._max_failures = max_failures
        self._is_over = is_over
        self._position = 0
        self._in_a_row = 0
        self.again = 0

    def run(self, ids: Ids, batch: Any) -> None:
        """Have the model do the next batch, as far as it can.

        Args:
            ids: Of its rows, in the order of the source.
            batch: Its arrays.

        Raises:
            ModelError: The model failed, and rows are not to blame or were not to be tried again; or too many failed.
        """
        error = self._error_of(ids, batch)
        if error is None:
            self._position += len(ids)  # a bound from below: samples that could not be read lie between
            return
        numbers = self._numbers(ids, itertools.count(self._position))
        self._position = numbers[-1] + 1
        left = self._next(ids, numbers, self._retries, error)
        while left and not self._is_over():
            samples, tries = left.pop()
            left += self._try(samples, tries)

    def _try(self, samples: Sequence[int], tries: int) -> list[Part]:
        """Try some samples; return what is to be tried in their place, last first."""
        with self._read(samples) as entry:
            if entry is None:
                return []
            self.again += 1
            error = self._error_of(*entry)
            if error is None:
                return []
            ids = entry[0]
            return self._next(ids, self._numbers(ids, iter(samples)), tries, error)

    def _next(self, ids: Ids, samples: Sequence[int], tries: int, error: ModelError) -> list[Part]:
        """Return what is tried in place of samples that failed, last first; record one that failed by itself."""
        if tries and not is_out_of_memory(error.__cause__):
            return [(samples, tries - 1)]
        if len(samples) > 1:
            middle = len(samples) // 2
            return [(samples[middle:], 0), (samples[:middle], 0)]
        reason = reason_of(error)
        self._fail(ids.tolist(), reason)
        self._in_a_row += 1
        if self._in_a_row >= self._max_failures:
            raise ModelError(
                f"the model failed on {self._in_a_row} rows in a row, each by itself",
                why=f"the last is {ids[0]}: {reason}",
                hint="mend the model; or if the rows are to blame, raise --max-failures, or leave them out with "
                "--max-attempts",
            ) from error
        return []

    def _error_of(self, ids: Ids, batch: Any) -> ModelError | None:
        """Return what the model raised; raise it if it ends the run."""
        try:
            self._predict(ids, batch)
        except ModelError as error:
            lost = is_lost(error.__cause__)
            if self._retries and not lost:
                _let_go(error)
                return error
            self._fail(ids.tolist(), reason_of(error))
            if not lost:
                error.hint = f"{error.hint}; to go on without rows that fail by themselves, use --retries 1".lstrip(
                    "; "
                )
            raise
        self._in_a_row = 0
        return None

    def _numbers(self, ids: Ids, among: Iterator[int]) -> list[int]:
        """Return which samples have `ids`; both are in the order of the source."""
        return [next(number for number in among if self._source.id_of(number) == one) for one in ids.tolist()]


@final
class Chosen:
    """Some samples of a source, under their ids.

    Args:
        source: All samples.
        samples: Numbers of those.
    """

    def __init__(self, source: PendingSource, samples: Sequence[int]) -> None:
        self._source = source
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._source[self._samples[index]]

    def id_of(self, index: int) -> int | str:
        """As in `SupportsIds`."""
        name: int | str = self._source.id_of(self._samples[index])
        return name


def reason_of(error: ModelError) -> str:
    """Return why a row failed: type and first line of the model's exception, else what is wrong with its outputs."""
    cause = error.__cause__
    if cause is None or isinstance(cause, InterlockError):
        return f"{error.what}: {error.why}" if error.why else error.what
    first = next((line for line in str(cause).splitlines() if line.strip()), "")
    return one_line(cause, first)


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold: the next attempt needs the memory, and lines of code are still named."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def is_out_of_memory(cause: BaseException | None) -> bool:
    """Tell whether a device had no memory: a smaller batch may do."""
    text = str(cause)
    is_said = "out of memory" in text.lower() or "RESOURCE_EXHAUSTED" in text
    return "OutOfMemory" in type(cause).__name__ or (isinstance(cause, _OF_LIBRARIES) and is_said)


def is_lost(cause: BaseException | None) -> bool:
    """Tell whether the machine failed, not the model: the device, or the host's memory."""
    if is_out_of_memory(cause):
        return False
    if isinstance(cause, (DeviceError, MemoryError)):
        return True
    return isinstance(cause, _OF_LIBRARIES) and _LOST.search(str(cause)) is not None
