"""Sources behind urls, and single files: the same samples as from local paths, which never load fsspec."""

from __future__ import annotations

import http.server
import io
import pickle
import subprocess
import sys
import tarfile
import threading
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from interlock.errors import SampleError, SourceError, UsageError
from interlock.feed import Feed
from interlock.feed.sources import ArrowSource, FilesSource, NpySource, WebDatasetSource
from interlock.feed.sources import open_source as open_typed
from interlock.feed.sources._storage import Storage, is_url

fsspec = pytest.importorskip("fsspec")


def open_source(place, **options) -> Any:
    """Open a source whose samples are of any type."""
    return open_typed(place, **options)


@pytest.fixture
def remote(tmp_path):
    """Give a local folder with one of each, and the url of its copy in fsspec's memory."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", rng.normal(size=(20, 3)))
    table = pa.table({"x": np.arange(9), "name": [f"row {number}" for number in range(9)]})
    (tmp_path / "tables" / "_hidden").mkdir(parents=True)
    pq.write_table(table, tmp_path / "tables" / "a.parquet", row_group_size=4)
    pq.write_table(table, tmp_path / "tables" / "_hidden" / "b.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    (tmp_path / "images" / ".git").mkdir(parents=True)
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (5, 4, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / ".git" / "c.png").write_bytes(b"hidden")
    for shard in range(2):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as tar:
            for number in range(3):
                info = tarfile.TarInfo(f"{shard}{number}.cls")
                info.size = 2
                tar.addfile(info, io.BytesIO(b"%d%d" % (shard, number)))
    url = f"memory://{uuid.uuid4().hex}"
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path), url, recursive=True)
    yield tmp_path, url
    system.rm(url, recursive=True)


@pytest.mark.parametrize("name", ["a.npy", "tables", "tables/a.parquet", "a.arrow", "images", "s-0.tar"])
def test_a_url_gives_the_samples_ids_and_fingerprint_of_the_local_source(remote, name):
    folder, url = remote
    local, far = open_source(folder / name), open_source(f"{url}/{name}")
    assert len(local) == len(far) > 1
    for index in (0, len(local) - 1, 1):
        assert np.array_equal(local[index], far[index])
        if hasattr(local, "id_of"):
            assert local.id_of(index).__class__ is far.id_of(index).__class__
            assert local.id_of(index) == far.id_of(index)
    assert local.fingerprint() == far.fingerprint()
    copy = pickle.loads(pickle.dumps(far))  # noqa: S301 - our own bytes
    assert np.array_equal(copy[1], local[1])


@pytest.mark.parametrize("name", ["a.npy", "a.arrow", "tables"])
def test_a_feed_reads_a_url_in_bulk_on_many_threads(remote, name):
    folder, url = remote
    with (
        Feed(open_source(folder / name), batch_size=4, workers=0) as local,
        Feed(open_source(f"{url}/{name}"), batch_size=4, workers=3) as far,
    ):
        assert all(np.array_equal(one, other) for one, other in zip(local, far, strict=True))


def test_patterns_of_shards_work_on_urls(remote):
    _, url = remote
    for pattern in (f"{url}/s-{{0..1}}.tar", f"{url}/s-*.tar", url, [f"{url}/s-0.tar", f"{url}/s-1.tar"]):
        source: Any = WebDatasetSource(pattern)
        assert [source.id_of(index) for index in (0, 5)] == ["s-0.tar/00", "s-1.tar/12"]
        assert source[4] == 11
    assert len(open_source(f"wds:{url}/s-*.tar")) == 6


def test_the_index_of_a_remote_shard_is_kept_in_a_given_folder_only(remote, tmp_path, monkeypatch):
    _, url = remote
    WebDatasetSource(f"{url}/s-0.tar")
    kept = tmp_path / "kept"
    kept.mkdir()
    WebDatasetSource(f"{url}/s-0.tar", index=kept)
    assert len(list(kept.iterdir())) == 1
    monkeypatch.setattr("interlock.feed.sources._tar_index.build_index", pytest.fail)
    assert len(WebDatasetSource(f"{url}/s-0.tar", index=kept)) == 3


def test_a_column_of_ids_is_read_from_a_url(remote):
    _, url = remote
    assert open_source(f"{url}/tables", id_column="name").id_of(8) == "row 8"
    assert ArrowSource(f"{url}/a.arrow", id_column="name").id_of(8) == "row 8"


@pytest.mark.parametrize("name", ["none.npy", "none.parquet", "none.arrow", "none.tar"])
def test_a_url_with_nothing_behind_it_is_refused_by_name(remote, name):
    with pytest.raises(SourceError, match=name):
        open_source(f"{remote[1]}/{name}")


def test_a_remote_file_that_shrinks_fails_at_its_row(remote):
    _, url = remote
    source = NpySource(f"{url}/a.npy")
    with fsspec.open(f"{url}/a.npy", "rb") as file:
        data = file.read()
    with fsspec.open(f"{url}/a.npy", "wb") as file:
        file.write(data[:-24])
    assert source[18].shape == (3,)
    with pytest.raises(SampleError, match="cannot read row 19"):
        source[19]


def test_file_urls_are_local_paths(remote):
    folder, _ = remote
    assert not is_url(f"file://{folder}/a.npy")
    assert np.array_equal(open_source(f"file://{folder}/a.npy")[3], open_source(folder / "a.npy")[3])


def test_local_paths_never_load_fsspec(remote):
    folder, _ = remote
    program = f"""
import sys
from interlock.feed.sources import FilesSource, open_source
for name in ("a.npy", "images", "s-0.tar", "s-1.tar"):
    source = open_source({str(folder)!r} + "/" + name)
    source[0], source.fingerprint()
FilesSource({str(folder)!r}, suffixes=[".npy"])[0]
print("fsspec" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_without_fsspec_a_url_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"fsspec is not installed; pip install 'interlock\[remote\]'"):
        open_source("memory://a.npy")


def test_an_unknown_scheme_is_refused():
    with pytest.raises(UsageError, match="nowhere"):
        open_source("nowhere://a.npy")


# ---------------------------------------------------------------- https and its like


class _Ranges(http.server.BaseHTTPRequestHandler):
    """A server of one file, with or without ranges."""

    content = b""
    ranges = True

    def do_HEAD(self):
        self._head(200, len(self.content))

    def do_GET(self):
        part = self.content
        asked = self.headers.get("Range") if self.ranges else None
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = part[int(first) : int(last) + 1 if last else None]
        self._head(206 if asked else 200, len(part))
        self.wfile.write(part)

    def _head(self, status, length):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def served():
    """Give a function that serves a file and returns its url."""
    servers = []

    def serve(content, *, ranges):
        handler = type("Handler", (_Ranges,), {"content": content, "ranges": ranges})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_http_is_read_by_ranges_and_a_server_without_them_is_refused(served):
    pytest.importorskip("aiohttp")
    content = bytes(range(256))
    storage = Storage()
    assert storage.read(served(content, ranges=True) + "/a.bin", 100, 20) == content[100:120]
    with pytest.raises(OSError, match="it gave 256 bytes where 20 were asked for: it has no random access"):
        storage.read(served(content, ranges=False) + "/a.bin", 100, 20)


@pytest.mark.parametrize("name", ["a.npy", "s-0.tar", "a.arrow", "tables/a.parquet"])
def test_a_file_on_a_web_server_is_a_source(remote, served, name):
    pytest.importorskip("aiohttp")
    folder, _ = remote
    local = open_source(folder / name)
    far = open_source(f"{served((folder / name).read_bytes(), ranges=True)}/{name}?signature=1")
    assert len(far) == len(local)
    assert all(np.array_equal(far[index], local[index]) for index in range(len(local)))
    if hasattr(local, "id_of"):
        assert far.id_of(1) == local.id_of(1)


def test_a_signature_in_a_url_is_in_no_id(served):
    pytest.importorskip("aiohttp")
    source: Any = FilesSource([served(b"7", ranges=True) + "/a.cls?signature=1"])
    assert source[0] == 7
    assert source.id_of(0).endswith("/a.cls")


# ---------------------------------------------------------------- any files


def test_files_are_samples_by_suffix_with_relative_paths_as_ids(tmp_path):
    (tmp_path / "b").mkdir()
    np.save(tmp_path / "b" / "x.npy", np.arange(3))
    np.save(tmp_path / "a.npy", np.arange(3) * 2)
    (tmp_path / ".hidden.npy").write_bytes(b"")
    source: Any = FilesSource(tmp_path)
    assert [source.id_of(index) for index in range(len(source))] == ["a.npy", "b/x.npy"]
    with Feed(source, batch_size=2, ids=True) as feed:
        assert [(ids.tolist(), batch.tolist()) for ids, batch in feed] == [
            (["a.npy", "b/x.npy"], [[0, 2, 4], [0, 1, 2]])
        ]
    with pytest.raises(IndexError):
        source[2]


def test_the_user_s_function_makes_samples_of_bytes(remote):
    folder, url = remote
    for place in (folder, url):
        source: Any = FilesSource(place, suffixes=[".TAR"], decode=lambda data: np.frombuffer(data[:2], np.uint8))
        assert [source.id_of(index) for index in range(len(source))] == ["s-0.tar", "s-1.tar"]
        assert source[1].tobytes() == b"10"


def test_a_list_of_files_keeps_its_order(remote):
    folder, url = remote
    paths = [folder / "images" / "2.png", f"{url}/images/0.png"]
    source: Any = FilesSource(paths, image_size=(2, 2))
    assert source.id_of(0) == str(paths[0])
    assert source[1].shape == (2, 2, 3)
    assert pickle.loads(pickle.dumps(source))[0].shape == (2, 2, 3)  # noqa: S301 - our own bytes
    with pytest.raises(SourceError, match="is listed twice"):
        FilesSource([*paths, paths[0]])


def test_a_file_that_is_broken_or_gone_fails_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1, "a"], dtype=object))
    (tmp_path / "b.npy").write_bytes(b"")
    (tmp_path / "c.strange").write_bytes(b"")
    source: Any = FilesSource(tmp_path)
    (tmp_path / "b.npy").unlink()
    for index, message in enumerate(
        [r"'a\.npy' cannot be decoded: .*pickled", r"cannot read file 'b\.npy'", "nothing is known about extension"]
    ):
        with pytest.raises(SampleError, match=message) as caught:
            source[index]
        assert caught.value.index == index
    with pytest.raises(SourceError, match="there is no file"):
        FilesSource(tmp_path, suffixes=[".jpg"])


def test_the_fingerprint_of_files_follows_their_names(tmp_path):
    for name in ("a/x.txt", "b/x.txt", "c/y.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    first, same, renamed = (FilesSource(tmp_path / name).fingerprint() for name in "abc")
    assert first == same != renamed
