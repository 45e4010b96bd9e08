"""Decoding of images: simplejpeg and Pillow give the same pixels; each file goes to the one that treats it right."""

from __future__ import annotations

import importlib.util
import io
import sys
import types

import numpy as np
import pytest
from PIL import Image

from interlock.feed.sources import ImageFolderSource
from interlock.feed.sources import _pixels as pixels

COLORS = {"YCbCr": "YCbCr", "L": "Gray", "RGB": "RGB", "CMYK": "CMYK"}


def photo(mode="RGB", size=(21, 17)):
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BILINEAR).convert(mode)


def jpeg(image, **options):
    file = io.BytesIO()
    image.save(file, "jpeg", **options)
    return file.getvalue()


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.fixture
def double(monkeypatch):
    """Put a stand-in for simplejpeg in its place; give the list of what it decoded."""
    decoded = []

    def decode_jpeg_header(data):
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width, COLORS["YCbCr" if image.mode == "RGB" else image.mode], "420"

    def decode_jpeg(data, colorspace, *, fastdct, fastupsample):
        assert (colorspace, fastdct, fastupsample) == ("RGB", False, False)
        if not data.rstrip(b"\0").endswith(b"\xff\xd9"):
            raise ValueError("Premature end of JPEG file")
        decoded.append(data)
        return by_pillow(data)

    module = types.ModuleType("simplejpeg")
    vars(module).update(decode_jpeg_header=decode_jpeg_header, decode_jpeg=decode_jpeg)
    monkeypatch.setitem(sys.modules, "simplejpeg", module)
    pixels.simplejpeg.cache_clear()
    yield decoded
    pixels.simplejpeg.cache_clear()


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    pixels.simplejpeg.cache_clear()
    yield
    pixels.simplejpeg.cache_clear()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_goes_to_simplejpeg_where_it_is_installed(double, mode):
    data = jpeg(photo(mode))
    assert np.array_equal(pixels.decode_image(data), by_pillow(data))
    assert double == [data]


@pytest.mark.usefixtures("missing")
def test_without_simplejpeg_pillow_decodes():
    data = jpeg(photo())
    assert np.array_equal(pixels.decode_image(data), by_pillow(data))


def turned(orientation):
    exif = Image.Exif()
    exif[pixels.ORIENTATION] = orientation
    return jpeg(photo(), exif=exif)


def test_a_turned_jpeg_goes_to_pillow_and_comes_out_upright(double):
    assert pixels.decode_image(turned(6)).shape == (21, 17, 3)
    assert double == []
    assert pixels.decode_image(turned(1)).shape == (17, 21, 3)
    assert len(double) == 1


def test_exif_that_cannot_be_read_is_left_to_pillow(double):
    data = jpeg(photo(), exif=b"Exif\0\0MM\0\x2a\0\0\xff")
    assert np.array_equal(pixels.decode_image(data), by_pillow(data))
    assert len(double) <= 1


def test_what_only_pillow_treats_right_goes_to_pillow(double):
    png = io.BytesIO()
    photo().save(png, "png")
    for data in (jpeg(photo("CMYK")), png.getvalue()):
        assert pixels.decode_image(data).shape == (17, 21, 3)
    assert double == []


def test_an_image_that_is_too_large_is_left_to_pillow_to_refuse(double, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        pixels.decode_image(jpeg(photo()))
    assert double == []


def test_a_damaged_jpeg_ends_in_pillow_s_message(double):
    with pytest.raises(OSError, match="truncated"):
        pixels.decode_image(jpeg(photo())[:-40])
    assert double == []


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe1\x00", b"\xff\xd8\xff\xe1\xff\xffExif\0\0II", b"\xff\xd8\xff\xe1\0\0"]
)
def test_a_header_cut_short_is_an_error_and_not_a_loop(data):
    with pytest.raises(Exception, match=r"."):
        pixels.decode_image(data)


@pytest.mark.usefixtures("double")
def test_resizing_is_the_same_whoever_decodes():
    data = jpeg(photo())
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.resize((8, 6), Image.Resampling.BILINEAR))
    assert np.array_equal(pixels.decode_image(data, (6, 8)), expected)


def test_the_folder_of_images_uses_it(double, tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg(photo()))
    assert ImageFolderSource(tmp_path)[0].shape == (17, 21, 3)
    assert len(double) == 1


@pytest.mark.skipif(importlib.util.find_spec("simplejpeg") is None, reason="simplejpeg is not installed")
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_simplejpeg_itself_gives_pillow_s_pixels(mode, options):
    pixels.simplejpeg.cache_clear()
    data = jpeg(photo(mode), **options)
    found = pixels._decode_jpeg(data)
    assert found is not None
    assert np.abs(found.astype(int) - by_pillow(data)).max() <= 1
