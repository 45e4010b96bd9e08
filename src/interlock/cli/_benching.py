"""The work of `interlock bench feed`: run a feed without a model, and say what it could sustain."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from interlock.cli._exits import Exit, say
from interlock.cli._signals import Stop
from interlock.errors import SampleError
from interlock.feed import Feed
from interlock.feed._explain import explain
from interlock.feed.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import TextIO

    from interlock.feed import Explanation, FeedStatistics, Record

_WARM_UP = 0.1
"""Part of the time that is spent before it is measured."""
_LONGEST_WARM_UP_S = 1.0
_LINE_EVERY_S = 2.0
_SCREEN_EVERY_S = 0.5
_FEW = 3
"""Batches after the first ones of their passes without which their pace is not known."""
_WIDTH = 80
_ONE = {"threads": "thread", "processes": "process"}


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave, after its first batches.

    Attributes:
        done: Counts.
        explanation: What set the pace.
        reason: Why the first sample that failed did; empty if none did.
    """

    done: FeedStatistics
    explanation: Explanation
    reason: str

    @property
    def batch_s(self) -> float:
        """Seconds for a batch; without the starts of passes, if there were enough other batches."""
        done = self.done
        steady = done.batches - done.passes
        if steady >= _FEW:
            return (done.elapsed_s - done.start_s) / steady
        return done.elapsed_s / done.batches

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return self.done.samples / self.done.batches / self.batch_s if self.batch_s > 0 else 0.0

    @property
    def cpu_s(self) -> float:
        """Processor seconds for a sample, of this process and of the feed's own."""
        theirs = sum(stage.cpu_s or 0.0 for stage in self.done.stages if stage.kind == "processes")
        return (self.done.process_s + theirs) / self.done.samples


def run(source: str, options: Mapping[str, Any]) -> int:
    """Measure, and print what came of it.

    Args:
        source: Text of the source.
        options: As the command takes them.

    Returns:
        The exit code.

    Raises:
        InterlockError: The source is none, an option does not fit it, or no sample can be read.
    """
    rows = open_source(source, image_size=options["image_size"], columns=options["columns"])
    with Stop("stopping after this batch") as stop, _importable(source), _made(rows, options) as feed:
        with _telling(feed, quiet=options["quiet"]):
            measured = measure(feed, stop, options["seconds"], options["batches"])
        summary = summary_of(measured, source, len(rows), feed, options)
        click.echo(json.dumps(summary) if options["as_json"] else table(summary, measured.explanation))
        return stop.exit_code or Exit.DONE


@contextmanager
def _importable(source: str) -> Iterator[None]:
    """Let worker processes import the file that the source is an object of: they get the path of this one."""
    file = source.rpartition(":")[0]
    folder = str(Path(file).resolve().parent)
    if not file.endswith(".py") or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _made(rows: Any, options: Mapping[str, Any]) -> Feed:
    names = ("batch_size", "to", "device", "workers", "depth", "shuffle")
    return Feed(rows, on_error="skip", **{name: options[name] for name in names})


def measure(feed: Feed, stop: Stop, seconds: float, batches: int | None) -> Measured:
    """Take batches, epoch after epoch, and let go of each at once.

    Args:
        feed: Gives them.
        stop: Says when to end early.
        seconds: How long, after the first batches.
        batches: How many in place of that.

    Returns:
        What was measured after the first batches, or with them if it was stopped so early.

    Raises:
        SampleError: No sample can be read.
    """
    warm_s = min(_LONGEST_WARM_UP_S, _WARM_UP * seconds) if batches is None else 0.0
    reason, begin = "", feed.statistics()
    began_s, taken = time.monotonic(), 0
    endless = _endless(feed)
    for _ in endless:
        now_s, taken = time.monotonic(), taken + 1
        if feed.failures:
            reason = reason or f"{feed.failures[0].id}: {feed.failures[0].reason}"
            feed.failures.clear()  # the list has a bound
        if taken == 1 or (warm_s and now_s - began_s < warm_s):
            warm = feed.statistics()
            measured_from_s, taken = now_s, 1
        if stop.signal is not None or _enough(taken - 1, now_s - measured_from_s, seconds, batches):
            break
    total = feed.statistics()
    done = total.since(warm if total.batches > warm.batches else begin)
    explanation = explain(done, replace(feed.explain().setting, idle=True))
    endless.close()  # not before: the slots go with it
    return Measured(done, explanation, reason)


def _enough(taken: int, passed_s: float, seconds: float, batches: int | None) -> bool:
    return taken >= batches if batches is not None else taken > 0 and passed_s >= seconds


def _endless(feed: Feed) -> Generator[None]:
    """Yield once for each batch of each epoch."""
    while True:
        before = feed.statistics().samples
        for batch in feed:
            del batch  # so that its slot is free while the next is waited for
            yield
        if feed.statistics().samples == before:
            why = feed.failures[0].reason if feed.failures else "it is empty"
            raise SampleError("no sample of the source can be read", index=0, why=why)


# ------------------------------------------------------------ while it runs


@contextmanager
def _telling(feed: Feed, *, quiet: bool) -> Iterator[None]:
    """Show on stderr what the feed does: one line that changes on a terminal, lines elsewhere."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with _screen(sys.stderr) as show, feed.report(lambda record: show(record.line()), _SCREEN_EVERY_S):
            yield
    else:
        with feed.report(_say_record, _LINE_EVERY_S):
            yield


def _say_record(record: Record) -> None:
    if not record.last:
        say(record.line())


@contextmanager
def _screen(stream: TextIO) -> Iterator[Callable[[str], None]]:
    from rich.console import Console  # noqa: PLC0415 - only for terminals
    from rich.live import Live  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    def shown(line: str) -> Text:
        return Text(line, no_wrap=True, overflow="ellipsis")

    with Live(shown("reading"), console=Console(file=stream), auto_refresh=False, transient=True) as live:
        yield lambda line: live.update(shown(line), refresh=True)


# ------------------------------------------------------------ what came of it


def summary_of(measured: Measured, source: str, samples: int, feed: Feed, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is printed, as plain values for JSON.

    Args:
        measured: Of the run.
        source: Text of the source.
        samples: How many it has.
        feed: What was run.
        options: As the command takes them.
    """
    done, explanation = measured.done, measured.explanation
    busy = {stage.name: stage.busy for stage in explanation.findings.stages}
    return {
        "source": source,
        "source_samples": samples,
        "batch_size": options["batch_size"],
        "to": options["to"],
        "device": explanation.setting.device,
        "workers": options["workers"],
        "seconds": round(done.elapsed_s, 3),
        "batches": done.batches,
        "samples": done.samples,
        "failed": done.failed,
        "failed_reason": measured.reason,
        "samples_per_s": round(measured.samples_per_s, 1),
        "mb_per_s": round(measured.samples_per_s * done.nbytes / done.samples / 1e6, 2),
        "batch_ms": round(1e3 * measured.batch_s, 4),
        "cpu_ms_per_sample": round(1e3 * measured.cpu_s, 4),
        "processors": explanation.setting.processors,
        "start_ms": round(1e3 * feed.statistics().start_s / max(1, feed.statistics().passes), 3),
        "stages": [
            {
                "name": stage.name,
                "kind": stage.kind,
                "workers": stage.workers,
                "crew": stage.crew or stage.name,
                "busy": round(busy.get(stage.name, 0.0), 4),
                "ms_per_sample": round(1e3 * stage.busy_s / done.samples, 5),
            }
            for stage in done.stages
        ],
        "slots": done.slots,
        "slot_bytes": done.slot_bytes,
        "sustains_step_ms": round(1e3 * measured.batch_s, 4),
        "explanation": explanation.as_dict(),
    }


def table(summary: Mapping[str, Any], explanation: Explanation) -> str:
    """Return the summary for people."""
    s = summary
    what = (
        f"{s['source']} ({s['source_samples']:,} samples), batches of {s['batch_size']:,}, {s['to']} on {s['device']}"
    )
    lines = [
        ("source", what),
        ("measured", f"{s['samples']:,} samples in {s['seconds']:,.1f} s; a first batch takes {s['start_ms']:,.1f} ms"),
        ("samples/s", f"{s['samples_per_s']:,.0f}"),
        ("MB/s", f"{s['mb_per_s']:,.1f}"),
        ("batch", f"{s['batch_ms']:,.3g} ms"),
        ("processor", f"{s['cpu_ms_per_sample']:,.3g} ms a sample, {_used(s)}"),
    ]
    lines += [("stages" if index == 0 else "", _stage(stage)) for index, stage in enumerate(s["stages"])]
    lines.append(("slots", f"{s['slots']} of {s['slot_bytes'] / max(1, s['slots']) / 1e6:,.2f} MB"))
    if s["failed"]:
        lines.append(("failed", f"{s['failed']:,} samples; the first is {s['failed_reason']}"))
    told = [f"{name:<10} {text}".rstrip() for name, text in lines]
    sustained = f"It could sustain one batch each {s['batch_ms']:,.3g} ms: a step of less than that would wait."
    return "\n".join([*told, "", sustained, *textwrap.wrap(str(explanation), _WIDTH)])


def _used(summary: Mapping[str, Any]) -> str:
    used = summary["cpu_ms_per_sample"] * summary["samples_per_s"] / 1e3
    return f"{used:.1f} of {summary['processors']:g} processors"


def _stage(stage: Mapping[str, Any]) -> str:
    kind = stage["kind"] if stage["workers"] > 1 else _ONE.get(stage["kind"], "")
    who = f"{stage['workers']} {kind}" if stage["kind"] != "inline" else "the consumer itself"
    if stage["crew"] != stage["name"]:
        who = f"by those of {stage['crew']}"
    return f"{stage['name']:<10} {who:<20} busy {100 * stage['busy']:>3.0f} %, {stage['ms_per_sample']:.3g} ms a sample"
