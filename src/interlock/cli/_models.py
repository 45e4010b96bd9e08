"""MODEL: load it, find out whose arrays it wants, call it, check what it returns."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final

from interlock.cli._exits import one_line
from interlock.drain import Ragged, RaggedRows
from interlock.drain._outputs import with_ragged
from interlock.errors import ModelError, UsageError
from interlock.feed.sources import load_object
from interlock.lowlevel import flatten, framework_named, framework_of, framework_running

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from interlock.feed.sources import LoadedObject
    from interlock.lowlevel import Framework

To: TypeAlias = Literal["numpy", "torch", "jax", "cupy"]

_IDS_SHOWN = 5


@final
@dataclass(frozen=True, slots=True)
class Model:
    """A callable from a batch to outputs.

    Attributes:
        text: What the user called it.
        to: Whose arrays it wants.
        device: Where its batches go.
        fingerprint: Plain values that differ when its outputs may.
    """

    text: str
    to: To
    device: str
    fingerprint: dict[str, Any]
    _call: Callable[[Any], Any]

    def __call__(self, ids: npt.NDArray[Any], batch: Any) -> Any:
        """Return the outputs for a batch.

        Args:
            ids: Of its rows, for messages.
            batch: Arrays of the framework `to`.

        Raises:
            ModelError: The model raised, or what it returned is not arrays of one row a sample.
        """
        try:
            outputs = self._call(batch)
        except Exception as error:
            raise ModelError(
                f"{self.text} failed on the rows with ids {_listed(ids)}",
                why=one_line(error),
                hint="what was complete before is committed; a model that was changed needs --restart or another sink",
            ) from error
        self._check(outputs, len(ids))
        return outputs

    def _check(self, outputs: Any, rows: int) -> None:
        try:
            leaves, structure = flatten(with_ragged(outputs))
            names = structure.names()
        except UsageError as error:
            raise ModelError(
                f"{self.text} returned outputs that cannot be named", why=error.what, hint=error.hint
            ) from error
        if not leaves:
            raise ModelError(f"{self.text} returned nothing", hint="return an array, or a dict or tuple of arrays")
        for name, leaf in zip(names, leaves, strict=True):
            if isinstance(leaf, (Ragged, RaggedRows)):
                continue  # the drain knows what is wrong with it
            what = f"output {name!r}" if name else "its output"
            shape = getattr(leaf, "shape", None)
            if framework_of(leaf) is None or not shape:
                raise ModelError(
                    f"{self.text} returned something that is not an array of rows",
                    why=f"{what} is {'one number' if framework_of(leaf) else f'of type {type(leaf).__name__}'}",
                    hint="return an array, or a dict or tuple of arrays, first axis samples",
                )
            if shape[0] != rows:
                raise ModelError(
                    f"{self.text} returned {shape[0]} rows for a batch of {rows}",
                    why=f"{what} has the shape {tuple(shape)}",
                    hint=f"the first axis of each output must be samples: {rows} expected",
                )


def open_model(text: str, to: str | None, device: str) -> Model:
    """Load the model that `text` names.

    Args:
        text: `file.py:NAME` or `package.module:NAME`; a class, or a function without parameters, is called to get it.
        to: Whose arrays it wants, if the user said so. Default: what the model says, else `numpy`.
        device: Where batches go; `auto` for where the model is.

    Raises:
        UsageError: There is no such model, it cannot be called, or wants other arrays than `to`.
    """
    loaded = load_object(text)
    value = _made(text, loaded)
    if not callable(value):
        raise UsageError(
            f"MODEL {text} is not callable",
            why=f"it is of type {type(value).__name__}",
            hint="give a function or a module",
        )
    framework = _framework(text, value, to)
    fingerprint = {
        "name": loaded.name,
        "file": loaded.digest(),
        "weights": framework.fingerprint(value),
        "to": framework.name,
    }
    where = framework.home(value) if device == "auto" else device
    return Model(text, cast("To", framework.name), where, fingerprint, framework.prepare(value, where))


def _made(text: str, loaded: LoadedObject) -> Any:
    if not isinstance(loaded.value, type) and not _is_factory(loaded.value):
        return loaded.value
    try:
        return loaded.call()
    except Exception as error:
        raise UsageError(
            f"MODEL {text} could not be made", why=one_line(error), hint="it is called without arguments for the model"
        ) from error


def _is_factory(value: object) -> bool:
    """Tell whether `value` is a plain function that cannot take a batch."""
    return inspect.isfunction(value) and not inspect.signature(value).parameters


def _framework(text: str, model: object, to: str | None) -> Framework:
    wanted = framework_running(model)
    if wanted is None:
        return framework_named(to or "numpy")
    if to not in {None, wanted.name}:
        raise UsageError(
            f"--to {to} does not go with MODEL {text}", why=f"it wants {wanted.name} arrays", hint="leave it out"
        )
    return wanted


def _listed(ids: npt.NDArray[Any]) -> str:
    shown = ", ".join(str(one) for one in ids[:_IDS_SHOWN].tolist())
    return shown if len(ids) <= _IDS_SHOWN else f"{shown}, … ({len(ids)} rows)"
