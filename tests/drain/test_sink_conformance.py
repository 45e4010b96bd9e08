"""Both shipped sinks pass the suite that is shipped for others."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.drain._sinks._npy import NpySink
from interlock.drain._sinks._parquet import ParquetSink
from interlock.errors import UsageError
from interlock.testing._sinks import SinkConformance


class TestParquetSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return ParquetSink()

    def test_a_row_without_elements_is_refused(self, sink, path):
        """Arrow divides by the size of a fixed-size list, which ends the process."""
        with pytest.raises(UsageError, match=r"'x' has rows of shape \(0,\)"):
            self.write(sink, path, [1], {"x": np.zeros((1, 0))})


class TestNpySink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return NpySink()

    @pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", ""])
    def test_a_name_that_leads_elsewhere_is_refused(self, sink, path, tmp_path, name):
        with pytest.raises(UsageError, match=r"cannot be a file name|is called"):
            self.write(sink, path, [1], {name: np.zeros(1)})
        assert sorted(tmp_path.iterdir()) == [path]

    def test_an_index_that_names_another_folder_is_refused(self, sink, path, tmp_path):
        self.write(sink, path, [1], {"x": np.zeros(1)})
        (tmp_path / "secret.npy").write_bytes(b"")
        (path / "shard.json").write_text('{"run": "r", "rows": 1, "files": {"../secret.npy": 0}}')
        with pytest.raises(UsageError, match=r"cannot be a file name"):
            sink.read_shard(path)

    def test_columns_load_with_numpy(self, sink, path):
        self.write(sink, path, [4, 5], {"x": np.arange(6.0).reshape(2, 3)})
        assert np.load(path / "id.npy").tolist() == [4, 5]
        assert np.load(path / "x.npy").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
