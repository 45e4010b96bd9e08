"""How JAX gets memory of a device, and how a process ends although XLA holds some: what needs no device to be seen."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import pytest

from interlock.errors import UsageError
from interlock.frameworks import _jax_imports
from interlock.frameworks._jax_imports import Holder, Imports
from interlock.lowlevel import Fence, HostMemory


class StreamsOnly:
    """A device that notes which stream was told to wait."""

    index = 3

    def __init__(self) -> None:
        self.waits: list[tuple[int, Fence]] = []

    def adopt(self, handle: int) -> Any:
        return handle

    def wait(self, stream: Any, fence: Fence) -> None:
        self.waits.append((stream, fence))


class View:
    """What cuda.core exports, as far as it is asked here."""

    def __dlpack__(self, *, stream: int) -> str:
        return f"capsule, stream {stream}"


@pytest.mark.parametrize(("given", "waits"), [(0x7000, [0x7000]), (1, [1]), (None, [1]), (-1, [])])
def test_the_stream_that_jax_names_waits_for_the_copy_and_the_host_does_not(given: int | None, waits: list[int]):
    """No stream means the legacy default one; -1 that the consumer orders its reads itself."""
    device = StreamsOnly()
    export = _jax_imports._Export(device, Fence.EMPTY, View())
    assert export.__dlpack_device__() == (2, 3)
    assert export.__dlpack__(stream=given, max_version=(1, 0)) == "capsule, stream -1"
    assert device.waits == [(handle, Fence.EMPTY) for handle in waits]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    memory = HostMemory.allocate(64, "host", on_device=False)
    device: Any = StreamsOnly()
    with pytest.raises(UsageError, match="cuda-core") as caught:
        _jax_imports.import_memory(device, memory, (64,), np.dtype(np.uint8), Fence.EMPTY, Holder(memory, None))
    assert caught.value.hint == "pip install 'interlock[cuda]'"


def test_a_holder_keeps_its_token_and_its_memory_until_the_last_view_has_gone():
    class Token:
        ended = False

        def __del__(self) -> None:
            Token.ended = True

    memory = HostMemory.allocate(256, "host", on_device=False)
    view = np.asarray(Holder(memory.slice(64, 64), Token()))[8:16]
    assert view.ctypes.data == memory.address + 72
    assert not Token.ended
    del view
    assert Token.ended


def _watched(imports: Imports) -> list[Any]:
    memory = HostMemory.allocate(64, "host", on_device=False)
    held = [Holder(memory, None)]
    imports.watch(held[0], device=0, address=memory.address)
    return held


def test_the_end_of_the_process_waits_until_xla_lets_go_after_the_device_is_done(monkeypatch: pytest.MonkeyPatch):
    """The holder goes some time after the third look: no live array has it, so there is no giving up before."""
    imports = Imports()
    held = _watched(imports)
    looks: list[None] = []

    def look(_: Imports) -> None:
        looks.append(None)
        if len(looks) == 5:  # more looks than quiet ones that are enough where only live arrays hold memory
            held.clear()

    monkeypatch.setattr(Imports, "_wait_for_devices", look)
    monkeypatch.setattr(_jax_imports, "_live_addresses", set)
    imports.settle()
    assert (len(looks), imports._held) == (5, {})


def test_what_live_arrays_hold_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch):
    imports = Imports()
    held = _watched(imports)
    addresses = {address for _, address in imports._held.values()}
    looks: list[None] = []

    def look(_: Imports) -> None:
        looks.append(None)

    monkeypatch.setattr(Imports, "_wait_for_devices", look)
    monkeypatch.setattr(_jax_imports, "_live_addresses", lambda: addresses)
    imports.settle()
    assert len(imports._held) == len(held) == 1
    assert len(looks) <= 20


def test_a_fork_waits_for_nothing_that_its_parent_lent(monkeypatch: pytest.MonkeyPatch):
    """It has the memory that XLA holds, but none of the threads that would let go of it."""
    after_in_child: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: after_in_child.append(hooks["after_in_child"]))
    imports = Imports()
    held = _watched(imports)
    after_in_child[0]()
    monkeypatch.setattr(Imports, "_wait_for_devices", lambda _: pytest.fail("waited"))
    imports.settle()
    assert held


def test_a_thread_that_is_left_over_at_the_end_lends_nothing_more():
    imports = Imports()
    imports._end()
    passed: list[None] = []

    def lend() -> None:
        imports.watch(Holder(HostMemory.allocate(64, "host", on_device=False), None))
        passed.append(None)

    thread = threading.Thread(target=lend, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert not passed
    imports.watch(Holder(HostMemory.allocate(64, "host", on_device=False), None))  # the main thread may
