"""PyTorch Lightning: predictions that are written when they have landed, while the loop goes on.

`landed(writer)` gives a prediction writer of your own landed values, off the thread of the loop. `DrainWriter` writes
predictions to a drain's sink. Both work under either name of Lightning, `pytorch_lightning` and `lightning.pytorch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interlock.integrations._lightning_landed import landed

if TYPE_CHECKING:
    from pytorch_lightning.callbacks import BasePredictionWriter

    from interlock.integrations._lightning_writer import DrainWriter as _Writer

    class DrainWriter(_Writer, BasePredictionWriter):
        """See `interlock.integrations._lightning_writer`."""


__all__ = ["DrainWriter", "landed"]


def __getattr__(name: str) -> Any:
    """Make `DrainWriter` when it is first asked for: then it is known by which name the program calls Lightning."""
    if name != "DrainWriter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from interlock.integrations._lightning_writer import drain_writer_of_this_program  # noqa: PLC0415

    value = globals()[name] = drain_writer_of_this_program()
    return value
