"""What every sink must do, as a class of tests to subclass.

::

    class TestMySink(SinkConformance):
        def make_sink(self, tmp_path):
            return MySink()
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from interlock._core._protocols import ListedShard
from interlock._core._rows import RaggedRows
from interlock.drain._files import files_of
from interlock.drain._ragged import ragged_of
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from interlock._core._protocols import Sink, SupportsCatalog
    from interlock._core._rows import Rows

RUN = "0123456789abcdef0123456789abcdef"

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)

_ROW_SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (2, 1, 4))


def _column(dtype: str, rows: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return values that use every bit of the dtype, NaNs and negative zeros among them."""
    random = np.random.default_rng(rows)
    if dtype == "bool":
        return random.integers(0, 2, (rows, *shape)).astype(np.bool_)
    itemsize = np.dtype(dtype).itemsize
    raw = random.integers(0, 256, (rows, *shape, itemsize), np.uint8)
    return raw.view(dtype).reshape((rows, *shape))


def _ragged(dtype: str, lengths: Sequence[int], shape: tuple[int, ...]) -> RaggedRows:
    """Return rows of these lengths that use every bit of the dtype."""
    return RaggedRows(_column(dtype, sum(lengths), shape), np.cumsum([0, *lengths], dtype=np.int64))


def _same_bytes(left: Rows, right: Rows) -> bool:
    if isinstance(left, RaggedRows) and isinstance(right, RaggedRows):
        return _same_bytes(left.values, right.values) and left.offsets.tolist() == right.offsets.tolist()
    assert not isinstance(left, RaggedRows)
    assert not isinstance(right, RaggedRows)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


class SinkConformance:
    """Tests of a `Sink`.

    Attributes:
        text_ids: Ids that it must hold; fewer than these only where the format cannot, which `check` then refuses.
    """

    text_ids: tuple[str, ...] = ("a", "ä/b.png", "", "x" * 300, "日本")

    def make_sink(self, tmp_path: Path) -> Sink:  # noqa: ARG002 - subclasses may want it
        """Return the sink under test. To be overridden."""
        pytest.fail("a subclass says which sink is tested: override make_sink")

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        """The sink under test."""
        return self.make_sink(tmp_path)

    @pytest.fixture
    def ragged_sink(self, sink: Sink) -> Sink:
        """The sink under test, if it says that it holds rows of any length."""
        if not getattr(sink, "ragged", False):
            pytest.skip("it does not say that it holds ragged rows")
        return sink

    @pytest.fixture
    def path(self, tmp_path: Path, sink: Sink) -> Path:
        """Where a shard goes."""
        return tmp_path / f"shard{sink.suffix}.tmp"

    @staticmethod
    def write(sink: Sink, path: Path, ids: Any, columns: Mapping[str, Rows]) -> None:
        """Write a whole shard with one call of `write`, and let go of it if it is refused."""
        writer = sink.open_shard(path, run=RUN)
        try:
            writer.write(np.asarray(ids), columns)
            writer.close()
        except BaseException:
            writer.abandon()
            raise

    def test_scheme_is_a_word_and_suffix_can_end_a_name(self, sink: Sink) -> None:
        assert sink.scheme
        assert set(sink.scheme) <= set(string.ascii_lowercase + string.digits)
        assert not sink.suffix or (sink.suffix.startswith(".") and sink.suffix[1:].isalpha())

    def test_a_shard_without_a_suffix_is_a_folder(self, sink: Sink, path: Path) -> None:
        """Else nothing would tell it from other files in the folder of the dataset."""
        self.write(sink, path, [1], {"x": np.ones(1)})
        assert path.is_dir() or sink.suffix

    @pytest.mark.parametrize("shape", _ROW_SHAPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_come_back_bit_for_bit(self, sink: Sink, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        if dtype in getattr(sink, "lacks", ()):
            pytest.skip(f"{sink.scheme}: says that it does not hold {dtype}, and a drain refuses it")
        column = _column(dtype, 7, shape)
        self.write(sink, path, np.arange(7), {"x": column})
        assert _same_bytes(sink.read_rows(path, range(7))["x"], column)

    def test_narrow_floats_come_back_bit_for_bit_or_are_not_claimed(self, sink: Sink, path: Path) -> None:
        dtypes = sorted(getattr(sink, "dtypes", ()))
        pytest.importorskip("ml_dtypes")
        columns = {name: _column(name, 5, (3,)) for name in dtypes}
        self.write(sink, path, np.arange(5), {"x": np.ones(5), **columns})
        rows = sink.read_rows(path, range(5))
        assert all(_same_bytes(rows[name], column) for name, column in columns.items())

    def test_rows_come_back_in_the_order_that_is_asked_for(self, sink: Sink, path: Path) -> None:
        column = np.arange(30.0).reshape(10, 3)
        self.write(sink, path, np.arange(10), {"x": column})
        assert _same_bytes(sink.read_rows(path, [9, 0, 4, 4])["x"], column[[9, 0, 4, 4]])

    def test_a_shard_tells_its_run_and_its_ids(self, sink: Sink, path: Path) -> None:
        limits = np.iinfo(np.int64)
        ids = np.array([5, limits.min, -1, limits.max, 0], np.int64)
        self.write(sink, path, ids, {"x": np.ones(5)})
        content = sink.read_shard(path)
        assert content.run == RUN
        assert _same_bytes(content.ids, ids)

    def test_ids_may_be_strings_of_any_length(self, sink: Sink, path: Path) -> None:
        writer = sink.open_shard(path, run=RUN)
        writer.write(np.array(self.text_ids[:2]), {"x": np.zeros(2)})
        writer.write(np.array(self.text_ids[2:]), {"x": np.ones(len(self.text_ids) - 2)})
        writer.close()
        content = sink.read_shard(path)
        assert content.ids.dtype.kind == "U"
        assert content.ids.tolist() == list(self.text_ids)

    def test_writes_append(self, sink: Sink, path: Path) -> None:
        column = np.random.default_rng(0).random((100, 5))
        writer = sink.open_shard(path, run=RUN)
        for start in range(0, 100, 7):
            stop = min(start + 7, 100)
            writer.write(np.arange(start, stop), {"x": column[start:stop]})
        writer.close()
        assert sink.read_shard(path).ids.tolist() == list(range(100))
        assert _same_bytes(sink.read_rows(path, range(100))["x"], column)

    @pytest.mark.parametrize("rows", [3, 5_000])
    def test_arrays_may_be_reused_when_write_returns(self, sink: Sink, path: Path, rows: int) -> None:
        ids = np.arange(rows)
        column = np.random.default_rng(1).random((rows, 500))
        expected = column.copy()
        writer = sink.open_shard(path, run=RUN)
        writer.write(ids, {"x": column})
        ids.fill(-7)
        column.fill(np.nan)
        writer.close()
        assert sink.read_shard(path).ids.tolist() == list(range(rows))
        assert _same_bytes(sink.read_rows(path, range(rows))["x"], expected)

    def test_small_and_large_writes_keep_their_order(self, sink: Sink, path: Path) -> None:
        column = np.random.default_rng(2).random((6_003, 250))
        writer = sink.open_shard(path, run=RUN)
        for start, stop in ((0, 1), (1, 6_001), (6_001, 6_003)):
            writer.write(np.arange(start, stop), {"x": column[start:stop]})
        writer.close()
        wanted = [6_002, 0, 1, 3_000, 6_000, 6_001]
        assert sink.read_shard(path).ids.tolist() == list(range(6_003))
        assert _same_bytes(sink.read_rows(path, wanted)["x"], column[wanted])

    def test_columns_need_not_be_contiguous_or_of_this_byte_order(self, sink: Sink, path: Path) -> None:
        column = np.arange(24.0).reshape(4, 6)[:, ::2]
        swapped = np.arange(4, dtype=np.dtype("int32").newbyteorder("S"))
        self.write(sink, path, np.arange(4), {"x": column, "y": swapped})
        rows = sink.read_rows(path, range(4))
        assert _same_bytes(rows["x"], np.ascontiguousarray(column))
        assert _same_bytes(rows["y"], np.arange(4, dtype=np.int32))

    def test_columns_keep_their_names(self, sink: Sink, path: Path) -> None:
        columns = {name: np.full(2, at) for at, name in enumerate(["pair.0", "pair.1", "Größe", "with space"])}
        self.write(sink, path, np.arange(2), columns)
        rows = sink.read_rows(path, [0])
        assert {name: int(np.asarray(rows[name])[0]) for name in rows} == {name: at for at, name in enumerate(columns)}

    def test_a_shard_may_be_renamed(self, sink: Sink, path: Path) -> None:
        self.write(sink, path, [3], {"x": np.ones(1)})
        moved = path.rename(path.with_name(f"moved{sink.suffix}"))
        assert sink.read_shard(moved).ids.tolist() == [3]

    def test_an_abandoned_shard_does_not_pass_for_a_whole_one(self, sink: Sink, path: Path) -> None:
        writer = sink.open_shard(path, run=RUN)
        writer.write(np.arange(2), {"x": np.ones(2)})
        writer.abandon()
        writer.abandon()
        self.check_refused(sink, path)

    def test_a_cut_shard_or_one_that_goes_on_does_not_pass_for_a_whole_one(self, sink: Sink, path: Path) -> None:
        self.write(sink, path, np.arange(100), {"x": np.ones(100), "n": np.ones((100, 3), np.int8)})
        for file in files_of(path):
            content = file.read_bytes()
            for kept in (0, len(content) // 2, len(content) - 3):
                file.write_bytes(content[:kept])
                self.check_refused(sink, path)
            file.write_bytes(content + bytes(1024))
            self.check_refused(sink, path)
            file.write_bytes(content)
        assert sink.read_shard(path).ids.size == 100

    def test_a_shard_that_lacks_a_file_does_not_pass_for_a_whole_one(self, sink: Sink, path: Path) -> None:
        self.write(sink, path, np.arange(3), {"x": np.ones(3), "y": np.ones((3, 2))})
        for file in files_of(path):
            content = file.read_bytes()
            file.unlink()
            with pytest.raises((UsageError, OSError)):
                sink.read_shard(path)
            file.write_bytes(content)
        assert sink.read_shard(path).ids.size == 3

    def test_what_a_sink_claims_to_hold_it_holds(self, sink: Sink, path: Path) -> None:
        """`check` is what stands between a put and a drain that fails: what it lets through can be written."""
        check = getattr(sink, "check", None)
        ids = np.array(self.text_ids)
        if check is not None:
            check(np.arange(3), ["x", "pair.0"])
            check(ids, ["x"])
        self.write(sink, path, ids, {"x": np.ones(len(ids))})
        assert sink.read_shard(path).ids.tolist() == list(self.text_ids)

    def test_a_catalogue_lists_what_was_published_and_nothing_else(self, sink: Sink, tmp_path: Path) -> None:
        """Once, all of a change or nothing, also if it is told twice; and a sink opened later reads the same."""
        if not hasattr(sink, "publish"):
            pytest.skip(f"readers of {sink.scheme}: look at names")
        catalog = cast("SupportsCatalog", sink)
        assert catalog.listed(tmp_path) is None
        shards = []
        for at in range(3):
            name = f"part-{at}{sink.suffix}"
            self.write(sink, tmp_path / name, [at], {"x": np.ones((1, 2))})
            size_bytes = sum(file.stat().st_size for file in files_of(tmp_path / name))
            shards.append(ListedShard(name, 1, size_bytes, (at, at)))
        first, second, third = (shard.name for shard in shards)
        catalog.publish(tmp_path, shards[:1], [])
        assert catalog.listed(tmp_path) == frozenset({first})
        for _ in range(2):
            catalog.publish(tmp_path, shards[1:2], [])
            assert catalog.listed(tmp_path) == frozenset({first, second})
        for _ in range(2):
            catalog.publish(tmp_path, shards[2:], [first, second])
            assert catalog.listed(tmp_path) == frozenset({third})
        assert cast("SupportsCatalog", self.make_sink(tmp_path)).listed(tmp_path) == frozenset({third})
        assert all((tmp_path / shard.name).exists() for shard in shards)  # for readers that asked before
        catalog.discard(tmp_path)
        assert catalog.listed(tmp_path) is None
        catalog.publish(tmp_path, shards[:1], [])
        assert catalog.listed(tmp_path) == frozenset({first})

    def test_something_else_does_not_pass_for_a_shard(self, sink: Sink, tmp_path: Path) -> None:
        file = tmp_path / f"other{sink.suffix}"
        file.write_bytes(b"something else, and long enough to be read")
        self.check_refused(sink, file)
        folder = tmp_path / f"folder{sink.suffix}"
        folder.mkdir()
        self.check_refused(sink, folder)

    @pytest.mark.parametrize("shape", [(), (3,), (2, 1, 4)], ids=str)
    @pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
    def test_ragged_rows_come_back_bit_for_bit(
        self, ragged_sink: Sink, path: Path, dtype: str, shape: tuple[int, ...]
    ) -> None:
        rows = _ragged(dtype, [3, 0, 1, 5, 0], shape)
        self.write(ragged_sink, path, np.arange(5), {"x": rows, "y": np.arange(5)})
        stored = ragged_sink.read_rows(path, range(5))
        assert _same_bytes(stored["x"], rows)
        assert _same_bytes(stored["y"], np.arange(5))
        assert ragged_sink.read_shard(path).ids.tolist() == list(range(5))

    def test_ragged_rows_of_narrow_floats_come_back_bit_for_bit(self, ragged_sink: Sink, path: Path) -> None:
        pytest.importorskip("ml_dtypes")
        columns = {name: _ragged(name, [2, 0, 1], (3,)) for name in sorted(getattr(ragged_sink, "dtypes", ()))}
        self.write(ragged_sink, path, np.arange(3), {"x": np.ones(3), **columns})
        stored = ragged_sink.read_rows(path, range(3))
        assert all(_same_bytes(stored[name], column) for name, column in columns.items())

    @pytest.mark.parametrize("wanted", [[4, 0, 3, 3], [1], [1, 2], [2, 3, 4], [4, 3]], ids=str)
    def test_ragged_rows_come_back_in_the_order_that_is_asked_for(
        self, ragged_sink: Sink, path: Path, wanted: list[int]
    ) -> None:
        rows = _ragged("float32", [3, 0, 1, 5, 2], (2,))
        self.write(ragged_sink, path, np.arange(5), {"x": rows})
        assert _same_bytes(ragged_sink.read_rows(path, wanted)["x"], ragged_of([rows[at] for at in wanted]))

    def test_ragged_writes_append_whatever_they_hold(self, ragged_sink: Sink, path: Path) -> None:
        """None, then some, then more than formats gather; and slices, which begin anywhere."""
        rows = _ragged("float64", [0, 0, 2, 0, 1, 2_000_000, 7, 0], ())
        writer = ragged_sink.open_shard(path, run=RUN)
        for start, stop in ((0, 2), (2, 5), (5, 6), (6, 8)):
            writer.write(np.arange(start, stop), {"x": rows[start:stop]})
        writer.close()
        assert _same_bytes(ragged_sink.read_rows(path, range(8))["x"], rows)

    def test_rows_that_are_all_empty_keep_their_type(self, ragged_sink: Sink, path: Path) -> None:
        rows = _ragged("int16", [0, 0, 0], (2,))
        self.write(ragged_sink, path, np.arange(3), {"x": rows})
        assert _same_bytes(ragged_sink.read_rows(path, [0, 2])["x"], rows[:2])

    def test_ragged_arrays_may_be_reused_when_write_returns(self, ragged_sink: Sink, path: Path) -> None:
        rows = _ragged("float32", [3, 1, 4], (2,))
        values, offsets = rows.values.copy(), rows.offsets.copy()
        writer = ragged_sink.open_shard(path, run=RUN)
        writer.write(np.arange(3), {"x": RaggedRows(values, offsets)})
        values.fill(np.nan)
        offsets.fill(-7)
        writer.close()
        assert _same_bytes(ragged_sink.read_rows(path, range(3))["x"], rows)

    def test_ragged_values_need_not_be_contiguous_or_of_this_byte_order(self, ragged_sink: Sink, path: Path) -> None:
        values = np.arange(24.0).reshape(4, 6)[:, ::2]
        swapped = np.arange(4, dtype=np.dtype("int32").newbyteorder("S"))
        offsets = np.array([0, 1, 4])
        self.write(ragged_sink, path, [0, 1], {"x": RaggedRows(values, offsets), "y": RaggedRows(swapped, offsets)})
        stored = ragged_sink.read_rows(path, [0, 1])
        assert _same_bytes(stored["x"], RaggedRows(np.ascontiguousarray(values), offsets))
        assert _same_bytes(stored["y"], RaggedRows(np.arange(4, dtype=np.int32), offsets))

    def test_outputs_that_are_called_as_the_parts_of_a_ragged_one_are_not_taken_for_it(
        self, ragged_sink: Sink, path: Path
    ) -> None:
        columns: dict[str, Rows] = {
            "x.values": np.ones((2, 3)),
            "x.offsets": np.arange(2),
            "r": _ragged("int8", [1, 2], ()),
        }
        self.write(ragged_sink, path, [0, 1], columns)
        stored = ragged_sink.read_rows(path, [1])
        assert set(stored) == set(columns)
        assert all(_same_bytes(stored[name], column[1:2]) for name, column in columns.items())

    def test_a_cut_ragged_shard_does_not_pass_for_a_whole_one(self, ragged_sink: Sink, path: Path) -> None:
        self.write(ragged_sink, path, np.arange(3), {"x": _ragged("float32", [100, 0, 200], ())})
        for file in files_of(path):
            content = file.read_bytes()
            for kept in (0, len(content) // 2, len(content) - 3):
                file.write_bytes(content[:kept])
                self.check_refused(ragged_sink, path)
            file.write_bytes(content)
        assert ragged_sink.read_shard(path).ids.size == 3

    @staticmethod
    def check_refused(sink: Sink, path: Path) -> None:
        """A shard that is not whole is an error of its own, never wrong rows."""
        if path.exists():
            with pytest.raises((UsageError, OSError)):
                sink.read_shard(path)
