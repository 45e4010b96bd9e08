"""What `open_source` opens, what it refuses, and that samples are the bytes that the file holds."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from interlock.errors import InterlockError, SampleError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import load_object
from interlock.feed.sources import open_source as open_typed
from interlock.feed.sources._runs import runs


def open_source(place, **options) -> Any:
    """Open a source whose optional methods mypy need not know."""
    return open_typed(place, **options)


# ---------------------------------------------------------------- .npy


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "complex64", ">i4", "<f8"])
def test_rows_of_a_npy_file_come_out_as_saved_in_native_order(tmp_path, dtype):
    array = np.arange(60).reshape(10, 3, 2).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    source = open_source(tmp_path / "a.npy")
    out = np.empty((5, 3, 2), np.dtype(dtype).newbyteorder("="))
    source.read_into([3, 4, 5, 9, 0], out)
    assert len(source) == 10
    assert np.array_equal(source[7], array[7])
    assert source[7].dtype.isnative
    assert np.array_equal(out, array[[3, 4, 5, 9, 0]])


def test_a_npy_file_of_numbers_has_scalar_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4))
    source = open_source(tmp_path / "a.npy")
    assert source[2].shape == ()
    assert source[2] == 2
    with pytest.raises(IndexError):
        source[4]


@pytest.mark.parametrize("workers", [0, 3])
def test_a_feed_of_a_npy_file_gives_its_rows(tmp_path, workers):
    array = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    with Feed(open_source(tmp_path / "a.npy"), batch_size=8, workers=workers, ids=True) as feed:
        batches = [(ids.copy(), batch.copy()) for ids, batch in feed]
    assert np.array_equal(np.concatenate([ids for ids, _ in batches]), np.arange(50))
    assert np.array_equal(np.concatenate([batch for _, batch in batches]), array)


def test_neighbours_are_read_in_one_call(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(40).reshape(20, 2))
    source = open_source(tmp_path / "a.npy")
    calls = []
    real = os.preadv

    def counted(*call):
        calls.append(call)
        return real(*call)

    monkeypatch.setattr(os, "preadv", counted)
    source.read_into(range(3, 9), np.empty((6, 2), int))
    assert len(calls) == 1


def test_a_read_that_comes_back_short_goes_on(tmp_path, monkeypatch):
    array = np.arange(40).reshape(20, 2)
    np.save(tmp_path / "a.npy", array)
    source = open_source(tmp_path / "a.npy")
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: real(fd, [views[0][:5]], offset))
    assert np.array_equal(source[11], array[11])


def test_a_npy_file_that_shrinks_fails_at_the_row_that_is_gone(tmp_path):
    """A mapped file would kill the process with SIGBUS here."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((10, 100)))
    source = open_source(path)
    os.truncate(path, path.stat().st_size - 2 * 800)
    assert source[7].shape == (100,)
    with pytest.raises(SampleError, match=r"cannot read row 8 of .*did the file shrink") as caught:
        source.read_into(range(10), np.empty((10, 100)))
    assert caught.value.index == 8


def _save(path, array):
    np.save(path, array, allow_pickle=array.dtype == object)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([1, "a"], dtype=object), "dtype object"),
        (np.array(["a", "b"]), "dtype <U1"),
        (np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), "dtype"),
        (np.asfortranarray(np.ones((3, 2))), "Fortran order"),
        (np.array(3), "a single number"),
        (np.zeros((0, 4)), "no rows"),
    ],
)
def test_npy_files_that_cannot_be_samples_are_refused_with_the_next_step(tmp_path, array, text):
    _save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=text) as caught:
        open_source(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY\x01\x00", b"hello, this is no array at all", b"\x93NUMPY\x09\x00v"]
)
def test_a_file_that_is_not_npy_is_refused(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.npy"):
        open_source(tmp_path / "a.npy")


def test_a_npy_file_cut_short_is_refused_when_opened(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((10, 100)))
    os.truncate(path, path.stat().st_size - 800)
    with pytest.raises(SourceError, match=r"cut short: its header says 10 rows and it holds 9"):
        open_source(path)


def test_the_fingerprint_of_a_npy_file_follows_its_bytes_and_not_its_place(tmp_path):
    (tmp_path / "b").mkdir()
    array = np.zeros((10, 3))
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "b" / "other.npy", array)
    array[5, 1] = 1
    np.save(tmp_path / "c.npy", array)
    first, moved, changed = (open_source(tmp_path / name).fingerprint() for name in ("a.npy", "b/other.npy", "c.npy"))
    assert first == moved
    assert first != changed


@pytest.mark.parametrize("indices", [[], [4], [1, 2, 3], [3, 2, 1], [0, 1, 5, 6, 7, 2], range(4, 9), range(0, 9, 3)])
def test_runs_cover_every_position_once_and_in_order(indices):
    covered = [index + step for start, stop, index in runs(indices) for step in range(stop - start)]
    assert covered == list(indices)


# ---------------------------------------------------------------- images


def _image(path, size=(6, 4), color=(10, 20, 30), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path, **options)


def test_images_come_sorted_by_relative_path_which_is_their_id(tmp_path):
    _image(tmp_path / "b.png", color=(2, 2, 2))
    _image(tmp_path / "a" / "z.bmp", color=(1, 1, 1))
    _image(tmp_path / "a.JPG.txt.png", color=(0, 0, 0))
    (tmp_path / "notes.txt").write_text("not an image")
    _image(tmp_path / ".hidden.png")
    source = open_source(tmp_path)
    assert [source.id_of(index) for index in range(len(source))] == ["a.JPG.txt.png", "a/z.bmp", "b.png"]
    assert [int(source[index][0, 0, 0]) for index in range(3)] == [0, 1, 2]
    assert source[0].shape == (4, 6, 3)
    assert source[0].dtype == np.uint8


def test_images_of_different_sizes_need_a_size(tmp_path):
    _image(tmp_path / "a.png", size=(6, 4))
    _image(tmp_path / "b.png", size=(4, 6))
    with pytest.raises(SourceError, match=r"'a\.png' is 4x6 and 'b\.png' is 6x4.*--image-size"):
        open_source(tmp_path)
    source = open_source(tmp_path, image_size=(8, 2))
    assert {source[index].shape for index in range(2)} == {(8, 2, 3)}


def test_the_exif_orientation_is_honoured_in_pixels_and_in_size(tmp_path):
    image = Image.new("RGB", (6, 4))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    image.save(tmp_path / "a.png", exif=exif)
    _image(tmp_path / "b.png", size=(4, 6))
    source = open_source(tmp_path)
    assert source[0].shape == (6, 4, 3)
    assert source[0][0, -1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "CMYK", "1"])
def test_every_mode_of_8_bits_becomes_rgb(tmp_path, mode):
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new(mode, (3, 2)).save(tmp_path / f"a.{suffix}")
    assert open_source(tmp_path)[0].shape == (2, 3, 3)


def test_wider_pixels_are_refused_and_not_clipped(tmp_path):
    Image.fromarray(np.full((2, 3), 40000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(SampleError, match="not 8 bits wide"):
        open_source(tmp_path)[0]


@pytest.mark.parametrize("keep", [0, 20, 300])
def test_a_broken_image_fails_alone_and_is_named(tmp_path, keep):
    _image(tmp_path / "a.png")
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "b.jpg")
    whole = (tmp_path / "b.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(whole[:keep])
    source = open_source(tmp_path)
    assert source[0].shape == (4, 6, 3)
    with pytest.raises(SampleError, match=r"image 'b\.jpg' in .* cannot be decoded") as caught:
        source[1]
    assert caught.value.index == 1


def test_a_decompression_bomb_is_said_to_be_one(tmp_path, monkeypatch):
    _image(tmp_path / "a.png", size=(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    source = open_source(tmp_path, image_size=(4, 4))
    with pytest.raises(SampleError, match="decompression bomb"):
        source[0]


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    _image(outside / "secret.png")
    _image(inside / "a.png")
    (inside / "link.png").symlink_to(outside / "secret.png")
    (inside / "folder").symlink_to(outside)
    (inside / "again.png").symlink_to(inside / "a.png")
    source = open_source(inside)
    assert [source.id_of(index) for index in range(len(source))] == ["a.png", "again.png"]
    (inside / "a.png").unlink()
    (inside / "again.png").unlink()
    with pytest.raises(SourceError, match="1 links in it lead outside"):
        open_source(inside)


def test_a_name_that_is_not_text_is_refused(tmp_path):
    _image(tmp_path / "a.png")
    os.link(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    with pytest.raises(SourceError, match="not UTF-8"):
        open_source(tmp_path)


def test_an_image_that_changes_its_size_while_read_is_refused(tmp_path):
    _image(tmp_path / "a.png")
    source = open_source(tmp_path)
    _image(tmp_path / "a.png", size=(9, 9))
    with pytest.raises(SampleError, match="changed while it was read: it is 9x9, not 4x6"):
        source[0]


def test_the_fingerprint_of_images_follows_names_and_resizing_so_that_a_broken_one_may_be_mended(tmp_path):
    _image(tmp_path / "a" / "x.png")
    _image(tmp_path / "b" / "x.png", color=(0, 0, 0))
    _image(tmp_path / "c" / "y.png")
    first, same, renamed = (open_source(tmp_path / name).fingerprint() for name in "abc")
    assert first == same
    assert first != renamed
    assert first != open_source(tmp_path / "a", image_size=(9, 9)).fingerprint()


# ---------------------------------------------------------------- Python objects


def _module(folder, text, name="data.py"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    "name", ["listing", "array", "table", "made", "Squares", "squares", "tensor", "traced", "frame", "Nested.inner"]
)
def test_every_form_of_a_source_in_a_file_gives_its_samples(tmp_path, name):
    path = _module(
        tmp_path,
        """
import numpy as np, torch, jax.numpy as jnp, pandas as pd
class Squares:
    def __len__(self): return 5
    def __getitem__(self, index): return index ** 2
squares = Squares()
def made(): return Squares()
listing = [0, 1, 4, 9, 16]
array = np.array(listing)
table = {"x": listing, "y": array}
tensor = torch.tensor(listing)
traced = jnp.array(listing)
frame = pd.DataFrame({"x": listing})
class Nested: inner = squares
""",
    )
    source = open_source(f"{path}:{name}")
    assert len(source) == 5
    assert np.ravel(source[3]["x"] if name == "table" else source[3]) == [9]
    assert source.fingerprint()["rows"] == 5


def test_ids_and_bulk_reads_of_a_python_source_are_used_if_it_has_them(tmp_path):
    path = _module(
        tmp_path,
        """
class Named:
    def __len__(self): return 3
    def __getitem__(self, index): return float(index)
    def id_of(self, index): return f"row-{index}"
class Plain:
    def __len__(self): return 3
    def __getitem__(self, index): return float(index)
    def read_into(self, indices, out): out[:] = [index * 10 for index in indices]
""",
    )
    with Feed(open_source(f"{path}:Named"), batch_size=3, ids=True) as feed:
        assert [ids.tolist() for ids, _ in feed] == [["row-0", "row-1", "row-2"]]
    plain = open_source(f"{path}:Plain")
    assert not hasattr(plain, "id_of")
    assert hasattr(plain, "read_into")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 3", "x", "is a single number"),
        ("x = {'a': [1], 'b': [1, 2]}", "x", "different lengths"),
        ("x = []", "x", "has no samples"),
        ("x = iter([1])", "x", "is not a source: it is of type list_iterator"),
        ("x = 'text'", "x", "is not a source"),
        ("source = [1]", "sauce", "has no 'sauce'; did you mean 'source'"),
        ("import nothing_of_that_name", "x", "cannot be imported: ModuleNotFoundError"),
        ("def x(): raise ValueError('of theirs')", "x", "could not be called: ValueError: of theirs"),
        ("raise SystemExit('no')", "x", "cannot be imported: SystemExit: no"),
        ("x = (", "x", "cannot be imported: SyntaxError"),
    ],
)
def test_python_objects_that_are_no_source_are_refused(tmp_path, text, name, message):
    path = _module(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        open_source(f"{path}:{name}")


def test_a_file_finds_its_neighbours_and_is_the_module_that_they_import(tmp_path):
    _module(tmp_path, "import first_7351\nsame = first_7351", name="second_7351.py")
    path = _module(tmp_path, "values = [1]\nimport second_7351\nme = second_7351.same", name="first_7351.py")
    before = list(sys.path)
    loaded = load_object(f"{path}:me")
    assert loaded.value is sys.modules["first_7351"]
    assert sys.path == before
    assert load_object(f"{path}:values").value is loaded.value.values


def test_a_file_named_like_a_module_does_not_take_its_place(tmp_path):
    path = _module(tmp_path, "values = [1]", name="statistics.py")
    assert load_object(f"{path}:values").value == [1]
    import statistics  # noqa: PLC0415 - what others get is the point

    assert statistics.mean([1, 3]) == 2


def test_a_file_that_the_path_finds_too_keeps_its_name_so_that_worker_processes_find_it(tmp_path, monkeypatch):
    path = tmp_path / "found_by_the_path.py"
    path.write_text("def values(): return [1]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_object(f"{path}:values").value.__module__ == "found_by_the_path"


def test_modules_are_found_from_the_current_folder(tmp_path, monkeypatch):
    _module(tmp_path, "values = [1, 2]", name="here_7351.py")
    monkeypatch.chdir(tmp_path)
    assert len(open_source("here_7351:values")) == 2
    with pytest.raises(UsageError, match="no module 'nowhere_7351'"):
        open_source("nowhere_7351.deeper:values")


def test_the_fingerprint_of_a_python_source_follows_its_text(tmp_path):
    first = open_source(f"{_module(tmp_path / 'a', 'x = [1]')}:x").fingerprint()
    same = open_source(f"{_module(tmp_path / 'b', 'x = [1]')}:x").fingerprint()
    other = open_source(f"{_module(tmp_path / 'c', 'x = [2]')}:x").fingerprint()
    assert first == same
    assert first != other


# ---------------------------------------------------------------- what is not a source


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.npy", None, "there is no source '.*missing.npy': no such file or folder"),
        ("a.npz", b"", r"numpy\.save"),
        ("a.py", b"", "a.py:NAME"),
        ("a.txt", b"", "its suffix is '.txt'"),
        ("plain", b"", "it has no suffix"),
        ("a.png", b"", "give the folder"),
    ],
)
def test_other_files_are_refused_with_the_next_step(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        open_source(tmp_path / name)
    assert caught.value.hint


def test_a_folder_without_samples_is_refused_and_a_mixed_one_needs_a_word(tmp_path):
    with pytest.raises(SourceError, match="holds no image and no Parquet file"):
        open_source(tmp_path)
    _image(tmp_path / "a.png")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="both images and Parquet"):
        open_source(tmp_path)
    assert len(open_source(tmp_path, columns=["x"])) == 1
    assert open_source(tmp_path, image_size=(2, 2))[0].shape == (2, 2, 3)


@pytest.mark.parametrize("options", [{"columns": ["x"]}, {"id_column": "x"}, {"image_size": (2, 2)}])
def test_options_of_another_kind_are_refused(tmp_path, options):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(UsageError, match=r"does not go with source .* it is a \.npy file"):
        open_source(tmp_path / "a.npy", **options)
    with pytest.raises(UsageError, match="does not go with source"):
        open_source("somewhere.py:name", **options)


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    monkeypatch.delitem(sys.modules, "interlock.feed.sources._parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InterlockError, match=r"interlock\[parquet\]"):
        open_source(tmp_path / "a.parquet")
