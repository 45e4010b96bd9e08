"""A function as a sink: it is called on the writer thread with rows that have landed, put by put, in order."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, final

from interlock._core._rows import RaggedRows
from interlock.drain._null import NULL, NullPublisher, NullStore
from interlock.errors import SinkError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from interlock._core._rows import Rows
    from interlock.drain._ids import IdArray

SinkFunction: TypeAlias = "Callable[[npt.NDArray[Any], dict[str, Any]], object]"
"""Called with ids and a dict of output name to rows: arrays, or `RaggedRows`."""


@final
class CallStore(NullStore):
    """Stands where a sink's folder would. What the function did in earlier runs is not known here.

    Args:
        function: The sink.
        fingerprint: As in `Store`; nothing is compared with it.
        total: As in `Store`.

    Raises:
        UsageError: `function` cannot be called, or would only make a coroutine.
    """

    def __init__(self, function: SinkFunction, *, fingerprint: dict[str, Any] | None, total: int | None) -> None:
        super().__init__(fingerprint=fingerprint, total=total)
        if not callable(function):
            raise UsageError(f"{function!r} is no sink", hint="use text such as parquet:PATH, or a function")
        self.text = self.place = name_of(function)
        self.function = function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise UsageError(
                f"{self.text} is a coroutine function",
                why="rows are written on a thread, where nothing awaits it",
                hint="pass a plain function, which may itself call asyncio.run",
            )

    def publisher(self) -> CallPublisher:
        """Return what calls the function."""
        return CallPublisher(self)


@final
class CallPublisher(NullPublisher):
    """Calls a function in place of writing shards. Rows are committed when it has returned.

    Args:
        store: Knows the function, and keeps the ids.
    """

    def __init__(self, store: CallStore) -> None:
        super().__init__(store)
        self._function = store.function
        self._name = store.text

    def write(self, ids: IdArray, columns: Mapping[str, Rows]) -> None:
        """Call the function.

        Raises:
            SinkError: It raised.
        """
        try:
            with self.times.on("encode"):
                self._function(_read_only(ids), {name: _read_only_rows(column) for name, column in columns.items()})
        except Exception as error:
            raise SinkError(
                f"{self._name} failed on rows {ids[0]!s} to {ids[-1]!s}",
                why=f"{type(error).__name__}: {error}",
                hint="rows before are committed, since it returned; what it did of these is not known here",
            ) from error
        super().write(ids, columns)
        self.seal()


def _read_only_rows(rows: Rows) -> Rows:
    if isinstance(rows, RaggedRows):
        return RaggedRows(_read_only(rows.values), _read_only(rows.offsets))
    return _read_only(rows)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def without_folder(
    sink: str | SinkFunction, *, fingerprint: dict[str, Any] | None, total: int | None
) -> NullStore | None:
    """Return what stands where a sink's folder would, for sinks that have none; None for others.

    Raises:
        UsageError: It is no sink at all.
    """
    if not isinstance(sink, str):
        return CallStore(sink, fingerprint=fingerprint, total=total)
    return NullStore(fingerprint=fingerprint, total=total) if sink == NULL else None


def name_of(function: Any) -> str:
    """Return what to call a function in messages."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or '__main__'}.{named.__qualname__}"
