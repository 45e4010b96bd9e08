"""The writers that are compared: each takes rows to files in a folder, and returns when the files are complete."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from _rows import Rows, Workload, ids_in

from interlock import Drain

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

NAME = "output"
THREADS = 4
MOST_WAITING = 8
"""Batches that a pool has taken and not written: without a bound it would hold all of them when the storage is slow."""


class Writer(Protocol):
    """One way to write rows.

    Attributes:
        synced: Whether what it has written is on the storage when it returns.
    """

    synced: bool

    def write(self, rows: Rows, folder: Path) -> None:
        """Make all rows and write them into an empty folder; return when the files are complete."""
        ...

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """Return the ids of the rows that are in the files, read as anybody would."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Format(Protocol):
    """How a peer writes a file for each batch, and how it is read."""

    suffix: str

    def save(self, path: Path, rows: torch.Tensor, ids: range) -> None:
        """Write one file."""
        ...

    def load(self, path: Path, workload: Workload) -> npt.NDArray[Any]:
        """Return the rows in it."""
        ...


class TorchFile:
    """`torch.save`."""

    suffix = ".pt"

    def save(self, path: Path, rows: torch.Tensor, ids: range) -> None:  # noqa: ARG002 - as people do
        """As in `Format`."""
        torch.save(rows, path)

    def load(self, path: Path, workload: Workload) -> npt.NDArray[Any]:  # noqa: ARG002
        """As in `Format`."""
        loaded: npt.NDArray[Any] = torch.load(path, mmap=True).numpy()
        return loaded


class NumpyFile:
    """`np.save`, and with `synced` an `fsync`."""

    suffix = ".npy"

    def __init__(self, *, synced: bool = False) -> None:
        self._synced = synced

    def save(self, path: Path, rows: torch.Tensor, ids: range) -> None:  # noqa: ARG002 - as people do
        """As in `Format`."""
        with path.open("wb") as file:
            np.save(file, rows.numpy())
            if self._synced:
                file.flush()
                os.fsync(file.fileno())

    def load(self, path: Path, workload: Workload) -> npt.NDArray[Any]:  # noqa: ARG002
        """As in `Format`."""
        loaded: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        return loaded


PARQUET: Final = {"compression": "none", "use_dictionary": False, "write_statistics": False}


class ParquetFile:
    """`pq.write_table` without compression and dictionaries, which cost time and save nothing of such numbers."""

    suffix = ".parquet"

    def table(self, rows: torch.Tensor, ids: range) -> Any:
        """Return rows as a table over their memory."""
        import pyarrow as pa  # noqa: PLC0415 - a peer, which may be missing

        flat = pa.array(rows.numpy().reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, rows[0].numel())
        return pa.table({"id": pa.array(np.asarray(ids)), NAME: lists})

    def save(self, path: Path, rows: torch.Tensor, ids: range) -> None:
        """As in `Format`."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - as above

        pq.write_table(self.table(rows, ids), path, **PARQUET)

    def load(self, path: Path, workload: Workload) -> npt.NDArray[Any]:
        """As in `Format`."""
        return parquet_rows(path, workload)


def parquet_rows(path: Path, workload: Workload, name: str = NAME) -> npt.NDArray[Any]:
    """Return the rows of a Parquet file, whatever lists they are stored as."""
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    parts = []
    for chunk in pq.read_table(path, columns=[name], memory_map=True).column(name).chunks:
        values = chunk
        while isinstance(values, (pa.FixedSizeListArray, pa.ListArray, pa.LargeListArray, pa.ExtensionArray)):
            values = values.storage if isinstance(values, pa.ExtensionArray) else values.flatten()
        parts.append(values.to_numpy(zero_copy_only=False).reshape(-1, *workload.shape))
    return np.concatenate(parts)


class Files:
    """One file for each batch, written where `save` is called.

    Args:
        kind: The format.
        synced: Whether the format syncs.
    """

    def __init__(self, kind: Format, *, synced: bool = False) -> None:
        self._kind = kind
        self.synced = synced

    def save(self, folder: Path, step: int, rows: torch.Tensor, ids: range) -> None:
        """Write a batch."""
        self._kind.save(folder / f"{step:05d}{self._kind.suffix}", rows, ids)

    def end(self) -> None:
        """Do nothing: every file is complete."""

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        paths = sorted(folder.glob(f"*{self._kind.suffix}"))
        return np.concatenate([ids_in(self._kind.load(path, workload), workload) for path in paths])


class OneParquetFile(Files):
    """A `ParquetWriter` that stays open: a row group for each batch, or for each 8 MB of small ones."""

    def __init__(self) -> None:
        self._table = ParquetFile()
        self._writer: Any = None
        self._waiting: list[Any] = []
        super().__init__(self._table)

    def save(self, folder: Path, step: int, rows: torch.Tensor, ids: range) -> None:  # noqa: ARG002
        """As in `Files`."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - a peer, which may be missing

        table = self._table.table(rows, ids)
        if self._writer is None:
            self._writer = pq.ParquetWriter(folder / "all.parquet", table.schema, **PARQUET)
        self._waiting.append(table)
        if sum(waiting.nbytes for waiting in self._waiting) >= 8 << 20:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - as above

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
            self._waiting = []

    def end(self) -> None:
        """As in `Files`."""
        self._flush()
        self._writer.close()
        self._writer = None


class Pool:
    """A pool of four threads that write one file for each batch; the loop waits while eight batches are unwritten."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.synced = files.synced

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`."""
        room = threading.BoundedSemaphore(MOST_WAITING)
        with ThreadPoolExecutor(THREADS) as pool:
            futures = []
            for step in range(rows.workload.steps):
                made = rows.make(step)
                room.acquire()
                future = pool.submit(self._files.save, folder, step, made, rows.ids(step))
                future.add_done_callback(lambda _: room.release())
                futures.append(future)
                del made
        for future in futures:
            future.result()

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        return self._files.read(folder, workload)

    def close(self) -> None:
        """As in `Writer`."""


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Row numbers, fetched a batch at a time, so that loading costs next to nothing."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        """Return a batch."""
        return torch.tensor(indices)


def predict(rows: Rows, callback: Any) -> None:
    """Run `Trainer.predict` over rows with a prediction writer."""
    import pytorch_lightning as pl  # noqa: PLC0415 - a peer, which may be missing

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning.*|lightning.*")

    class Module(pl.LightningModule):
        def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            return rows.make(batch_idx)

    workload = rows.workload
    loader = torch.utils.data.DataLoader(
        Numbers(workload.rows), batch_size=workload.batch, collate_fn=lambda batch: batch
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.predict(Module(), loader, return_predictions=False)


class LightningBatch:
    """`predict` with a prediction writer of the interval `batch`, which writes on the loop's thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.synced = files.synced

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`."""
        from pytorch_lightning.callbacks import BasePredictionWriter  # noqa: PLC0415 - a peer, which may be missing

        files = self._files

        class PerBatch(BasePredictionWriter):
            def write_on_batch_end(self, trainer: Any, pl_module: Any, prediction: Any, *more: Any) -> None:  # noqa: ARG002
                step = more[2]
                files.save(folder, step, prediction, rows.ids(step))

        predict(rows, PerBatch("batch"))
        files.end()

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        return self._files.read(folder, workload)

    def close(self) -> None:
        """As in `Writer`."""


class LightningEpoch:
    """`predict` with a prediction writer of the interval `epoch`, which gets all predictions at the end.

    Args:
        kind: Format of the one file.
    """

    synced = False

    def __init__(self, kind: Format) -> None:
        self._kind = kind

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`."""
        from pytorch_lightning.callbacks import BasePredictionWriter  # noqa: PLC0415 - as above

        kind = self._kind

        class PerEpoch(BasePredictionWriter):
            def write_on_epoch_end(self, trainer: Any, pl_module: Any, predictions: Any, batch_indices: Any) -> None:  # noqa: ARG002
                if isinstance(kind, TorchFile):
                    torch.save(predictions, folder / "predictions.pt")
                else:
                    kind.save(folder / "predictions.npy", torch.cat(predictions), range(rows.workload.rows))

        predict(rows, PerEpoch("epoch"))

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        if isinstance(self._kind, TorchFile):
            found = torch.load(folder / "predictions.pt", mmap=True)
            return np.concatenate([ids_in(one.numpy(), workload) for one in found])
        return ids_in(self._kind.load(folder / "predictions.npy", workload), workload)

    def close(self) -> None:
        """As in `Writer`."""


class RayData:
    """`range().map_batches().write_parquet()` with as many tasks at once as there are processors.

    The rows are made in its workers, and so have no need to travel: the best case for it.
    """

    synced = False

    def __init__(self) -> None:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        import ray  # noqa: PLC0415 - a peer, which may be missing
        import ray.data  # noqa: PLC0415 - as above

        self._ray = ray
        ray.init(
            num_cpus=max(2, os.cpu_count() or 2),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=3 << 30,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},  # its workers import this file
        )
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`. The clock starts before the tasks are planned: where they run, nobody sees them begin."""
        workload = rows.workload
        rows.began_s = time.perf_counter()
        data = self._ray.data.range(workload.rows, override_num_blocks=min(workload.steps, 4 * (os.cpu_count() or 2)))
        data = data.map_batches(partial(ray_batch, workload=workload), batch_size=workload.batch)
        data.write_parquet(str(folder), compression="none", use_dictionary=False)

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        paths = sorted(folder.glob("*.parquet"))
        return np.concatenate([ids_in(parquet_rows(path, workload), workload) for path in paths])

    def close(self) -> None:
        """As in `Writer`."""
        self._ray.shutdown()


def ray_batch(batch: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """Make the rows of a batch in a worker of Ray."""
    return {**batch, NAME: _rows_here(workload).of(torch.tensor(batch["id"], dtype=torch.int32)).numpy()}


@cache
def _rows_here(workload: Workload) -> Rows:
    return Rows(workload)


class PlainDrain:
    """A drain in a plain loop.

    Args:
        sink: Scheme of the sink.
        options: Of `Drain`.
    """

    def __init__(self, sink: str, **options: Any) -> None:
        self.synced = options.get("fsync") != "never"
        self._sink = sink
        self._options = options

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`."""
        with Drain(f"{self._sink}:{folder}", **self._options) as drain:
            for step in range(rows.workload.steps):
                drain.put(rows.ids(step), {NAME: rows.make(step)})

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        return committed(self._sink, folder, workload)

    def close(self) -> None:
        """As in `Writer`."""


class LightningDrain:
    """`predict` with `DrainWriter`; as `PlainDrain`."""

    synced = True

    def __init__(self, sink: str, **options: Any) -> None:
        self._sink = sink
        self._options = options

    def write(self, rows: Rows, folder: Path) -> None:
        """As in `Writer`."""
        import pytorch_lightning  # noqa: F401, PLC0415 - the writer is of the kind of what is loaded

        from interlock.integrations.lightning import DrainWriter  # noqa: PLC0415 - needs Lightning

        predict(rows, DrainWriter(f"{self._sink}:{folder}", **self._options))

    def read(self, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
        """As in `Writer`."""
        return committed(self._sink, folder, workload)

    def close(self) -> None:
        """As in `Writer`."""


def committed(sink: str, folder: Path, workload: Workload) -> npt.NDArray[np.int32]:
    """Return the ids in the shards of a drain, once each was found to lie beside its own row."""
    found = []
    for path in sorted(folder.glob("part-*")):
        if sink == "npy":
            (values,) = (file for file in path.glob("*.npy") if file.stem != "id")
            named, rows = np.load(path / "id.npy"), np.load(values, mmap_mode="r")
        else:
            import pyarrow.parquet as pq  # noqa: PLC0415 - as above

            (name,) = (column for column in pq.read_schema(path).names if column != "id")
            named = pq.read_table(path, columns=["id"]).column("id").to_numpy()
            rows = parquet_rows(path, workload, name)
        ids = ids_in(rows, workload)
        if not np.array_equal(ids, named):
            raise AssertionError(f"{path.name} has rows under other ids than their own")
        found.append(ids)
    return np.concatenate(found)
