"""NumPy: arrays are the memory itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from interlock._core._fence import Fence
from interlock._core._protocols import Export

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@final
class NumpyFramework:
    """Host arrays. Done is proved by the end of the exported memory's owner."""

    name = "numpy"
    immutable = False

    def owns(self, value: object) -> bool:
        """As in `Framework`; Python and NumPy numbers too."""
        return isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))

    def runs(self, model: object) -> bool:  # noqa: ARG002
        """As in `Framework`; False: no callable wants NumPy and nothing else."""
        return False

    def home(self, model: object) -> str:  # noqa: ARG002
        """As in `Framework`: the default device."""
        return self.default_device()

    def prepare(self, model: Callable[[Any], Any], device: str) -> Callable[[Any], Any]:  # noqa: ARG002
        """As in `Framework`: `model` itself."""
        return model

    def fingerprint(self, model: object) -> None:  # noqa: ARG002
        """As in `Framework`; None."""
        return

    def default_device(self, sharding: Any = None) -> str:  # noqa: ARG002
        """`host`."""
        return "host"

    def lend(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As in `Framework`: `array` itself."""
        return array

    def read_back(self, array: Any) -> npt.NDArray[Any]:
        """As in `Framework`; without a copy."""
        return np.asarray(array)

    def export(self, value: Any, *, borrow: bool) -> Export:
        """As in `Framework`."""
        array = np.asarray(value)
        return Export(array.shape, array.dtype, Fence.EMPTY, stable=borrow, read=lambda: array)

    def join(self, arrays: Sequence[Any]) -> npt.NDArray[Any]:
        """As in `SupportsJoin`."""
        return np.concatenate(arrays)
