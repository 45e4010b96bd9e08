"""Stages: functions that samples go through between the source and the slot, and which of them may write into it."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ, COPY = "read", "copy"
"""Names of what comes before the first stage, and after the last one."""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """A function that each sample of a `Feed` goes through, with worker threads of its own.

    Args:
        function: Takes what the source, or the stage before, made of a sample, and returns what comes next. What it
            returns must be memory of its own: it waits in a queue while the function is called again. The function of
            the last stage may have a parameter `out`, see `Feed`.
        workers: Threads that call it. With 1 it is never called twice at the same time, also not by a thread that
            tries a failed sample again.
        name: Its name in errors, statistics and traces; that of the function if left out.

    Raises:
        UsageError: An argument that cannot be meant.

    Example:
        >>> import numpy as np
        >>> from interlock import Feed
        >>> feed = Feed([1, 2, 3], batch_size=3, stages=[Stage(lambda value: value * 10, workers=2, name="scale")])
        >>> [batch.tolist() for batch in feed]
        [[10, 20, 30]]
    """

    function: Callable[..., Any]
    workers: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"a {type(self.function).__name__} is no stage", hint="pass something that can be called")
        if self.workers < 1:
            raise UsageError(f"a stage has {self.workers} workers", hint="give at least 1")
        if self.name is not None and not self.name:
            raise UsageError("the name of a stage is empty", hint="leave it out, or give one")


class StageFailure(Exception):  # noqa: N818 - carries an error from a stage to whoever reports the sample
    """What a stage raised for a sample.

    Args:
        stage: Name of the stage.
        error: What it raised.
    """

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(stage, error)
        self.stage = stage
        self.error = error


@final
class Step:
    """A stage in its place in a chain.

    Args:
        stage: The stage, with its name.
        last: Whether what it returns goes into the slot.

    Attributes:
        name: Its name.
        workers: As in `Stage`.
        takes_out: Whether it may write into the slot by itself.
    """

    __slots__ = ("_alone", "_function", "name", "takes_out", "workers")

    def __init__(self, stage: Stage, *, last: bool) -> None:
        self.name = stage.name or ""
        self.workers = stage.workers
        self._function = stage.function
        self.takes_out = False
        if takes_out(stage.function):
            self.takes_out = last
            if not last:
                self._function = functools.partial(stage.function, out=None)
        self._alone = threading.Lock() if stage.workers == 1 else None

    def __call__(self, sample: Any, out: Any = None) -> Any:
        """Return what the stage makes of a sample.

        Args:
            sample: The sample.
            out: Where it may write, if it takes that.

        Raises:
            StageFailure: It raised an exception, were it `StopIteration`.

        Blocks: while another thread is inside a stage with one worker.
        """
        try:
            if self._alone is None:
                return self._function(sample, out=out) if self.takes_out else self._function(sample)
            with self._alone:
                return self._function(sample, out=out) if self.takes_out else self._function(sample)
        except Exception as error:
            raise StageFailure(self.name, error) from error


@final
class Chain:
    """All stages of a feed, one behind the other. It can be sent to another process if its functions can.

    Args:
        stages: The stages, at least one.

    Attributes:
        steps: One per stage, with unique names.
        takes_out: Whether the last one may write into the slot by itself.

    Raises:
        UsageError: Two stages were given one name, or a name that the feed itself uses.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = _named(stages)
        self.steps = tuple(Step(stage, last=stage is self._stages[-1]) for stage in self._stages)
        self.takes_out = self.steps[-1].takes_out

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, with a name each."""
        return self._stages

    def __reduce__(self) -> tuple[Any, ...]:
        return Chain, (self._stages,)

    def __call__(self, sample: Any, out: Any = None, seconds: list[float] | None = None) -> Any:
        """Return what all stages make of a sample of the source, called one after the other on this thread.

        Args:
            sample: The sample.
            out: A tree of writable arrays for the last stage, if it takes that and the layout is known.
            seconds: One number per stage, to which the time in it is added.

        Raises:
            StageFailure: A stage raised an exception.
        """
        for position, step in enumerate(self.steps):
            began = time.perf_counter()
            sample = step(sample, out)
            if seconds is not None:
                seconds[position] += time.perf_counter() - began
        return sample


def chain_of(stages: Any) -> Chain | None:
    """Return what an argument `stages` means; None if there are none.

    Raises:
        UsageError: It cannot be meant.
    """
    if isinstance(stages, (list, tuple)):
        return Chain([one if isinstance(one, Stage) else Stage(one) for one in stages]) if stages else None
    raise UsageError(f"stages is {stages!r}", hint="give a list of functions and Stages")


def takes_out(function: Callable[..., Any]) -> bool:
    """Tell whether a function has a parameter `out` that it can be given by name.

    NumPy's own functions do not count: they cast what they compute to what `out` is, and say nothing.
    """
    inner = function
    while isinstance(inner, functools.partial):
        if "out" in inner.keywords:
            return False
        inner = inner.func
    if isinstance(inner, np.ufunc) or (getattr(inner, "__module__", None) or "").partition(".")[0] == "numpy":
        return False
    try:
        parameter = inspect.signature(function).parameters.get("out")
    except (TypeError, ValueError):  # written in C, and silent about it
        return False
    return parameter is not None and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}


def _named(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return the stages with a name each: given names must differ, found ones are numbered where they do not."""
    given = [stage.name for stage in stages if stage.name is not None]
    for name in given:
        if given.count(name) > 1:
            raise UsageError(f"two stages are called {name!r}", hint="give each a name of its own")
        if name in {READ, COPY}:
            raise UsageError(f"a stage is called {name!r}", why="the feed uses that name itself", hint="use another")
    taken = {READ, COPY, *given}
    named = []
    for stage in stages:
        name = stage.name or _free_name(stage.function, taken)
        taken.add(name)
        named.append(replace(stage, name=name))
    return tuple(named)


def _free_name(function: Callable[..., Any], taken: set[str]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *numbered) if each not in taken)
