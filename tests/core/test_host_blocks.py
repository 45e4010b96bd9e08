"""The pages behind host memory: who keeps them, who is told when the last view is gone, who else may map them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interlock._core._memory import HostBlock
from interlock.errors import UsageError
from interlock.lowlevel import HostMemory

DESCRIPTORS = Path("/proc/self/fd")
shared_memory = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs shared memory without a name")


def test_the_end_of_the_last_view_is_told_once_and_the_pages_are_still_there():
    ended: list[HostBlock] = []
    block = HostBlock.map(100, "host")
    memory = block.memory("host", on_device=False, ended=ended.append)
    array = np.frombuffer(memory.slice(10, 20).view(), np.uint8)[3:5]
    array[:] = 7
    del memory
    gc.collect()
    assert not ended, "an array still lies in it"
    del array
    assert ended == [block]
    again = block.memory("host", on_device=False)
    assert bytes(again.view()[12:16]) == b"\x00\x07\x07\x00"


def test_memory_made_of_the_same_pages_again_is_another_allocation():
    block = HostBlock.map(100, "host")
    first, second = block.memory("host", on_device=False), block.memory("host", on_device=False)
    assert first.address == second.address
    assert first.region.allocation != second.region.allocation


@shared_memory
def test_shared_memory_is_seen_by_who_attaches_it_and_outlives_its_maker():
    memory = HostMemory.allocate(5000, "host", on_device=False, shared=True)
    there = HostMemory.attach(memory.fd, 5000, "host")
    memory.view()[4990:] = b"0123456789"
    del memory
    gc.collect()
    assert bytes(there.view()[4990:]) == b"0123456789"


@shared_memory
def test_the_descriptor_is_closed_with_the_last_view():
    memory = HostMemory.allocate(100, "host", on_device=False, shared=True)
    fd, view = memory.fd, memory.view()
    del memory
    assert os.fstat(fd).st_size == 100
    del view
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@shared_memory
def test_a_program_that_is_run_does_not_inherit_the_descriptor():
    memory = HostMemory.allocate(100, "host", on_device=False, shared=True)
    text = f"import os\ntry:\n    os.fstat({memory.fd})\nexcept OSError:\n    print('closed')"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, close_fds=False)
    assert found.stdout == "closed\n"


@shared_memory
def test_more_than_is_shared_cannot_be_attached():
    memory = HostMemory.allocate(4096, "host", on_device=False, shared=True)
    with pytest.raises(UsageError, match="cannot attach 8192 bytes"):
        HostMemory.attach(memory.fd, 8192, "host")


def test_what_is_no_descriptor_of_memory_cannot_be_attached():
    for descriptor in (10**6, -1):
        with pytest.raises(UsageError, match="cannot attach"):
            HostMemory.attach(descriptor, 4096, "host")


@shared_memory
def test_an_impossible_amount_of_shared_memory_is_a_memory_error_and_leaves_no_descriptor():
    before = len(list(DESCRIPTORS.iterdir()))
    with pytest.raises(MemoryError, match="memory for host"):
        HostMemory.allocate(1 << 62, "host", on_device=False, shared=True)
    assert len(list(DESCRIPTORS.iterdir())) == before
