"""What the CUDA driver says about itself and its devices. Only questions: no context is made, no memory is taken.

`time_to_pin` is the exception, and says so. Everything but that works without `cuda.core`; without `cuda.bindings` the
driver is only looked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import mmap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from interlock.errors import DeviceError

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE: the driver works and has nothing to show, as with an empty CUDA_VISIBLE_DEVICES."""
_MODULE_VERSION = Path("/sys/module/nvidia/version")
_PCI = Path("/sys/bus/pci/devices")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generation by transfers per second and lane, in units of a thousand million, as Linux writes it."""


@final
@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver.

    Attributes:
        found: Whether the driver's library is there.
        version: Version of the driver, as `580.65.06`; None if nothing tells.
        cuda_version: Newest CUDA that the driver serves, as `13.0`.
        device_count: Devices that this process may use.
        error: Why the driver does not work; None if it does, or is not there.
    """

    found: bool
    version: str | None = None
    cuda_version: str | None = None
    device_count: int = 0
    error: str | None = None


@final
@dataclass(frozen=True, slots=True)
class PcieLink:
    """A device's link, as it was when asked: an idle device may slow its link down.

    Attributes:
        generation: Generation in use.
        width: Lanes in use.
        max_generation: Newest generation that the device can.
        max_width: Lanes that it has.
    """

    generation: int
    width: int
    max_generation: int
    max_width: int


@final
@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device. What nothing tells is None.

    Attributes:
        index: Number among the devices that the process may use.
        name: As the driver has it.
        memory_bytes: Memory in all.
        memory_free_bytes: Memory that nobody uses.
        pci_bus_id: Address on the PCI bus.
        numa_node: Node of the host's memory that is nearest.
        compute_capability: As `9.0`.
        copy_engines: Copies that can run at once, beside kernels.
        stream_memory_operations: Whether a stream can wait for a value in memory.
        pcie: Its link.
        peers: Devices whose memory it can address.
    """

    index: int
    name: str
    memory_bytes: int
    memory_free_bytes: int | None
    pci_bus_id: str
    numa_node: int | None
    compute_capability: str
    copy_engines: int
    stream_memory_operations: bool
    pcie: PcieLink | None
    peers: tuple[int, ...] = ()


def driver_facts() -> DriverFacts:
    """Return what there is to know of the driver. Initialises it. Blocks: for seconds, if the driver has to wake up."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return DriverFacts(found=False)
    version = _driver_version()
    code = int(library.cuInit(0))
    if code == _NO_DEVICE:
        return DriverFacts(found=True, version=version)
    if code:
        return DriverFacts(found=True, version=version, error=f"cuInit says {_name_of(library, code)}")
    number, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    library.cuDeviceGetCount(ctypes.byref(count))
    cuda_version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    return DriverFacts(found=True, version=version, cuda_version=cuda_version, device_count=count.value)


def can_ask_devices() -> bool:
    """Tell whether `device_facts` has what it needs: `cuda.bindings`."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:
        return False


def device_facts(index: int, device_count: int) -> DeviceFacts:
    """Return what there is to know of a device. `driver_facts` was called before, and found it.

    Args:
        index: Which.
        device_count: How many there are, for `peers`.

    Raises:
        DeviceError: The driver refuses.
    """
    driver: Any = importlib.import_module("cuda.bindings.driver")
    names = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(_ask(driver.cuDeviceGetAttribute(getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

    device = _ask(driver.cuDeviceGet(index))
    bus = _text(_ask(driver.cuDeviceGetPCIBusId(16, device))).lower()
    others = [other for other in range(device_count) if other != index]
    return DeviceFacts(
        index=index,
        name=_text(_ask(driver.cuDeviceGetName(96, device))),
        memory_bytes=int(_ask(driver.cuDeviceTotalMem(device))),
        memory_free_bytes=_free_bytes(bus),
        pci_bus_id=bus,
        numa_node=_numa_node(bus),
        compute_capability=f"{attribute('COMPUTE_CAPABILITY_MAJOR')}.{attribute('COMPUTE_CAPABILITY_MINOR')}",
        copy_engines=attribute("ASYNC_ENGINE_COUNT"),
        stream_memory_operations=bool(attribute("CAN_USE_64_BIT_STREAM_MEM_OPS")),
        pcie=pcie_link(bus),
        peers=tuple(
            other
            for other in others
            if int(_ask(driver.cuDeviceCanAccessPeer(device, _ask(driver.cuDeviceGet(other)))))
        ),
    )


def pcie_link(bus: str) -> PcieLink | None:
    """Return the link of the device at an address of the PCI bus; None if nothing tells."""
    found = _pcie_of_system(_PCI / bus)
    if found is None:
        with contextlib.suppress(Exception):  # the driver's management library is not everywhere, nor says it all
            info = _managed(bus).pci_info
            found = PcieLink(
                info.current_link_generation, info.current_link_width, info.max_link_generation, info.max_link_width
            )
    return found


def time_to_pin(index: int, size_bytes: int, *, huge_pages: bool) -> float:
    """Return the seconds that it takes to make fresh memory of the host usable for copies.

    Takes `size_bytes` of memory and the device's primary context while it runs.

    Args:
        index: Device.
        size_bytes: How much.
        huge_pages: Whether the system is asked for huge pages, or asked to use none.

    Raises:
        DeviceError: The driver refuses, as it may where memory or the right to lock it is short.
    """
    driver: Any = importlib.import_module("cuda.bindings.driver")
    device = _ask(driver.cuDeviceGet(index))
    buffer = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        buffer.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    pointer = ctypes.c_char.from_buffer(buffer)
    address = ctypes.addressof(pointer)
    _ask(driver.cuCtxPushCurrent(_ask(driver.cuDevicePrimaryCtxRetain(device))))
    try:
        began = time.perf_counter()
        _ask(driver.cuMemHostRegister(address, size_bytes, 0))
        seconds = time.perf_counter() - began
        _ask(driver.cuMemHostUnregister(address))
    finally:
        _ask(driver.cuCtxPopCurrent())
        _ask(driver.cuDevicePrimaryCtxRelease(device))
        del pointer
        buffer.close()
    return seconds


def _ask(answer: tuple[Any, ...]) -> Any:
    """Return the value of an answer of the driver."""
    code, *values = answer
    if int(code):
        raise DeviceError("the CUDA driver refused a question", why=code.name)
    return values[0] if values else None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _name_of(library: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    return f"{name.value.decode()} ({code})" if name.value else f"error {code}"


def _driver_version() -> str | None:
    with contextlib.suppress(OSError):
        return _MODULE_VERSION.read_text().strip()
    with contextlib.suppress(Exception):  # as above
        version = importlib.import_module("cuda.core.system").get_kernel_mode_driver_version()
        return version if isinstance(version, str) else ".".join(str(part) for part in version)
    return None


def _managed(bus: str) -> Any:
    """Return a device of the management library."""
    return importlib.import_module("cuda.core.system").Device(pci_bus_id=bus)


def _free_bytes(bus: str) -> int | None:
    with contextlib.suppress(Exception):  # as in `pcie_link`
        return int(_managed(bus).memory_info.free)
    return None


def _numa_node(bus: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        node = int((_PCI / bus / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def _pcie_of_system(folder: Path) -> PcieLink | None:
    values: list[int] = []
    for name in ("current_link", "max_link"):
        try:
            speed = float((folder / f"{name}_speed").read_text().split()[0])
            width = int((folder / f"{name}_width").read_text())
        except (OSError, ValueError, IndexError):
            return None
        if speed not in _GENERATIONS or width <= 0:
            return None
        values += [_GENERATIONS[speed], width]
    return PcieLink(*values)
