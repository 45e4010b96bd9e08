"""Every shipped sink passes the suite that is shipped for others."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest

from interlock.drain._sinks._arrow import ArrowSink
from interlock.drain._sinks._delta import DeltaSink
from interlock.drain._sinks._npy import NpySink
from interlock.drain._sinks._parquet import ParquetSink
from interlock.drain._sinks._safetensors import SafetensorsSink
from interlock.drain._sinks._webdataset import WebDatasetSink, _header
from interlock.drain._sinks._zarr import ZarrSink
from interlock.errors import UsageError
from interlock.testing._sinks import SinkConformance


class TestParquetSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return ParquetSink()

    def test_a_row_without_elements_is_refused(self, sink, path):
        """Arrow divides by the size of a fixed-size list, which ends the process."""
        with pytest.raises(UsageError, match=r"'x' has rows of shape \(0,\)"):
            self.write(sink, path, [1], {"x": np.zeros((1, 0))})


class TestDeltaSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return DeltaSink()


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


class TestSafetensorsSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return SafetensorsSink()


class TestArrowSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return ArrowSink()


class TestZarrSink(SinkConformance):
    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return ZarrSink()


class TestWebDatasetSink(SinkConformance):
    text_ids = ("a", "ä/b", "a.tar/0001", "x" * 300, "日本")

    def make_sink(self, tmp_path):  # noqa: ARG002 - part of the hook
        return WebDatasetSink()

    def test_a_pickle_in_a_member_is_refused_and_not_loaded(self, sink, path):
        pickled = io.BytesIO()
        np.save(pickled, np.array([{}]), allow_pickle=True)
        shard = sink.open_shard(path, run="r")
        shard.write(np.array([0]), {"x": np.ones(1)})
        shard._member("1.x.npy", b"", np.frombuffer(pickled.getvalue(), np.uint8))
        shard._rows += 1
        shard.close()
        assert sink.read_shard(path).ids.tolist() == [0, 1]
        with pytest.raises(UsageError, match="allow_pickle=False"):
            sink.read_rows(path, [1])

    @pytest.mark.parametrize("name", ["0.x.npy", "a/b.x.npy", "n" * 100, "n" * 101, "ä.x.npy", "p/" * 80 + "1.x.npy"])
    @pytest.mark.parametrize("size_bytes", [0, 1, 4096, 8**11 - 1, 8**11])
    def test_headers_are_those_of_tarfile(self, name, size_bytes):
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        assert _header(name, size_bytes) == info.tobuf(tarfile.PAX_FORMAT)
