"""The gate that holds a stream, without a GPU: on a driver made of Python, on the simulated device, in a simulation."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from interlock.devices import stand_in
from interlock.devices._cuda import CudaDevice
from interlock.errors import BoundError, UsageError
from interlock.lowlevel import Device, Fence, Memory, SimulatedDevice, wait
from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Iterator


def host(device: Device, content: bytes) -> Memory:
    memory = device.allocate_host(len(content))
    memory.view()[:] = content
    return memory


def done(fence: Fence) -> None:
    wait(fence, timeout_s=10, what="the program")


@pytest.fixture(params=["simulated", "cuda"])
def device(request: pytest.FixtureRequest, fake_driver: Any) -> Iterator[Device]:
    made: Device = (
        SimulatedDevice("eager") if request.param == "simulated" else CudaDevice(driver=fake_driver.FakeDriver())
    )
    remove = stand_in("cuda", made)
    yield made
    remove()


def test_what_is_queued_under_a_closed_gate_runs_when_it_opens(device: Device):
    stream, memory = device.stream("one"), device.allocate(4)
    device.copy(memory, host(device, b"data"), stream)
    before = device.record(stream)
    out = host(device, b"old!")
    with gate(stream, device=device):
        device.copy(out, memory, stream)
        after = device.record(stream)
        done(before)
        assert not any(after.poll() for _ in range(100))
        assert bytes(out.view()) != b"data"
    done(after)
    assert bytes(out.view()) == b"data"


def test_another_stream_goes_on(device: Device):
    memory, out, source = device.allocate(4), device.allocate_host(4), host(device, b"data")
    with gate(device.stream("held"), device=device):
        device.copy(memory, source, device.stream("free"))
        device.copy(out, memory, device.stream("free"))
        done(device.record(device.stream("free")))
    assert bytes(out.view()) == b"data"


def test_a_gate_may_be_closed_while_another_is(device: Device):
    """Memory for its flag is there already: pinning it would wait for the stream that the other one holds."""
    fences = []
    with gate(device.stream("one"), device=device), gate(device.stream("two"), device=device) as second:
        fences = [device.record(device.stream(name)) for name in ("one", "two")]
        second.open()
        done(fences[1])
        assert not fences[0].poll()
    done(fences[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork", "ignore::pytest.PytestUnraisableExceptionWarning")  # JAX, if it is loaded
def test_a_child_of_a_fork_does_not_open_its_parent_s_gate(device: Device):
    with gate(device.stream("one"), device=device) as held:
        fence = device.record(device.stream("one"))
        child = os.fork()
        if child == 0:
            held.open()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child died of memory that it does not have"
        assert not any(fence.poll() for _ in range(50))
    done(fence)


def test_a_gate_is_opened_by_hand_once_or_more(device: Device):
    held = gate(device.stream("one"), device=device)
    fence = device.record(device.stream("one"))
    states = [held.is_open]
    assert not any(fence.poll() for _ in range(50))
    for _ in range(2):
        held.open()
        states.append(held.is_open)
    assert states == [False, True, True]
    done(fence)


def test_an_exception_opens_it_and_is_what_is_raised(device: Device):
    held = gate(device.stream("one"), device=device)
    fence = device.record(device.stream("one"))
    with pytest.raises(ZeroDivisionError), held:
        raise ZeroDivisionError
    assert held.is_open
    done(fence)


def test_a_gate_that_is_dropped_opens(device: Device):
    held = gate(device.stream("one"), device=device)
    fence = device.record(device.stream("one"))
    del held
    gc.collect()
    done(fence)


def test_a_wait_under_a_closed_gate_ends_and_the_gate_says_why(device: Device):
    with (
        pytest.raises(BoundError, match=r"opened by itself after 0\.05 s.*do not synchronise"),
        gate(device.stream("one"), device=device, timeout_s=0.05),
    ):
        done(device.record(device.stream("one")))


def test_a_gate_leaves_no_thread(device: Device):
    with gate(device.stream("one"), device=device):
        pass
    for thread in threading.enumerate():
        if thread.name == "interlock gate":
            thread.join(5)
            assert not thread.is_alive()


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_gate_without_a_bound_is_refused(device: Device, timeout_s: float):
    with pytest.raises(UsageError):
        gate(device.stream("one"), device=device, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "stream",
    [
        0x77,
        0,
        SimpleNamespace(cuda_stream=0x77, device_index=0),
        SimpleNamespace(ptr=0x77, device_id=0),
        SimpleNamespace(ptr=0x77, device_id=-1),
        SimpleNamespace(__cuda_stream__=lambda: (0, 0x77)),
    ],
    ids=["number", "default", "torch", "cupy", "cupy default", "protocol"],
)
def test_streams_of_frameworks_are_held(fake_driver: Any, stream: Any):
    device = CudaDevice(driver=fake_driver.FakeDriver())
    remove = stand_in("cuda", device)
    with gate(stream):
        adopted = device.adopt(0 if stream == 0 else 0x77)
        fence = device.record(adopted)
        assert not any(fence.poll() for _ in range(100))
    done(fence)
    remove()


def test_flags_of_gates_are_used_again(fake_driver: Any):
    driver = fake_driver.FakeDriver()
    device = CudaDevice(driver=driver)
    for _ in range(10):
        with gate(device.adopt(0), device=device):
            pass
        while driver.step():
            pass
        device.collect()
    assert len(driver.registered) == 1


def test_what_is_no_stream_is_refused(fake_driver: Any):
    remove = stand_in("cuda", CudaDevice(driver=fake_driver.FakeDriver()))
    with pytest.raises(UsageError, match="is no stream"):
        gate("feed")
    remove()


def test_a_number_means_nothing_to_the_simulated_device():
    with pytest.raises(UsageError, match="no streams that others know by a number"):
        gate(0, device=SimulatedDevice())


PROGRAM = """
import torch
from interlock.check import simulate
from interlock.testing import gate

with simulate("eager", raise_on_hazard=False):
    model = torch.nn.Linear(4, 4).cuda()
    value = torch.ones(2, 4, device="cuda")
    with gate(torch.cuda.current_stream()):
        early = model(value).to("cpu", non_blocking=True)
        print("early", bool(torch.isnan(early).any()))
    torch.cuda.synchronize()
    print("late", bool(torch.isnan(early).any()))
"""


def test_in_a_simulation_an_early_read_is_certain(tmp_path: Path):
    """The schedule is the kindest there is: without the gate the copy would have landed."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command, hidden = [sys.executable, str(path)], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=hidden)
    assert found.stdout.splitlines() == ["early True", "late False"], found.stderr


EXIT = """
import importlib.util, sys
from interlock.devices import stand_in
from interlock.devices._cuda import CudaDevice
from interlock.testing import gate
spec = importlib.util.spec_from_file_location("fake_driver", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["fake_driver"] = module
spec.loader.exec_module(module)
device = CudaDevice(driver=module.FakeDriver())
stand_in("cuda", device)
held = gate(device.stream("one"), timeout_s=60)
device.record(device.stream("one"))
"""


def test_a_process_ends_with_a_closed_gate(tmp_path: Path):
    path = tmp_path / "program.py"
    path.write_text(EXIT)
    command = [sys.executable, str(path), str(Path(__file__).with_name("fake_driver.py"))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=8, check=False)
    assert (found.returncode, found.stderr) == (0, "")
