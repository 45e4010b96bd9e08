"""What the driver is asked, with drivers that are made up."""

from __future__ import annotations

import ctypes
import enum
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from interlock.devices import _cuda_facts
from interlock.devices._cuda_facts import PcieLink, can_ask_devices, device_facts, driver_facts, pcie_link, time_to_pin
from interlock.errors import DeviceError

BUS = "0000:1a:00.0"


class Library:
    """As much of `libcuda` as is asked without `cuda.bindings`."""

    def __init__(self, code=0):
        self.code = code

    def cuInit(self, _flags):  # noqa: N802 - the driver's name
        return self.code

    def cuDriverGetVersion(self, number):  # noqa: N802
        number._obj.value = 13010
        return 0

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = 2
        return 0

    def cuGetErrorName(self, code, name):  # noqa: N802
        name._obj.value = b"CUDA_ERROR_UNKNOWN" if code == 999 else None
        return 0


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Return a function that makes a library the driver's."""
    (tmp_path / "version").write_text("580.65.06\n")
    monkeypatch.setattr(_cuda_facts, "_MODULE_VERSION", tmp_path / "version")

    def make(**options):
        monkeypatch.setattr(ctypes, "CDLL", lambda _: Library(**options))

    return make


def test_no_library_is_no_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_facts() == _cuda_facts.DriverFacts(found=False)


def test_a_driver_tells_versions_and_devices(library):
    library()
    facts = driver_facts()
    assert (facts.version, facts.cuda_version, facts.device_count, facts.error) == ("580.65.06", "13.1", 2, None)


def test_a_driver_without_devices_is_no_error(library):
    library(code=100)
    facts = driver_facts()
    assert (facts.found, facts.device_count, facts.error) == (True, 0, None)


@pytest.mark.parametrize(("code", "said"), [(999, "CUDA_ERROR_UNKNOWN (999)"), (802, "error 802")])
def test_a_driver_that_does_not_start_says_why(library, code, said):
    library(code=code)
    assert driver_facts().error == f"cuInit says {said}"


class Result(enum.IntEnum):
    """Codes of the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_OUT_OF_MEMORY = 2


ATTRIBUTES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT": 3,
    "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS": 1,
}
OK = Result.CUDA_SUCCESS


class Driver:
    """As much of `cuda.bindings.driver` as is asked; it can pin so much."""

    CUdevice_attribute = SimpleNamespace(**{name: name for name in ATTRIBUTES})

    def __init__(self):
        self.pinnable_bytes = 1 << 30
        self.pinned = set()
        self.contexts = 0
        self.pushed = 0

    def cuDeviceGet(self, index):  # noqa: N802
        return (OK, index) if index < 2 else (Result.CUDA_ERROR_INVALID_DEVICE, None)

    def cuDeviceGetAttribute(self, name, _device):  # noqa: N802
        return OK, ATTRIBUTES[name]

    def cuDeviceGetPCIBusId(self, _length, _device):  # noqa: N802
        return OK, b"0000:1A:00.0\0\0\0"

    def cuDeviceGetName(self, _length, _device):  # noqa: N802
        return OK, b"NVIDIA H200\0\0\0"

    def cuDeviceTotalMem(self, _device):  # noqa: N802
        return OK, 150 << 30

    def cuDeviceCanAccessPeer(self, device, peer):  # noqa: N802
        return OK, int(device != peer)

    def cuDevicePrimaryCtxRetain(self, _device):  # noqa: N802
        self.contexts += 1
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, _device):  # noqa: N802
        self.contexts -= 1
        return (OK,)

    def cuCtxPushCurrent(self, _context):  # noqa: N802
        self.pushed += 1
        return (OK,)

    def cuCtxPopCurrent(self):  # noqa: N802
        self.pushed -= 1
        return OK, "context"

    def cuMemHostRegister(self, address, size, _flags):  # noqa: N802
        if size > self.pinnable_bytes:
            return (Result.CUDA_ERROR_OUT_OF_MEMORY,)
        self.pinned.add(address)
        return (OK,)

    def cuMemHostUnregister(self, address):  # noqa: N802
        self.pinned.remove(address)
        return (OK,)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    made = Driver()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    monkeypatch.setattr(_cuda_facts, "_PCI", tmp_path)
    folder = tmp_path / BUS
    folder.mkdir()
    files = {
        "numa_node": "1",
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return made


@pytest.mark.usefixtures("driver")
def test_a_device_is_described():
    facts = device_facts(0, 2)
    assert (facts.name, facts.pci_bus_id, facts.memory_bytes) == ("NVIDIA H200", BUS, 150 << 30)
    assert (facts.compute_capability, facts.copy_engines, facts.stream_memory_operations) == ("9.0", 3, True)
    assert (facts.numa_node, facts.peers, facts.pcie) == (1, (1,), PcieLink(4, 8, 5, 16))


@pytest.mark.usefixtures("driver")
def test_a_question_that_the_driver_refuses_is_an_error_with_its_name():
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        device_facts(7, 8)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("name", "text"), [("numa_node", "-1"), ("current_link_speed", "Unknown"), ("max_link_width", "0")]
)
def test_what_the_system_does_not_know_is_none(tmp_path, name, text):
    (tmp_path / BUS / name).write_text(text)
    facts = device_facts(0, 1)
    assert (facts.numa_node is None, facts.pcie is None) == (name == "numa_node", name != "numa_node")


def test_the_management_library_is_asked_where_the_system_tells_nothing(monkeypatch, tmp_path):
    info = SimpleNamespace(current_link_generation=5, current_link_width=16, max_link_generation=5, max_link_width=16)
    system = SimpleNamespace(Device=lambda pci_bus_id: SimpleNamespace(pci_info=info, bus=pci_bus_id))
    monkeypatch.setattr(_cuda_facts, "_PCI", tmp_path)
    monkeypatch.setitem(sys.modules, "cuda.core.system", system)
    assert pcie_link(BUS) == PcieLink(5, 16, 5, 16)


@pytest.mark.parametrize("huge_pages", [True, False])
def test_pinning_is_timed_and_undone(driver, huge_pages):
    assert time_to_pin(0, 1 << 20, huge_pages=huge_pages) > 0
    assert (driver.pinned, driver.contexts, driver.pushed) == (set(), 0, 0)


def test_pinning_that_is_refused_leaves_nothing_behind(driver):
    driver.pinnable_bytes = 0
    with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        time_to_pin(0, 1 << 20, huge_pages=True)
    assert (driver.contexts, driver.pushed) == (0, 0)


def test_devices_can_be_asked_only_with_the_bindings(monkeypatch):
    def find(_name):
        raise ModuleNotFoundError

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert not can_ask_devices()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    assert can_ask_devices()
