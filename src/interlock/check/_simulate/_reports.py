"""Whom the simulator tells what it sees besides events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from interlock._core._events import Region


class Listener(Protocol):
    """What the simulator needs of a session."""

    def step(self) -> None:
        """Count an operation that was queued."""
        ...

    def note(self, text: str) -> None:
        """Take something that a reader of the report must know."""
        ...

    def witness(self, region: Region, message: str) -> None:
        """Take a wrong value that was seen."""
        ...

    def diverged(self, message: str) -> None:
        """Take a value that differs from the plain run; a bug of ours if no edge is missing."""
        ...

    def unsupported(self, operation: str, why: str) -> None:
        """Take an operation that cannot be simulated."""
        ...


@final
class Nobody:
    """Listens to nothing."""

    def step(self) -> None:
        """As in `Listener`."""

    def note(self, text: str) -> None:
        """As in `Listener`."""

    def witness(self, region: Region, message: str) -> None:
        """As in `Listener`."""

    def diverged(self, message: str) -> None:
        """As in `Listener`."""

    def unsupported(self, operation: str, why: str) -> None:
        """As in `Listener`."""
