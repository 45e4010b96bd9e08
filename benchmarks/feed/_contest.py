"""What the scripts of this folder share: loaders in turn, each in a process of its own, timed with what they use up.

A loader runs in its own process because the others would disturb it: their threads want the same interpreter, and
processor time could not be told apart. The parent lets one run at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu"))
from _common import Outcome, Report, Variant, arguments, devices, rounds, storage_gb_per_s, wanted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from multiprocessing.process import BaseProcess

    import numpy.typing as npt

__all__ = [
    "Contest",
    "Loop",
    "Outcome",
    "Report",
    "devices",
    "feed_arguments",
    "in_process",
    "storage_gb_per_s",
    "wanted",
]

Answer = TypeVar("Answer")

_START_S = 120.0
_RUN_S = 300.0
_CLOSE_S = 10.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def feed_arguments(text: str | None, **whole_numbers: tuple[int, str]) -> argparse.Namespace:
    """Return the arguments of a script: those of all figures, and `--quick`, which is what `--smoke` is there.

    Args:
        text: The script's own.
        **whole_numbers: Name to default and help.
    """
    sys.argv = ["--smoke" if word == "--quick" else word for word in sys.argv]
    given = arguments(text, **whole_numbers)
    given.quick = given.smoke
    return given


def as_numpy(batch: Any) -> npt.NDArray[Any]:
    """Return a batch on the host, wherever it is."""
    found: npt.NDArray[Any] = np.asarray(batch.cpu() if hasattr(batch, "cpu") else batch)
    return found


class Loop:
    """Batches of an endless iterator, each taken and let go of.

    Args:
        batches: Gives them; anything that NumPy can read.
        expected: The first of them.
        close: Lets go of workers.
        use: What is done with a batch.
        settle: Waits at the end of a run for what `use` has begun.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        expected: npt.NDArray[Any],
        close: Callable[[], None] = lambda: None,
        use: Callable[[Any], object] = lambda _: None,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self._batches = batches
        self._settle = settle
        self._use = use
        self.close = close
        first = as_numpy(next(batches))
        if first.shape != expected.shape or first.dtype != expected.dtype or not np.array_equal(first, expected):
            raise AssertionError(f"its first batch is not the right one: {first.dtype} {first.shape}")

    def run(self, steps: int) -> None:
        """As in `Variant`."""
        batches, use = self._batches, self._use
        for _ in range(steps):
            use(next(batches))
        self._settle()


def _parents() -> dict[int, tuple[int, float]]:
    """Return parent and processor time of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def descendants(root: int) -> dict[int, float]:
    """Return the processes below `root` and the processor time of each."""
    everyone = _parents()
    family: dict[int, float] = {}
    fresh = [root]
    while fresh:
        fresh = [number for number, (parent, _) in everyone.items() if parent in fresh and number not in family]
        family.update((number, everyone[number][1]) for number in fresh)
    return family


def processor_s() -> float:
    """Return the processor time of this process, of its children that have ended and of those that run."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + sum(descendants(os.getpid()).values())


def _serve(connection: Connection, make: partial[Variant]) -> None:
    """Make a loader and run it as the parent says, until it says no more or is gone."""
    os.setpgid(0, 0)  # what it leaves behind can be ended together
    with suppress(EOFError, BrokenPipeError):
        try:
            _run_as_told(connection, make())
            connection.send(None)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - a peer that is not installed is a row of the table
            connection.send(f"{type(error).__name__}: {error}".strip())


def _run_as_told(connection: Connection, variant: Variant) -> None:
    connection.send(None)
    try:
        while (steps := connection.recv()) is not None:
            used, began = processor_s(), time.perf_counter()
            variant.run(steps)
            wall = time.perf_counter() - began
            connection.send((wall, processor_s() - used))
    finally:
        variant.close()


def in_process(call: partial[Answer]) -> Answer:
    """Return what a call returns in a fresh process of its own.

    Raises:
        RuntimeError: It raised, or its process ended or took too long.
    """
    connection, process = _fresh(_answer_once, call)
    try:
        found: Answer = _received(connection, _RUN_S)
    finally:
        _end(process)
    return found


def _answer_once(connection: Connection, call: partial[Any]) -> None:
    os.setpgid(0, 0)
    try:
        connection.send(call())
    except Exception as error:  # noqa: BLE001 - as above
        connection.send(f"{type(error).__name__}: {error}".strip())


def _fresh(target: Callable[..., None], argument: Any) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=target, args=(other, argument))
    process.start()
    other.close()
    return connection, process


def _received(connection: Connection, within_s: float) -> Any:
    """Return the other side's answer; text is what it raised."""
    if not connection.poll(within_s):
        raise RuntimeError(f"no answer in {within_s:.0f} s")
    try:
        answer = connection.recv()
    except EOFError:
        raise RuntimeError("its process ended") from None
    if isinstance(answer, str):
        raise RuntimeError(answer)  # noqa: TRY004 - see above
    return answer


def _end(process: BaseProcess) -> None:
    """End a process and all that it started."""
    process.join(1)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join(_CLOSE_S)


class Remote:
    """A loader in a process of its own, as a `Variant`.

    Args:
        make: Makes the loader there.
        warm: Steps before each timed run, which use up what it has made ahead.

    Attributes:
        used_s: Processor time of each timed step, one figure a run: of the process and all below it.
    """

    def __init__(self, make: partial[Variant], warm: int) -> None:
        self._connection, self._process = _fresh(_serve, make)
        self._warm = warm
        self.used_s: list[float] = []

    def ready(self) -> Remote:
        """Wait until the loader is made."""
        try:
            _received(self._connection, _START_S)
        except Exception:
            _end(self._process)
            raise
        return self

    def _order(self, steps: int) -> Any:
        self._connection.send(steps)
        return _received(self._connection, _RUN_S)

    def run(self, steps: int) -> float:
        """As in `Variant`."""
        if self._warm:
            self._order(self._warm)
        wall, used = self._order(steps)
        self.used_s.append(used / steps)
        return float(wall)

    def close(self) -> None:
        """As in `Variant`."""
        try:
            self._connection.send(None)
            _received(self._connection, _CLOSE_S)
        finally:
            self.end()

    def end(self) -> None:
        """End the process and all that it started."""
        _end(self._process)


@dataclass
class Contest:
    """Loaders, each with several settings; all take turns in every round.

    Attributes:
        makers: Name of a loader to setting to what makes it.
        ours: How the names of our own loaders begin.
        outcomes: What each setting gave, by loader, the best first.
    """

    makers: Mapping[str, Mapping[str, partial[Variant]]]
    ours: str = "Feed"
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)

    def hold(self, given: argparse.Namespace, *, count: int, steps: int, warm: int, together: bool = False) -> None:
        """Let all run, `count` rounds of `steps` steps.

        Args:
            given: The arguments of the script.
            count: Rounds.
            steps: Steps that are timed together.
            warm: As in `Remote`.
            together: Whether all are started at the same time, which is sooner where there are many processors.
        """
        chosen = wanted(list(self.makers), given.only)
        makers = {(name, setting): make for name in chosen for setting, make in self.makers[name].items()}
        named: dict[str, Callable[[], Variant]] = {}
        for (name, setting), make in makers.items():
            key = f"{name}\n{setting}"
            named[key] = Remote(make, warm).ready if together else partial(_started, make, warm)
        for outcome in rounds(named, count=count, steps=steps, warm=0, seconds=given.seconds, finish=_add_used):
            name, _, setting = outcome.name.partition("\n")
            outcome.name = f"{name}: {setting}"
            outcome.extra["setting"] = setting
            self.outcomes.setdefault(name, []).append(outcome)
        for found in self.outcomes.values():
            found.sort(key=lambda outcome: outcome.median_s if outcome.seconds else float("inf"))

    def best(self) -> dict[str, Outcome]:
        """Return the fastest setting of each loader that ran."""
        return {name: found[0] for name, found in self.outcomes.items() if found[0].seconds}

    def all(self, *, ours: bool) -> list[Outcome]:
        """Return every setting that ran, of our loaders or of the others."""
        return [
            outcome
            for name, found in self.outcomes.items()
            for outcome in found
            if outcome.seconds and name.startswith(self.ours) == ours
        ]

    def keep(self, report: Report) -> None:
        """Put all figures into the JSON."""
        report.keep([outcome for found in self.outcomes.values() for outcome in found])


def _started(make: partial[Variant], warm: int) -> Remote:
    return Remote(make, warm).ready()


def _add_used(variant: Variant, outcome: Outcome) -> None:
    if isinstance(variant, Remote) and variant.used_s:
        outcome.extra["used_s"] = statistics.median(variant.used_s)


def other_settings(found: Sequence[Outcome], figure: Callable[[Outcome], str]) -> str:
    """Return what each setting reached, the best first, in one line."""
    parts = [f"{one.extra['setting']} {figure(one)}" for one in found if one.seconds]
    failed = [f"{one.extra['setting']} {one.note}" for one in found if not one.seconds]
    return "; ".join([*parts, *failed])
