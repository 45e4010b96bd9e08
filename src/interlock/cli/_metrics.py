"""The option `--metrics`: what a run does, told every few seconds, to programs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from interlock._reporting import append_line
from interlock.errors import UsageError
from interlock.feed._metrics import prometheus_text
from interlock.feed._report import Meter

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from interlock.drain import Drain, Record
    from interlock.feed import Feed

_EVERY_S = 5.0
_SUFFIXES = (".jsonl", ".prom")


@final
class Metrics:
    """Tells a file what feed and drain do.

    Args:
        path: Ends in `.jsonl`: gets a JSON object per line, appended. Or in `.prom`: is replaced each time, whole, as
            the textfile collector of Prometheus wants it. None for neither.
        rank: Which of how many processes this is; each but the first writes to a file of its own.
        every_s: How often.

    Attributes:
        rows_total: Rows asked for.

    Raises:
        UsageError: It ends in something else, or is in no folder.
    """

    def __init__(self, path: str | None, rank: tuple[int, int], every_s: float = _EVERY_S) -> None:
        self.rows_total = 0
        self._feed: tuple[Feed, Meter] | None = None
        self._rank = rank[0]
        self._path = None if path is None else _checked(Path(path), rank[0])
        self._every_s = every_s

    def of(self, drain: Drain) -> AbstractContextManager[Any]:
        """Return a context manager: inside of it a thread tells about `drain`, and once more at its end."""
        path = self._path
        if path is None:
            return nullcontext()
        if path.suffix == ".prom":
            return drain.report(lambda _: _replace(path, self._text(drain)), self._every_s)
        return drain.report(lambda record: append_line(path, self._values(record)), self._every_s)

    def watch(self, feed: Feed) -> None:
        """Tell about `feed` too, from now on."""
        self._feed = feed, Meter(feed.statistics())

    def _values(self, record: Record) -> dict[str, Any]:
        told = None
        if self._feed is not None:
            feed, meter = self._feed
            told = meter.read(feed.statistics(), feed.epoch, last=record.last).as_dict()
        return {"rank": self._rank, "rows_total": self.rows_total, "drain": record.as_dict(), "feed": told}

    def _text(self, drain: Drain) -> str:
        if self._feed is None:
            return drain.metrics()
        feed, _ = self._feed  # which reads what is pending on this rank, and knows of no others
        return drain.metrics() + prometheus_text(feed.statistics(), self._rank)


def _checked(path: Path, rank: int) -> Path:
    """Return where to write."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"--metrics {path} ends in neither .jsonl nor .prom", hint="the end says what is written")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"metrics cannot go to {path}", why="it is a folder, or in none", hint="give a file")
    return path.with_name(f"{path.stem}-r{rank:05d}{path.suffix}") if rank else path


def _replace(path: Path, text: str) -> None:
    """Give a file a new content; whoever looks sees the old one or the new one, whole."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
