"""A workbench: user files in a folder, the command line called in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from interlock.cli import main


@dataclass(frozen=True)
class Said:
    """What a call of the command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Bench:
    """A folder with a source of ten rows, and the command line."""

    def __init__(self, folder, capfd):
        self.folder = folder
        self._capfd = capfd
        self.rows = np.arange(20, dtype=np.float32).reshape(10, 2)
        np.save(folder / "rows.npy", self.rows)
        self.source = str(folder / "rows.npy")
        self.sink = f"parquet:{folder / 'out'}"

    def file(self, text, name="model.py"):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def call(self, *arguments) -> Said:
        self._capfd.readouterr()
        code = main([str(one) for one in arguments])
        captured = self._capfd.readouterr()
        return Said(code, captured.out, captured.err)

    def predict(self, model, *options, source=None, sink=None) -> Said:
        return self.call("predict", model, source or self.source, sink or self.sink, "--quiet", "--json", *options)

    def read(self) -> dict[Any, Any]:
        """Return id to row, and see that no id is there twice."""
        table = ds.dataset(self.folder / "out", format="parquet").to_table().to_pylist()
        rows = {row.pop("id"): row for row in table}
        assert len(rows) == len(table)
        return rows


@pytest.fixture
def bench(tmp_path, capfd):
    return Bench(tmp_path, capfd)
