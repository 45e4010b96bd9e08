"""Hugging Face Accelerate: each process writes its own rows, and nothing is gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, final

from interlock.drain import Drain
from interlock.integrations._pending import pending_samples
from interlock.integrations._puts import Puts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from interlock.drain import DrainStatistics, Explanation
    from interlock.drain._call import SinkFunction
    from interlock.drain._idsets import IdView
    from interlock.drain._reductions import Reduction

__all__ = ["AcceleratorDrain", "drain"]


def drain(
    accelerator: Any,
    sink: str | SinkFunction,
    *,
    outputs: Mapping[str, Reduction | Sequence[Reduction]] | None = None,
    fingerprint: Mapping[str, object] | None = None,
    total: int | None = None,
    restart: bool = False,
    budget_bytes: int = 1 << 30,
    writers: int | Literal["auto"] = "auto",
    shard_bytes: int = 64 << 20,
    commit_interval_s: float = 30.0,
    nan: Literal["keep", "fail"] = "keep",
    repeats: Literal["same", "first"] = "first",
    timeout_s: float = 600.0,
    fsync: Literal["commit", "never"] = "commit",
    verify: bool = False,
) -> AcceleratorDrain:
    """Open a drain for this process of a program that Accelerate runs.

    All processes name the same sink; each writes shards of its own. Use it in a `with` block, and put what the model
    returns, without `gather_for_metrics`. Rows that a prepared dataloader adds to fill the last batch are dropped by
    their ids.

    Args:
        accelerator: The `Accelerator`.
        sink: As in `Drain`, as are the rest; but `repeats` is `first` unless you say otherwise: the row that fills up a
            batch was computed in another one than the first, and so may differ in its last bits.
        outputs: As in `Drain`. Where ids are on the device, rows are made smaller on the host.
        fingerprint: As in `Drain`.
        total: As in `Drain`.
        restart: As in `Drain`.
        budget_bytes: As in `Drain`.
        writers: As in `Drain`, in each process.
        shard_bytes: As in `Drain`.
        commit_interval_s: As in `Drain`.
        nan: As in `Drain`.
        repeats: See `sink`.
        timeout_s: As in `Drain`.
        fsync: As in `Drain`.
        verify: As in `Drain`.

    Raises:
        UsageError: As in `Drain`.
        SinkConflictError: As in `Drain`.
        SinkError: As in `Drain`.
    """
    opened = Drain(
        sink,
        rank=(accelerator.process_index, accelerator.num_processes),
        outputs=outputs,
        fingerprint=fingerprint,
        total=total,
        restart=restart,
        budget_bytes=budget_bytes,
        writers=writers,
        shard_bytes=shard_bytes,
        commit_interval_s=commit_interval_s,
        nan=nan,
        repeats=repeats,
        timeout_s=timeout_s,
        fsync=fsync,
        verify=verify,
    )
    return AcceleratorDrain(opened, accelerator, budget_bytes=budget_bytes, timeout_s=timeout_s)


@final
class AcceleratorDrain:
    """A drain whose ids may be tensors on the device, as those in the batches of a prepared dataloader are.

    Only `drain` makes them.

    Attributes:
        drain: The drain itself.
    """

    def __init__(self, drain: Drain, accelerator: Any, *, budget_bytes: int, timeout_s: float) -> None:
        self.drain = drain
        self._accelerator = accelerator
        self._puts = Puts(drain, accelerator.device, budget_bytes=budget_bytes, timeout_s=timeout_s)
        self._count = 0

    def __repr__(self) -> str:
        return f"AcceleratorDrain({self.drain!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._puts.close(error)

    @property
    def committed(self) -> IdView:
        """Ids of the rows that no crash can lose any more, of all processes, as far as they were there at the start."""
        return self.drain.committed

    def put(self, ids: Any, outputs: Any) -> None:
        """Take rows, with the values that they have now in the order of their producer.

        Args:
            ids: As in `Drain.put`, or a tensor on a device. Then the rows are put on a thread, when it has landed.
            outputs: As in `Drain.put`.

        Ordering: as in `Drain.put`.

        Blocks: while the budget is in use.

        Raises:
            InterlockError: As in `Drain.put`; where ids are on a device, for rows before, which are named.
        """
        self._puts.put(ids, outputs, f"put {self._count}")
        self._count += 1

    def pending(self, dataset: Any) -> Any:
        """Return the samples of a map-style dataset whose rows are not committed, for a dataloader to be prepared.

        What is returned is map-style too, with `id_of(index)`. Call it before the first put, on all processes:
        Accelerate shares the samples out, and all must have the same.

        Args:
            dataset: Its ids are what its `id_of(index)` returns if it has that, else row numbers.

        Raises:
            UsageError: `dataset` is not map-style.
        """
        found = pending_samples(dataset, self.drain.committed, None)
        self._accelerator.wait_for_everyone()
        return found

    def flush(self) -> None:
        """Commit everything that was put so far, as `Drain.flush` does."""
        self._puts.flush()

    def close(self) -> None:
        """Commit everything that was put and let go of the sink, as `Drain.close` does."""
        self._puts.close()

    def statistics(self) -> DrainStatistics:
        """Return counts and times up to now. Never blocks."""
        return self.drain.statistics()

    def explain(self) -> Explanation:
        """Return what limits the drain, as `Drain.explain` does."""
        return self.drain.explain()
