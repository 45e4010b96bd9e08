"""`interlock bench feed`: real runs on small sources, what is printed, and what becomes of a bad command."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from interlock.cli import _benching

KEYS: dict[str, Any] = {
    "source": str,
    "source_samples": int,
    "batch_size": int,
    "to": str,
    "device": str,
    "workers": (int, str, type(None)),
    "seconds": float,
    "batches": int,
    "samples": int,
    "failed": int,
    "failed_reason": str,
    "samples_per_s": float,
    "mb_per_s": float,
    "batch_ms": float,
    "cpu_ms_per_sample": float,
    "processors": float,
    "start_ms": float,
    "stages": list,
    "slots": int,
    "slot_bytes": int,
    "sustains_step_ms": float,
    "explanation": dict,
}
STAGE_KEYS = {"name", "kind", "workers", "crew", "busy", "ms_per_sample"}


def bench_feed(bench, *options, source=None):
    return bench.call("bench", "feed", source or bench.source, "--batch-size", 2, *options)


def test_the_summary_as_json_has_these_keys_and_kinds(bench):
    said = bench_feed(bench, "--batches", 20, "--json", "--quiet", "--workers", 2)
    assert (said.code, said.err) == (0, "")
    assert set(said.json) == set(KEYS)
    for name, kind in KEYS.items():
        assert isinstance(said.json[name], kind), name
    assert all(set(stage) == STAGE_KEYS for stage in said.json["stages"])
    assert (said.json["batches"], said.json["samples"], said.json["source_samples"]) == (20, 40, 10)
    assert (said.json["workers"], said.json["device"], said.json["failed"]) == (2, "host", 0)
    assert said.json["slots"] >= 1
    assert said.json["samples_per_s"] > 0
    assert said.json["explanation"]["batches"] == 20
    assert said.json["explanation"]["text"]


def test_the_table_says_what_it_could_sustain_and_why(bench):
    said = bench_feed(bench, "--batches", 20, "--quiet")
    assert said.code == 0
    first = [line.split()[0] for line in said.out.splitlines() if line and not line.startswith(" ")]
    assert first[:6] == ["source", "measured", "samples/s", "MB/s", "batch", "processor"]
    assert "(10 samples), batches of 2, numpy on host" in said.out
    assert "a step of less than that would wait" in said.out
    assert "The consumer does nothing with its batches" in said.out
    assert all(len(line) <= 120 for line in said.out.splitlines()[1:])


def images(folder):
    (folder / "images").mkdir()
    for number in range(4):
        Image.new("RGB", (8 + number, 6), (number, 0, 0)).save(folder / "images" / f"{number}.png")
    return folder / "images", ["--image-size", "6,6"]


def parquet(folder):
    pq.write_table(pa.table({"x": np.arange(10.0), "name": list("abcdefghij")}), folder / "rows.parquet")
    return folder / "rows.parquet", ["--columns", "x"]


def shards(folder):
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number in range(5):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"%d" % number))
    return f"wds:{folder / 'a.tar'}", []


def program(folder):
    (folder / "own.py").write_text("rows = [1.0, 2.0, 3.0, 4.0]\n")
    return f"{folder / 'own.py'}:rows", ["--workers", "0"]


@pytest.mark.parametrize("made", [images, parquet, shards, program], ids=lambda made: made.__name__)
def test_any_source_that_predict_takes(bench, made):
    source, options = made(bench.folder)
    said = bench_feed(bench, "--batches", 4, "--json", "--quiet", *options, source=source)
    assert said.code == 0, said.err
    assert said.json["batches"] == 4
    kinds = {stage["kind"] for stage in said.json["stages"]}
    assert kinds == ({"inline"} if "--workers" in options else {"threads"})


@pytest.mark.parametrize("to", ["torch", "jax"])
def test_batches_in_the_arrays_of_a_framework(bench, to):
    said = bench_feed(bench, "--batches", 4, "--json", "--quiet", "--to", to, "--device", "host", "--shuffle")
    assert said.code == 0, said.err
    assert (said.json["to"], said.json["batches"]) == (to, 4)


def test_a_device_that_is_simulated(bench):
    said = bench_feed(bench, "--batches", 4, "--json", "--quiet", "--device", "simulated:eager")
    assert said.code == 0, said.err
    assert said.json["device"].startswith("simulated")


def test_a_batch_is_let_go_of_before_the_next_is_waited_for(bench):
    source, _ = program(bench.folder)
    said = bench_feed(bench, "--batches", 6, "--json", "--quiet", "--depth", 1, source=source)
    assert said.json["slots"] == 1


def test_seconds_go_on_over_many_epochs(bench):
    said = bench_feed(bench, "--seconds", "0.2", "--json", "--quiet")
    assert said.code == 0, said.err
    assert said.json["samples"] > 10
    assert said.json["explanation"]["passes"] > 1


def test_samples_that_cannot_be_read_are_left_out_and_told(bench):
    path = bench.file(
        "class Rows:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index):\n"
        "        if index % 4 == 3: raise ValueError('bad apple')\n"
        "        return float(index)\n"
        "rows = Rows()\n"
    )
    said = bench_feed(bench, "--batches", 6, "--quiet", source=f"{path}:rows")
    assert said.code == 0, said.err
    assert "failed" in said.out
    assert "3: ValueError: bad apple" in said.out


def test_a_source_that_gives_nothing_ends_with_one_clear_line(bench):
    path = bench.file(
        "class Rows:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): raise ValueError('bad apple')\n"
        "rows = Rows()\n"
    )
    said = bench_feed(bench, "--batches", 6, "--quiet", source=f"{path}:rows")
    assert said.code == 3
    assert "interlock: error: no sample of the source can be read: ValueError: bad apple" in said.err
    assert "cli/_benching.py" not in said.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--batch-size", "0"], "--batch-size"),
        (["--seconds", "0"], "--seconds"),
        (["--batches", "0"], "--batches"),
        (["--to", "mxnet"], "--to"),
        (["--image-size", "9"], "is not HEIGHT,WIDTH"),
        (["--image-size", "9,9"], "--image-size does not go with source"),
        (["--columns", "a,,b"], "--columns"),
        (["--device", "tpu"], "tpu"),
        (["--depth", "0"], "--depth"),
        (["--workers", "fibres"], "workers is 'fibres'"),
        (["--workers", "threads:x"], "'x' is no number"),
    ],
)
def test_an_option_that_cannot_be_meant(bench, options, text):
    said = bench_feed(bench, *options)
    assert said.code == 2, said.err
    (line,) = [line for line in said.err.splitlines() if line.startswith("interlock: error: ")]
    assert text in line
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_source_that_is_none(bench):
    said = bench.call("bench", "feed", "missing.npy")
    assert said.code == 2
    assert "interlock: error: there is no source 'missing.npy'" in said.err


def test_bench_alone_says_what_there_is(bench):
    said = bench.call("bench")
    assert said.code in {0, 2}
    assert "feed" in said.out + said.err


def test_what_it_does_is_told_in_lines_where_there_is_no_terminal(bench, monkeypatch):
    monkeypatch.setattr(_benching, "_LINE_EVERY_S", 0.01)
    said = bench_feed(bench, "--seconds", "0.3", "--json")
    assert said.code == 0, said.err
    assert said.err.startswith("interlock: epoch ")
    assert "samples/s" in said.err.splitlines()[0]


# ------------------------------------------------------------ with processes, and in one of its own


def test_processes_read_an_object_of_a_file(bench):
    path = bench.file(
        "class Rows:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return float(index)\n"
        "rows = Rows()\n",
        "benched_rows.py",
    )
    before = list(sys.path)
    said = bench_feed(bench, "--batches", 6, "--json", "--quiet", "--workers", "processes:1", source=f"{path}:rows")
    assert said.code == 0, said.err
    assert {(stage["kind"], stage["workers"]) for stage in said.json["stages"]} == {("processes", 1)}
    assert sys.path == before
    assert said.json["workers"] == "processes:1"


SLOW = """
import os
class Rows:
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index == 40:
            os.write(int(os.environ["READY"]), b"r")
            os.read(int(os.environ["GO"]), 1)
        return float(index)
rows = Rows()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_after_its_batch_with_what_was_measured(bench, number, code):
    (said, ready), (wait, go) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "interlock", "bench", "feed", f"{bench.file(SLOW, 'slow.py')}:rows"),
            *("--batch-size", "4", "--workers", "1", "--seconds", "3600", "--quiet"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(ready, wait),
        env={**os.environ, "READY": str(ready), "GO": str(wait)},
    )
    os.close(ready)
    os.close(wait)
    assert os.read(said, 1) == b"r"
    process.send_signal(number)
    assert process.stderr is not None
    assert process.stderr.readline() == "\n"
    assert process.stderr.readline() == "interlock: stopping after this batch; once more stops at once\n"
    os.write(go, b"g")
    out, err = process.communicate(timeout=60)
    os.close(said)
    os.close(go)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert "samples/s" in out


def test_on_a_terminal_one_line_changes(bench):
    leader, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "bench", "feed", bench.source, "--seconds", "0.3", "--json"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        check=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(terminal)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert b'"samples_per_s"' in done.stdout
    assert "samples/s" in shown
    assert "interlock: epoch" not in shown
