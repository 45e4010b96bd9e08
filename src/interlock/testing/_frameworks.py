"""What every framework must do, as tests.

Example:
    ::

        class TestMyFramework(FrameworkConformance):
            shared_dtypes = ("float32", "int64")

            @pytest.fixture
            def framework(self) -> Framework:
                return MyFramework()

            def make(self, values):
                return my.array(values)

            def to_host(self, array):
                return array.numpy()

            def address(self, array):
                return array.data_ptr()
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from interlock._core._loan import Loan
from interlock._core._memory import HostMemory
from interlock._waiting import Inbox, wait
from interlock.errors import InterlockError, UsageError

if TYPE_CHECKING:
    import weakref

    from interlock._core._protocols import Framework

_BOUND_S = 30.0
"""No test waits longer; a correct framework takes milliseconds."""

_SHAPES = [(3, 5, 7), (1,), (17,), (2, 1, 3), (), (0, 4), (5, 0)]
"""Odd sizes, rows that are single numbers, no axis at all, no rows, and rows of nothing."""


class FrameworkConformance:
    """Inherit, override what is below `framework`, and run pytest.

    Attributes:
        shared_dtypes: Element types that `lend` takes over without a copy.
        converted_dtypes: Element types that the framework lacks and `lend` turns into narrower ones.
        refused_dtypes: Element types that `lend` refuses.
        crops_share_memory: Whether a slice of an array is a view of it.
    """

    shared_dtypes: ClassVar[tuple[str, ...]] = ("bool", "uint8", "int32", "float16", "float32")
    converted_dtypes: ClassVar[tuple[str, ...]] = ()
    refused_dtypes: ClassVar[tuple[str, ...]] = ()
    crops_share_memory: ClassVar[bool] = True

    @pytest.fixture
    def framework(self) -> Framework:
        """Return the framework under test."""
        raise UsageError(f"{type(self).__name__} tests no framework", hint="override its fixture `framework`")

    def make(self, values: npt.NDArray[Any]) -> Any:  # noqa: ARG002 - for those who override it
        """Return an array of the framework that holds a copy of `values`."""
        raise UsageError(f"{type(self).__name__} makes no arrays", hint="override `make`")

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """Return the value of an array; wait for it if need be."""
        return np.asarray(array)

    def address(self, array: Any) -> int:  # noqa: ARG002 - for those who override it
        """Return the address of an array's first element."""
        raise UsageError(f"{type(self).__name__} tells no addresses", hint="override `address`")

    def compute(self, array: Any) -> Any:
        """Return `array + 1`, computed by something slow that the host need not wait for, if the framework has that."""
        return array + 1

    def is_pending(self, array: Any) -> bool:  # noqa: ARG002 - for those who have asynchronous arrays
        """Tell whether the value of an array is still being computed."""
        return False

    def change(self, array: Any) -> None:
        """Do the worst that a program may do to an array after it was exported without `borrow`."""
        array[...] = 0

    def not_exportable(self) -> list[Any]:
        """Return arrays that have no form on the host."""
        return []

    # ------------------------------------------------------------ who it is

    def test_it_owns_its_arrays_and_nothing_else(self, framework: Framework) -> None:
        assert framework.owns(self.make(np.zeros(3, "float32")))
        assert not framework.owns(object())
        assert not framework.owns("text")
        assert not framework.runs(object())

    def test_it_has_a_name_and_a_device(self, framework: Framework) -> None:
        assert framework.name.isidentifier()
        assert framework.default_device()

    # ------------------------------------------------------------ lend

    def test_lending_copies_nothing(self, framework: Framework) -> None:
        for dtype in self.shared_dtypes:
            memory, array, _loan, _inbox = _lent_memory(dtype, (4, 3))
            lent = framework.lend(array)
            assert self.address(lent) == memory.address, f"{dtype} was copied"
            assert self.to_host(lent).dtype == np.dtype(dtype)

    @pytest.mark.parametrize("shape", _SHAPES)
    def test_what_is_lent_has_the_values_and_the_shape(self, framework: Framework, shape: tuple[int, ...]) -> None:
        for dtype in (*self.shared_dtypes, *self.converted_dtypes):
            _memory, array, _loan, _inbox = _lent_memory(dtype, shape)
            found = self.to_host(framework.lend(array))
            assert found.shape == shape
            np.testing.assert_array_equal(found, array, err_msg=f"dtype {dtype}")

    def test_a_dtype_that_it_lacks_is_refused_by_name(self, framework: Framework) -> None:
        for dtype in self.refused_dtypes:
            _memory, array, _loan, _inbox = _lent_memory(dtype, (4,))
            with pytest.raises(UsageError, match="dtype") as caught:
                framework.lend(array)
            assert caught.value.hint, f"{dtype}: no next step"

    # ------------------------------------------------------------ the end of a loan

    @pytest.mark.parametrize("shape", _SHAPES)
    def test_a_loan_ends_when_the_lent_array_goes_and_not_before(
        self, framework: Framework, shape: tuple[int, ...]
    ) -> None:
        """The lent array alone holds the memory: the views that it was made from are gone."""
        for dtype in self.shared_dtypes:
            _memory, array, loan, inbox = _lent_memory(dtype, shape)
            expected = array.copy()
            lent = framework.lend(array)
            del array
            gc.collect(0)
            assert inbox.take_nowait() is None, f"{dtype}: the loan ended while the array lives"
            np.testing.assert_array_equal(self.to_host(lent), expected)
            del lent
            assert inbox.wait_take(_BOUND_S) is loan, f"{dtype}: the loan did not end"
            assert inbox.take_nowait() is None, "the end was told twice"

    def test_the_loan_of_a_converted_array_ends_too(self, framework: Framework) -> None:
        for dtype in self.converted_dtypes:
            _memory, array, loan, inbox = _lent_memory(dtype, (4, 3))
            expected = array.copy()
            lent = framework.lend(array)
            del array
            np.testing.assert_array_equal(self.to_host(lent), expected)
            assert inbox.wait_take(_BOUND_S) is loan

    def test_a_crop_is_right_when_the_array_that_it_was_cut_from_is_gone(self, framework: Framework) -> None:
        _memory, array, loan, inbox = _lent_memory("float32", (6, 5))
        expected = array[2:5, 1:].copy()
        lent = framework.lend(array)
        crop = lent[2:5, 1:]
        del array, lent
        gc.collect(0)
        if self.crops_share_memory:
            assert inbox.take_nowait() is None, "the loan ended while a crop lives"
        np.testing.assert_array_equal(self.to_host(crop), expected)
        del crop
        assert inbox.wait_take(_BOUND_S) is loan

    def test_a_loan_of_several_leaves_ends_with_the_last_of_them(self, framework: Framework) -> None:
        """All leaves of a batch lie in one slot."""
        memory = HostMemory.allocate(4096, "host", on_device=False)
        lender, inbox = Loan(memory), Inbox[Any]()
        loan = lender.on_end(inbox.post)
        whole = np.asarray(lender)
        leaves = [framework.lend(whole[64 * part : 64 * part + 64].view("int32")) for part in range(3)]
        del whole, lender
        while leaves:
            assert inbox.take_nowait() is None
            leaves.pop(len(leaves) // 2)
            gc.collect(0)
        assert inbox.wait_take(_BOUND_S) is loan

    def test_a_pending_computation_holds_the_loan_and_its_end_proves_that_it_is_done(
        self, framework: Framework
    ) -> None:
        """The memory is overwritten as soon as the loan ends; the results are right all the same."""
        for number in range(4):
            memory, array, loan, inbox = _lent_memory("float32", (16, 16))
            expected = array + 1
            lent = framework.lend(array)
            result = self.compute(lent)
            del array, lent
            early = inbox.take_nowait()
            assert early is None or not self.is_pending(result), f"round {number}: the loan ended early"
            assert (early or inbox.wait_take(_BOUND_S)) is loan
            memory.view()[:] = b"\xff" * memory.size_bytes
            np.testing.assert_array_equal(self.to_host(result), expected)

    # ------------------------------------------------------------ read back

    @pytest.mark.parametrize("shape", _SHAPES)
    def test_what_is_read_back_are_the_bytes(self, framework: Framework, shape: tuple[int, ...]) -> None:
        for dtype in self.shared_dtypes:
            if np.dtype(dtype).isnative:
                values = _values(dtype, shape)
                held = framework.read_back(self.make(values))
                assert held is not None
                assert np.ascontiguousarray(held).tobytes() == values.tobytes(), f"dtype {dtype}"

    def test_a_second_look_reads_the_memory_again(self, framework: Framework) -> None:
        """What is kept from the first look would hide what happened since."""
        memory, array, _loan, _inbox = _lent_memory("float32", (64, 3))
        lent = framework.lend(array)
        for value in (1, 2):
            memory.view()[:] = bytes([value]) * memory.size_bytes
            held = framework.read_back(lent)
            assert held is not None
            assert np.ascontiguousarray(held).tobytes() == bytes([value]) * array.nbytes

    # ------------------------------------------------------------ export

    @pytest.mark.parametrize("borrow", [False, True])
    @pytest.mark.parametrize("shape", _SHAPES)
    def test_an_export_is_the_value_with_its_shape_and_dtype(
        self,
        framework: Framework,
        shape: tuple[int, ...],
        borrow: bool,  # noqa: FBT001 - parametrised
    ) -> None:
        for dtype in self.shared_dtypes:
            values = _values(dtype, shape)
            export = framework.export(self.make(values), borrow=borrow)
            assert (export.shape, export.dtype) == (shape, np.dtype(dtype))
            wait(export.ready, timeout_s=_BOUND_S, what="the export")
            np.testing.assert_array_equal(export.read(), values)
            assert export.read().dtype == export.dtype

    def test_an_export_of_a_crop_is_the_crop(self, framework: Framework) -> None:
        values = _values("float32", (6, 5))
        export = framework.export(self.make(values)[1:5:2, ::2], borrow=False)
        wait(export.ready, timeout_s=_BOUND_S, what="the export")
        np.testing.assert_array_equal(export.read(), values[1:5:2, ::2])

    def test_a_stable_export_does_not_see_what_happens_to_the_array_later(self, framework: Framework) -> None:
        """One that is not stable says so, and the value is right until somebody changes it."""
        values = _values("float32", (6, 5))
        array = self.make(values)
        export = framework.export(array, borrow=False)
        if export.stable:
            self.change(array)
        wait(export.ready, timeout_s=_BOUND_S, what="the export")
        np.testing.assert_array_equal(export.read(), values)

    def test_a_borrowed_export_is_stable_by_the_promise_of_its_caller(self, framework: Framework) -> None:
        assert framework.export(self.make(_values("float32", (6, 5))), borrow=True).stable

    def test_an_export_of_a_pending_value_is_ready_only_with_the_value(self, framework: Framework) -> None:
        values = _values("float32", (16, 16))
        result = self.compute(self.make(values))
        export = framework.export(result, borrow=True)
        assert not (export.ready.poll() and self.is_pending(result))
        wait(export.ready, timeout_s=_BOUND_S, what="the export")
        assert not self.is_pending(result)
        np.testing.assert_array_equal(export.read(), values + 1)

    @pytest.mark.parametrize("borrow", [False, True])
    def test_what_cannot_come_to_the_host_is_refused_with_a_next_step(
        self,
        framework: Framework,
        borrow: bool,  # noqa: FBT001 - parametrised
    ) -> None:
        for value in self.not_exportable():
            with pytest.raises(InterlockError) as caught:
                framework.export(value, borrow=borrow)
            assert isinstance(caught.value, UsageError)
            assert caught.value.hint


def _values(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return small numbers of which neighbours differ, as near as the dtype allows."""
    count = int(np.prod(shape))
    return (np.arange(count) % 100 + 1).reshape(shape).astype(dtype)


def _lent_memory(
    dtype: str, shape: tuple[int, ...]
) -> tuple[HostMemory, npt.NDArray[Any], weakref.ref[Loan], Inbox[Any]]:
    """Return memory, an array over it, the reference that tells the end of its loan, and where it tells."""
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * kind.itemsize
    memory = HostMemory.allocate(max(nbytes, 64), "host", on_device=False)
    lender, inbox = Loan(memory), Inbox[Any]()
    loan = lender.on_end(inbox.post)
    array = np.asarray(lender)[:nbytes].view(kind).reshape(shape)
    if kind.kind not in "MU":
        array[...] = _values(dtype, shape)
    return memory, array, loan, inbox
