"""The picture of a trace, and the command that draws it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import interlock
from interlock import Feed
from interlock.cli import main
from interlock.errors import UsageError
from interlock.tracing import Bar, Panel, Recording, Track, Window, draw, lanes_of, read, whole_of
from interlock.tracing._lanes import middle_of, with_crew

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
MB = 1_000_000


def bar(name: str, start_ms: float, end_ms: float, number: int = -1, size_bytes: int = 0, subject: str = "") -> Bar:
    return Bar(name, start_ms, end_ms, number, size_bytes, subject)


def pipeline(steps: int = 12, period_ms: float = 10.0) -> Recording:
    """A loop that is as it should be: the device always computes, copies are beside it."""
    starts = [number * period_ms for number in range(steps)]
    return Recording(
        [
            Track("host", "MainThread", [bar("put", start, start + 1, n) for n, start in enumerate(starts)]),
            Track("host", "interlock-drain", [bar("write", start, start + 4, n) for n, start in enumerate(starts)]),
            *(
                Track(
                    "host", f"interlock-feed-{w}", [bar("fill", start, start + 6, n) for n, start in enumerate(starts)]
                )
                for w in range(4)
            ),
            Track("cuda:0", "torch", [bar("step", start, start + period_ms, n) for n, start in enumerate(starts)]),
            Track("cuda:0", "feed", [bar("copy in", start, start + 2, n, 100 * MB) for n, start in enumerate(starts)]),
            Track("cuda:0", "drain", [bar("copy out", start, start + 1, n, 40 * MB) for n, start in enumerate(starts)]),
        ],
        dropped=0,
    )


def drawn(tmp_path: Path, *panels: Panel, **times: float) -> ET.Element:
    path = tmp_path / "picture.svg"
    draw(panels, path, **times)
    return ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - our own file


def texts(picture: ET.Element, kind: str) -> list[str]:
    return ["".join(one.itertext()) for one in picture.iter(f"{SVG}text") if one.get("class", "").startswith(kind)]


# ------------------------------------------------------------ rows


def test_the_rows_follow_a_batch_from_the_workers_to_the_writer():
    lanes = with_crew(lanes_of(pipeline(), Window(0, 50)))
    titles = [lane.title for lane in lanes if lane.title]
    assert titles == ["your loop", "4 workers", "copy in", "step", "copy out", "writer"]
    assert [lane.main for lane in lanes if lane.title] == [False, False, False, True, False, False]
    assert {lane.detail for lane in lanes[5:8]} == {"cuda:0"}


def test_few_workers_have_names_and_many_are_thin():
    recording = pipeline()
    few = Recording([track for track in recording.tracks if track.thread[-1] not in "23"], 0)
    assert {"worker 0", "worker 1"} <= {lane.title for lane in lanes_of(few, Window(0, 50))}
    assert with_crew(lanes_of(few, Window(0, 50))) == lanes_of(few, Window(0, 50))
    thin = [lane for lane in with_crew(lanes_of(recording, Window(0, 50))) if not lane.tall]
    assert [lane.title for lane in thin] == ["", "", "4 workers", ""]


def test_workers_of_stages_are_rows_of_their_own_in_the_order_in_which_a_sample_passes():
    def track(name, start_ms):
        return Track("host", f"interlock-feed-{name}", [Bar("fill", start_ms, start_ms + 5, 0, 0, "feed 1")])

    names = ["augment-0", "zoom-in-1", "zoom-in-0", "0", "1"]
    starts = {"0": 0.0, "1": 0.0, "zoom-in-0": 1.0, "zoom-in-1": 2.0, "augment-0": 3.0}
    recording = Recording([track(name, starts[name]) for name in names], 0)
    lanes = lanes_of(recording, Window(0, 10))
    assert [lane.title for lane in lanes] == ["worker 0", "worker 1", "zoom-in 0", "zoom-in 1", "augment 0"]
    assert [lane.title for lane in with_crew(lanes)] == ["", "2 workers", "", "2 zoom-in", "augment"]


def test_other_threads_go_by_their_names():
    recording = Recording([Track("host", "Thread-3 (load)", [bar("read", 0, 1)])], 0)
    assert [lane.title for lane in lanes_of(recording, Window(0, 1))] == ["Thread-3 (load)"]


def test_the_notes_say_how_busy_a_row_is_and_how_fast_its_copies_are():
    notes = {lane.title: lane.note for lane in lanes_of(pipeline(), Window(0, 50))}
    assert notes["step"] == "100% busy"
    assert notes["writer"] == "40% busy"
    assert notes["copy in"] == "50 GB/s"
    assert notes["copy out"] == "40 GB/s"


def test_what_is_cut_by_the_window_counts_for_what_is_inside_and_nested_spans_once():
    outer = [bar("step", 0, 10), bar("forward", 6, 8), bar("step", 15, 25)]
    (lane,) = lanes_of(Recording([Track("cuda:0", "torch", outer)], 0), Window(5, 20))
    assert lane.note == "67% busy"
    assert len(lane.bars) == 3


def test_waiting_is_not_work():
    waits = [bar("wait for copy", 0, 9), bar("write", 9, 10)]
    (lane,) = lanes_of(Recording([Track("host", "interlock-drain", waits)], 0), Window(0, 10))
    assert lane.note == "10% busy"


def test_each_writer_of_a_drain_has_a_row():
    names = ("interlock-drain-3", "interlock-drain", "interlock-drain-2")
    tracks = [Track("host", name, [bar("write", 0, 9)]) for name in names]
    assert [lane.title for lane in lanes_of(Recording(tracks, 0), Window(0, 10))] == ["writer", "writer 2", "writer 3"]


def test_a_stream_has_a_row_for_each_way():
    mixed = [bar("copy in", 0, 2, 0, MB), bar("step", 2, 8, 0), bar("copy out", 8, 9, 0, MB)]
    lanes = lanes_of(Recording([Track("cuda:0", "default", mixed)], 0), Window(0, 10))
    assert [lane.title for lane in lanes] == ["copy in", "step", "copy out"]


def test_the_middle_shows_some_steps_and_a_short_recording_is_shown_whole():
    assert middle_of(pipeline(12)) == Window(30, 90)
    short = pipeline(3)
    assert middle_of(short) == whole_of(short) == Window(0, 30)


# ------------------------------------------------------------ the file


def test_it_is_one_well_formed_file_with_a_title_and_nothing_from_elsewhere(tmp_path: Path):
    picture = drawn(tmp_path, Panel("A loop", pipeline()))
    assert picture.get("role") == "img"
    named = {one.get("id") for one in picture if one.tag in {f"{SVG}title", f"{SVG}desc"} and one.text}
    assert set(picture.get("aria-labelledby", "").split()) == named == {"title", "desc"}
    content = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in content
    assert "<script" not in content
    assert "url(" not in content
    assert content.count("http") == 1  # the name space


def test_names_are_escaped(tmp_path: Path):
    name = '<b>&"x"'
    recording = Recording([Track("<dev&>", "stream", [bar(name, 0, 9, 3, subject="<s>")])], 0)
    picture = drawn(tmp_path, Panel("<i>&title", recording))
    assert texts(picture, "title") == ["<i>&title"]
    assert texts(picture, "who") == [f"<dev&> {name}"]
    assert texts(picture, "label") == [f"{name} 3"]
    assert "<title>&lt;b&gt;" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_long_names_are_cut_to_their_column(tmp_path: Path):
    recording = Recording([Track("cuda:0", "stream", [bar("a step with quite a long name", 0, 9)])], 0)
    (who,) = texts(drawn(tmp_path, Panel("", recording)), "who")
    assert who == "cuda:0 a step with q…"


def test_bars_are_in_their_window_and_are_labelled_where_there_is_room(tmp_path: Path):
    picture = drawn(tmp_path, Panel("", pipeline()), start_ms=35, end_ms=65)
    bars = [one for one in picture.iter(f"{SVG}rect") if one.get("class", "").startswith("bar")]
    (lane, *_) = [one for one in picture.iter(f"{SVG}rect") if one.get("class") == "lane"]
    left, width = float(lane.get("x", "")), float(lane.get("width", ""))
    assert bars
    for one in bars:
        assert left - 1 <= float(one.get("x", ""))
        assert float(one.get("x", "")) + float(one.get("width", "")) <= left + width + 1
    assert {"step 4", "step 5"} <= set(texts(picture, "label"))
    assert "put 5" not in texts(picture, "label")
    assert texts(picture, "time")[:3] == ["0 ms", "5", "10"]


def test_a_batch_has_one_colour_in_all_rows(tmp_path: Path):
    picture = drawn(tmp_path, Panel("", pipeline()), start_ms=40, end_ms=49.9)
    kinds = {one.get("class") for one in picture.iter(f"{SVG}rect") if one.get("class", "").startswith("bar")}
    assert kinds == {"bar n4"}


def test_several_recordings_share_the_scale_of_the_fastest(tmp_path: Path):
    slow, fast = Panel("usual", pipeline(12, 25)), Panel("ours", pipeline(12, 10))
    picture = drawn(tmp_path, slow, fast)
    assert texts(picture, "title") == ["usual", "ours"]
    assert texts(picture, "time")[-1] == "60"
    widths: dict[str, float] = {}
    for group in picture.iter(f"{SVG}g"):
        found = re.match(r"step \d+: (\d+) ms", group.findtext(f"{SVG}title", ""))
        if found:
            width = float(group.find(f"{SVG}rect").get("width"))  # type: ignore[union-attr, arg-type]
            widths[found[1]] = max(width, widths.get(found[1], 0))
    assert widths["25"] == pytest.approx(2.5 * widths["10"], rel=0.01)


@pytest.mark.parametrize("length_ms", [0.013, 0.9, 7, 60, 1234, 3_600_000])
def test_any_length_has_a_readable_axis(tmp_path: Path, length_ms: float):
    recording = Recording([Track("cuda:0", "x", [bar("step", 0, length_ms, 0)])], 0)
    assert 5 <= len(texts(drawn(tmp_path, Panel("", recording)), "time")) <= 12


def test_what_cannot_be_drawn_is_said(tmp_path: Path):
    with pytest.raises(UsageError, match="empty"):
        drawn(tmp_path, Panel("", Recording([], 0)))
    with pytest.raises(UsageError, match="no span lies between"):
        drawn(tmp_path, Panel("", pipeline(3)), start_ms=500, end_ms=600)
    with pytest.raises(UsageError, match="is empty"):
        drawn(tmp_path, Panel("", pipeline(3)), start_ms=20, end_ms=10)
    with pytest.raises(UsageError, match="cannot be written"):
        draw([Panel("", pipeline(3))], tmp_path / "missing" / "x.svg")


# ------------------------------------------------------------ from a run


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    file = tmp_path / "run.json"
    with interlock.trace(file) as trace:
        for _ in Feed(np.zeros((40, 2)), batch_size=2, device="simulated:eager", workers=2):
            with trace.span("step"):
                pass
    return file


def test_a_run_is_drawn_when_its_block_has_ended(tmp_path: Path):
    (tmp_path / "run.json").write_text("from another run", encoding="utf-8")
    with interlock.trace(tmp_path / "run.json") as trace:
        for _ in Feed(np.zeros((40, 2)), batch_size=2):
            with trace.span("step"):
                pass
        with pytest.raises(UsageError, match="no trace"):
            trace.picture(tmp_path / "early.svg")
    trace.picture(tmp_path / "run.svg", title="A run")
    assert "A run" in (tmp_path / "run.svg").read_text(encoding="utf-8")


def test_the_command_tells_what_each_row_did(traced: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", str(traced)]) == 0
    shown = capsys.readouterr().out
    assert "your loop        60 spans" in shown
    assert "copy in          20 spans" in shown


def test_the_command_tells_of_a_part_and_names_every_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    events = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "host"}}]
    for tid in range(4):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": f"interlock-feed-{tid}"}}
        )
        events += [{"ph": "X", "pid": 1, "tid": tid, "ts": at * 1e4, "dur": 5e3, "name": "fill"} for at in range(4)]
    file = tmp_path / "w.json"
    file.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    assert main(["trace", str(file), "--from", "10", "--to", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("w.json: 10.0 ms")
    assert [line.split() for line in lines[1:]] == [
        ["worker", str(tid), "1", "spans", "50%", "busy"] for tid in range(4)
    ]
    assert main(["trace", str(file), "--from", "99"]) == 2
    assert "it goes from 0 to 35 ms" in capsys.readouterr().err


def test_a_span_that_took_no_time_is_told_and_a_recording_of_such_has_no_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "moment.json"
    file.write_text('[{"ph": "X", "pid": 1, "tid": 2, "ts": 5, "dur": 0, "name": "copy in", "args": {"bytes": 8}}]')
    assert main(["trace", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["copy", "in", "1", "spans", "1"]
    assert main(["trace", str(file), "--svg", str(tmp_path / "x.svg")]) == 2
    assert "is empty" in capsys.readouterr().err


def test_a_name_cannot_speak_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = [("process_name", "host"), ("thread_name", "\x1b[31mred\nline\ud800" + "x" * 100)]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": name, "pid": 1, "tid": 1, "args": {"name": text}} for name, text in names
    ]
    events.append({"ph": "X", "pid": 1, "tid": 1, "ts": 5, "dur": 9, "name": "a"})
    file = tmp_path / "t.json"
    file.write_text(json.dumps(events), encoding="utf-8")
    assert main(["trace", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "?[31mred?line" in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2
    assert len(shown.splitlines()[1]) <= 80
    assert main(["trace", str(file), "--svg", str(tmp_path / "t.svg")]) == 0
    ET.fromstring((tmp_path / "t.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own file


@pytest.mark.parametrize(
    "options", [["--from", "nan"], ["--to", "inf"], ["--from", "1e300"], ["--from", "5", "--to", "4"]]
)
@pytest.mark.parametrize("svg", [[], ["--svg", "x.svg"]], ids=["told", "drawn"])
def test_times_that_cannot_be_meant_end_in_one_line(
    options: list[str],
    svg: list[str],
    traced: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(traced.parent)
    assert main(["trace", str(traced), *svg, *options]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_draws(traced: Path, tmp_path: Path):
    picture = tmp_path / "x.svg"
    assert main(["trace", str(traced), str(traced), "--svg", str(picture), "--title", "first"]) == 0
    titles = texts(ET.fromstring(picture.read_text(encoding="utf-8")), "title")  # noqa: S314 - our own file
    assert titles == ["first", "run"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1]",
        "{}",
        '{"traceEvents": 5}',
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": [{}]}',
        "\0",
        "[" * 100_000,
        '[{"ph": "X", "ts": NaN, "dur": 1, "name": "a"}]',
    ],
)
def test_what_is_no_trace_is_refused_by_name(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "other.json"
    file.write_text(content, encoding="utf-8")
    assert main(["trace", str(file)]) == 2
    assert "other.json" in capsys.readouterr().err


def test_wrong_usage_ends_in_one_line(traced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", str(tmp_path / "missing.json")]) == 2
    assert main(["trace", str(traced), "--title", "a", "--title", "b", "--svg", "x.svg"]) == 2
    assert main(["trace", str(traced), "--title", "a"]) == 2
    assert main(["trace"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_traces_of_others_can_be_read(tmp_path: Path):
    """Chrome's format asks for no more than `ph`, `ts`, `dur`, `pid`, `tid` and `name`."""
    file = tmp_path / "other.json"
    events = [{"ph": "X", "ts": 1000.0, "dur": 500, "pid": 7, "tid": "a", "name": "kernel"}, {"ph": "i", "ts": 0}]
    file.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    assert read(file) == Recording([Track("7", "a", [bar("kernel", 1.0, 1.5)])], 0)
