"""Devices for the tests that want a real one; without it they are skipped."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from interlock.check import simulate
from interlock.devices._cuda import CudaDevice, load_driver
from interlock.errors import DeviceError, UsageError
from interlock.lowlevel import Device, SimulatedDevice, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the tests of other processes use the device too
WORLDS = ("lazy", "eager", "starve:feed", "random:0", "random:1")
FAKE_DRIVER = Path(__file__).parents[1] / "devices" / "fake_driver.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what wants a real device, so that `-m gpu` finds it."""
    for item in items:
        here = item.path.is_relative_to(Path(__file__).parent)
        if here and {"cuda", "two_devices"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("gpu")


@pytest.fixture(autouse=True)
def current_device_stays() -> Iterator[None]:
    """XLA leaves another device current where there are several; the tests that follow are not to see that.

    The first is made so then. That none is would not do: libraries that once made one current take it that one is.
    """
    yield
    driver: Any = sys.modules.get("cuda.bindings.driver")
    if driver is None:
        return
    with contextlib.suppress(RuntimeError):  # there is no driver
        code, index = driver.cuCtxGetDevice()  # refused where no context is current
        if code == driver.CUresult.CUDA_SUCCESS and int(index) != 0:
            driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])


def _open(index: int, need: str) -> CudaDevice:
    try:
        return cast("CudaDevice", open_device(f"cuda:{index}"))
    except (UsageError, DeviceError) as error:
        pytest.skip(f"{need}: {error.why}")


@pytest.fixture
def cuda() -> CudaDevice:
    """The first CUDA device."""
    return _open(0, "needs a CUDA device")


@pytest.fixture
def two_devices() -> Iterator[tuple[CudaDevice, CudaDevice]]:
    """The first two CUDA devices. Which one is current is as before afterwards, whatever a framework leaves."""
    need = "needs two CUDA devices"
    devices = _open(0, need), _open(1, need)
    api = load_driver()
    before = api.cuCtxGetCurrent()[1]
    yield devices
    api.cuCtxSetCurrent(before)


@pytest.fixture(params=["simulated", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    """A simulated device, and the first real one: for tests with one body for both."""
    return SimulatedDevice("lazy") if request.param == "simulated" else _open(0, "needs a CUDA device")


def _fake_driver() -> Any:
    name = "interlock_tests_fake_driver"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FAKE_DRIVER)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(params=["fake", "real"])
def cuda_or_fake(request: pytest.FixtureRequest) -> CudaDevice:
    """A fresh `CudaDevice` on a driver made of Python, and one on the real driver."""
    if request.param == "fake":
        return CudaDevice(driver=_fake_driver().FakeDriver())
    return CudaDevice(_open(0, "needs a CUDA device").index)


@pytest.fixture(params=["fake", "real"])
def two_cuda_or_fake(request: pytest.FixtureRequest) -> tuple[CudaDevice, CudaDevice]:
    """Two of them."""
    if request.param == "fake":
        driver = _fake_driver().FakeDriver(devices=2)
        return CudaDevice(0, driver=driver), CudaDevice(1, driver=driver)
    need = "needs two CUDA devices"
    return CudaDevice(_open(0, need).index), CudaDevice(_open(1, need).index)


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), *WORLDS])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The device that `cuda` is for torch: the first real one, or, where there is none, a simulation.

    A simulation ends with an error if it saw a hazard.
    """
    if request.param == "cuda":
        yield _open(0, "needs a CUDA device")
        return
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("runs where there is no CUDA device")
    with simulate(request.param):
        yield open_device("cuda")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Folder of an `npy:` sink, not begun."""
    return tmp_path / "out"


@pytest.fixture
def stored(out: Path) -> Callable[..., npt.NDArray[Any]]:
    """Reads one output of the sink in `out`, its rows in the order of their ids."""

    def read(name: str = "output") -> npt.NDArray[Any]:
        shards = [path for path in out.iterdir() if path.name.startswith("part-")]
        ids = np.concatenate([np.load(shard / "id.npy") for shard in shards])
        rows: npt.NDArray[Any] = np.concatenate([np.load(shard / f"{name}.npy") for shard in shards])
        return rows[np.argsort(ids)]

    return read
