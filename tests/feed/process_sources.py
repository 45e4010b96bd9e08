"""Sources that worker processes can import, for `test_processes.py`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from interlock.errors import SourceError


class Pair(NamedTuple):
    """A sample with parts."""

    x: np.ndarray
    y: int


class Picky:
    """Samples by index: a dict with a named tuple in it. Some raise, each in a way of its own."""

    def __init__(self, length=40, bad=()):
        self.length = length
        self.bad = frozenset(bad)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad and index % 3 == 0:
            raise ValueError(f"bad apple {index}")
        if index in self.bad and index % 3 == 1:
            raise SourceError(f"file {index} is cut", why="it ends early", hint="fetch it again")
        values = np.full((2, 3), index, np.float32)
        return {"x": values[:1] if index in self.bad else values, "pair": Pair(np.full(4, index), index)}

    def id_of(self, index):
        return f"name {index}"


class Bulk(Picky):
    """Also many at once."""

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"bad apple {index}")
        return np.full(5, index)

    def read_into(self, indices, out):
        for row, index in enumerate(indices):
            out[row] = self[int(index)]


class Leaky(Bulk):
    """Cannot write many samples at once, and says so in the worst way."""

    def read_into(self, indices, out):
        raise StopIteration(indices, out)


class Flaky:
    """Each third sample fails at its first attempt; a folder remembers it over processes."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        mark = self.folder / str(index)
        if index % 3 == 2 and not mark.exists():
            mark.touch()
            raise OSError(f"later {index}")
        return np.int64(index)


class Deadly:
    """Some samples kill the process that reads them, each in a way of its own."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 13:
            os._exit(7)
        return np.full(100, index)


class Once:
    """Sample 77 kills the first process that reads it."""

    def __init__(self, folder):
        self.mark = Path(folder) / "mark"

    def __len__(self):
        return 96

    def __getitem__(self, index):
        if index == 77 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(100, index)


class AllDeadly(Deadly):
    """No sample but the first can be read."""

    def __getitem__(self, index):
        if index:
            os._exit(3)
        return np.full(100, index)


class Slow:
    """A sample takes some milliseconds."""

    def __init__(self, length=200):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.full(1000, index)


class Hanging:
    """From the second sample on it hangs, and cannot be asked to end."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        return np.int64(index)


class Owner:
    """Says which process made a sample."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.array([index, os.getpid()])


class Exhausted:
    """Sample 3 lets a `StopIteration` out, as of a `next` of its own."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.int64(index if index != 3 else next(iter(())))


class Quitting:
    """Sample 3 ends the program."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise SystemExit(5)
        return np.int64(index)


def counted(info):
    """End the epoch at 21, and fail at 4."""
    if info.idx_in_epoch >= 21:
        raise StopIteration
    if info.idx_in_epoch == 4:
        raise KeyError("four")
    return np.array([info.idx_in_epoch, info.idx_in_batch, info.iteration, info.epoch_idx])


def filled(info, out):
    """Write into the slot."""
    if info.idx_in_epoch >= 10:
        raise StopIteration
    if out is None:
        return np.full(6, info.idx_in_epoch)
    out[...] = info.idx_in_epoch
    return None


def words(index):
    """Return something ragged."""
    if index == 7:
        raise ValueError("no words")
    return {"tokens": np.arange(index % 5), "text": np.full(index % 4, index, np.uint8)}


class Words:
    """Ragged samples."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return words(index)


def doubled(sample):
    """Be a stage."""
    if sample == 6:
        raise ValueError("six")
    return np.array([sample * 2])


def halves(sample, out=None):
    """Be a last stage that writes into the slot."""
    if out is None:
        return sample / 2
    np.divide(sample, 2, out=out)
    return out
