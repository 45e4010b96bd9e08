"""How far a feed is, whoever shares it: the part of a rank, the progress of a pass, and states that are saved.

All ranks go on in lockstep: with `world` ranks and batches of `batch_size`, step `t` of a pass that began at position
`first` takes positions `first + t * world * batch_size` and on, each rank a run of `batch_size`. So one number says how
far everybody is, and a run with another number of ranks or another batch size can go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, final

import numpy as np

from interlock.errors import UsageError
from interlock.frameworks import process_rank

if TYPE_CHECKING:
    import numpy.typing as npt

    from interlock.feed._work import Work

    _Positions = npt.NDArray[np.int64]

Tail = Literal["exact", "pad", "drop"]

_VERSION = 1
_KIND = "interlock.Feed"
_FIELDS = {"kind", "version", "epoch", "position", "samples", "seed", "shuffle", "chunks"}


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of each epoch a process reads, where several share a source.

    At every step each rank takes the next `batch_size` samples of the epoch's order, rank 0 first. `tail` says what
    becomes of the rest, which is not enough for a full batch on every rank:

    - `exact`: it is divided as evenly as can be; every sample comes once. Ranks may have batches of different sizes
      there, and where fewer samples than ranks are left, the last ranks have one batch less. `len(feed)` is each
      rank's own number.
    - `pad`: all ranks have the same number of samples; what is missing comes from the start of the epoch's order once
      more, with its ids, so that a drain keeps it once.
    - `drop`: all ranks have the same number of samples; at most `world - 1` are left out.

    Args:
        rank: Number of this process, from 0 on.
        world: Number of processes.
        tail: As above.

    Raises:
        UsageError: There is no such rank or tail.
    """

    rank: int = 0
    world: int = 1
    tail: Tail = "exact"

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise UsageError(f"there is no rank {self.rank} of {self.world}", hint="ranks are 0 to world - 1")
        if self.tail not in {"exact", "pad", "drop"}:
            raise UsageError(f"tail is {self.tail!r}", hint="use 'exact', 'pad' or 'drop'")

    @classmethod
    def of_process(cls, tail: Tail = "exact") -> Self:
        """Return the part of this process: its rank in `torch.distributed` or `jax.distributed`, else all of it.

        Only what is initialised when it is called counts. No environment variable is read.
        """
        return cls(*process_rank(), tail)


@final
class Share:
    """The positions that one rank takes of an epoch, from `first` on, in turn.

    Args:
        total: Positions of the epoch.
        first: Where the pass begins, the same on all ranks.
        batch_size: As in `Feed`.
        drop_last: As in `Feed`.
        shard: Who reads.

    Attributes:
        total: As given.
        step_rows: Positions that all ranks together take in a step.
        steps: Steps of the pass; a rank may have one batch less.
    """

    def __init__(self, total: int, first: int, batch_size: int, shard: Shard, *, drop_last: bool) -> None:
        self.total = total
        self._first = first
        self._batch_size = batch_size
        self._rank = shard.rank
        self.step_rows = batch_size * shard.world
        full, rest = divmod(max(0, total - first), self.step_rows)
        least = -(-rest // shard.world) if shard.tail == "pad" else rest // shard.world
        rows, before, some = (0, 0, False) if drop_last and least < batch_size else _tail(rest, shard)
        self._full_rows = full * batch_size
        self._rows = self._full_rows + rows
        self._tail_first = first + full * self.step_rows + before
        self.steps = full + some

    def __len__(self) -> int:
        return self._rows

    @property
    def batches(self) -> int:
        """Batches of this rank."""
        return -(-self._rows // self._batch_size)

    def positions(self, places: _Positions) -> _Positions:
        """Return the positions in the epoch of what the rank reads at `places`."""
        steps, rows = np.divmod(places, self._batch_size)
        found = self._first + steps * self.step_rows + self._rank * self._batch_size + rows
        late = places >= self._full_rows
        if late.any():
            found[late] = (self._tail_first + places[late] - self._full_rows) % self.total
        return found

    def run(self, start: int, stop: int) -> range | None:
        """Return the positions at places `start` to before `stop` if they count up by one within a batch, else None."""
        if start >= stop or stop > self._rows or start // self._batch_size != (stop - 1) // self._batch_size:
            return None
        first, last = self.positions(np.array([start, stop - 1], dtype=np.int64)).tolist()
        return range(first, last + 1) if last - first == stop - start - 1 else None


def _tail(rest: int, shard: Shard) -> tuple[int, int, bool]:
    """Return how many of `rest` positions the rank takes, how many lie before them, and whether any rank has some."""
    rank, world = shard.rank, shard.world
    if shard.tail == "exact":
        least, more = divmod(rest, world)
        return least + (rank < more), rank * least + min(rank, more), rest > 0
    rows = -(-rest // world) if shard.tail == "pad" else rest // world
    return rows, rank * rows, rows > 0


@final
class Progress:
    """How far the consumer of a pass is.

    Args:
        epoch: Number of the epoch.
        first: Position at which the pass began.
        batch_size: As in `Feed`.
        share: The rank's part; None where only the source knows when the epoch ends.
    """

    def __init__(self, epoch: int, first: int, batch_size: int, share: Share | None) -> None:
        self.epoch = epoch
        self._first = first
        self._batch_size = batch_size
        self._share = share
        self._step_rows = batch_size if share is None else share.step_rows
        self.position = first
        self.finished = False

    def consumed(self, work: Work) -> None:
        """Take in that the consumer was given a batch."""
        self.came(work.number + 1)
        if self._share is None:
            self.finished = work.rows_seen < self._batch_size

    def came(self, batches: int) -> None:
        """Take in that the consumer was given so many batches of the pass."""
        self.position = self._first + batches * self._step_rows
        if self._share is not None:
            self.finished = batches >= self._share.steps

    def exhausted(self) -> None:
        """Take in that the consumer was told that there are no more batches."""
        self.finished = True


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """What makes a position mean the same sample: a state fits only a feed that has the same.

    Attributes:
        samples: Length of the source; None if only the source knows.
        seed: Of the order; None where nothing is shuffled.
        shuffle: As in `Shuffle`.
        chunks: Digest of where the chunks begin; empty unless they count.
    """

    samples: int | None
    seed: int | None
    shuffle: str
    chunks: str = ""

    def state(self, epoch: int, position: int) -> dict[str, Any]:
        """Return a state as plain values."""
        return {
            "kind": _KIND,
            "version": _VERSION,
            "epoch": epoch,
            "position": position,
            "samples": self.samples,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "chunks": self.chunks,
        }

    def place(self, state: Any) -> tuple[int, int]:
        """Return the epoch and the position of a state, or of the states of all ranks.

        Raises:
            UsageError: It is no state of a feed, or of one with other terms; or the ranks are not at the same step.
        """
        if isinstance(state, Sequence) and not isinstance(state, (str, bytes)):
            state = _agreed(state)
        _check_form(state)
        for name, mine in (("samples", self.samples), ("shuffle", self.shuffle), ("seed", self.seed)):
            if state[name] != mine:
                raise UsageError(
                    f"the state is of a feed with {_said(name, state[name])}",
                    why=f"this one has {_said(name, mine)}",
                    hint="make the feed as in the run that saved the state",
                )
        if state["chunks"] != self.chunks:
            raise UsageError("the state is of a source with other chunks", hint="do not rewrite a source between runs")
        epoch, position = state["epoch"], state["position"]
        counts = type(epoch) is int and type(position) is int and epoch >= 0 and position >= 0
        if not counts or (self.samples is not None and position > self.samples):
            raise UsageError(f"the state is at position {position!r} of epoch {epoch!r}", why="there is none such")
        return epoch, position


def _said(name: str, value: Any) -> str:
    if name == "samples":
        return "no known length" if value is None else f"{value} samples"
    return f"{name}={value!r}"


def _check_form(state: Any) -> None:
    if not isinstance(state, Mapping) or state.get("kind") != _KIND:
        raise UsageError("this is no state of a feed", why=f"it is a {type(state).__name__}", hint="see state_dict()")
    if state.get("version") != _VERSION:
        raise UsageError(
            f"the state has version {state.get('version')!r}",
            why=f"this Interlock reads version {_VERSION}",
            hint="go on with the Interlock that saved it, or start the epoch again with feed.epoch = N",
        )
    if missing := sorted(_FIELDS - state.keys()):
        raise UsageError("the state is not whole", why=f"it lacks {', '.join(missing)}")


def _agreed(states: Sequence[Any]) -> Any:
    if not states:
        raise UsageError("there is no state in the list", hint="give the state of one rank, or of all")
    for rank, state in enumerate(states):
        if state != states[0]:
            raise UsageError(
                f"the states of rank 0 and rank {rank} differ",
                why=f"{_where(states[0])}, and {_where(state)}",
                hint="save on all ranks after the same step",
            )
    return states[0]


def _where(state: Any) -> str:
    if not isinstance(state, Mapping):
        return f"a {type(state).__name__}"
    return f"position {state.get('position')} of epoch {state.get('epoch')}"
