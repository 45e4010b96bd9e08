"""The simulator of PyTorch: an unmodified program that says `cuda` runs on a machine without one.

Device tensors are really CPU tensors that answer `cuda` when asked. Each operation runs at once on *oracle* memory, in
program order: shapes and the values of a correct program. It is also queued on a stream of the simulated device for
*adversary* memory, which holds poison until the schedule lets the operation run. What leaves the device comes from the
adversary.

`_engine` holds what knows no framework; the other files are PyTorch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from interlock.check._simulate._engine import Engine
    from interlock.check._simulate._reports import Listener
    from interlock.devices import Schedule

__all__ = ["activate"]


def activate(
    schedule: Schedule | str, session: Listener | None = None, *, beside_a_gpu: bool = False
) -> AbstractContextManager[Engine]:
    """Return a context in which `torch.cuda` is a simulated device.

    Args:
        schedule: Decides what runs when.
        session: Told of wrong values and of what cannot be simulated; None tells nobody.
        beside_a_gpu: Go on where a real CUDA device is present, which the program then cannot reach.

    Raises:
        UsageError: A simulation is active already, or there is a real CUDA device.
    """
    from interlock.check._simulate._torch_patches import activate as activate_torch  # noqa: PLC0415 - loads torch

    return activate_torch(schedule, session, beside_a_gpu=beside_a_gpu)
