"""The shipped suite on NumPy, PyTorch and JAX."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interlock.lowlevel import Framework, HostMemory, Inbox, Loan, framework_named, wait
from interlock.testing import FrameworkConformance

if TYPE_CHECKING:
    import numpy.typing as npt

EVERY_NUMBER = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64",
)  # fmt: skip
WIDE = ("int64", "uint64", "float64", "complex128")
FOREIGN = (">f4", "datetime64[s]", "U4")


class TestNumpy(FrameworkConformance):
    shared_dtypes = (*EVERY_NUMBER, *WIDE, *FOREIGN[:1])

    @pytest.fixture
    def framework(self) -> Framework:
        return framework_named("numpy")

    def make(self, values: npt.NDArray[Any]) -> Any:
        return values.copy()

    def address(self, array: Any) -> int:
        return int(array.ctypes.data)


class TestTorch(FrameworkConformance):
    shared_dtypes = (*EVERY_NUMBER, *WIDE)
    refused_dtypes = FOREIGN

    @pytest.fixture
    def framework(self) -> Framework:
        return framework_named("torch")

    def make(self, values: npt.NDArray[Any]) -> Any:
        return torch.from_numpy(values.copy())

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def not_exportable(self) -> list[Any]:
        return [
            torch.ones(2, 2).to_sparse(),
            torch.ones(2, device="meta"),
        ]

    def test_an_export_takes_the_value_out_of_the_graph(self, framework: Framework):
        tensor = (torch.ones(3, requires_grad=True) * 2).conj()
        assert framework.export(tensor, borrow=False).read().tolist() == [2, 2, 2]

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_narrow_floats_are_exported_bit_for_bit(self, framework: Framework, name: str):
        tensor = torch.arange(-4, 4).reshape(4, 2).t().to(getattr(torch, name))
        array = framework.export(tensor, borrow=False).read()
        assert (array.dtype.name, array.astype(np.float32).tolist()) == (name, tensor.float().tolist())

    def test_lazy_conjugates_and_negatives_are_resolved(self, framework: Framework):
        tensor = torch.tensor([1 + 2j, 3 - 1j])
        np.testing.assert_array_equal(framework.export(tensor.conj(), borrow=True).read(), [1 - 2j, 3 + 1j])
        np.testing.assert_array_equal(framework.export(tensor.conj().imag, borrow=True).read(), [-2, 1])

    def test_it_runs_modules_and_nothing_else(self, framework: Framework):
        assert framework.runs(torch.nn.Linear(2, 2))
        assert not framework.runs(torch.sin)


@jax.jit
def slow_plus_one(array: Any) -> Any:
    """Wait some milliseconds of real work, and only then read `array`."""
    ones = jnp.full((400, 400), 1 / 400, jnp.float32)
    for _ in range(12):
        ones = ones @ ones
    return array + jnp.round(ones[0, 0] * 400)


def settle(framework: Any) -> None:
    """Do what the framework does when the process ends."""
    framework._imports.settle()


class TestJax(FrameworkConformance):
    shared_dtypes = EVERY_NUMBER
    converted_dtypes = WIDE
    refused_dtypes = FOREIGN
    crops_share_memory = False

    @pytest.fixture
    def framework(self) -> Framework:
        return framework_named("jax")

    def make(self, values: npt.NDArray[Any]) -> Any:
        return jnp.array(values)

    def address(self, array: Any) -> int:
        return int(array.unsafe_buffer_pointer())

    def compute(self, array: Any) -> Any:
        return slow_plus_one(array)

    def is_pending(self, array: Any) -> bool:
        return not array.is_ready()

    def change(self, array: Any) -> None:
        """Donate it: XLA may write the result into the same memory."""
        jax.jit(lambda given: given * 0, donate_argnums=0)(array).block_until_ready()
        if not array.is_deleted():
            array.delete()

    def not_exportable(self) -> list[Any]:
        deleted = jnp.ones(3)
        deleted.delete()
        return [deleted, jax.random.key(0)]

    def test_an_array_being_traced_has_no_value_to_export(self, framework: Framework):
        with pytest.raises(ValueError, match="traced inside a jitted function"):
            jax.jit(lambda array: framework.export(array, borrow=False).shape)(jnp.ones(3))

    def test_a_borrowed_array_that_is_deleted_fails_its_fence_and_nothing_crashes(self, framework: Framework):
        """Asking jaxlib whether a deleted array is ready ends the process, so the fence must not."""
        array = jnp.ones(3)
        export = framework.export(array, borrow=True)
        array.delete()
        with pytest.raises(Exception, match="donated or deleted"):
            wait(export.ready, timeout_s=5, what="the export")

    def test_a_computation_that_fails_fails_the_fence_of_its_export(self, framework: Framework):
        bad = threading.Event()

        def callback(array: Any) -> Any:
            if bad.is_set():
                raise ValueError("bad batch")
            return array

        @jax.jit
        def failing(array: Any) -> Any:
            return jax.pure_callback(callback, jax.ShapeDtypeStruct((16, 16), jnp.float32), array) + 1

        failing(slow_plus_one(jnp.ones((16, 16)))).block_until_ready()  # compiled: the next call is dispatched only
        bad.set()
        result = failing(slow_plus_one(jnp.ones((16, 16))))
        export = framework.export(result, borrow=True)
        with pytest.raises(Exception, match="bad batch"):
            wait(export.ready, timeout_s=30, what="the export")

    def test_the_end_of_the_process_waits_until_xla_has_let_go_of_lent_memory(self, framework: Framework):
        """XLA lets go on its own threads, a little after a result is ready; one that is late aborts the process."""
        inbox, ends = Inbox[Any](), []
        for _ in range(6):
            loan = Loan(HostMemory.allocate(1024, "host", on_device=False))
            ends.append(loan.on_end(inbox.post))
            slow_plus_one(framework.lend(np.asarray(loan).view("float32").reshape(16, 16)))
            del loan
        settle(framework)
        told = [inbox.take_nowait() for _ in ends]
        assert None not in told

    def test_the_end_of_the_process_does_not_wait_for_what_the_program_keeps(self, framework: Framework):
        """Live arrays and views of them let go on the main thread, which does no harm."""
        loan = Loan(HostMemory.allocate(1024, "host", on_device=False))
        kept = framework.lend(np.asarray(loan).view("float32"))
        view = np.asarray(framework.lend(np.asarray(loan)))
        start = time.monotonic()
        settle(framework)
        assert time.monotonic() - start < 20
        assert (kept.nbytes, view.nbytes) == (1024, 1024)

    def test_it_runs_jitted_functions_and_nothing_else(self, framework: Framework):
        assert framework.runs(jax.jit(lambda array: array))
        assert not framework.runs(lambda array: array)
        assert not framework.runs(torch.nn.Linear(2, 2))
