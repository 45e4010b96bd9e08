"""What a drain tells about itself while it runs: records, lines of JSON, and metrics for Prometheus."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from interlock import Drain, Feed
from interlock._core._exposition import Family, exposition
from interlock.drain import DrainStatistics, Record
from interlock.drain._attribution import Setting
from interlock.drain._metrics import prometheus_text
from interlock.drain._report import Meter, limited
from interlock.drain._times import WRITER_PHASES
from interlock.errors import UsageError

KEYS = {
    "time_s",
    "seconds",
    "rows_put",
    "rows_committed",
    "rows_failed",
    "bytes_written",
    "shards",
    "rows_per_s",
    "mb_per_s",
    "producer",
    "writer",
    "limit",
    "writers",
    "held_bytes",
    "budget_bytes",
    "last",
}


def test_records_come_while_the_block_runs_and_once_at_its_end(sink):
    records: list[Record] = []
    several = threading.Event()

    def take(record):
        records.append(record)
        if len(records) >= 3:
            several.set()

    with Drain(sink) as drain:
        with drain.report(take, every_s=0.01):
            drain.put(range(10), np.zeros(10))
            assert several.wait(60)
            drain.flush()
        assert (records[-1].rows_put, records[-1].rows_committed, records[-1].shards) == (10, 10, 1)
    assert [record.last for record in records] == [False] * (len(records) - 1) + [True]
    assert all(sum(record.writer.values()) == pytest.approx(1.0, abs=0.01) for record in records)


def test_a_file_gets_a_line_of_json_for_each_record_and_nothing_of_the_data(sink, tmp_path):
    path = tmp_path / "drain.jsonl"
    with Drain(sink) as drain:
        for _ in range(2):
            with drain.report(path):
                drain.put(["secret"], {"hidden": np.zeros(1)})
                drain.flush()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["rows_put"] for line in lines] == [1, 2]
    assert all(set(line) == KEYS for line in lines)
    assert "secret" not in path.read_text(encoding="utf-8")
    assert "hidden" not in path.read_text(encoding="utf-8")


ENDLESS = """
import itertools, sys
import numpy as np
from interlock import Drain

with Drain("null:") as drain, drain.report(sys.argv[1], every_s=0.0005):
    for one in itertools.count():
        drain.put([one], np.zeros(1))
"""


def test_a_program_that_is_killed_leaves_whole_lines(tmp_path):
    path = tmp_path / "drain.jsonl"
    with subprocess.Popen([sys.executable, "-c", ENDLESS, path]) as program:
        while not path.exists() or path.stat().st_size < 20_000:
            assert program.poll() is None
        program.kill()
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert all(set(json.loads(line)) == KEYS for line in text.splitlines())


def test_a_report_that_cannot_be_meant(tmp_path):
    with Drain("null:") as drain:
        with pytest.raises(UsageError, match="cannot go to"):
            drain.report(tmp_path / "missing" / "drain.jsonl")
        with pytest.raises(UsageError, match="every_s is 0"):
            drain.report(print, every_s=0)


def test_a_record_is_about_the_time_since_the_one_before():
    clock = iter([0.0, 4.0])
    begin = DrainStatistics(rows_put=100, bytes_put=10**6, elapsed_s=2.0, wait_slot_s=1.0, encode_s=1.0, idle_s=1.0)
    end = DrainStatistics(
        rows_put=500,
        rows_committed=300,
        rows_failed=2,
        bytes_put=9 * 10**6,
        elapsed_s=6.0,
        loop_s=1.0,
        wait_slot_s=4.0,
        encode_s=4.0,
        fsync_s=1.0,
        idle_s=1.0,
    )
    record = Meter(begin, Setting("parquet", 1 << 20, 8), lambda: next(clock)).read(end)
    assert (record.rows_per_s, record.mb_per_s, record.limit) == (100.0, 2.0, "encoder")
    assert record.producer == {"loop": 0.25, "put": 0.0, "slot": 0.75, "copy": 0.0, "flush": 0.0}
    assert record.writer == {**dict.fromkeys(WRITER_PHASES, 0.0), "encode": 0.75, "fsync": 0.25}
    assert record.line() == (
        "300 rows committed, 100 rows/s, 2.0 MB/s, encoder 75 %, 1 writer, writer: encode 75 %, fsync 25 %, 2 failed"
    )


@pytest.mark.parametrize(("limit", "text"), [
    ("encoder", "encoder 50 %, 2 writers"),
    ("storage", "storage 30 %, 2 writers"),
    ("device", "device 20 %, 2 writers"),
    ("budget", "budget too small"),
    ("unknown", ""),
])  # fmt: skip
def test_what_limits_is_said_in_some_words(limit, text):
    parts = {**dict.fromkeys(WRITER_PHASES, 0.0), "land": 0.2, "encode": 0.5, "write": 0.1, "fsync": 0.2}
    assert limited(limit, parts, 2) == text


# ------------------------------------------------------------ metrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parsed(text):
    """Read the text format strictly: HELP and TYPE before the samples of each family, every family once.

    Returns (name, labels) to value, and name to type.
    """
    assert text.endswith("\n")
    found, kinds, helped, current = {}, {}, [], None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, name)
            assert len(line.split(" ", 3)) == 4, f"{name} has no text"
            assert name not in helped, f"{name} is there twice"
            helped.append(name)
        elif line.startswith("# TYPE "):
            _, _, current, kind = line.split(" ")
            assert current == helped[-1], "TYPE is not about the family before it"
            assert kind in {"counter", "gauge"}
            kinds[current] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == current, "a sample stands outside of its family"
            labels = LABEL.findall(match[2] or "")
            assert "".join(f'{name}="{value}",' for name, value in labels).rstrip(",") == (match[2] or "")
            key = (match[1], tuple(sorted(labels)))
            assert key not in found, "a sample is there twice"
            found[key] = float(match[3])
            assert math.isfinite(found[key])
    assert set(helped) == set(kinds)
    return found, kinds


def check(text):
    found, kinds = parsed(text)
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|us|mb|kb|s)(_total)?$", name), f"{name} is not in base units"
    return found


def test_metrics_of_a_drain_are_what_prometheus_reads(sink, tmp_path):
    with Drain(sink, rank=(2, 3)) as drain:
        drain.put(["secret", "too"], np.zeros((2, 8)))
        drain.flush()
        text = drain.metrics()
    found = check(text)
    scheme = sink.partition(":")[0]
    labels = (("rank", "2"), ("sink", scheme))
    assert found["interlock_drain_rows_committed_total", labels] == 2
    assert found["interlock_drain_put_bytes_total", labels] == 128
    assert found["interlock_drain_writers", labels] >= 1
    phases = {dict(key[1])["phase"] for key in found if key[0] == "interlock_drain_writer_seconds_total"}
    assert phases == set(WRITER_PHASES)
    assert {name for key in found for name, _ in key[1]} == {"rank", "sink", "phase"}
    assert "secret" not in text
    assert str(tmp_path) not in text


def test_every_number_of_a_drain_is_in_its_metrics():
    """Each is another number here, so that none stands in for another."""
    fields = DrainStatistics.__dataclass_fields__
    numbers = {name: 1_000 + index for index, name in enumerate(fields)}
    found = set(check(prometheus_text(DrainStatistics(**numbers), "npy", 0)).values())
    derived = {"elapsed_s", "start_s", "idle_start_s", "wait_writer_s"}  # the sum of others; parts of others
    assert {name for name, number in numbers.items() if number not in found} == derived


def test_metrics_of_a_feed_can_be_joined_to_them():
    feed = Feed({"secret": np.arange(10)}, batch_size=5)
    list(feed)
    with Drain("null:") as drain:
        found = check(feed.metrics() + drain.metrics())
    assert found["interlock_feed_samples_total", (("rank", "0"),)] == 10
    assert ("interlock_feed_stage_busy_seconds_total", (("rank", "0"), ("stage", "read"))) in found
    assert "secret" not in feed.metrics()


def test_texts_of_others_are_escaped():
    text = exposition([Family("x_total", "counter", "a\nb\\c", {'say "a\\b"\n': 1.5}, "of")], {"sink": "npy"})
    found, _ = parsed(text)
    assert found == {("x_total", (("of", r"say \"a\\b\"\n"), ("sink", "npy"))): 1.5}
    assert text.splitlines()[0] == r"# HELP x_total a\nb\\c"


def test_rows_that_failed_are_those_of_now_and_never_less_than_none(tmp_path):
    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        drain.fail([1], "a broken file")
        drain.flush()
        before = drain.statistics()
        drain.put([1, 2], np.zeros(2))
        drain.fail([3], "another")
        drain.flush()
        found = drain.statistics().since(before)
    assert (before.rows_failed, found.rows_failed, found.rows_committed) == (1, 1, 2)
