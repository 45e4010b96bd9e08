"""What worker processes are given when they start."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading

import numpy as np
import pytest

from interlock import Feed

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no shared memory without a name")


class Numbers:
    """Samples by number. Says how often it was packed for another process."""

    def __init__(self):
        self.packed = 0

    def __getstate__(self):
        self.packed += 1
        return {"packed": self.packed}

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return np.array([index, os.getpid()])


class Locked(Numbers):
    """Has a lock that can be sent only to a process that is being started."""

    def __init__(self):
        super().__init__()
        self.lock = multiprocessing.get_context("spawn").Lock()

    def __getstate__(self):
        return {**super().__getstate__(), "lock": self.lock}

    def __getitem__(self, index):
        with self.lock:
            return super().__getitem__(index)


class Opening:
    """Opens something when it is first needed; what is open cannot be packed."""

    def __init__(self):
        self.opened = None

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.opened = self.opened or threading.Lock()
        with self.opened:
            return np.array([index, os.getpid()])


class Tensors:
    """Has a tensor, which `multiprocessing` sends as a descriptor."""

    def __init__(self):
        self.rows = importlib.import_module("torch").arange(64)  # other workers need no torch

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return np.array([int(self.rows[index]), os.getpid()])


def read(source, workers):
    with Feed(source, batch_size=2, workers=workers, depth=8) as feed:
        rows = np.concatenate(list(feed))
    return rows[:, 0].tolist(), set(rows[:, 1].tolist()) - {os.getpid()}


def test_workers_that_start_together_have_their_source_packed_once():
    source = Numbers()
    numbers, workers = read(source, "processes:3")
    assert numbers == list(range(64))
    assert workers
    assert source.packed == 1


def test_a_source_with_a_lock_goes_to_a_worker_with_its_process():
    numbers, workers = read(Locked(), "processes:2")
    assert numbers == list(range(64))
    assert workers


def test_a_source_that_opens_files_when_they_are_needed_can_be_sent_though_it_was_read_here_first():
    source = Opening()
    with Feed(source, batch_size=2, workers="processes:2") as feed:
        first = np.concatenate(list(feed))
        assert source.opened is not None
        for process in multiprocessing.active_children():
            process.kill()
        second = np.concatenate(list(feed))  # and those that replace others can have it
    assert first[:, 0].tolist() == second[:, 0].tolist() == list(range(64))
    assert not set(first[:, 1]) & set(second[:, 1]) - {os.getpid()}


def test_a_source_with_tensors_goes_to_any_number_of_workers():
    numbers, workers = read(Tensors(), "processes:2")
    assert numbers == list(range(64))
    assert workers
