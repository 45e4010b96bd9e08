"""Lightning under either of its names: `pytorch_lightning`, and `lightning.pytorch`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NAMES = ("pytorch_lightning", "lightning.pytorch")
_HINT = "pip install 'interlock[lightning]'"


def writer_bases() -> tuple[type, ...]:
    """Return `BasePredictionWriter` of each name that the program has loaded; of the first that is installed if none.

    Raises:
        UsageError: Lightning is not installed.
    """
    loaded = [name for name in _NAMES if name in sys.modules]
    for name in () if loaded else _NAMES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in {name, name.partition(".")[0]}:
                raise
        else:
            loaded.append(name)
            break
    if not loaded:
        raise UsageError("PyTorch Lightning is not installed", hint=_HINT)
    return tuple(importlib.import_module(f"{name}.callbacks").BasePredictionWriter for name in loaded)


def base_of(writer: object) -> type:
    """Return the `BasePredictionWriter` that a writer inherits from.

    Raises:
        UsageError: It is none.
    """
    for kind in type(writer).__mro__:
        if kind.__name__ == "BasePredictionWriter" and kind.__module__.startswith(_NAMES):
            return kind
    raise UsageError(
        f"a {type(writer).__name__} is no prediction writer",
        why="it does not inherit from Lightning's BasePredictionWriter",
        hint="pass an instance of your writer",
    )


def apply_to_collection() -> Callable[[Any, Any, Callable[[Any], Any]], Any]:
    """Return Lightning's function that replaces values inside collections."""
    found: Callable[[Any, Any, Callable[[Any], Any]], Any] = importlib.import_module(
        "lightning_utilities.core.apply_func"
    ).apply_to_collection
    return found


def loaders_of(trainer: Any) -> list[Any]:
    """Return the dataloaders that a trainer predicts, as they are once Lightning has given each its sampler."""
    loaders: list[Any] = trainer.predict_loop._combined_loader.flattened  # noqa: SLF001 - nothing public tells the order
    return loaders


def loader_names(trainer: Any) -> list[str]:
    """Return a name for each dataloader: its key if they were given as a dict, else its number."""
    given = trainer.predict_dataloaders
    count = len(loaders_of(trainer))
    if isinstance(given, Mapping) and len(given) == count:
        return [str(key) for key in given]
    return [str(number) for number in range(count)]


def indices_of(trainer: Any, dataloader_idx: int, batch_idx: int) -> Sequence[int] | None:
    """Return which samples of its dataset a batch holds, or None where Lightning does not know.

    Lightning's own `current_batch_indices` stays as it was where a dataloader has none: this does not.
    """
    seen = getattr(getattr(loaders_of(trainer)[dataloader_idx], "batch_sampler", None), "seen_batch_indices", None)
    if not seen or batch_idx >= len(seen):
        return None
    indices = seen[batch_idx]
    return list(indices) if hasattr(indices, "__iter__") else [indices]


def say_what_is_kept(trainer: Any, warn: Callable[[str], None]) -> None:
    """Warn if Lightning keeps every prediction, and so waits for the device at each batch."""
    if trainer.predict_loop.return_predictions:
        warn(
            "Lightning keeps every prediction in memory, and waits for the device at each batch to get it; "
            "pass return_predictions=False to trainer.predict"
        )
