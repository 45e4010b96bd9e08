"""The shipped suite on a real CUDA device, and what a real driver must do; `fake` is the twin of each test."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from interlock._core._spans import listen
from interlock.devices._cuda import CudaDevice
from interlock.errors import DeviceError
from interlock.lowlevel import Device, Fence, HostMemory, Memory, wait
from interlock.testing import DeviceConformance, gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAKE_DRIVER = Path(__file__).parents[1] / "devices" / "fake_driver.py"
MB = 1 << 20


class TestCudaDevice(DeviceConformance):
    """Its twin is in tests/devices."""

    @pytest.fixture
    def device(self, cuda: CudaDevice) -> Device:
        return CudaDevice(cuda.index)  # a fresh one, since a stream that failed stays so


def done(fence: Fence) -> None:
    wait(fence, timeout_s=20, what="the program")


def host(device: CudaDevice, content: bytes) -> HostMemory:
    memory = device.allocate_host(len(content))
    memory.view()[:] = content
    return memory


def read(device: CudaDevice, memory: Memory) -> bytes:
    out, stream = device.allocate_host(memory.size_bytes), device.stream("read")
    device.copy(out, memory, stream)
    done(device.record(stream))
    return bytes(out.view())


# ------------------------------------------------------------ memory


def test_pinned_memory_of_the_same_size_is_used_again_once_its_last_view_is_gone(cuda_or_fake: CudaDevice):
    memory = cuda_or_fake.allocate_host(3 * MB)
    address, view = memory.address, np.frombuffer(memory.slice(10, 20).view(), np.uint8)
    del memory
    other = cuda_or_fake.allocate_host(3 * MB)
    assert other.address != address, "an array still lies in it"
    del view
    assert cuda_or_fake.allocate_host(3 * MB + 1).address != address
    assert cuda_or_fake.allocate_host(3 * MB).address == address


@pytest.mark.parametrize("size_bytes", [1, 255, 4097])
def test_device_memory_is_aligned_as_kernels_of_frameworks_expect(cuda_or_fake: CudaDevice, size_bytes: int):
    assert all(cuda_or_fake.allocate(size_bytes).address % 256 == 0 for _ in range(4))


def test_device_memory_that_is_too_much_is_a_memory_error_and_nothing_else_is_lost(cuda_or_fake: CudaDevice):
    with pytest.raises(MemoryError, match=r"cuda:0 has no .* bytes: [\d,]+ of [\d,]+ bytes are free; make batches"):
        cuda_or_fake.allocate(1 << 50)
    memory = cuda_or_fake.allocate(4)
    cuda_or_fake.copy(memory, host(cuda_or_fake, b"fine"), cuda_or_fake.stream("one"))
    done(cuda_or_fake.record(cuda_or_fake.stream("one")))
    assert read(cuda_or_fake, memory) == b"fine"


def test_a_wrapped_memorys_owner_lives_until_the_copy_is_done(cuda_or_fake: CudaDevice):
    class Owner:
        pass

    device, stream, out = cuda_or_fake, cuda_or_fake.stream("one"), cuda_or_fake.allocate_host(4)
    memory = device.allocate(4)
    device.copy(memory, host(device, b"mine"), stream)
    done(device.record(stream))
    owner = Owner()
    alive = weakref.ref(owner)
    with gate(stream, device=device):
        device.copy(out, device.wrap(memory.address, 4, owner), stream)
        del owner
        fence = device.record(stream)
        assert not fence.poll()
        assert alive() is not None
    done(fence)
    assert alive() is None
    assert bytes(out.view()) == b"mine"


def test_a_child_process_writes_into_shared_memory_and_the_bytes_arrive(cuda_or_fake: CudaDevice):
    shared = cuda_or_fake.allocate_host(2 * MB, shared=True)
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(shared.fd), str(shared.size_bytes)],
        pass_fds=[shared.fd],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    memory, stream = cuda_or_fake.allocate(shared.size_bytes), cuda_or_fake.stream("one")
    cuda_or_fake.copy(memory, shared, stream)
    done(cuda_or_fake.record(stream))
    assert read(cuda_or_fake, memory) == bytes(range(256)) * (2 * MB // 256)
    assert cuda_or_fake.host_syncs == 0


_CHILD = """
import sys
from interlock.lowlevel import HostMemory
memory = HostMemory.attach(int(sys.argv[1]), int(sys.argv[2]), "cuda:0")
memory.view()[:] = bytes(range(256)) * (memory.size_bytes // 256)
"""


def test_a_spawned_worker_gets_shared_memory_by_its_descriptor(cuda_or_fake: CudaDevice):
    """As a pool of processes does it: the descriptor travels over the connection."""
    shared = cuda_or_fake.allocate_host(4096, shared=True)
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=_write_shared, args=(multiprocessing.reduction.DupFd(shared.fd), 4096))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert bytes(shared.view()) == b"\x07" * 4096


def _write_shared(duplicate: Any, size_bytes: int) -> None:
    HostMemory.attach(duplicate.detach(), size_bytes, "cuda:0").view()[:] = b"\x07" * size_bytes


# ------------------------------------------------------------ streams


def test_a_pipeline_of_copies_makes_no_host_thread_wait(cuda_or_fake: CudaDevice):
    device, rounds = cuda_or_fake, 40
    into, back = device.stream("into"), device.stream("back")
    slots = [(device.allocate_host(MB), device.allocate(MB), device.allocate_host(MB)) for _ in range(3)]
    landed = [Fence.EMPTY] * 3
    for number in range(rounds):
        staging, memory, out = slots[number % 3]
        done(landed[number % 3])
        if number >= 3:
            assert bytes(out.view()[:4]) == (number - 3).to_bytes(4, "little")
        staging.view()[:4] = number.to_bytes(4, "little")
        device.copy(memory, staging, into)
        device.wait(back, device.record(into))
        device.copy(out, memory, back)
        landed[number % 3] = device.record(back)
    done(Fence.EMPTY.join(*landed))
    assert device.host_syncs == 0


def test_a_gate_holds_a_stream_and_copies_behind_it(cuda_or_fake: CudaDevice):
    device, stream = cuda_or_fake, cuda_or_fake.adopt(0)
    memory, out = device.allocate(4), host(device, b"old!")
    device.copy(memory, host(device, b"new!"), stream)
    with gate(stream, device=device):
        device.copy(out, memory, stream)
        fence = device.record(stream)
        assert not any(fence.poll() for _ in range(200))
        assert bytes(out.view()) == b"old!"
    done(fence)
    assert bytes(out.view()) == b"new!"


def test_an_adopted_default_stream_is_ordered_with_our_own(cuda_or_fake: CudaDevice):
    device, own = cuda_or_fake, cuda_or_fake.stream("own")
    memory, out, source = device.allocate(4), device.allocate_host(4), host(device, b"step")
    for handle in (0, 2):
        theirs = device.adopt(handle)
        with gate(own, device=device):
            device.copy(memory, source, own)
            device.wait(theirs, device.record(own))
            device.copy(out, memory, theirs)
            fence = device.record(theirs)
            assert not fence.poll()
        done(fence)
        assert bytes(out.view()) == b"step"
        out.view()[:] = bytes(4)


@pytest.fixture
def spans() -> Iterator[list[Any]]:
    found: list[Any] = []
    remove = listen(found.append)
    yield found
    remove()


def test_copies_show_in_a_trace_within_the_time_that_the_host_saw(spans: list[Any], cuda_or_fake: CudaDevice):
    device, stream = cuda_or_fake, cuda_or_fake.stream("feed")
    memory, source = device.allocate(8 * MB), device.allocate_host(8 * MB)
    start = time.perf_counter_ns()
    device.copy(memory, source, stream)
    done(device.record(stream))
    end = time.perf_counter_ns()
    done(device.unreported())
    device.report_due()
    (span,) = (span for span in spans if span.track == "cuda:0/feed")
    assert (span.name, span.size_bytes) == ("copy in", 8 * MB)
    slack = 1_000_000
    assert start - slack <= span.start_ns <= span.end_ns <= end + slack


# ------------------------------------------------------------ several devices


def test_two_devices_hand_a_batch_on_without_the_host(two_cuda_or_fake: tuple[CudaDevice, CudaDevice]):
    one, other = two_cuda_or_fake
    first, second = one.allocate(MB), other.allocate(MB)
    out, content = other.allocate_host(MB), bytes(range(256)) * (MB // 256)
    source = host(one, content)
    held = gate(one.stream("ours"), device=one)
    one.copy(first, source, one.stream("ours"))
    other.wait(other.stream("theirs"), one.record(one.stream("ours")))
    other.copy(second, first, other.stream("theirs"))
    other.copy(out, second, other.stream("theirs"))
    fence = other.record(other.stream("theirs"))
    assert not any(fence.poll() for _ in range(50))
    held.open()
    done(fence)
    assert bytes(out.view()) == content
    assert (one.host_syncs, other.host_syncs) == (0, 0)


def test_memory_pinned_by_one_device_is_as_good_for_the_other(two_cuda_or_fake: tuple[CudaDevice, CudaDevice]):
    one, other = two_cuda_or_fake
    memory = other.allocate(4)
    other.copy(memory, host(one, b"both"), other.stream("one"))
    done(other.record(other.stream("one")))
    assert read(other, memory) == b"both"
    assert other.host_syncs == 0


# ------------------------------------------------------------ processes


_OPEN = """
import atexit, importlib.util, os, sys
from interlock._core._fence import Fence
from interlock.devices._cuda import CudaDevice
from interlock.errors import DeviceError
from interlock.lowlevel import HostTimeline, wait
def make():
    if not sys.argv[1]:
        return CudaDevice()
    spec = importlib.util.spec_from_file_location("fake_driver", sys.argv[1])
    module = sys.modules["fake_driver"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    driver = module.FakeDriver()
    atexit.register(lambda: print("pending", driver.pending))
    return CudaDevice(driver=driver)
def fill(device, rounds=20, size=32 << 20):
    stream = device.stream("copy")
    for _ in range(rounds):
        device.copy(device.allocate(size), device.allocate_host(size), stream)
    return stream
"""

_FORK = """
device = make()
stream, memory, source = device.stream("one"), device.allocate(64), device.allocate_host(64)
device.copy(memory, source, stream)
fence = device.record(stream)
child = os.fork()
if child == 0:
    uses = [lambda: device.copy(memory, source, stream), lambda: device.record(stream), lambda: device.allocate(4),
            lambda: device.allocate_host(4), lambda: device.stream("two"), lambda: device.wait(stream, Fence.EMPTY),
            lambda: wait(device_fence, timeout_s=5, what="the copy")]
    device_fence = Fence([(stream, 10 ** 6)])
    refused = 0
    for use in uses:
        try:
            use()
        except DeviceError as error:
            refused += "spawn" in str(error) or "fork" in str(error)
    del memory, source
    os._exit(0 if refused == len(uses) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
wait(fence, timeout_s=10, what="the copy")
wait(device.record(stream), timeout_s=10, what="the parent's work")
"""

_EXITS = {
    "pending copies": "device = make(); fill(device, 4, 1 << 20)",
    "pending copies that are recorded": "device = make(); device.record(fill(device, 4, 1 << 20))",
    "pending and everything dropped": "device = make(); fill(device, 4, 1 << 20); del device",
    "held back for ever": """
device = make()
gate = HostTimeline("gate")
device.wait(device.stream("copy"), Fence([(gate, gate.next_tick())]))
fill(device, 4, 1 << 20)
""",
    "used by another hook": """
device = make()
atexit.register(lambda: wait(device.record(fill(device, 2, 1 << 20)), timeout_s=10, what="the last copy"))
fill(device, 4, 1 << 20)
""",
    "used by a hook that comes before": """
import interlock.devices._cuda
atexit.register(lambda: wait(device.record(fill(device, 2, 1 << 20)), timeout_s=10, what="the last copy"))
device = make()
""",
    "an exception": """
device = make()
fill(device, 4, 1 << 20)
raise SystemExit(0)
""",
    "live views": """
import numpy
device = make()
memory = device.allocate_host(1 << 20)
sys.modules["kept for ever"] = numpy.frombuffer(memory.view(), "uint8")
fill(device, 4, 1 << 20)
""",
}


@pytest.fixture(params=["fake", "real"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program whose `make()` opens a device."""
    if request.param == "real":
        request.getfixturevalue("cuda")
    driver = str(FAKE_DRIVER) if request.param == "fake" else ""

    def run(text: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(_OPEN + text)
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(path), driver]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_a_forked_child_is_told_to_use_spawn_and_the_parent_goes_on(program):
    found = program(_FORK)
    assert (found.returncode, found.stdout[:2], found.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("text", _EXITS.values(), ids=_EXITS)
def test_a_process_ends_cleanly(program, text: str):
    found = program(text)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout in {"pending 0\n", ""}, "the driver had work left when the interpreter ended"


def test_a_lost_context_is_told_with_its_cause_and_nothing_hangs(cuda: CudaDevice, tmp_path: Path):
    """The twin is in tests/devices; here a kernel really goes astray, in a process of its own."""
    pytest.importorskip("torch")
    path = tmp_path / "program.py"
    path.write_text(_OPEN + _ASTRAY)
    found = subprocess.run(
        [sys.executable, str(path), ""], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path
    )
    assert "lost as it should be" in found.stdout, found.stderr
    assert cuda.record(cuda.stream("elsewhere")).points, "this process goes on"


_ASTRAY = """
import torch
device = make()
stream, memory, source = device.stream("one"), device.allocate(64), device.allocate_host(64)
values, index = torch.zeros(8, device="cuda"), torch.tensor([1 << 20], device="cuda")
torch.cuda.synchronize()
try:
    values[index]   # an assertion on the device
    device.wait(stream, device.record(device.adopt(0)))
    device.copy(memory, source, stream)
    wait(device.record(stream), timeout_s=10, what="the copy")
    wait(device.record(device.adopt(0)), timeout_s=10, what="the kernel")
except DeviceError as error:
    assert "is lost" in str(error) and "CUDA_ERROR_" in str(error), str(error)
    try:
        device.record(stream)
    except DeviceError:
        print("lost as it should be", flush=True)
os._exit(0)
"""


def test_a_graph_is_captured_while_another_thread_copies_and_polls(cuda: CudaDevice):
    """The twin is in tests/devices."""
    torch = pytest.importorskip("torch")
    device, stream = CudaDevice(cuda.index), None
    stream = device.stream("busy")
    memory, source = device.allocate(4096), device.allocate_host(4096)
    value = torch.ones(8, device="cuda")
    stop, errors = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            try:
                device.copy(memory, source, stream)
                device.record(stream).poll()
                device.allocate_host(8192)
            except DeviceError as error:
                errors.append(error)
                return

    thread = threading.Thread(target=work)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2000):
            value = value * 1.0
        doubled = value * 2
    graph.replay()
    torch.cuda.synchronize()
    stop.set()
    thread.join()
    assert not errors
    assert doubled.cpu().tolist() == [2.0] * 8
