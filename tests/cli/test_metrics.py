"""`interlock predict --metrics`: what a run tells programs about itself."""

from __future__ import annotations

import json
import threading
import warnings

import numpy as np
import pytest

from interlock import Drain
from interlock.cli import _metrics
from interlock.cli._metrics import Metrics

DOUBLE = "def double(batch):\n    return batch * 2\n"


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_of_json_end_with_what_came_of_the_run(bench):
    path = bench.folder / "run.jsonl"
    for resumed in (0, 10):
        assert bench.predict(f"{bench.file(DOUBLE)}:double", "--metrics", path).code == 0
        last = lines_of(path)[-1]
        assert set(last) == {"rank", "rows_total", "drain", "feed"}
        assert (last["rank"], last["rows_total"], last["drain"]["last"]) == (0, 10, True)
        assert last["drain"]["rows_committed"] == last["feed"]["samples"] == 10 - resumed
    assert [line["drain"]["last"] for line in lines_of(path)].count(True) == 2, "a run that goes on appends"


def test_a_file_for_prometheus_has_feed_and_drain(bench):
    path = bench.folder / "run.prom"
    assert bench.predict(f"{bench.file(DOUBLE)}:double", "--metrics", path).code == 0
    text = path.read_text()
    assert 'interlock_drain_rows_committed_total{sink="parquet",rank="0"} 10\n' in text
    assert 'interlock_feed_samples_total{rank="0"} 10\n' in text
    assert not list(bench.folder.glob("*.tmp"))
    assert str(bench.folder) not in text


def test_ranks_write_to_files_of_their_own(bench):
    path = bench.folder / "run.jsonl"
    for rank in (1, 0):
        done = bench.predict(f"{bench.file(DOUBLE)}:double", "--rank", f"{rank}/2", "--metrics", path)
        assert done.code == 0
    assert [line["rank"] for line in lines_of(path)] == [0]
    assert [line["rank"] for line in lines_of(bench.folder / "run-r00001.jsonl")] == [1]


def test_no_series_is_in_the_files_of_two_ranks(bench):
    """A textfile collector that finds one twice takes nothing from any file."""
    path = bench.folder / "run.prom"
    for rank in (1, 0):
        done = bench.predict(f"{bench.file(DOUBLE)}:double", "--rank", f"{rank}/2", "--metrics", path)
        assert done.code == 0
    series = [
        {line.rpartition(" ")[0] for line in file.read_text().splitlines() if line[0] != "#"}
        for file in (path, bench.folder / "run-r00001.prom")
    ]
    assert len(series[0]) == len(series[1]) > 20
    assert not series[0] & series[1]


@pytest.mark.parametrize(("name", "text"), [
    ("run.txt", "ends in neither .jsonl nor .prom"),
    ("missing/run.prom", "it is a folder, or in none"),
])  # fmt: skip
def test_a_file_that_cannot_be_meant_is_refused_before_the_sink_is_touched(bench, name, text):
    said = bench.predict(f"{bench.file(DOUBLE)}:double", "--metrics", bench.folder / name)
    assert said.code == 2
    assert text in said.err
    assert not (bench.folder / "out").exists()


def test_a_file_that_cannot_be_written_is_said_once_and_ends_nothing(bench, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_metrics, "append_line", refuse)
    warnings.simplefilter("default")  # as the command line has it; pytest restores its own
    said = bench.predict(f"{bench.file(DOUBLE)}:double", "--metrics", bench.folder / "run.jsonl")
    assert said.code == 0
    assert said.err.count("a record of the drain could not be told") == 1
    assert said.json["rows_committed"] == 10


def test_whoever_reads_while_a_file_is_replaced_sees_a_whole_one(tmp_path):
    path = tmp_path / "run.prom"
    stop, seen = threading.Event(), []

    def look():
        while not stop.is_set():
            if path.exists():
                seen.append(path.read_text())

    reader = threading.Thread(target=look)
    with Drain("null:") as drain, Metrics(str(path), (0, 1), every_s=0.001).of(drain):
        reader.start()
        for one in range(200):
            drain.put([one], np.zeros(1))
    stop.set()
    reader.join()
    lengths = {text.count("\n") for text in seen}
    assert len(lengths) == 1
    assert all(text.endswith("\n") for text in seen)
