"""What the tests of the drain share: reading a sink as a stranger would."""

from __future__ import annotations

import itertools
import json
import runpy
import tarfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr
from deltalake import DeltaTable, QueryBuilder
from pyarrow import feather
from safetensors.numpy import load_file

from interlock.feed.sources import WebDatasetSource


def read_npy(folder: Path) -> dict[str, np.ndarray]:
    """Read every visible shard of an `npy:` folder with nothing but NumPy."""
    shards = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("_")]
    return _joined([_listed({file.stem: np.load(file) for file in shard.glob("*.npy")}) for shard in shards])


def lists(rows: Any) -> np.ndarray:
    """Return arrays of any lengths as an array of them."""
    found = np.empty(len(rows), object)
    for at, row in enumerate(rows):
        found[at] = np.asarray(row)
    return found


def _listed(shard: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return columns in which what has offsets is an array of arrays."""
    for name in [name.removesuffix(".offsets") for name in shard if name.endswith(".offsets")]:
        values, ends = shard.pop(f"{name}.values"), shard.pop(f"{name}.offsets")
        assert (ends[0], ends[-1], len(ends)) == (0, len(values), len(shard["id"]) + 1)
        shard[name] = lists([values[start:stop] for start, stop in itertools.pairwise(ends.tolist())])
    return shard


def _column(column: pa.ChunkedArray) -> np.ndarray:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return np.concatenate([chunk.to_numpy_ndarray() for chunk in column.chunks])
    is_ragged = pa.types.is_list(column.type)
    return lists(column.to_pylist()) if is_ragged else np.array(column.to_pylist())


def read_parquet(folder: Path) -> dict[str, np.ndarray]:
    """Read the folder as a plain Parquet dataset, with three readers that must agree on the ids."""
    if not list(folder.glob("*.parquet")):
        return {}
    table = ds.dataset(folder, format="parquet").to_table()
    ids = table["id"].to_pylist()
    with duckdb.connect() as connection:
        by_duckdb = connection.execute("select id from read_parquet(?)", [f"{folder}/*.parquet"]).fetchall()
    assert sorted(one for (one,) in by_duckdb) == sorted(ids)
    assert sorted(pd.read_parquet(folder)["id"].tolist()) == sorted(ids)
    return {name: _column(table[name]) for name in table.column_names}


def read_arrow(folder: Path) -> dict[str, np.ndarray]:
    """Read every Arrow file with pyarrow, and with pandas, which must agree on the ids."""
    shards = sorted(folder.glob("*.arrow"))
    if not shards:
        return {}
    table = pa.concat_tables([feather.read_table(shard) for shard in shards])
    by_pandas = [one for shard in shards for one in pd.read_feather(shard)["id"].tolist()]
    assert table["id"].to_pylist() == by_pandas
    return {name: _column(table[name]) for name in table.column_names}


def read_safetensors(folder: Path) -> dict[str, np.ndarray]:
    """Read every safetensors file with the library of that name."""
    shards = [load_file(shard) for shard in sorted(folder.glob("*.safetensors"))]
    for shard in shards:
        if "id.offsets" in shard:
            data, ends = shard["id"].tobytes(), shard.pop("id.offsets").tolist()
            shard["id"] = np.array([data[start:stop].decode() for start, stop in itertools.pairwise(ends)])
    return _joined(list(map(_listed, shards)))


def read_zarr(folder: Path) -> dict[str, np.ndarray]:
    """Read every Zarr group with zarr, and with xarray, which must agree on ids and values."""
    shards = []
    for path in sorted(folder.glob("*.zarr")):
        group: Any = zarr.open_group(str(path), mode="r")
        shard = {name: np.asarray(group[name][:]) for name in group}
        with xr.open_zarr(path, consolidated=False) as dataset:
            assert dataset.indexes["id"].tolist() == shard["id"].tolist()
            for name in dataset.data_vars:
                assert dataset[name].dims[0] == "id" or str(name).endswith((".values", ".offsets"))
                np.testing.assert_array_equal(dataset[name].values, shard[str(name)])
        shards.append(_listed(shard))
    return _joined(shards)


def read_webdataset(folder: Path) -> dict[str, np.ndarray]:
    """Read every tar shard with our own source, which knows nothing of sinks."""
    shards = []
    for path in sorted(folder.glob("*.tar")):
        source = WebDatasetSource(path, index=None)
        keys = [source.id_of(row).removeprefix(f"{path.name}/") for row in range(len(source))]
        samples = [source[row] for row in range(len(source))]
        if not isinstance(samples[0], dict):  # one extension: the sample is its value
            with tarfile.open(path) as tar:
                samples = [{tar.getnames()[0].partition(".")[2]: sample} for sample in samples]
        is_int = all(key.removeprefix("-").isdigit() for key in keys)
        columns = {name.removesuffix(".npy"): _stacked([one[name] for one in samples]) for name in samples[0]}
        shards.append({"id": np.array([int(key) for key in keys] if is_int else keys), **columns})
    return _joined(shards)


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else lists(rows)


def read_delta(folder: Path) -> dict[str, np.ndarray]:
    """Read the table as its log says it is, with two engines that must agree on the ids, and with the log alone."""
    if not DeltaTable.is_deltatable(str(folder)):
        return {}
    table = DeltaTable(str(folder))
    rows = table.to_pyarrow_table()
    by_datafusion = pa.table(QueryBuilder().register("rows", table).execute("select id from rows"))["id"].to_pylist()
    assert sorted(by_datafusion) == sorted(rows["id"].to_pylist())
    assert sum(pq.read_metadata(folder / name).num_rows for name in listed_in_log(folder)) == len(rows)
    return {name: _rows_of(rows[name].to_pylist()) for name in rows.column_names} if len(rows) else {}


def _rows_of(values: list[Any]) -> np.ndarray:
    """Return rows as an array; Delta's lists do not tell whether they are all of one length."""
    return np.array(values) if len({np.shape(value) for value in values}) == 1 else lists(values)


def listed_in_log(folder: Path) -> set[str]:
    """Replay a Delta log with nothing but JSON; for tables too short for a checkpoint."""
    listed: set[str] = set()
    for version in sorted((folder / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        added, removed = ({action[kind]["path"] for action in actions if kind in action} for kind in ("add", "remove"))
        assert not added & removed
        listed = listed - removed | added
    return listed


def _joined(shards: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: _concatenated([shard[name] for shard in shards]) for name in shards[0]} if shards else {}


def _concatenated(columns: list[np.ndarray]) -> np.ndarray:
    is_ragged = any(column.dtype == object for column in columns)
    return np.concatenate([lists(column) if is_ragged else column for column in columns])


READERS = {
    "parquet": read_parquet,
    "npy": read_npy,
    "arrow": read_arrow,
    "safetensors": read_safetensors,
    "zarr": read_zarr,
    "delta": read_delta,
    "webdataset": read_webdataset,
}


def read_sink(sink: str) -> dict[str, np.ndarray]:
    scheme, _, path = sink.partition(":")
    return READERS[scheme](Path(path))


def read_rows(sink: str, name: str = "output") -> dict[Any, Any]:
    """Return id to value; an id that is there twice is a failure."""
    columns = read_sink(sink)
    if not columns:
        return {}
    ids = columns["id"].tolist()
    assert len(ids) == len(set(ids)), "a row is there twice"
    return dict(zip(ids, columns[name].tolist(), strict=True))


STORE = runpy.run_path(str(Path(__file__).with_name("store.py")))
"""Registers `bucket://` and `loose://`: object stores in folders."""


@pytest.fixture
def store(monkeypatch):
    """The class of `bucket://`; its `hook` is called before each call to it."""
    kind = STORE["FolderStore"]
    monkeypatch.setattr(kind, "hook", kind.hook)
    return kind


@pytest.fixture(params=["parquet", "npy"])
def sink(request, tmp_path) -> str:
    """A sink of each kind, not begun."""
    return f"{request.param}:{tmp_path / 'out'}"


@pytest.fixture(params=list(READERS))
def every_sink(request, tmp_path) -> str:
    """A sink of every kind that keeps rows, not begun."""
    return f"{request.param}:{tmp_path / 'out'}"


@pytest.fixture
def folder(sink) -> Path:
    return Path(sink.partition(":")[2])


@pytest.fixture
def rows():
    """Reads a sink: id to value of one column."""
    return read_rows


@pytest.fixture
def columns():
    """Reads a sink: column name to array."""
    return read_sink


@pytest.fixture
def manifest():
    """Reads the lines of a sink's manifest."""

    def read(folder: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (folder / "_interlock/manifest.jsonl").read_text().splitlines()]

    return read
