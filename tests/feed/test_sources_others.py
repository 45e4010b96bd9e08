"""Data sets of other libraries: torch, Hugging Face, Grain and sequences as they are; ArrayRecord by its package."""

from __future__ import annotations

import concurrent.futures
import pickle
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed import Feed, sources


def batches(source, **options):
    with Feed(source, batch_size=3, **options) as feed:
        return list(feed)


# ---------------------------------------------------------------- torch


class TorchPairs(torch.utils.data.Dataset[Any]):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.full((2,), float(index)), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_dataset_works_as_it_is(workers):
    found = batches(TorchPairs(), workers=workers)
    assert [pair[1].tolist() for pair in found] == [[0, 1, 2], [3, 4]]
    assert found[1][0].tolist() == [[3, 3], [4, 4]]
    assert found[0][0].dtype == np.float32


def test_torch_s_own_combinations_of_datasets_work():
    whole: Any = torch.utils.data.ConcatDataset([TorchPairs(), TorchPairs()])
    part: Any = torch.utils.data.Subset(whole, [9, 1, 6])
    assert batches(part)[0][1].tolist() == [4, 1, 1]
    tensors = torch.utils.data.TensorDataset(torch.arange(3), torch.ones(3, 2))
    assert batches(tensors)[0][1].shape == (3, 2)


def test_a_torch_iterable_dataset_is_read_in_order():
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self):
            return iter(torch.arange(5))

    assert [batch.tolist() for batch in batches(Stream())] == [[0, 1, 2], [3, 4]]


def test_a_torch_iterable_dataset_with_a_length_is_not_asked_for_samples_by_index():
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __len__(self):
            return 5

        def __iter__(self):
            return iter(torch.arange(5))

    found = [batch.tolist() for batch in batches(Stream())]
    assert found == [[0, 1, 2], [3, 4]]


def test_a_tensor_with_a_gradient_is_refused_with_the_sample():
    class Trained(TorchPairs):
        def __getitem__(self, index):
            return torch.ones(2, requires_grad=index == 1)

    with pytest.raises(SampleError, match=r"sample 1: .*grad"):
        batches(Trained())


# ---------------------------------------------------------------- Hugging Face and Grain


class HubDouble:
    """What a `datasets.Dataset` in NumPy format is to a feed: rows as dicts by index, and also iterable."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        image = Image.new("RGB", (3, 2), (index, 0, 0))
        return {"input_ids": np.array([index, index + 1]), "label": index, "image": image}

    def __iter__(self):
        raise AssertionError("a feed should read by index")


def test_rows_with_arrays_and_pillow_images_become_batches():
    found = batches(HubDouble(), shuffle=True)
    rows = np.concatenate([batch["label"] for batch in found])
    assert sorted(rows.tolist()) == [0, 1, 2, 3]
    assert found[0]["image"].shape == (3, 2, 3, 3)
    assert found[0]["image"][:, 0, 0, 0].tolist() == found[0]["label"].tolist()
    assert found[0]["input_ids"].shape == (3, 2)


def test_a_list_in_a_row_is_a_part_of_the_sample_for_each_element():
    """As everywhere in Interlock, so `docs/sources.md` says to ask for the NumPy format."""
    found = batches([{"input_ids": [index, index + 1]} for index in range(3)])
    assert [leaf.tolist() for leaf in found[0]["input_ids"]] == [[0, 1, 2], [1, 2, 3]]


def test_a_column_of_text_is_refused_with_what_to_do():
    class Texts(HubDouble):
        def __getitem__(self, index):
            return {"text": f"row {index}", "label": index}

    with pytest.raises(
        SampleError, match="leaf 'text' has dtype <U5; turn it into numbers in the source, or leave it out"
    ):
        batches(Texts())


def test_the_real_hugging_face_dataset_works():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[1, 2], [3, 4], [5, 6]], "y": [0.5, 1.5, 2.5]})
    assert batches(rows.with_format("numpy"))[0]["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batches(rows.with_format("torch"))[0]["y"].tolist() == [0.5, 1.5, 2.5]


def test_the_real_grain_dataset_works():
    grain = pytest.importorskip("grain")
    rows = grain.MapDataset.range(5).map(lambda number: np.int64(number * 2))
    assert [batch.tolist() for batch in batches(rows)] == [[0, 2, 4], [6, 8]]


@pytest.mark.parametrize("source", [[1, 2, 3], range(1, 4), np.array([1, 2, 3])], ids=["list", "range", "array"])
def test_any_sequence_of_numbers_works(source):
    assert batches(source)[0].tolist() == [1, 2, 3]


# ---------------------------------------------------------------- ArrayRecord


class RecordsDouble:
    """`array_record`'s data source over text files: one record a line."""

    opened: list[str]

    def __init__(self, paths):
        (path,) = paths
        RecordsDouble.opened.append(path)
        with open(path, "rb") as file:  # noqa: PTH123 - any path that the package takes
            self._records = file.read().splitlines()
        if self._records[:1] == [b"broken"]:
            raise ValueError("no\n  footer")

    def __len__(self):
        return len(self._records)

    def __getitem__(self, index):
        return self._records[index]


@pytest.fixture
def array_record(monkeypatch):
    """Put a stand-in for the package in its place; give the class `ArrayRecordSource`."""
    RecordsDouble.opened = []
    module = types.ModuleType("array_record.python.array_record_data_source")
    vars(module)["ArrayRecordDataSource"] = RecordsDouble
    monkeypatch.setitem(sys.modules, "array_record", types.ModuleType("array_record"))
    monkeypatch.setitem(sys.modules, "array_record.python", types.ModuleType("array_record.python"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "interlock.feed.sources._array_record", raising=False)
    yield sources.ArrayRecordSource
    sys.modules.pop("interlock.feed.sources._array_record", None)


@pytest.fixture
def records(tmp_path):
    for name, lines in (("a", "0\n1\n2"), ("b", ""), ("c", "3\n4")):
        (tmp_path / name).write_text(lines)
    return [tmp_path / name for name in "abc"]


def test_records_come_by_index_through_all_files(array_record, records):
    source = array_record(records, decode=int)
    assert [source[index] for index in (4, 0, 3)] == [4, 0, 3]
    assert [source.id_of(index) for index in (2, 3)] == ["a:2", "c:0"]
    assert source.chunk_starts() == [0, 3]
    assert [batch.tolist() for batch in batches(source, workers=2)] == [[0, 1, 2], [3, 4]]
    with pytest.raises(IndexError):
        source[5]


def test_a_file_of_records_is_opened_once_for_reading_by_whichever_thread_comes_first(array_record, records):
    source = array_record(records, decode=int)
    RecordsDouble.opened.clear()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(source.__getitem__, range(5))) == list(range(5))
    assert sorted(RecordsDouble.opened) == [str(records[0]), str(records[2])]


def test_a_pickled_copy_of_records_has_no_open_file(array_record, records):
    source = array_record(records, decode=int)
    assert source[1] == 1
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert copy._files == {}
    assert copy[4] == 4


def test_records_that_cannot_be_read_are_named(array_record, records, tmp_path):
    (tmp_path / "d").write_text("broken")
    with pytest.raises(SourceError, match=r"d cannot be read as ArrayRecord: no footer"):
        array_record([*records, tmp_path / "d"], decode=int)
    with pytest.raises(SourceError, match="holds no record"):
        array_record([records[1]], decode=int)
    with pytest.raises(SourceError, match="array_record reads local files"):
        array_record(["gs://bucket/a"], decode=int)
    source = array_record(records, decode=lambda record: 1 // int(record))
    with pytest.raises(SampleError, match="record 'a:0' cannot be read: ZeroDivisionError") as caught:
        source[0]
    assert caught.value.index == 0


def test_the_fingerprint_of_records_follows_their_bytes(array_record, records):
    first = array_record(records, decode=int).fingerprint()
    records[0].write_text("0\n1\n9")
    assert first != array_record(records, decode=int).fingerprint()


def test_without_the_package_the_extra_is_named(monkeypatch):
    for name in {"array_record", *(name for name in sys.modules if name.startswith("array_record."))}:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "interlock.feed.sources._array_record", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'interlock\[array-record\]'"):
        _ = sources.ArrayRecordSource


def test_the_real_package_gives_its_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for number in range(5):
        writer.write(str(number).encode())
    writer.close()
    source: Any = sources.ArrayRecordSource(
        tmp_path / "a.array_record", decode=lambda record: np.int64(record.decode())
    )
    assert [batch.tolist() for batch in batches(source)] == [[0, 1, 2], [3, 4]]


# ---------------------------------------------------------------- what the package exports


@pytest.mark.usefixtures("array_record")
def test_every_public_source_is_there_and_others_are_not():
    assert all(hasattr(sources, name) for name in sources.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = sources.Nothing
