"""A prediction writer whose rows go to a drain."""

from __future__ import annotations

import warnings
from collections.abc import Callable  # noqa: TC003 - LightningCLI reads the types of the arguments
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from interlock.drain import Drain
from interlock.errors import UsageError
from interlock.integrations._lightning_names import (
    indices_of,
    loader_names,
    loaders_of,
    say_what_is_kept,
    writer_bases,
)
from interlock.integrations._pending import committed_so_far, ids_of_rows, pending_samples
from interlock.integrations._puts import Puts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interlock.drain import DrainStatistics, Explanation
    from interlock.drain._idsets import IdView


class DrainWriter:
    """Writes what `predict_step` returns to a drain's sink, each row under the id of its sample.

    A `BasePredictionWriter`: give it to the trainer as a callback. The loop waits for no device and for no storage;
    rows are committed as shards fill, and all of them when the epoch ends, also when an exception ends it. Run a
    program again that died, and it completes the sink. With several processes each writes shards of its own into the
    same sink.

    Args:
        sink: As in `Drain`: `parquet:PATH` and others.
        ids: How rows are called. None: by the numbers of the samples in their dataset, or by its `id_of(index)` if it
            has that; with several dataloaders the name of each (its key if they are in a dict, else its number) and a
            slash come before. A string or number: what the batch holds at that key. Else what a function of the batch
            and the numbers of its samples (None where Lightning knows none) returns.
        columns: Which outputs to write, where `predict_step` returns a dict. None: all.
        outputs: As in `Drain`. Where ids are on the device, rows are made smaller on the host.
        fingerprint: As in `Drain`.
        total: As in `Drain`.
        restart: As in `Drain`.
        budget_bytes: As in `Drain`.
        writers: As in `Drain`, in each process.
        shard_bytes: As in `Drain`.
        commit_interval_s: As in `Drain`.
        nan: As in `Drain`.
        repeats: As in `Drain`; but `first` unless you say otherwise, since samplers pad, and a run that goes on after
            another makes some rows again. Give a `fingerprint`, so that no rows of another model stand for them.
        timeout_s: As in `Drain`.
        fsync: As in `Drain`.
        verify: As in `Drain`.

    Attributes:
        drain: The drain, while predictions are made; else None.
    """

    def __init__(
        self,
        sink: str,
        ids: str | int | Callable[[Any, Any], Any] | None = None,
        *,
        columns: list[str] | None = None,
        outputs: dict[str, Any] | None = None,
        fingerprint: dict[str, Any] | None = None,
        total: int | None = None,
        restart: bool = False,
        budget_bytes: int = 1 << 30,
        writers: int | Literal["auto"] = "auto",
        shard_bytes: int = 64 << 20,
        commit_interval_s: float = 30.0,
        nan: Literal["keep", "fail"] = "keep",
        repeats: Literal["same", "first"] = "first",
        timeout_s: float = 600.0,
        fsync: Literal["commit", "never"] = "commit",
        verify: bool = False,
    ) -> None:
        super().__init__("batch")  # type: ignore[call-arg]  # of Lightning's class, which `drain_writer` adds
        self._sink = sink
        self._ids = ids
        self._columns = columns
        self._options: dict[str, Any] = {
            "outputs": outputs,
            "fingerprint": fingerprint,
            "total": total,
            "restart": restart,
            "budget_bytes": budget_bytes,
            "writers": writers,
            "shard_bytes": shard_bytes,
            "commit_interval_s": commit_interval_s,
            "nan": nan,
            "repeats": repeats,
            "timeout_s": timeout_s,
            "fsync": fsync,
            "verify": verify,
        }
        self._puts: Puts | None = None
        self._last: Explanation | None = None
        self.drain: Drain | None = None

    def statistics(self) -> DrainStatistics | None:
        """Return counts and times of the run that goes on, or of the last one; None before the first."""
        explanation = self.explain()
        return None if explanation is None else explanation.done

    def explain(self) -> Explanation | None:
        """Return what limits the drain in the run that goes on, or did in the last one; None before the first."""
        return self._last if self.drain is None else self.drain.explain()

    def pending(self, dataset: Any, name: str | None = None) -> Any:
        """Return the samples of a map-style dataset whose rows are not committed: for the dataloader of a next run.

        They keep their ids. What is returned is map-style too, with `id_of(index)`. With several processes, call it
        before `trainer.predict` or in `predict_dataloader`: no rows are committed then, so all get the same, and
        Lightning shares it out.

        Args:
            dataset: The dataset, or what `Subset` and the like make of one.
            name: Name of its dataloader, where there are several.

        Raises:
            UsageError: `dataset` is not map-style, or does not tell the ids that are in its batches.
        """
        if self._ids is not None and not hasattr(dataset, "id_of"):
            raise UsageError(
                f"a {type(dataset).__name__} does not tell the ids of its samples",
                why=f"they are found in batches, by ids={self._ids!r}",
                hint="give the dataset a method id_of(index)",
            )
        committed: IdView | None = None
        if self.drain is not None:
            committed = self.drain.committed
        elif not self._options["restart"]:
            committed = committed_so_far(self._sink)
        return pending_samples(dataset, committed, name)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the sink, before a run of predictions."""
        super().setup(trainer, pl_module, stage)  # type: ignore[misc]
        if stage == "predict":
            self._close()
            self.drain = Drain(self._sink, **self._options)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at the dataloaders and the device."""
        say_what_is_kept(trainer, partial(warnings.warn, category=RuntimeWarning, stacklevel=2))
        assert self.drain is not None  # noqa: S101 - `setup` comes before
        self._puts = Puts(
            self.drain,
            pl_module.device,
            budget_bytes=self._options["budget_bytes"],
            timeout_s=self._options["timeout_s"],
        )

    def write_on_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        prediction: Any,
        batch_indices: Sequence[int] | None,  # noqa: ARG002 - may be those of another dataloader
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Put the rows of a batch; nothing is waited for."""
        if prediction is None:
            return
        assert self._puts is not None  # noqa: S101 - `on_predict_start` comes before
        label = f"batch {batch_idx} of dataloader {dataloader_idx}"
        ids = self._ids_of(trainer, batch, batch_idx, dataloader_idx)
        self._puts.put(ids, self._chosen(prediction), label)

    def on_predict_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Commit all rows."""
        super().on_predict_epoch_end(trainer, pl_module)  # type: ignore[misc]
        if self._puts is not None:
            self._puts.flush()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Let go of the sink."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Commit what was predicted before, and let go of the sink."""
        self._close(exception)

    def _close(self, error: BaseException | None = None) -> None:
        puts, drain = self._puts, self.drain
        self._puts = self.drain = None
        if drain is None:
            return
        try:
            if puts is not None:
                puts.close(error)
            else:
                drain.close()
        finally:
            self._last = drain.explain()

    def _chosen(self, prediction: Any) -> Any:
        if self._columns is None:
            return prediction
        missing = [name for name in self._columns if not isinstance(prediction, dict) or name not in prediction]
        if missing:
            has = ", ".join(map(str, prediction)) if isinstance(prediction, dict) else type(prediction).__name__
            raise UsageError(f"predict_step returned no {missing[0]!r}", why=f"it returned {has}", hint="see columns")
        return {name: prediction[name] for name in self._columns}

    def _ids_of(self, trainer: Any, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
        indices = indices_of(trainer, dataloader_idx, batch_idx)
        if callable(self._ids):
            return self._ids(batch, indices)
        if self._ids is not None:
            return _at(batch, self._ids)
        if indices is None:
            raise UsageError(
                f"batch {batch_idx} of dataloader {dataloader_idx} does not say which samples it holds",
                why="Lightning knows that only of a DataLoader over a map-style dataset",
                hint="name the key of the batch that holds ids, as in DrainWriter(sink, ids='id'), or give a function",
            )
        names = loader_names(trainer)
        name = names[dataloader_idx] if len(names) > 1 else None
        return ids_of_rows(getattr(loaders_of(trainer)[dataloader_idx], "dataset", None), indices, name)


def _at(batch: Any, key: str | int) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        has = f"it has {', '.join(map(repr, batch))}" if isinstance(batch, dict) else f"it is a {type(batch).__name__}"
        raise UsageError(f"the batch has no {key!r}", why=has, hint="see ids of DrainWriter") from error


@cache
def drain_writer(*bases: type) -> type[DrainWriter]:
    """Return the class, of Lightning's kind under each of the names in `bases`."""
    given = {"__doc__": DrainWriter.__doc__, "__module__": "interlock.integrations.lightning"}
    return type("DrainWriter", (DrainWriter, *bases), given)


def drain_writer_of_this_program() -> type[DrainWriter]:
    """Return the class for the names of Lightning that the program has loaded."""
    return drain_writer(*writer_bases())
