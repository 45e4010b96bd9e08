"""How one sample comes about: asked of its source, taken through the stages, written into its row."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, final

from interlock._core._tree import LEAF
from interlock.errors import UsageError
from interlock.feed._ragged_layout import lay_out
from interlock.feed._samples import FunctionSamples
from interlock.feed._stages import StageFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from interlock.feed._layout import Layout
    from interlock.feed._ragged import Ragged
    from interlock.feed._samples import MapSamples, Samples
    from interlock.feed._stages import Chain

WRITTEN: Final = object()
"""Stands for a sample that its maker has written into the slot."""


@final
class Recipe:
    """The one meaning of "the sample of a position", whoever makes it and on how many threads.

    Args:
        samples: What the source gives.
        chain: What it goes through; None for nothing.
        readers: How many workers ask the source. If it is one, and there are stages, no two threads ever do, also not
            where a failed sample is tried again.

    Attributes:
        takes_out: Whether the last function may write into the slot by itself.
    """

    def __init__(self, samples: Samples, chain: Chain | None, *, readers: int) -> None:
        self._samples = samples
        self._chain = chain
        self._into = samples.fetch_into if isinstance(samples, FunctionSamples) and samples.takes_out else None
        self.takes_out = chain.takes_out if chain is not None else self._into is not None
        self._alone = threading.Lock() if chain is not None and readers == 1 else None

    def raw(self, position: int) -> Any:
        """Return what the source gives for a position, before the first stage.

        Raises:
            StopIteration: The epoch ended before it.
        """
        if self._alone is None:
            return self._samples.fetch(position)
        with self._alone:
            return self._samples.fetch(position)

    def whole(self, position: int, out: Any = None, seconds: list[float] | None = None) -> Any:
        """Return the sample of a position, or what its last function made of `out`; `seconds` as in `Chain`.

        Raises:
            StopIteration: The epoch ended before it.
            StageFailure: A stage raised an exception.
        """
        if self._chain is not None:
            return self._chain(self.raw(position), out, seconds)
        return self._samples.fetch(position) if self._into is None else self._into(position, out)

    def other(self, others: MapSamples, index: int, out: Any = None) -> Any:
        """Return the sample with an index, as `whole` does that of a position."""
        if self._chain is None:
            return others.fetch_index(index)
        if self._alone is None:
            return self._chain(others.fetch_index(index), out)
        with self._alone:
            raw = others.fetch_index(index)
        return self._chain(raw, out)

    def lay_out(self, sample: Any, rows: int, ragged: Mapping[str, Ragged]) -> Layout:
        """Return the layout of a batch of samples like this one.

        Raises:
            Exception: It cannot be part of a batch.
        """
        try:
            return lay_out(self._given(sample), rows, ragged)
        except UsageError as error:
            raise self._blamed(error) from error

    def made(self, layout: Layout, views: Sequence[npt.NDArray[Any]], row: int, make: Callable[[Any], Any]) -> Any:
        """Return the sample that `make` gives for a row, or `WRITTEN` if it has put it there; it gets its `out`."""
        if not self.takes_out or layout.ragged:
            return make(None)
        arrays = layout.row(views, row)
        out = layout.structure.rebuild(arrays)
        sample = make(out)
        if sample is not None and sample is not out:
            return sample
        if layout.structure is not LEAF and _replaced(layout.structure.leaves_of(out), arrays):
            return out  # `out["x"] = array` fills nothing; so what is there now is copied
        return WRITTEN

    def write(self, layout: Layout, views: Sequence[npt.NDArray[Any]], row: int, sample: Any) -> None:
        """Write a sample into its row, unless it is there.

        Raises:
            Exception: It does not look like the first one.
        """
        if sample is WRITTEN:
            return
        try:
            layout.write(views, row, self._given(sample))
        except UsageError as error:
            raise self._blamed(error) from error

    def _given(self, sample: Any) -> Any:
        if sample is None and self.takes_out:
            raise UsageError(
                "None was returned where `out` is None",
                hint="make the arrays and return them then: it fixes their shapes and dtypes",
            )
        return sample

    def _blamed(self, error: UsageError) -> Exception:
        """Return the error that says whose sample could not be written."""
        return error if self._chain is None else StageFailure(self._chain.steps[-1].name, error)


def _replaced(leaves: Sequence[Any] | None, arrays: Sequence[npt.NDArray[Any]]) -> bool:
    return leaves is None or any(leaf is not array for leaf, array in zip(leaves, arrays, strict=True))
