"""A prediction writer of somebody else's, given landed values on a thread of its own."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, final

from interlock.errors import InterlockError, UsageError
from interlock.integrations._calls import Calls
from interlock.integrations._lightning_names import (
    apply_to_collection,
    base_of,
    indices_of,
    loaders_of,
    say_what_is_kept,
)
from interlock.integrations._torch_trees import Tree, as_in_the_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Batch = Callable[[Any], Any] | None


def landed(
    writer: Any,
    *,
    batch: Callable[[Any], Any] | None = None,
    budget_bytes: int = 1 << 30,
    timeout_s: float = 600.0,
) -> Any:
    """Return a prediction writer whose methods get landed values on the CPU, off the thread of the loop.

    `write_on_batch_end` and `write_on_epoch_end` of `writer` are called one after another, in the order of the batches,
    on one thread. The loop goes on meanwhile and waits for no device. All other methods and attributes are the
    writer's own, called where Lightning calls them.

    Args:
        writer: A `BasePredictionWriter` of `pytorch_lightning` or `lightning.pytorch`.
        batch: Given a batch, returns what `write_on_batch_end` gets in its place. None: the batch, landed too, which
            brings it back over the link; `lambda batch: batch["name"]` brings that alone.
        budget_bytes: Most bytes of predictions and batches that wait for the writer, in memory that the device can copy
            to; snapshots on the device take as much at most. A batch that does not fit waits, and the loop with it; one
            that is larger travels alone.
        timeout_s: Bound on every wait, in seconds.

    Returns:
        A `BasePredictionWriter`. Its `interval` is always `batch`, whatever the writer's own is: so Lightning keeps no
        predictions. For a writer of epochs they are kept here, once, as it gets them all at the end.

    Raises:
        UsageError: `writer` is no prediction writer, or a number is not positive.

    Copies: each tensor once on its device and once to the host, a tensor on the CPU once. For an epoch, and for a
        writer that keeps tensors after its method returned, once more on the thread.

    An error of the writer is raised in the loop, at the next batch or at the end, as a `SinkError` that names the
    batch; batches behind it are not written. When the epoch ends, and also when an exception ends it, what was
    predicted is written first.
    """
    for name, value in {"budget_bytes": budget_bytes, "timeout_s": timeout_s}.items():
        if value <= 0:
            raise UsageError(f"{name} is {value}", why="it must be positive")
    return _kind(base_of(writer))(writer, {"batch": batch, "budget_bytes": budget_bytes, "timeout_s": timeout_s})


@final
class _State:
    """What belongs to the wrapper: everything else is the writer's.

    Args:
        writer: The writer.
        options: As given to `landed`.
    """

    def __init__(self, writer: Any, options: dict[str, Any]) -> None:
        self.writer = writer
        self.options = options
        self.mapped = apply_to_collection()
        self.device: Any = None
        self.calls: Calls | None = None
        self.predictions: list[list[Any]] = []
        self.indices: list[list[Any]] = []
        self.is_kept = False

    def begin(self, trainer: Any, pl_module: Any) -> None:
        """Start the thread."""
        self.device = pl_module.device
        around = partial(as_in_the_loop, self.device, inference_mode=trainer.predict_loop.inference_mode)
        name = f"the writer {type(self.writer).__name__}"
        options = self.options
        self.calls = Calls(name, budget_bytes=options["budget_bytes"], timeout_s=options["timeout_s"], around=around)
        count = len(loaders_of(trainer))
        self.predictions = [[] for _ in range(count)]
        self.indices = [[] for _ in range(count)]

    def take(self, values: tuple[Any, Any], at: tuple[int, int], write: Callable[[Any, Any], object]) -> None:
        """Have `write` called with values once they have landed; keep the first if the epoch needs it."""
        assert self.calls is not None  # noqa: S101 - `begin` comes before the first batch
        dataloader_idx, batch_idx = at
        keep = self.predictions[dataloader_idx] if self.writer.interval.on_epoch and not self.is_kept else None

        def call(found: tuple[Any, Any]) -> None:
            write(*found)
            if keep is not None:
                keep.append(found[0])

        label = f"batch {batch_idx}" + (f" of dataloader {dataloader_idx}" if len(self.indices) > 1 else "")
        self.calls.put(call, Tree(values, self.mapped, self.device), label, own=keep is not None)
        self.is_kept = True

    def write_epoch(self, write: Callable[[Any, Any], object]) -> None:
        """Have `write` called with the predictions and the indices of all batches, and wait until it was."""
        assert self.calls is not None  # noqa: S101
        self.calls.finish()
        predictions: Any = self.predictions if len(self.predictions) > 1 else self.predictions[0]
        indices, self.predictions, self.indices = self.indices, [], []
        held = [predictions]
        del predictions
        self.calls.put(lambda _: write(held.pop(), indices), Tree(None, self.mapped, self.device), "the epoch")
        self.calls.finish()

    def close(self, error: BaseException | None = None) -> None:
        """Write what is there and end the thread; what fails then is told, or noted on `error` if there is one."""
        calls, self.calls = self.calls, None
        if calls is None:
            return
        try:
            calls.close()
        except InterlockError as second:
            if error is None:
                raise
            if second is not error:
                error.add_note(f"and the writer failed: {second}")


class _Landed:
    """The wrapper; `_kind` adds Lightning's class, and the writer's methods for all that is not here."""

    def __init__(self, writer: Any, options: dict[str, Any]) -> None:
        # Not that of Lightning's class: it would set an interval.
        object.__setattr__(self, "_landed", _State(writer, options))

    _landed: _State

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._landed.writer, self._landed.options)

    def __getattr__(self, name: str) -> Any:
        if name == "_landed":  # nothing is there yet, as in a copy that begins
            raise AttributeError(name)
        return getattr(self._landed.writer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._landed.writer, name, value)

    def __repr__(self) -> str:
        return f"landed({self._landed.writer!r})"

    @property
    def interval(self) -> Any:
        """What Lightning is to think: that nobody wants an epoch's predictions."""
        return type(self._landed.writer.interval)("batch")

    @property
    def state_key(self) -> str:
        """The writer's, under which a checkpoint has its state."""
        key: str = self._landed.writer.state_key
        return key

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the thread."""
        say_what_is_kept(trainer, partial(warnings.warn, category=RuntimeWarning, stacklevel=2))
        self._landed.begin(trainer, pl_module)
        self._landed.writer.on_predict_start(trainer, pl_module)

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Let the writer's own hook run; what it wants to write is taken, and written later."""
        state = self._landed
        indices = indices_of(trainer, dataloader_idx, batch_idx) or []
        state.is_kept = False
        write_batch = state.writer.write_on_batch_end

        def take(
            trainer: Any,
            pl_module: Any,
            prediction: Any,
            batch_indices: Sequence[int] | None,
            batch: Any,
            batch_idx: int,
            dataloader_idx: int,
        ) -> None:
            if batch_indices is trainer.predict_loop.current_batch_indices:
                batch_indices = indices

            def write(prediction: Any, batch: Any) -> None:
                write_batch(trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx)

            chosen = batch if state.options["batch"] is None else state.options["batch"](batch)
            state.take((prediction, chosen), (dataloader_idx, batch_idx), write)

        with _replaced(state.writer, "write_on_batch_end", take):
            state.writer.on_predict_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        if state.writer.interval.on_epoch:
            if indices:
                state.indices[dataloader_idx].append(indices)
            if not state.is_kept:
                state.take((outputs, None), (dataloader_idx, batch_idx), lambda _, __: None)

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left of the batches, and then the epoch."""
        state = self._landed
        write_epoch = state.writer.write_on_epoch_end

        def take(trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:
            del predictions, batch_indices  # Lightning has none: we keep them
            state.write_epoch(lambda found, indices: write_epoch(trainer, pl_module, found, indices))

        if state.calls is not None:
            state.calls.finish()
        with _replaced(state.writer, "write_on_epoch_end", take):
            state.writer.on_predict_epoch_end(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the thread."""
        self._landed.close()
        self._landed.writer.teardown(trainer, pl_module, stage)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what was predicted before, and end the thread."""
        self._landed.close(exception)
        self._landed.writer.on_exception(trainer, pl_module, exception)


@cache
def _kind(base: type) -> type[Any]:
    """Return the class of wrappers for one of Lightning's names."""
    inherited = {name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))}
    methods = {name: _forward(name) for name in inherited - set(vars(_Landed))}
    return type("Landed", (_Landed, base), {"__doc__": _Landed.__doc__, "__module__": __name__, **methods})


def _forward(name: str) -> Callable[..., Any]:
    def forward(self: _Landed, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._landed.writer, name)(*args, **kwargs)

    forward.__name__ = name
    return forward


def _restore(writer: Any, options: dict[str, Any]) -> Any:
    return landed(writer, **options)


@contextmanager
def _replaced(writer: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Let `method` stand for a method of one object."""
    before = vars(writer).get(name)
    setattr(writer, name, method)
    try:
        yield
    finally:
        if before is None:
            delattr(writer, name)
        else:
            setattr(writer, name, before)
