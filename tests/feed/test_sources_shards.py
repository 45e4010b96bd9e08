"""WebDataset shards: the index, random access, and what is wrong with a shard and where."""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import pickle
import tarfile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import WebDatasetSource as TypedSource
from interlock.feed.sources import open_source
from interlock.feed.sources._tar_index import build_index
from interlock.feed.sources._webdataset import expand_braces


def WebDatasetSource(*given, **options) -> Any:  # noqa: N802 - samples are of any type
    return TypedSource(*given, **options)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def png(value, size=(4, 3)):
    file = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(file, "png")
    return file.getvalue()


def write_shard(path, members, **options):
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_shards(folder, shards=3, samples=4):
    """Write shards of samples with a vector, a class and a text; the class counts up through all of them."""
    for shard in range(shards):
        members = []
        for sample in range(samples):
            number = shard * samples + sample
            members += [
                (f"{number:04d}.npy", npy(np.full(5, number, np.float32))),
                (f"{number:04d}.cls", str(number).encode()),
                (f"{number:04d}.txt", f"text {number}".encode()),
            ]
        write_shard(folder / f"train-{shard:03d}.tar", members)
    return folder


def test_samples_are_members_by_extension_and_ids_are_shard_and_key(tmp_path):
    source = WebDatasetSource(write_shards(tmp_path))
    assert len(source) == 12
    assert [source.id_of(index) for index in (0, 5, 11)] == [
        "train-000.tar/0000",
        "train-001.tar/0005",
        "train-002.tar/0011",
    ]
    assert sorted(source[7]) == ["cls", "npy"]
    assert [int(source[index]["cls"]) for index in (11, 0, 6)] == [11, 0, 6]
    assert np.array_equal(source[9]["npy"], np.full(5, 9, np.float32))
    for index in (-1, 12):
        with pytest.raises(IndexError):
            source[index]


def test_chunks_are_the_shards(tmp_path):
    assert WebDatasetSource(write_shards(tmp_path)).chunk_starts() == [0, 4, 8]


@pytest.mark.parametrize("workers", [0, 3])
def test_a_feed_gives_every_sample_once_in_a_shuffled_order(tmp_path, workers):
    source = WebDatasetSource(write_shards(tmp_path))
    with Feed(source, batch_size=5, shuffle=True, workers=workers, ids=True) as feed:
        found = [(name, int(value)) for ids, batch in feed for name, value in zip(ids, batch["cls"], strict=True)]
    assert sorted(value for _, value in found) == list(range(12))
    assert all(source[value]["cls"] == value and source.id_of(value) == name for name, value in found)


def test_a_shuffle_that_knows_chunks_reads_shard_after_shard(tmp_path):
    with Feed(WebDatasetSource(write_shards(tmp_path)), batch_size=4, shuffle="chunks:1", workers=1) as feed:
        batches = [batch["cls"].tolist() for batch in feed]
    assert all(len({number // 4 for number in batch}) == 1 for batch in batches)
    assert sorted(sum(batches, [])) == list(range(12))  # noqa: RUF017 - twelve numbers


def test_extensions_choose_and_order_what_makes_a_sample(tmp_path):
    write_shards(tmp_path)
    assert WebDatasetSource(tmp_path, extensions=["txt"])[3] == "text 3"
    assert list(WebDatasetSource(tmp_path, extensions=[".TXT", "npy"])[3]) == ["txt", "npy"]
    with pytest.raises(SourceError, match="no sample has extension 'jpg': the first sample has npy, cls, txt"):
        WebDatasetSource(tmp_path, extensions=["jpg"])


def test_every_known_extension_decodes_and_images_are_resized(tmp_path):
    members = [
        ("a.seg.png", png(7)),
        ("a.json", b'{"x": 1}'),
        ("a.float", b"0.5\n"),
        ("a.id", b" 12 "),
        ("a.fortran.npy", npy(np.asfortranarray(np.arange(6).reshape(2, 3).astype(">i4")))),
    ]
    source = WebDatasetSource(
        write_shard(tmp_path / "a.tar", members),
        extensions=["seg.png", "json", "float", "id", "fortran.npy"],
        image_size=(2, 8),
    )
    sample = source[0]
    assert sample["seg.png"].shape == (2, 8, 3)
    assert set(sample["seg.png"].ravel().tolist()) == {7}
    assert (sample["json"], sample["float"], sample["id"]) == ({"x": 1}, 0.5, 12)
    assert sample["fortran.npy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert sample["fortran.npy"].dtype.isnative


def test_the_user_s_function_gets_all_members(tmp_path):
    source = WebDatasetSource(write_shards(tmp_path), decode=lambda one: (sorted(one), int(one["cls"]) * 10))
    assert source[6] == (["cls", "npy", "txt"], 60)
    broken = WebDatasetSource(tmp_path, decode=lambda one: one["jpg"])
    with pytest.raises(SampleError, match=r"sample 'train-001\.tar/0006' cannot be decoded by .*KeyError") as caught:
        broken[6]
    assert caught.value.index == 6


def test_members_of_a_sample_need_not_lie_together(tmp_path):
    """As `tar` of an unsorted folder writes them."""
    members = [("a.cls", b"1"), ("b.cls", b"2"), ("big.bin", b"x" * 9000), ("b.int", b"4"), ("a.int", b"3")]
    source = WebDatasetSource(write_shard(tmp_path / "a.tar", members))
    assert [source.id_of(0), source.id_of(1)] == ["a.tar/a", "a.tar/b"]
    assert [source[0], source[1]] == [{"cls": 1, "int": 3}, {"cls": 2, "int": 4}]


def test_names_are_read_as_webdataset_reads_them(tmp_path):
    members = [("./sub.dir/x.left.CLS", b"1"), ("__meta__.json", b"{}"), (".hidden.cls", b"2"), ("plain", b"3")]
    source = WebDatasetSource(write_shard(tmp_path / "a.tar", members, format=tarfile.PAX_FORMAT))
    assert len(source) == 1
    assert source.id_of(0) == "a.tar/sub.dir/x"
    assert source[0] == 1


def test_long_names_and_folders_in_a_shard_are_no_samples_of_their_own(tmp_path):
    long = "d" * 120 + "/" + "n" * 130
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        folder = tarfile.TarInfo("folder.cls")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("link.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        info = tarfile.TarInfo(long + ".cls")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"7"))
    source = WebDatasetSource(path)
    assert [source.id_of(index) for index in range(len(source))] == ["a.tar/" + long]
    assert source[0] == 7


# ---------------------------------------------------------------- the index file


def test_the_index_is_kept_beside_the_shard_and_headers_are_not_read_again(tmp_path, monkeypatch):
    write_shards(tmp_path)
    first = WebDatasetSource(tmp_path)
    record = json.loads((tmp_path / "train-000.tar.index.json").read_text())
    assert (record["format"], record["version"], record["keys"][:2]) == ("interlock-tar-index", 1, ["0000", "0001"])
    monkeypatch.setattr("interlock.feed.sources._tar_index.build_index", pytest.fail)
    again = WebDatasetSource(tmp_path / "train-{000..002}.tar")
    assert again.fingerprint() == first.fingerprint()
    assert again[5]["cls"] == 5


@pytest.mark.parametrize("change", ["size", "time", "damage", "lie"])
def test_an_index_of_another_state_of_the_shard_is_not_used(tmp_path, change):
    path = write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2")])
    WebDatasetSource(path)
    place = tmp_path / "a.tar.index.json"
    if change == "size":
        write_shard(path, [("c.cls", b"3")] * 1 + [(f"{n}.cls", b"4") for n in range(30)])
    elif change == "time":
        write_shard(path, [("c.cls", b"3"), ("d.cls", b"4")])
        os.utime(path, ns=(1, 1))
    elif change == "damage":
        place.write_text("{")
    else:
        record = json.loads(place.read_text())
        record["offset"][0] = 1 << 40
        place.write_text(json.dumps(record))
    source = WebDatasetSource(path)
    expected = 3 if change in {"size", "time"} else 1
    assert source[0] == expected
    assert json.loads(place.read_text())["keys"][0] == ("c" if expected == 3 else "a")


def test_the_index_goes_to_a_given_folder_or_nowhere(tmp_path):
    write_shards(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    WebDatasetSource(tmp_path, index=None)
    assert not list(tmp_path.glob("*.json"))
    WebDatasetSource(tmp_path, index=kept)
    assert len(list(kept.glob("train-*.index.json"))) == 3
    assert not list(tmp_path.glob("*.json"))
    with pytest.raises(SourceError, match="cannot write the index"):
        WebDatasetSource(tmp_path, index=tmp_path / "missing")


def test_an_index_that_cannot_be_kept_beside_the_shard_is_no_error(tmp_path):
    write_shards(tmp_path, shards=1)
    (tmp_path / "train-000.tar.index.json").mkdir()
    assert len(WebDatasetSource(tmp_path)) == 4


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("name", ["../a.cls", "/a.cls", "x/../../a.cls", "x\\..\\a.cls"])
def test_a_name_that_leads_outside_is_refused(tmp_path, name):
    write_shard(tmp_path / "a.tar", [(name, b"1")])
    with pytest.raises(SourceError, match=r"a name in .*a\.tar leads outside: .*byte 0"):
        WebDatasetSource(tmp_path / "a.tar")


def test_a_key_with_an_extension_twice_is_refused_with_both_places(tmp_path):
    write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("a.cls", b"3")])
    with pytest.raises(SourceError, match=r"two members 'a\.cls': their content is at bytes 512 and 2560"):
        WebDatasetSource(tmp_path / "a.tar")


def test_a_damaged_header_is_found_with_its_place_though_tarfile_takes_it_for_the_end(tmp_path):
    path = write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2")])
    data = bytearray(path.read_bytes())
    data[1024 + 150] ^= 0xFF
    path.write_bytes(data)
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["a.cls"]
    with pytest.raises(SourceError, match=r"a\.tar is damaged: no tar header at byte 1024"):
        WebDatasetSource(path)


@pytest.mark.parametrize(
    ("keep", "message"),
    [(1024, "no end mark at byte 1024"), (1536, "cut short"), (513, "unexpected end of data, after byte 513")],
)
def test_a_shard_cut_short_is_refused(tmp_path, keep, message):
    path = write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.npy", npy(np.zeros(400)))])
    os.truncate(path, keep)
    with pytest.raises(SourceError, match=message):
        WebDatasetSource(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as tar"),
        (b"no tar file at all" * 100, "cannot be read as tar"),
        (b"\x1f\x8b" + b"0" * 600, "is compressed: gzip"),
    ],
)
def test_what_is_no_plain_tar_is_refused(tmp_path, content, message):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        WebDatasetSource(tmp_path / "a.tar")


def test_a_sparse_member_is_refused(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.cls")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
        info.size = 512
        tar.addfile(info, io.BytesIO(b"0\n" + b"\0" * 510))
    with pytest.raises(SourceError, match="sparse"):
        WebDatasetSource(path)


def test_missing_shards_and_samples_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read .*a\.tar: No such file"):
        WebDatasetSource(tmp_path / "a.tar")
    with pytest.raises(SourceError, match="there is no shard"):
        WebDatasetSource(tmp_path / "*.tar")
    with pytest.raises(SourceError, match="there is no shard"):
        WebDatasetSource(tmp_path)
    with pytest.raises(SourceError, match="holds no sample"):
        WebDatasetSource(write_shard(tmp_path / "a.tar", [("plain", b"")]))
    write_shard(tmp_path / "a.tar", [("a.cls", b"1")])
    with pytest.raises(SourceError, match="is given twice"):
        WebDatasetSource([tmp_path / "a.tar", tmp_path / "*.tar"])
    write_shard(tmp_path / "b.tar", [("a.txt", b"1")])
    with pytest.raises(SourceError, match="holds no numbers: it has txt"):
        WebDatasetSource(tmp_path / "b.tar")


@pytest.mark.parametrize(
    ("extension", "data", "why"),
    [
        ("npy", npy(np.array([1, "a"], dtype=object)), "pickled"),
        ("npy", npy(np.zeros(9))[:-1], "its header says 72 bytes and it holds 71"),
        ("npy", b"\x93NUMPY", "."),
        ("cls", b"one", "invalid literal"),
        ("png", png(1)[:40], "."),
        ("pyd", pickle.dumps(1), "loading a pickle runs code"),
        ("json", b"{", "Expecting"),
        ("strange", b"", "nothing is known about extension 'strange': give decode="),
    ],
)
def test_a_member_that_cannot_be_decoded_fails_alone_with_key_extension_and_place(tmp_path, extension, data, why):
    path = write_shard(tmp_path / "a.tar", [("a.cls", b"1"), (f"b.{extension}", data)])
    source = WebDatasetSource(path, extensions=[extension])
    with pytest.raises(
        SampleError, match=f"sample 'a.tar/b' cannot be decoded: member '{extension}' at byte 1536: .*{why}"
    ) as caught:
        source[1]
    assert caught.value.index == 1


def test_a_sample_that_lacks_an_extension_fails_alone(tmp_path):
    source = WebDatasetSource(
        write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("a.id", b"1"), ("b.cls", b"2"), ("b.txt", b"")])
    )
    assert source[0] == {"cls": 1, "id": 1}
    with pytest.raises(SampleError, match=r"'a\.tar/b' has no member 'id': it has cls, txt"):
        source[1]


def test_a_shard_that_shrinks_while_read_fails_at_its_sample_with_the_place(tmp_path):
    path = write_shard(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2")])
    source = WebDatasetSource(path)
    os.truncate(path, 1024)
    assert source[0] == 1
    with pytest.raises(SampleError, match=r"sample 'a\.tar/b' cannot be read: byte 1536: it ends at byte 1536"):
        source[1]


# ---------------------------------------------------------------- threads and processes


def test_many_threads_read_more_shards_than_stay_open(tmp_path):
    source = WebDatasetSource(write_shards(tmp_path, shards=80, samples=2), index=None)
    order = np.random.default_rng(0).permutation(160).tolist() * 3
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: int(source[index]["cls"]), order)) == order
    assert len(source._storage._open) == 64  # a descriptor that was closed under a reader would have given another file


def test_a_read_that_comes_back_short_goes_on(tmp_path, monkeypatch):
    source = WebDatasetSource(write_shards(tmp_path))
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, size // 2, offset))
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, offset: preadv(descriptor, [views[0][:7]], offset))
    assert source[7]["npy"].tolist() == [7] * 5


def test_a_pickled_copy_has_no_open_file_and_reads_the_same(tmp_path):
    source = WebDatasetSource(write_shards(tmp_path))
    assert source._storage._open
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert not copy._storage._open
    assert copy.id_of(8) == source.id_of(8)
    assert copy[8]["cls"] == 8


def test_samples_of_one_shard_are_read_in_one_call_each(tmp_path, monkeypatch):
    source = WebDatasetSource(write_shards(tmp_path))
    calls = []
    real = os.pread

    def counted(*call):
        calls.append(call)
        return real(*call)

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "preadv", pytest.fail)
    source[4]
    assert len(calls) == 1


# ---------------------------------------------------------------- names


def test_ids_keep_as_much_of_the_path_as_tells_shards_apart(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / "a.tar", [("k.cls", b"1")])
    source = WebDatasetSource([tmp_path / "x" / "a.tar", tmp_path / "y" / "a.tar"])
    assert [source.id_of(0), source.id_of(1)] == ["x/a.tar/k", "y/a.tar/k"]


def test_braces_stand_for_counts_and_choices():
    assert list(expand_braces("a{08..10}-{x,y}.tar")) == [f"a{n}-{c}.tar" for n in ("08", "09", "10") for c in "xy"]
    assert list(expand_braces("plain.tar")) == ["plain.tar"]


def test_a_file_whose_name_holds_braces_is_itself(tmp_path):
    write_shard(tmp_path / "a{1,2}[x].tar", [("k.cls", b"1")])
    assert len(WebDatasetSource(tmp_path / "a{1,2}[x].tar")) == 1


def test_open_source_takes_shards(tmp_path):
    write_shards(tmp_path)
    assert len(open_source(f"wds:{tmp_path}/train-{{000..001}}.tar")) == 8
    assert len(open_source(tmp_path / "train-000.tar")) == 4
    assert open_source(f"wds:{tmp_path}", columns=["cls"])[11] == 11
    with pytest.raises(UsageError, match="--id-column does not go"):
        open_source(f"wds:{tmp_path}", id_column="cls")


def test_the_fingerprint_follows_names_and_sizes_and_not_the_place(tmp_path):
    first, second, third = (tmp_path / name for name in "abc")
    for folder in (first, second, third):
        folder.mkdir()
    write_shards(first)
    write_shards(second)
    write_shards(third, samples=3)
    prints = [WebDatasetSource(folder).fingerprint() for folder in (first, second, third)]
    assert prints[0] == prints[1] != prints[2]
    assert json.loads(json.dumps(prints[0])) == prints[0]


def test_the_index_names_every_member(tmp_path):
    source = WebDatasetSource(write_shards(tmp_path, shards=1), index=None)
    shard = source._shards[0]
    index = build_index(source._storage, shard, source._storage.stamp(shard))
    assert index.members(2).keys() == {"npy", "cls", "txt"}
    offset, size = index.members(2)["txt"]
    assert source._storage.read(shard, offset, size) == b"text 2"
