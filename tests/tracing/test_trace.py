"""What a trace records, and that its file is what Perfetto reads."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock
from interlock import Drain, Feed
from interlock._core import _spans
from interlock._core._marks import Mark, MarkedSpans
from interlock._core._spans import Span, report, traced
from interlock.errors import SinkError, UsageError
from interlock.lowlevel import Fence, HostDevice, HostTimeline, SimulatedDevice
from interlock.tracing import _recorder, _trace, read
from interlock.tracing._format import Formatter
from interlock.tracing._recorder import Recorder

BATCHES = 5
NUMBER = int | float


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def run_everything(file: Path, sink: Path, device: str) -> None:
    """Feed and drain `BATCHES` batches, with steps of the program's own."""
    data = np.arange(BATCHES * 4 * 8, dtype=np.float32).reshape(BATCHES * 4, 8)
    with interlock.trace(file) as trace, Drain(f"npy:{sink}") as drain:
        for ids, batch in Feed(data, batch_size=4, workers=2, ids=True, device=device):
            with trace.span("step"):
                result = batch * 2
            drain.put(ids, result)


def events_of(file: Path) -> list[dict[str, Any]]:
    """Return the events, read as strictly as JSON can be."""

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    content = json.loads(file.read_bytes(), parse_constant=refuse)
    assert set(content) == {"displayTimeUnit", "traceEvents", "otherData"}
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def complete(file: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(file) if event["ph"] == "X"]


def numbers(file: Path, name: str) -> list[int]:
    return sorted(event["args"]["batch"] for event in complete(file) if event["name"] == name)


@pytest.fixture(params=["host", "simulated:eager", "simulated:lazy"])
def device(request: pytest.FixtureRequest) -> str:
    text: str = request.param
    return text


# ------------------------------------------------------------ the format


KEYS: dict[str, dict[str, type | Any]] = {
    "M": {"name": str, "args": dict},
    "X": {"name": str, "cat": str, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "C": {"name": str, "ts": NUMBER, "args": dict},
    "s": {"name": str, "cat": str, "ts": NUMBER, "id": str},
    "f": {"name": str, "cat": str, "ts": NUMBER, "id": str, "bp": str},
}


def test_every_event_has_the_keys_of_its_kind_and_no_time_is_negative(file: Path, tmp_path: Path, device: str):
    run_everything(file, tmp_path / "sink", device)
    events = events_of(file)
    assert {event["ph"] for event in events} == set(KEYS)
    for event in events:
        for key, kind in {"pid": int, "tid": int, **KEYS[event["ph"]]}.items():
            assert isinstance(event[key], kind), (event, key)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_processes_and_threads_have_names_before_they_are_used(file: Path, tmp_path: Path, device: str):
    run_everything(file, tmp_path / "sink", device)
    named: set[tuple[str, int, int]] = set()
    for event in events_of(file):
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
        elif event["ph"] in "Xsf":
            assert ("process_name", event["pid"], 0) in named
            assert ("thread_name", event["pid"], event["tid"]) in named
    names = {track.thread for track in read(file).tracks}
    assert {"MainThread", "interlock-drain"} <= names
    assert any(name.startswith("interlock-feed-") for name in names)


def test_threads_are_shown_in_the_order_of_the_way(file: Path, tmp_path: Path):
    run_everything(file, tmp_path / "sink", "host")
    named = {event["tid"]: event["args"]["name"] for event in events_of(file) if event["name"] == "thread_name"}
    places = {event["tid"]: event["args"] for event in events_of(file) if event["name"] == "thread_sort_index"}
    names = sorted(named.values(), key={name: places[tid]["sort_index"] for tid, name in named.items()}.__getitem__)
    assert names[0] == "MainThread"
    assert names[-1] == "interlock-drain"
    assert names[1:-1] == sorted(names[1:-1])


def test_each_writer_has_a_track_of_its_own(file: Path, tmp_path: Path):
    with interlock.trace(file), Drain(f"npy:{tmp_path / 'sink'}", writers=2, shard_bytes=64, budget_bytes=512) as drain:
        for row in range(200):
            drain.put([row], np.zeros((1, 4)))
    places = {
        event["tid"]: event["args"]["sort_index"] for event in events_of(file) if event["name"] == "thread_sort_index"
    }
    named = {event["args"]["name"]: event["tid"] for event in events_of(file) if event["name"] == "thread_name"}
    assert places[named["interlock-drain"]] < places[named["interlock-drain-2"]]
    writes = [event for event in events_of(file) if event["ph"] == "X" and event["name"] == "write"]
    assert {event["tid"] for event in writes} == {named["interlock-drain"], named["interlock-drain-2"]}
    assert len(writes) == 200


def test_the_spans_of_a_track_are_nested_or_apart(file: Path, tmp_path: Path, device: str):
    run_everything(file, tmp_path / "sink", device)
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in complete(file):
        start_ns = round(event["ts"] * 1000)
        tracks[event["pid"], event["tid"]].append((start_ns, start_ns + round(event["dur"] * 1000)))
    for spans in tracks.values():
        open_until: list[int] = []
        for start_ns, end_ns in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start_ns:
                open_until.pop()
            assert not open_until or end_ns <= open_until[-1]
            open_until.append(end_ns)


def test_an_arrow_begins_once_and_where_it_ends_it_has_begun(file: Path, tmp_path: Path, device: str):
    run_everything(file, tmp_path / "sink", device)
    events = events_of(file)
    begun = Counter(event["id"] for event in events if event["ph"] == "s")
    ended = Counter(event["id"] for event in events if event["ph"] == "f")
    assert set(begun.values()) == {1}
    assert set(ended.values()) == {1}
    assert set(ended) <= set(begun)
    for way in ["fill/hand over", "put/write"] + ["fill/copy in"] * (device != "host"):
        assert sum(ident.endswith(way) for ident in ended) == BATCHES, way
    times = {(event["ph"], event["id"]): event["ts"] for event in events if event["ph"] in "sf"}
    assert all(times["s", ident] <= times["f", ident] for ident in ended)


def test_a_span_that_straddles_the_one_before_on_its_stream_is_cut(file: Path):
    """Clocks of devices are a little off; the format wants spans nested or apart."""
    with interlock.trace(file):
        now = time.perf_counter_ns()
        report(Span("cuda:0/feed", "copy in", now, now + 20_000, 0, 10))
        report(Span("cuda:0/feed", "copy in", now + 15_000, now + 40_000, 1, 10))
    first, second = complete(file)
    assert second["ts"] == pytest.approx(first["ts"] + 20)
    assert (first["dur"], second["dur"]) == (20, 20)


def test_what_began_before_the_trace_is_cut_and_what_ended_before_is_left_out(file: Path):
    before = time.perf_counter_ns()
    with interlock.trace(file):
        report(Span("host:x", "ended", before - 10, before))
        report(Span("host:x", "began", before, time.perf_counter_ns()))
    (event,) = complete(file)
    assert (event["name"], event["ts"]) == ("began", 0)


def test_of_several_workers_that_fill_a_batch_one_has_the_arrow(file: Path):
    with interlock.trace(file):
        for worker in range(3):
            now = time.perf_counter_ns()
            report(Span(f"host:worker {worker}", "fill", now, now + 1, 5, 10, "feed 1"))
    starts = [event["id"] for event in events_of(file) if event["ph"] == "s"]
    assert sorted(starts) == ["feed 1/5/fill/copy in", "feed 1/5/fill/hand over"]


# ------------------------------------------------------------ what is in it


def test_each_batch_has_its_spans(file: Path, tmp_path: Path, device: str):
    run_everything(file, tmp_path / "sink", device)
    expected = list(range(BATCHES))
    assert sorted(set(numbers(file, "fill"))) == expected
    for name in ["wait", "hand over", "step"]:
        assert numbers(file, name) == expected, name
    if device != "host":
        assert numbers(file, "copy in") == expected
    puts = numbers(file, "put")
    assert len(puts) == BATCHES
    assert numbers(file, "write") == puts


def test_sizes_are_in_it_and_counts_of_batches(file: Path, tmp_path: Path):
    run_everything(file, tmp_path / "sink", "simulated:eager")
    events = events_of(file)
    assert {event["args"]["bytes"] for event in events if event["name"] == "hand over"} == {4 * 8 * 4}
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert any(name.endswith("batches lent") for name in counters)
    assert any(name.endswith("batches ready") for name in counters)
    assert any(name.endswith("GB/s") for name in counters)


def test_two_feeds_and_two_epochs_are_told_apart(file: Path):
    feed, other = Feed(np.zeros((4, 2)), batch_size=2), Feed(np.zeros((4, 2)), batch_size=2)
    with interlock.trace(file):
        for batches in (feed, other, feed):
            for _ in batches:
                pass
    subjects = {event["args"]["of"] for event in complete(file)}
    assert len(subjects) == 3
    assert sum(subject.endswith(", pass 2") for subject in subjects) == 1


def test_no_data_and_no_path_is_in_it(file: Path, tmp_path: Path):
    run_everything(file, tmp_path / "a secret place", "host")
    assert "secret" not in file.read_text(encoding="utf-8")


def test_spans_of_the_program_are_counted_by_name_or_numbered(file: Path):
    with interlock.trace(file) as trace:
        for _ in range(2):
            with trace.span("step"):
                pass
        with trace.span("save", number=7, size_bytes=8):
            pass
    found = [(event["name"], event["args"]) for event in complete(file)]
    assert found == [("step", {"batch": 0}), ("step", {"batch": 1}), ("save", {"batch": 7, "bytes": 8})]


def track_of(formatter: Formatter, thread: threading.Thread, at_ns: int) -> int:
    """Return the track of a span of a moment, reported by `thread`."""
    (found,) = [
        event for event in formatter.events(Span("host:twin", "work", at_ns, at_ns), thread) if event["ph"] == "X"
    ]
    tid: int = found["tid"]
    return tid


def test_threads_of_one_name_have_a_track_each_while_both_live_and_leave_it_to_the_next():
    formatter, stop = Formatter(0), threading.Event()
    one, two, three = (threading.Thread(target=stop.wait, name="twin", daemon=True) for _ in range(3))
    one.start()
    two.start()
    assert track_of(formatter, one, 1) == 1
    assert track_of(formatter, two, 2) == 2
    assert track_of(formatter, one, 3) == 1
    stop.set()
    one.join()
    two.join()
    three.start()
    assert track_of(formatter, three, 4) in {1, 2}
    three.join()


def test_threads_that_come_one_after_the_other_share_a_track(file: Path):
    with interlock.trace(file) as trace:

        def work() -> None:
            with trace.span("work"):
                pass

        for _ in range(20):
            thread = threading.Thread(target=work, name="twin")
            thread.start()
            thread.join()
    assert len({event["tid"] for event in complete(file)}) == 1


# ------------------------------------------------------------ streams


def streams() -> list[Any]:
    return [HostDevice(), SimulatedDevice("lazy"), SimulatedDevice("eager")]


@pytest.mark.parametrize("device", streams(), ids=repr)
def test_what_is_queued_on_a_stream_is_a_span_from_its_first_to_its_last(file: Path, device: Any):
    stream = device.stream("work")
    memory = [device.allocate(1 << 20) for _ in range(2)]
    with interlock.trace(file) as trace:
        with trace.stream(stream, "step", device=device):
            device.copy(*memory, stream)
        with trace.stream(stream, "next", number=9, size_bytes=5, device=device):
            pass
    bars = {bar.name: bar for track in read(file).tracks for bar in track.bars}
    assert bars["step"].start_ms <= bars["copy"].start_ms
    assert bars["copy"].end_ms <= bars["step"].end_ms <= bars["next"].start_ms
    assert (bars["next"].number, bars["next"].size_bytes) == (9, 5)
    assert {event["tid"] for event in complete(file)} == {1}


def test_the_host_does_not_wait_for_marks(file: Path):
    """A stream held back by a fence that only this thread can reach would hang it."""
    device, gate = HostDevice(), HostTimeline("gate")
    stream, tick = device.stream("work"), gate.next_tick()
    with interlock.trace(file) as trace:
        device.wait(stream, Fence([(gate, tick)]))
        with trace.stream(stream, "step", device=device):
            pass
        gate.reach(tick)
    assert numbers(file, "step") == [0]


def test_a_stream_that_failed_leaves_no_span_and_no_hang(file: Path):
    device = SimulatedDevice("eager")
    stream = device.stream("work")
    with interlock.trace(file) as trace, trace.stream(stream, "step", device=device):
        device.launch(stream, lambda: 1 // 0)  # type: ignore[arg-type]
    assert complete(file) == []
    assert not device.unreported().points


@pytest.mark.parametrize("stream", [object(), "cuda:0", None])
def test_what_is_no_stream_is_refused(file: Path, stream: object):
    with interlock.trace(file) as trace, pytest.raises(UsageError, match="no stream"), trace.stream(stream, "step"):
        pass


def test_a_stream_that_does_not_say_its_device_needs_one(file: Path):
    stream = SimulatedDevice().stream("work")
    with interlock.trace(file) as trace, pytest.raises(UsageError, match="device="), trace.stream(stream, "step"):
        pass


@pytest.mark.parametrize("value", [1, "text", None])
def test_only_an_array_can_become_ready(file: Path, value: object):
    with interlock.trace(file) as trace, pytest.raises(UsageError, match="no array on one device"):
        trace.ready(value, "step")


def test_an_array_of_the_host_is_marked_otherwise(file: Path):
    with interlock.trace(file) as trace, pytest.raises(UsageError, match="not on a CUDA device"):
        trace.ready(np.zeros(3), "step")


# ------------------------------------------------------------ the file


def test_the_file_appears_whole_when_the_block_ends(file: Path):
    with interlock.trace(file):
        assert not file.exists()
    assert list(file.parent.iterdir()) == [file]


def test_an_exception_goes_on_and_the_file_is_there(file: Path):
    with pytest.raises(ZeroDivisionError), interlock.trace(file) as trace, trace.span("step"):
        raise ZeroDivisionError
    assert numbers(file, "step") == [0]
    assert not traced()


def test_what_is_too_much_is_counted_and_left_out(file: Path):
    trace = interlock.trace(file, most_spans=10)

    def record() -> None:
        with trace:
            for _ in range(25):
                with trace.span("step"):
                    pass

    with pytest.warns(RuntimeWarning, match="leaves 15 spans out"):
        record()
    assert trace.dropped == read(file).dropped == 15
    assert len(complete(file)) == 10


def test_memory_is_bounded_where_reports_come_faster_than_they_are_written(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_recorder, "_MOST_WAITING", 100)
    monkeypatch.setattr(_recorder, "_MANY_WAITING", -1)
    monkeypatch.setattr(_recorder, "_PAUSE_S", 60.0)
    recorder = Recorder(file, 1 << 30)
    for _ in range(1000):
        report(Span("host:x", "work", 0, 1 << 62))
    waiting = len(recorder._waiting)
    recorder.stop(timeout_s=1.0)
    assert waiting <= 100
    assert recorder.dropped >= 900


def test_a_file_that_cannot_be_made_is_refused_at_once(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be written"), interlock.trace(tmp_path / "missing" / "run.json"):
        pass
    assert not traced()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_at_the_end_and_never_hides_another(file: Path, monkeypatch: pytest.MonkeyPatch):
    full = Path("/dev/full")
    monkeypatch.setattr(Recorder, "_open", lambda _: full.open("wb", buffering=0))
    with pytest.raises(SinkError, match="No space left"), interlock.trace(file):
        pass
    with pytest.raises(ZeroDivisionError) as caught, interlock.trace(file):
        raise ZeroDivisionError
    assert "No space left" in caught.value.__notes__[0]
    assert not traced()


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_what_is_no_file_is_refused_before_anything_runs(path: str):
    with pytest.raises(UsageError, match="cannot be written"), interlock.trace(path):
        pass
    assert not traced()


def test_a_number_of_numpy_is_a_number(file: Path):
    with interlock.trace(file) as trace, trace.span("step", number=np.int64(7), size_bytes=np.int64(8)):  # type: ignore[arg-type]
        pass
    (event,) = complete(file)
    assert event["args"] == {"batch": 7, "bytes": 8}


def test_a_report_that_cannot_be_written_is_an_error_at_the_end_and_no_trace(file: Path):
    with pytest.raises(SinkError, match="could not be written"), interlock.trace(file):
        report(Span("host:x", object(), 0, 1 << 62))  # type: ignore[arg-type]
    assert list(file.parent.iterdir()) == []


def test_an_interrupt_while_it_waits_for_devices_leaves_the_file_and_nobody_listening(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "_settle", interrupt)
    with pytest.raises(KeyboardInterrupt), interlock.trace(file) as trace, trace.span("step"):
        pass
    assert not traced()
    assert [event["name"] for event in complete(file)] == ["step"]


def test_a_mark_that_is_reached_while_it_is_asked_for_is_not_lost():
    class Racing:
        """A mark that is reached right after the first look at it."""

        def __init__(self) -> None:
            self.looks = 0
            self.track, self.fence = "q", Fence.EMPTY

        @property
        def at_ns(self) -> int:
            self.looks += 1
            return 0 if self.looks == 1 else 5

    heard: list[Any] = []
    spans = MarkedSpans()
    spans.add(Mark("q", 1), Racing(), "step", 0, 0)  # type: ignore[arg-type]
    remove = _spans.listen(heard.append)
    try:
        spans.report_due()
        spans.report_due()
    finally:
        remove()
    assert len(heard) == 1


def test_a_trace_records_one_block(file: Path):
    trace = interlock.trace(file)
    with trace, pytest.raises(UsageError, match="one block"):
        trace.__enter__()
    with pytest.raises(UsageError, match="most_spans"):
        interlock.trace(file, most_spans=0)


def test_a_child_made_by_fork_leaves_the_file_to_its_parent(file: Path):
    program = f"""
import os, interlock
with interlock.trace({str(file)!r}) as trace:
    with trace.span("before"): pass
    child = os.fork()
    if child == 0:
        with trace.span("in the child"): pass
    else:
        os.waitpid(child, 0)
        with trace.span("after"): pass
if child == 0: os._exit(0)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["name"] for event in complete(file)] == ["before", "after"]


# ------------------------------------------------------------ nobody listens


def test_nothing_is_reported_and_no_time_taken_while_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The hooks are behind one truth test: a report, or a device asked for marks, would raise here."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in (
        "interlock.feed._pipeline",
        "interlock.feed._crew",
        "interlock.drain._spans",
        "interlock._core._spans",
    ):
        monkeypatch.setattr(f"{name}.report", refuse)
        monkeypatch.setattr(f"{name}.Span", refuse)
    with Drain(f"npy:{tmp_path / 'sink'}") as drain:
        for ids, batch in Feed(np.zeros((8, 2)), batch_size=2, ids=True, device="simulated:eager"):
            drain.put(ids, batch)
    assert not traced()


def test_work_is_not_wrapped_while_nobody_listens():
    def work() -> None:
        pass

    assert _spans.timed(work, "host/x", "copy") is work


def test_what_work_is_for_is_per_thread_and_ends_with_its_block():
    found: dict[str, tuple[str, int]] = {}
    with _spans.about("feed 1", 3):
        thread = threading.Thread(target=lambda: found.update(other=_spans.current()))
        thread.start()
        thread.join()
        with _spans.about("drain 1", 4):
            found["inner"] = _spans.current()
        found["outer"] = _spans.current()
    assert found == {"other": ("", -1), "inner": ("drain 1", 4), "outer": ("feed 1", 3)}
    assert _spans.current() == ("", -1)


def test_the_example_in_the_docstring_is_true():
    found = doctest.testmod(_trace)
    assert (found.failed, found.attempted > 0) == (0, True)


def test_two_traces_at_once_hear_the_same(tmp_path: Path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    with interlock.trace(one) as trace, interlock.trace(two), trace.span("step"):
        pass
    names = defaultdict(list)
    for file in (one, two):
        names[file.name] = [event["name"] for event in complete(file)]
    assert names["one.json"] == names["two.json"] == ["step"]
