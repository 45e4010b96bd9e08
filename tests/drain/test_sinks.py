"""Every sink in the hands of a drain, read back by the libraries that people read such files with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch
import xarray as xr
import zarr
from safetensors.torch import load_file

from interlock.devices import SimulatedDevice
from interlock.drain import Drain, open_sink, read_status, verify_sink
from interlock.drain._files import files_of
from interlock.errors import SinkConflictError, UsageError
from interlock.feed.sources import ArrowSource, ParquetSource, WebDatasetSource
from interlock.lowlevel import DeviceArray

SCHEMES = ["parquet", "arrow", "npy", "safetensors", "zarr", "webdataset", "delta"]


def shards_of(sink: str) -> list[Path]:
    return sorted(path for path in Path(sink.partition(":")[2]).iterdir() if not path.name.startswith("_"))


# ---------------------------------------------------------------- values and ids


def test_nested_outputs_have_dotted_names_and_their_values(every_sink, columns):
    """Dicts in dicts, tuples in dicts; every dtype of some width; rows of rank 0 to 3."""
    ids = np.array([5, -3, 2**60])
    half, byte = (np.float32, np.int8) if every_sink.startswith("delta:") else (np.float16, np.uint8)
    outputs: dict[str, Any] = {
        "logits": np.arange(6, dtype=half).reshape(3, 2),
        "aux": {"mask": np.array([True, False, True]), "pair": (np.arange(3, dtype=byte), np.ones((3, 2, 2)))},
        "box": np.arange(36, dtype=np.int32).reshape(3, 2, 3, 2),
    }
    with Drain(every_sink) as drain:
        drain.put(ids, outputs)
    found = columns(every_sink)
    expected = {
        "id": ids,
        "logits": outputs["logits"],
        "aux.mask": outputs["aux"]["mask"],
        "aux.pair.0": outputs["aux"]["pair"][0],
        "aux.pair.1": outputs["aux"]["pair"][1],
        "box": outputs["box"],
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_ids_may_be_strings(every_sink, columns):
    ids = ["train/0001", "b", "ä ö", "x" * 120]
    with Drain(every_sink) as drain:
        drain.put(ids[:3], np.arange(3.0))
        drain.put(ids[3:], np.array([3.0]))
    found = columns(every_sink)
    assert (found["id"].tolist(), found["output"].tolist()) == (ids, [0.0, 1.0, 2.0, 3.0])
    assert verify_sink(every_sink).ok
    with Drain(every_sink) as drain:
        assert all(one in drain.committed for one in ids)


def test_nothing_put_is_an_empty_dataset(every_sink, columns):
    with Drain(every_sink, total=3) as drain:
        drain.put([], np.empty((0, 2)))
    assert columns(every_sink) == {}
    assert verify_sink(every_sink).ok
    assert read_status(every_sink).rows_missing == 3


def test_one_row_is_a_whole_shard(every_sink, rows):
    with Drain(every_sink) as drain:
        drain.put([7], np.array([1.5]))
    assert rows(every_sink) == {7: 1.5}
    assert (verify_sink(every_sink).ok, read_status(every_sink).shards) == (True, 1)


def test_shards_roll_over_at_their_size_and_the_next_run_goes_on(every_sink, columns):
    """Rows end up once and right, however they fall on shards, puts and runs."""
    values = np.random.default_rng(0).random((60, 25))
    for run in range(2):
        with Drain(every_sink, shard_bytes=2_000, total=60) as drain:
            left = drain.pending(values)
            assert len(left) == 60 - 30 * run
            for start in range(0, 30, 6):
                picked = [left.id_of(row) for row in range(start, start + 6)]
                drain.put(picked, {"x": np.stack([left[row] for row in range(start, start + 6)])})
    assert len(shards_of(every_sink)) >= 6
    found = columns(every_sink)
    assert sorted(found["id"].tolist()) == list(range(60))
    np.testing.assert_array_equal(found["x"], values[found["id"]])
    report = verify_sink(every_sink)
    assert (report.ok, report.missing, report.rows) == (True, 0, 60)


def test_a_row_larger_than_budget_and_shard_and_chunk_comes_through(every_sink):
    large = np.random.default_rng(1).random((2, 3, 700, 1100))  # 18 MB a row: larger than what Zarr keeps in one chunk
    with Drain(every_sink, budget_bytes=1 << 20, shard_bytes=1 << 20) as drain:
        drain.put([4, 5], large)
    assert len(shards_of(every_sink)) == 2
    # Lists of Python numbers would take long: the sink reads the rows back here.
    sink, _ = open_sink(every_sink)
    stored = [np.asarray(sink.read_rows(shard, [0])["output"]) for shard in shards_of(every_sink)]
    np.testing.assert_array_equal(np.concatenate(stored), large)


def test_the_same_row_again_is_dropped_and_another_one_refused(every_sink, rows):
    with Drain(every_sink) as drain:
        drain.put([1, 2], np.array([1.0, np.nan]))
        drain.put([2, 3], np.array([np.nan, 3.0]))
        with pytest.raises(UsageError, match=r"id 1 was put twice with different values in output 'output'"):
            drain.put([1], np.array([-1.0]))
    assert sorted(rows(every_sink)) == [1, 2, 3]


# ---------------------------------------------------------------- damage and names


def test_a_changed_byte_anywhere_is_found(every_sink):
    """Whichever file of a shard it is in, and wherever in it."""
    with Drain(every_sink) as drain:
        drain.put(np.arange(50), {"x": np.random.default_rng(0).random((50, 3)), "n": np.arange(50)})
    (shard,) = shards_of(every_sink)
    for file in files_of(shard):
        content = file.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            report = verify_sink(every_sink)
            assert not report.ok, (file.name, place)
            assert "hash" in report.problems[0][1]
        file.write_bytes(content)
    assert verify_sink(every_sink).ok


def test_a_lost_file_of_a_shard_is_found(every_sink):
    with Drain(every_sink) as drain:
        drain.put([1, 2], {"x": np.ones(2), "y": np.ones(2)})
    (shard,) = shards_of(every_sink)
    files_of(shard)[0].unlink()
    assert not verify_sink(every_sink).ok
    with pytest.raises(SinkConflictError, match="interlock verify"):
        Drain(every_sink)


NAMES = ["../x", "a/b", "/x", "x\\y", ".x", "__x__", "zarr.json", "nul\0", "__metadata__", "id.offsets"]
"""Which of them a sink refuses; the others are files, keys or tensors in their right places."""

REFUSED = {
    "parquet": set(),
    "arrow": set(),
    "npy": {"../x", "a/b", "/x", "x\\y", ".x", "nul\0"},
    "safetensors": {"__metadata__", "id.offsets"},
    "zarr": {*NAMES} - {"id.offsets"},
    "delta": {"nul\0"},
    "webdataset": {"../x", "a/b", "/x", "x\\y", ".x", "nul\0"},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stays_in_its_folder_or_is_refused_before_anything_is_written(every_sink, tmp_path, name):
    is_refused = name in REFUSED[every_sink.partition(":")[0]]
    expected = pytest.raises(UsageError, match=re.escape(repr(name))) if is_refused else nullcontext()
    with Drain(every_sink) as drain:
        with expected:
            drain.put([1], {name: np.ones(1)})
        if is_refused:
            drain.put([1], {"x": np.ones(1)})  # the drain goes on
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (shard,) = shards_of(every_sink)
    assert verify_sink(every_sink).ok
    sink, _ = open_sink(every_sink)
    assert list(sink.read_rows(shard, [0])) == ["x" if is_refused else name]


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/", "", "x.png", "a/./b", "..", "a\\b", "__x__", "a\nb"])
def test_an_id_that_is_no_safe_key_is_refused_before_anything_is_written(tmp_path, key):
    sink = f"webdataset:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        with pytest.raises(UsageError, match="cannot be the key of a sample"):
            drain.put(["good", key], np.ones(2))
        drain.put(["good"], np.ones(1))
    assert WebDatasetSource(shards_of(sink)[0], index=None).id_of(0).endswith("/good")


@pytest.mark.parametrize(("scheme", "match"), [("webdataset", "differ only in case"), ("delta", "apart by case")])
def test_outputs_that_differ_only_in_case_are_refused_where_readers_cannot_tell_them_apart(tmp_path, scheme, match):
    with Drain(f"{scheme}:{tmp_path / 'out'}") as drain, pytest.raises(UsageError, match=match):
        drain.put([1], {"x": np.ones(1), "X": np.ones(1)})


def test_no_sink_calls_another_one_s_folder_its_own(every_sink):
    with Drain(every_sink) as drain:
        drain.put([1], np.ones(1))
    scheme, _, path = every_sink.partition(":")
    for other in set(SCHEMES) - {scheme}:
        with pytest.raises(SinkConflictError, match=rf"holds {scheme} shards; use {scheme}:"):
            Drain(f"{other}:{path}")


def test_a_sink_that_there_is_not_is_told_which_there_are():
    with pytest.raises(UsageError, match="no sink is called 'hdf5:out'") as caught:
        Drain("hdf5:out")
    assert all(f"{scheme}:PATH" in str(caught.value) for scheme in SCHEMES)


def test_an_index_that_leads_outside_of_a_zarr_group_is_refused(tmp_path):
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put([1], np.ones(1))
    (shard,) = shards_of(sink)
    (tmp_path / "secret").write_bytes(b"")
    told = json.loads((shard / "zarr.json").read_text())
    told["attributes"]["interlock"]["files"]["../../secret"] = 0
    (shard / "zarr.json").write_text(json.dumps(told))
    with pytest.raises(UsageError, match=r"it names '\.\./\.\./secret'"):
        open_sink(sink)[0].read_shard(shard)


# ---------------------------------------------------------------- narrow floats


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_safetensors_keep_narrow_floats_bit_for_bit(tmp_path, name):
    """From torch, JAX's NumPy and a device alike; the library of that name loads them with their dtype."""
    sink = f"safetensors:{tmp_path / 'out'}"
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(256, dtype=np.uint8).repeat(dtype.itemsize).view(dtype).reshape(64, 4)  # every bit pattern of 8
    device = SimulatedDevice("lazy")
    stream = device.stream("compute")
    memory = device.allocate(values.nbytes)
    host = device.allocate_host(values.nbytes)
    host.view()[:] = values.tobytes()
    device.copy(memory, host, stream)
    tensor = torch.from_numpy(values.view(np.uint8).copy()).view(getattr(torch, name))
    with Drain(sink) as drain:
        drain.put(np.arange(64), values)
        drain.put(np.arange(64, 128), tensor)
        drain.put(np.arange(128, 192), DeviceArray(device, memory, (64, 4), name, device.record(stream)))
        drain.put(np.arange(64), values)  # again: read back and compared
        with pytest.raises(UsageError, match="put twice with different values"):
            drain.put([0], values[1:2])
        with pytest.raises(UsageError, match="the rows before have"):
            drain.put([999], np.zeros((1, 4), np.float32))
    (shard,) = shards_of(sink)
    loaded = load_file(shard)
    assert loaded["output"].dtype == getattr(torch, name)
    assert loaded["output"].view(torch.uint8).numpy().tobytes() == 3 * values.tobytes()
    assert loaded["id"].tolist() == list(range(192))
    assert verify_sink(sink).ok


@pytest.mark.parametrize("scheme", ["parquet", "arrow", "npy", "zarr", "webdataset"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_sinks_that_cannot_hold_narrow_floats_refuse_them_by_name_and_go_on(tmp_path, scheme, name):
    with Drain(f"{scheme}:{tmp_path / 'out'}") as drain:
        with pytest.raises(UsageError, match=rf"output 'h' has the dtype {name}: {scheme}: stores .*safetensors:PATH"):
            drain.put([1], {"h": np.ones((1, 2), getattr(ml_dtypes, name))})
        drain.put([1], {"h": np.ones((1, 2), np.float32)})
    assert drain.statistics().rows_committed == 1


def test_rows_with_a_nan_in_a_narrow_float_fail_if_they_should(tmp_path):
    sink = f"safetensors:{tmp_path / 'out'}"
    values = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]], dtype=torch.bfloat16)
    with Drain(sink, nan="fail") as drain:
        drain.put([1, 2], values)
    status = read_status(sink)
    assert (status.rows_committed, [failure.id for failure in status.failures]) == (1, [2])


def test_every_tensor_of_a_safetensors_file_lies_aligned_for_its_elements(tmp_path):
    """Readers that map the file need that, and odd numbers of narrow elements before wide ones would break it."""
    sink = f"safetensors:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put(["a"], {"n": np.ones((1, 3), np.int8), "h": np.ones((1, 5), np.float16), "x": np.ones((1, 1))})
    (shard,) = shards_of(sink)
    begin = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    header = json.loads(shard.read_bytes()[8:begin])
    sizes = {"F64": 8, "I64": 8, "F16": 2, "I8": 1, "U8": 1}
    for name, one in header.items():
        if name != "__metadata__":
            assert (begin + one["data_offsets"][0]) % sizes[one["dtype"]] == 0, name
    with safetensors.safe_open(shard, framework="np") as file:
        assert file.metadata() == {"interlock.run": read_status(sink).run}


# ---------------------------------------------------------------- what readers get


def test_zarr_rows_are_found_by_id_in_shards_put_together(tmp_path):
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink, shard_bytes=90) as drain:
        for one in (30, 10, 20):
            drain.put([one, one + 1], {"field": np.full((2, 4, 5), one, np.float32), "n": np.array([one, -one])})
    shards = [xr.open_zarr(path, consolidated=False) for path in shards_of(sink)]
    assert len(shards) == 6
    whole = xr.concat(shards, dim="id")
    assert whole["id"].values.tolist() == [30, 31, 10, 11, 20, 21]
    assert whole.sel(id=11)["field"].values.tolist() == np.full((4, 5), 10.0).tolist()
    assert whole.sel(id=21)["n"].item() == -20


def test_a_lost_zarr_chunk_reads_as_nan_and_not_as_zeros(tmp_path):
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put([1, 2], np.zeros((2, 3)))
    (shard,) = shards_of(sink)
    shutil.rmtree(shard / "output/c")
    group: Any = zarr.open_group(str(shard), mode="r")
    assert np.isnan(group["output"][:]).all()
    assert not verify_sink(sink).ok


def test_zarr_chunks_that_hold_nothing_but_the_fill_value_are_stored_all_the_same(tmp_path):
    """Else a chunk that is lost could not be told from one that was never written."""
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put([1, 2], {"n": np.zeros((2, 3), np.int16), "x": np.full((2, 3), np.nan)})
    (shard,) = shards_of(sink)
    assert (shard / "n/c/0/0").is_file()
    assert (shard / "x/c/0/0").is_file()


def test_a_small_zarr_shard_takes_little_room(tmp_path):
    """A chunk that is not compressed takes its whole size, however few rows are in it."""
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink) as drain:
        drain.put(range(10), {"a": np.zeros(10, np.float32), "b": np.ones((10, 3))})
    (shard,) = shards_of(sink)
    assert sum(file.stat().st_size for file in shard.rglob("*") if file.is_file()) < 8192


def test_zarr_chunks_are_of_some_megabytes_also_of_large_rows(tmp_path):
    sink = f"zarr:{tmp_path / 'out'}"
    with Drain(sink, shard_bytes=1 << 30) as drain:
        drain.put(np.arange(40), {"small": np.ones((40, 1 << 17)), "large": np.ones((40, 3, 1 << 20), np.uint8)})
        drain.put([40], {"small": np.ones((1, 1 << 17)), "large": np.ones((1, 3, 1 << 20), np.uint8)})
    (shard,) = shards_of(sink)
    group: Any = zarr.open_group(str(shard), mode="r")
    assert group["small"].chunks == (8, 1 << 17)
    assert group["large"].chunks == (2, 3, 1 << 20)
    assert (group["small"].shape, float(group["small"][:].sum())) == ((41, 1 << 17), 41.0 * (1 << 17))


def test_our_own_sources_read_what_the_sinks_wrote(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    sources: dict[str, Any] = {}
    for scheme, suffix, open_source in (("parquet", "parquet", ParquetSource), ("arrow", "arrow", ArrowSource)):
        with Drain(f"{scheme}:{tmp_path / scheme}") as drain:
            drain.put(np.arange(6), {"v": values})
        (path,) = (tmp_path / scheme).glob(f"*.{suffix}")
        sources[scheme] = open_source(path, id_column="id")
    for source in sources.values():
        assert [source.id_of(row) for row in range(6)] == list(range(6))
        np.testing.assert_array_equal(np.stack([np.asarray(source[row]) for row in range(6)]), values)


def test_only_the_sink_that_is_named_loads_its_package(tmp_path):
    code = """
import sys, numpy as np
from interlock.drain import Drain
for scheme in ("npy", "safetensors", "webdataset"):
    with Drain(f"{scheme}:{sys.argv[1]}/{scheme}") as drain:
        drain.put([1], np.ones(1))
assert not {"zarr", "pyarrow", "safetensors", "ml_dtypes"} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [
        ("arrow", "pyarrow", "parquet"),
        ("zarr", "zarr", "zarr"),
        ("delta", "deltalake", "delta"),
        ("delta", "pyarrow", "delta"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch, scheme, package, extra):
    for name in [name for name in sys.modules if name.startswith("interlock.drain._sinks._")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"{package} is not installed; pip install 'interlock\[{extra}\]'"):
        Drain(f"{scheme}:{tmp_path / 'out'}")
