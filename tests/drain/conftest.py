"""What the tests of the drain share: reading a sink as a stranger would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest


def read_npy(folder: Path) -> dict[str, np.ndarray]:
    """Read every visible shard of an `npy:` folder with nothing but NumPy."""
    shards = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("_")]
    names = sorted({file.stem for shard in shards for file in shard.glob("*.npy")})
    return {name: np.concatenate([np.load(shard / f"{name}.npy") for shard in shards]) for name in names}


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
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def read_sink(sink: str) -> dict[str, np.ndarray]:
    scheme, _, path = sink.partition(":")
    return read_parquet(Path(path)) if scheme == "parquet" else read_npy(Path(path))


def read_rows(sink: str, name: str = "output") -> dict[Any, Any]:
    """Return id to value; an id that is there twice is a failure."""
    columns = read_sink(sink)
    if not columns:
        return {}
    ids = columns["id"].tolist()
    assert len(ids) == len(set(ids)), "a row is there twice"
    return dict(zip(ids, columns[name].tolist(), strict=True))


@pytest.fixture(params=["parquet", "npy"])
def sink(request, tmp_path) -> str:
    """A sink of each kind, not begun."""
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
