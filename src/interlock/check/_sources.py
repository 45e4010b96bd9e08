"""Who emits events in a session: the simulator of torch, and the watchers of hazards that need no device.

A program imports its frameworks when it likes, so each source is started when its framework is loaded.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.check._session import Session
    from interlock.devices import Schedule


@contextmanager
def activate_sources(schedule: Schedule, session: Session) -> Iterator[None]:
    """Start every source whose framework is loaded, and each other one when its framework is."""
    from interlock.check import _watch  # noqa: PLC0415 - not needed before a session begins
    from interlock.check._watch._patches import when_loaded  # noqa: PLC0415 - as above

    with ExitStack() as stack:
        stack.enter_context(_watch.activate(session))
        stack.enter_context(when_loaded("torch", lambda: _activate_torch(stack, schedule, session)))
        yield


def _activate_torch(stack: ExitStack, schedule: Schedule, session: Session) -> None:
    from interlock.check import _simulate  # noqa: PLC0415 - loads torch

    stack.enter_context(_simulate.activate(schedule, session))
