"""What others implement: devices, frameworks, sinks, sources. Each is the fewest verbs that do the job.

Implementations are thin and trust their caller: no policy, no validation beyond what only they can see, no logging. The
conformance suites in `interlock.testing` say the same in tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from interlock._core._events import Region
    from interlock._core._fence import Fence, Timeline
    from interlock._core._rows import Rows


class Memory(Protocol):
    """A range of bytes somewhere."""

    @property
    def region(self) -> Region:
        """Which bytes of which allocation."""
        ...

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        ...

    @property
    def address(self) -> int:
        """Address of the first byte, in the address space of its device."""
        ...

    def slice(self, offset_bytes: int, size_bytes: int) -> Memory:
        """Return a part; it keeps the whole alive."""
        ...

    def view(self) -> memoryview:
        """Return the bytes for the host, writable.

        Raises:
            DeviceError: The host cannot address this memory.
        """
        ...


class Device(Protocol):
    """Where bytes live and how work on them is ordered."""

    @property
    def name(self) -> str:
        """`host`, `simulated:0`, `cuda:0`."""
        ...

    @property
    def host_visible(self) -> bool:
        """Whether the device's own memory is ordinary host memory, so that nothing need be copied."""
        ...

    def allocate(self, size_bytes: int) -> Memory:
        """Return device memory, aligned for any dtype. Its content is undefined.

        Raises:
            UsageError: The size is not positive.
            MemoryError: There is no such amount.
        """
        ...

    def allocate_host(self, size_bytes: int, *, shared: bool = False) -> Memory:
        """Return host memory that copies to and from this device may use while the host goes on.

        Args:
            size_bytes: How much.
            shared: Whether other processes may map it and write into it.
        """
        ...

    def stream(self, name: str) -> Timeline:
        """Return the stream of that name; the same one each time."""
        ...

    def copy(self, target: Memory, source: Memory, stream: Timeline) -> None:
        """Queue a copy of all bytes of `source` to the same number in `target`. Does not wait.

        Ordering:
            After everything queued on `stream` before. The host may touch neither memory until a fence recorded later
            is reached.

        Raises:
            UsageError: The sizes differ, or the stream is another device's.
        """
        ...

    def wait(self, stream: Timeline, fence: Fence) -> None:
        """Make what is queued on `stream` from now on come after `fence`. The host does not wait."""
        ...

    def record(self, stream: Timeline) -> Fence:
        """Return the fence that is reached when everything queued on `stream` so far is done."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in a device's memory that no framework holds: what `Drain.put` takes from those who drive a device.

    Attributes:
        device: Where the bytes are.
        memory: The bytes, C-contiguous.
        shape: First axis: rows.
        dtype: NumPy's name for the element type, as `float32`.
        ready: When the value is there.
        stable: Whether nobody can change the bytes while this object lives: else whoever wants the value later must
            take a copy in the order of the streams that `ready` names.
    """

    device: Device
    memory: Memory
    shape: tuple[int, ...]
    dtype: str
    ready: Fence
    stable: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of an array that lies in several parts.

    Attributes:
        array: The block. It must be stable.
        first: Where its first element is in the whole array, one number per axis.
    """

    array: DeviceArray
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """An array that lies in several parts, on one device or several.

    Attributes:
        shape: Shape of the whole. First axis: rows.
        dtype: As in `DeviceArray`.
        pieces: The parts: together the whole, none twice, in the order of `first`.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """How to get the value that an array holds now.

    Attributes:
        shape: Shape of the array.
        dtype: Element type on the host.
        ready: When `read` may be called.
        stable: Whether nobody can change the value after the export: else whoever wants it later must copy it now.
        read: Returns the value as a host array, without copying where that can be done. Only once `ready` is reached.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ready: Fence
    stable: bool
    read: Callable[[], npt.NDArray[Any]]


class Framework(Protocol):
    """Who holds arrays."""

    @property
    def name(self) -> str:
        """`numpy`, `torch`, `jax`."""
        ...

    @property
    def immutable(self) -> bool:
        """Whether programs cannot write to this framework's arrays."""
        ...

    def owns(self, value: object) -> bool:
        """Tell whether `value` is one of this framework's arrays."""
        ...

    def runs(self, model: object) -> bool:
        """Tell whether `model` is a callable that wants this framework's arrays and no others."""
        ...

    def home(self, model: object) -> str:
        """Return the device that `model` runs on as it is: where its weights are, else `default_device()`."""
        ...

    def prepare(self, model: Callable[[Any], Any], device: str) -> Callable[[Any], Any]:
        """Return `model` as it is called to predict: without gradients, with its layers in that mode.

        Args:
            model: What `runs` said yes to, or any callable.
            device: Name of the device that batches go to; weights that are elsewhere are moved.
        """
        ...

    def fingerprint(self, model: object) -> str | None:
        """Return a digest of the weights that `model` holds, or None if the framework cannot see them."""
        ...

    def default_device(self, sharding: Any = None) -> str:
        """Return the device that the framework puts arrays on when not told otherwise, as `host` or `cuda:0`.

        Args:
            sharding: The framework's own description of several devices; then the first of them is returned.
        """
        ...

    def lend(self, array: npt.NDArray[Any]) -> Any:
        """Return the framework's array over the same memory, which it keeps alive until its last use is done.

        Args:
            array: C-contiguous, 64-byte aligned.

        Copies: never, except where the framework has no such dtype (JAX without 64-bit types).

        Raises:
            UsageError: The framework has no array of that dtype.
        """
        ...

    def read_back(self, array: Any) -> npt.NDArray[Any] | None:
        """Return the bytes that an array holds now, in C order; None if the program gave it away (donated, deleted).

        Ordering:
            In the order of the stream that is the framework's current one on this thread.

        Blocks: until they are on the host.
        """
        ...

    def export(self, value: Any, *, borrow: bool) -> Export:
        """Take the value that `value` holds at this point of its producer's order.

        Args:
            value: One of this framework's arrays.
            borrow: The caller promises not to change or donate `value` until it is written: no snapshot is taken.

        Raises:
            UsageError: The value cannot come to the host (a deleted buffer, a dtype that NumPy lacks).
        """
        ...


class SupportsDeviceArrays(Protocol):
    """A framework whose arrays may lie on devices that are driven here too. Asked by attribute, not by `isinstance`."""

    def device_arrays(
        self, value: Any, *, borrow: bool, open_device: Callable[[str], Device]
    ) -> DeviceArray | Pieces | None:
        """Take the value that `value` holds at this point of its producer's order, and leave it on its device.

        Args:
            value: One of this framework's arrays.
            borrow: The caller promises not to change or donate `value` until it has landed: no snapshot is taken.
            open_device: Opens the device that a name like `cuda:0` stands for.

        Returns:
            Stable memory: the framework's own snapshot, or with `borrow` the array itself; None if `export` is the way.

        Ordering:
            The snapshot comes before whatever the program queues on the array's stream from now on.

        Raises:
            UsageError: The value cannot be drained; the message says why and what can.
            DeviceError: There is no memory for the snapshot.
        """
        ...


class SupportsJoin(Protocol):
    """A framework that joins arrays of any length without compiling for each. Asked by attribute."""

    def join(self, arrays: Sequence[Any]) -> Any:
        """Return arrays of this framework one behind the other, in memory of their own, where they lie.

        Ordering: as any operation of the program at this point.
        """
        ...


class SupportsJagged(Protocol):
    """A framework that has arrays whose rows differ in length. Asked by attribute."""

    def jagged(self, value: Any) -> tuple[Any, Any] | None:
        """Return the values of all rows and their offsets, if `value` is such an array; else None.

        Raises:
            UsageError: It is one that cannot be drained.
        """
        ...


class ShardWriter(Protocol):
    """One shard being written, under a temporary name."""

    def write(self, ids: npt.NDArray[Any], columns: Mapping[str, Rows]) -> None:
        """Append rows. The arrays may be reused once this returns.

        Args:
            ids: int64 or Unicode, shape (rows,).
            columns: Output name to array of shape (rows, ...), or to `RaggedRows` if the sink says that it holds them;
                the same names, kinds, dtypes and row shapes in every call.

        Raises:
            OSError: The storage refused.
            UsageError: The format has no such dtype.
        """
        ...

    def close(self) -> None:
        """End the shard: every byte is handed to the operating system, none is synced."""
        ...

    def abandon(self) -> None:
        """Let go of the file without making it whole. May be called after a failure of the other two."""
        ...


@dataclass(frozen=True, slots=True)
class ShardContent:
    """What a shard holds.

    Attributes:
        run: The run that wrote it, as given to `Sink.open_shard`; empty if it does not say.
        ids: int64 or Unicode, shape (rows,), in the order of the rows.
    """

    run: str
    ids: npt.NDArray[Any]


class Sink(Protocol):
    """A format: how rows become shards and come back. It knows nothing of naming, syncing or committing."""

    @property
    def scheme(self) -> str:
        """The word before the colon, as in `parquet:out`."""
        ...

    @property
    def suffix(self) -> str:
        """End of a shard's name, as `.parquet`; empty for a shard that is a folder."""
        ...

    def open_shard(self, path: Path, *, run: str) -> ShardWriter:
        """Start a shard at `path`, which does not exist yet; what it becomes there is a file or a folder."""
        ...

    def read_shard(self, path: Path) -> ShardContent:
        """Read back whose shard it is and which rows it has.

        Raises:
            UsageError: The shard is damaged or not of this format.
            OSError: It cannot be read.
        """
        ...

    def read_rows(self, path: Path, positions: Sequence[int]) -> Mapping[str, Rows]:
        """Read the rows at `positions`, in that order, as they were given to `ShardWriter.write`."""
        ...


class SupportsLimits(Protocol):
    """A sink that cannot hold all that others can, or holds more. Asked by attribute, not by `isinstance`."""

    @property
    def dtypes(self) -> frozenset[str]:
        """Names of element types besides bool, integers and float16 to float64."""
        ...

    @property
    def ragged(self) -> bool:
        """Whether it writes and returns `RaggedRows`. Where a sink does not say, it does not."""
        ...

    @property
    def lacks(self) -> frozenset[str]:
        """Names of element types among bool, integers and float16 to float64 that it does not hold."""
        ...

    @property
    def working_copies(self) -> int:
        """How often the bytes of a put are in memory besides while they are encoded; 0 where a sink does not say.

        By itself a drain has no more writers than make such copies within its budget.
        """
        ...

    def check(self, ids: npt.NDArray[Any], names: Sequence[str]) -> None:
        """Refuse ids and names of outputs, before anything of a put is taken.

        Raises:
            UsageError: One of them cannot be stored; the message says which and why.
        """
        ...


@dataclass(frozen=True, slots=True)
class ListedShard:
    """What a catalogue is told of a shard.

    Attributes:
        name: Its name in the folder.
        rows: Number of rows.
        size_bytes: Bytes of its files.
        bounds: The smallest and the largest id; None if they are strings.
    """

    name: str
    rows: int
    size_bytes: int
    bounds: tuple[int, int] | None


class SupportsCatalog(Protocol):
    """A sink whose readers ask a catalogue in the folder which shards there are, and do not look at names.

    Asked by attribute, not by `isinstance`. Shards that a catalogue lists no more stay where they are, for readers that
    asked before; so who reads it needs no lock.
    """

    def listed(self, root: Path) -> frozenset[str] | None:
        """Return the names of the shards that count for readers now; None if there is no catalogue.

        Raises:
            SinkError: It cannot be read.
        """
        ...

    def publish(self, root: Path, added: Sequence[ListedShard], removed: Sequence[str]) -> None:
        """Change what the catalogue lists: readers see all of it or nothing. Makes the catalogue if there is none.

        Other processes may do the same at the same time. To add what is listed, or to remove what is not, does nothing.

        Args:
            root: The folder.
            added: Shards that lie there under their names, whole and on the storage.
            removed: Shards whose rows are all in those that are added, or in others.

        Blocks: until the change is on the storage.

        Raises:
            SinkError: It was not made, or not surely.
        """
        ...

    def discard(self, root: Path) -> None:
        """Remove the catalogue, so that readers see it whole or not at all."""
        ...


class SupportsIndex(Protocol):
    """A sink whose shards are folders. Asked by attribute, not by `isinstance`."""

    @property
    def index(self) -> str:
        """Name of the file without which no reader takes the folder for a shard: remote, it comes last and goes first.

        Where files of a folder cannot appear together, that is how a shard is there or not.
        """
        ...


@runtime_checkable
class Source(Protocol):
    """Samples by index. Anything with these two methods is one; nothing need be inherited."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return sample `index`: an array, a number, or a dict or tuple of them. Called on worker threads."""
        ...


@runtime_checkable
class SupportsIds(Protocol):
    """A source whose samples have names of their own."""

    def id_of(self, index: int) -> int | str:
        """Return the id of sample `index`; unique in the source, the same in every run."""
        ...


@runtime_checkable
class SupportsChunks(Protocol):
    """A source whose samples lie in chunks that are read as a whole: row groups, shards. `Feed(shuffle="chunks")`."""

    def chunk_starts(self) -> Sequence[int]:
        """Return the index of the first sample of each chunk: 0 first, and rising."""
        ...


@runtime_checkable
class SupportsReadInto(Protocol):
    """A source that can write many samples at once where they are wanted."""

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """Write samples `indices` into `out`, a tree like a sample's whose leaves have the first axis `len(indices)`.

        Raises:
            SampleError: One of them cannot be read.
        """
        ...
