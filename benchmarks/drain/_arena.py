"""Runs a writer in a process of its own, and measures its time and memory there."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "feed"))
from _contest import _end, _received, descendants, processor_s
from _rows import Rows, Workload

if TYPE_CHECKING:
    from functools import partial
    from multiprocessing.connection import Connection

    from _writers import Writer

_START_S = 120.0
_RUN_S = 300.0
_SAMPLE_S = 0.1
_SYNC_THREADS = 4


@dataclass(frozen=True)
class Order:
    """One run.

    Attributes:
        workload: The rows.
        place: Where to make the folder.
        model_s: As in `Rows`.
        read: Whether all rows are read back and looked at; else only their bytes are counted.
    """

    workload: Workload
    place: Path
    model_s: float = 0.0
    read: bool = True


@dataclass(frozen=True)
class Run:
    """What one run took.

    Attributes:
        wall_s: From the first step until the files were complete.
        sync_s: Until they were all on the storage, beyond that.
        used_s: Processor time until the files were complete, making the rows included.
        peak_bytes: Most memory in use during the run, less what was in use before.
        synced: Whether the writer had brought all to the storage by itself.
    """

    wall_s: float
    sync_s: float
    used_s: float
    peak_bytes: int
    synced: bool


def import_early(modules: list[str]) -> None:
    """Have these imported once, in the process that contestants are forked off; what is not installed is left out."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)


class Contestant:
    """A writer in a process of its own.

    All are forked off one process that imports what they need once: so a fresh one takes no seconds to start.

    Args:
        make: Makes the writer there.
    """

    def __init__(self, make: partial[Writer]) -> None:
        context = multiprocessing.get_context("forkserver")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make))
        self._process.start()
        other.close()
        try:
            _received(self._connection, _START_S)
        except Exception:
            self.end()
            raise

    def run(self, order: Order) -> Run:
        """Let it write once.

        Raises:
            RuntimeError: It failed, or what it wrote is not what it was given.
        """
        self._connection.send(order)
        found: Run = _received(self._connection, _RUN_S)
        return found

    def end(self) -> None:
        """End the process and all that it started."""
        with suppress(OSError, RuntimeError, EOFError):
            self._connection.send(None)
            self._connection.poll(10)
        _end(self._process)


def _serve(connection: Connection, make: partial[Writer]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        writer = make()
        connection.send(None)
        while (order := connection.recv()) is not None:
            connection.send(_measured(writer, order))
        writer.close()
        connection.send(None)
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # noqa: BLE001 - a peer that is not installed, or fails, is a row of the table
        with suppress(BrokenPipeError):
            connection.send(f"{type(error).__name__}: {error}".strip())


def _measured(writer: Writer, order: Order) -> Run:
    _one(writer, Order(order.workload.tiny(), order.place))
    return _one(writer, order)


def _one(writer: Writer, order: Order) -> Run:
    rows = Rows(order.workload, order.model_s)
    folder = Path(tempfile.mkdtemp(prefix="interlock-benchmark-", dir=order.place))
    try:
        gc.collect()
        with _Peak() as peak:
            used_s = processor_s()
            writer.write(rows, folder)
            written_s, used_s = time.perf_counter(), processor_s() - used_s
        sync_s = _sync_all(folder)
        _check(writer, order, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Run(written_s - rows.began_s, sync_s, used_s, peak.bytes, writer.synced)


class _Peak:
    """Measures the most memory in use while a block runs, less what was in use before.

    Of one process the system keeps that figure (`VmHWM`), and forgets it when told to. Where a writer has processes of
    its own, their shares (`Pss`) are added up ten times a second. The page cache does not count.
    """

    bytes = 0

    def __enter__(self) -> Self:
        self._family = bool(descendants(os.getpid()))
        self._ended = threading.Event()
        Path("/proc/self/clear_refs").write_text("5", "ascii")
        self._before = _family_bytes() if self._family else _status_bytes("VmRSS")
        self._most = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if self._family:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._family:
            self._thread.join()
        self.bytes = max(0, (self._most if self._family else _status_bytes("VmHWM")) - self._before)

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._most = max(self._most, _family_bytes())


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) << 10


def _family_bytes() -> int:
    total = 0
    for number in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError, StopIteration):  # it ended meanwhile
            lines = Path(f"/proc/{number}/smaps_rollup").read_text("ascii").splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    return total


def _sync_all(folder: Path) -> float:
    """Return how long it takes until every file is on the storage, by four threads."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(_sync, [path for path in folder.rglob("*") if path.is_file()]))
    return time.perf_counter() - began_s


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _check(writer: Writer, order: Order, folder: Path) -> None:
    """Look at what was written.

    Raises:
        AssertionError: Rows are missing, there twice, or have other values than they were given.
    """
    workload = order.workload
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size_bytes < workload.run_bytes:
        raise AssertionError(f"there are {size_bytes:,} bytes, and the rows have {workload.run_bytes:,}")
    if order.read and not np.array_equal(np.sort(writer.read(folder, workload)), np.arange(workload.rows)):
        raise AssertionError("the ids in the files are not those of the rows")
