"""Feeds into JAX arrays on a device: on the first CUDA device, and on a twin that any machine has.

The twin is the same device on a driver made of Python, on which everything is late; its memory is the host's, and JAX
takes it over as CPU arrays. What is not ordered reads old bytes; a slot that comes back too early is overwritten under
a computation.
"""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from interlock import Feed, prefetch
from interlock.errors import BoundError, UsageError
from interlock.feed import _feed, _iteration
from interlock.frameworks import _jax, _jax_imports
from interlock.lowlevel import framework_named, wait
from interlock.testing import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from interlock._core._protocols import Memory
    from interlock.devices._cuda import CudaDevice
    from interlock.lowlevel import Fence

PLAIN = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64",
)  # fmt: skip
WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
_STREAM = 0x7000
"""Handle of the stream that stands for JAX's own."""
NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _import_on_twin(
    device: CudaDevice, memory: Memory, shape: tuple[int, ...], dtype: Any, ready: Fence, holder: Any
) -> jax.Array:
    """Do what the import on CUDA does, as far as it goes on the host: a stream waits, and the host for the stream."""
    stream = device.adopt(_STREAM)
    device.wait(stream, ready)
    wait(device.record(stream), timeout_s=30, what="the import")
    whole = np.asarray(holder)
    assert whole.ctypes.data == memory.address
    array = jnp.from_dlpack(whole.view(dtype).reshape(shape))
    if device.index == 0:
        return array
    placed: jax.Array = jax.device_put(array, jax.devices("cpu")[device.index])
    return placed


def _is_twin(device: CudaDevice) -> bool:
    return type(device._context.api).__name__ == "FakeDriver"


@pytest.fixture
def target(cuda_or_fake: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """The device; JAX takes the twin's memory over on the CPU."""
    if _is_twin(cuda_or_fake):
        monkeypatch.setattr(_jax, "_device_at", lambda index: jax.devices("cpu")[index])
        monkeypatch.setattr(_jax_imports, "import_memory", _import_on_twin)
    return cuda_or_fake


@pytest.fixture(params=[False, True], ids=["unpacked", "zero-copy"])
def zero_copy(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _numbers(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    kind: Any = getattr(ml_dtypes, dtype, dtype)
    return (np.arange(np.prod(shape)) % 100 % (2 if dtype == "bool" else 100)).reshape(shape).astype(kind)


def _same(found: Any, expected: npt.NDArray[Any]) -> bool:
    return found.shape == expected.shape and np.asarray(found).tobytes() == expected.tobytes()


@jax.jit
def _after_much_work(carry: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Read `batch` only when a chain of products is done, by which time the host is far ahead."""
    for _ in range(6):
        carry = jnp.tanh(carry @ carry)
    after = jnp.sum(carry) * 0
    return carry, jnp.min(batch) + after, jnp.max(batch) + after


@pytest.mark.parametrize("dtype", [*PLAIN, *NARROW])
def test_leaves_of_every_dtype_have_the_values_of_the_source(target: CudaDevice, zero_copy: bool, dtype: str):  # noqa: FBT001 - a fixture
    """Odd sizes, numbers as rows, rows of nothing, a last batch that is not full."""
    data = {"a": _numbers(dtype, (11, 3, 5)), "b": _numbers(dtype, (11,)), "c": _numbers(dtype, (11, 0))}
    feed = Feed(data, batch_size=4, to="jax", device=target, zero_copy=zero_copy, workers=2)
    kept = [*feed, *feed]
    for number, batch in enumerate(kept):
        start = number % 3 * 4
        for name, values in data.items():
            assert batch[name].dtype == values.dtype
            assert _same(batch[name], values[start : start + 4]), (number, name)
    assert feed.statistics().host_syncs == 0


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_leaves_are_kept_with_64_bit_types_and_narrowed_without(target: CudaDevice, zero_copy: bool, dtype: str):  # noqa: FBT001
    data = (np.arange(24).reshape(8, 3) * 1000003).astype(dtype) + np.array(1 / 3).astype(dtype)
    feed = Feed(data, batch_size=4, to="jax", device=target, zero_copy=zero_copy)
    assert [_same(batch, rows.astype(WIDE[dtype])) for batch, rows in zip(feed, np.split(data, 2), strict=True)]
    with jax.enable_x64(True):  # noqa: FBT003 - its own signature
        found = list(feed)
        assert [str(batch.dtype) for batch in found] == [dtype, dtype]
        assert all(_same(batch, rows) for batch, rows in zip(found, np.split(data, 2), strict=True))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, np.longdouble])
def test_a_dtype_that_jax_lacks_is_refused_by_name(target: CudaDevice, dtype: Any):
    data = {"good": np.zeros((4, 2), np.float32), "bad": np.zeros((4, 2), dtype)}
    with pytest.raises(UsageError, match=r"leaf 'bad' of dtype"):
        next(iter(Feed(data, batch_size=2, to="jax", device=target)))


def test_kept_batches_of_unpacked_arrays_hold_no_slot(target: CudaDevice):
    """Forty kept batches through room for two."""
    data = np.arange(40 * 4096, dtype=np.float32).reshape(40, 4096)
    feed = Feed(data, batch_size=1, to="jax", device=target, budget_bytes=2 * 4096 * 4, timeout_s=20)
    kept = list(feed)
    assert all(_same(batch[0], row) for batch, row in zip(kept, data, strict=True))


def test_kept_batches_that_are_the_slot_hold_it_until_they_go(target: CudaDevice):
    data = np.arange(8 * 4096, dtype=np.float32).reshape(8, 4096)
    feed = Feed(
        data, batch_size=1, to="jax", device=target, zero_copy=True, budget_bytes=2 * 4096 * 4, timeout_s=0.4, workers=1
    )
    batches = iter(feed)
    kept = [next(batches), next(batches)]
    with pytest.raises(BoundError, match="still holds 2 of 2"):
        next(batches)
    assert all(_same(batch[0], row) for batch, row in zip(kept, data, strict=False))
    del kept
    gc.collect()  # the error's traceback held them too
    count = 0
    for batch, row in zip(feed, data, strict=True):
        assert _same(batch[0], row)
        del batch
        count += 1
    assert count == 8


def test_arrays_may_be_donated(target: CudaDevice, zero_copy: bool):  # noqa: FBT001 - a fixture
    """Whether XLA reuses the memory or not, the result is right and the slots come back."""
    data = np.arange(24 * 4096, dtype=np.float32).reshape(24, 4096)
    feed = Feed(
        data, batch_size=1, to="jax", device=target, zero_copy=zero_copy, budget_bytes=3 * 4096 * 4, timeout_s=20
    )
    double = jax.jit(lambda batch: batch * 2, donate_argnums=0)
    for batch, row in zip(feed, data, strict=True):
        result = double(batch)
        assert _same(result[0], row * 2)
        del batch, result


def test_a_slot_is_not_written_while_a_queued_computation_reads_it(target: CudaDevice, zero_copy: bool):  # noqa: FBT001 - a fixture
    data = np.repeat(np.arange(40, dtype=np.float32), 1 << 16).reshape(40, 256, 256)
    size = 256 if _is_twin(target) else 2048
    feed = Feed(data, batch_size=1, to="jax", device=target, zero_copy=zero_copy, workers=2, budget_bytes=4 << 18)
    waits_before = target.host_syncs
    carry = jnp.eye(size)
    probes = []
    for batch in feed:
        carry, low, high = _after_much_work(carry, batch)
        probes.append((low, high))
        del batch
    assert [(float(low), float(high)) for low, high in probes] == [(n, n) for n in range(40)]
    assert feed.statistics().host_syncs == 0
    assert target.host_syncs == waits_before


def test_a_thousand_batches_kept_at_random_stay_as_they_were(target: CudaDevice, zero_copy: bool):  # noqa: FBT001 - a fixture
    chance = random.Random(5)  # noqa: S311 - not for secrets
    data: dict[str, npt.NDArray[Any]] = {
        "x": np.arange(1000 * 33, dtype=np.float32).reshape(1000, 33),
        "y": np.arange(1000, dtype=np.int16),
    }
    feed = Feed(data, batch_size=1, to="jax", device=target, zero_copy=zero_copy, workers=3, depth=4)
    kept: dict[int, Any] = {}
    for number, batch in enumerate(feed):
        kept[number] = batch
        while len(kept) > chance.randrange(1, 40):
            _check(data, kept, chance.choice(list(kept)))
    for number in list(kept):
        _check(data, kept, number)


def _check(data: dict[str, npt.NDArray[Any]], kept: dict[int, Any], number: int) -> None:
    batch = kept.pop(number)
    assert _same(batch["x"][0], data["x"][number]), number
    assert int(batch["y"][0]) == number


def test_the_host_runs_ahead_of_a_copy_that_is_held(cuda: CudaDevice, zero_copy: bool):  # noqa: FBT001 - a fixture
    """JAX's own work waits for the copy, and reads what it brings, not what was in the slot before."""
    data = np.zeros((4, 1024), np.float32)
    feed = Feed(data, batch_size=1, to="jax", device=cuda, zero_copy=zero_copy, budget_bytes=2 * 4096)
    total = jax.jit(jnp.sum)
    for batch in feed:
        total(batch).block_until_ready()
        del batch
    data += 1
    with gate(cuda.stream("feed"), device=cuda):
        result = total(next(iter(feed)))
        assert not result.is_ready()
    assert float(result) == 1024


SURROUNDINGS: dict[str, Callable[[], Any]] = {
    "a transfer guard": lambda: jax.transfer_guard("disallow_explicit"),
    "no compilation": jax.disable_jit,
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((jax.device_count(),), ("data",))),
    "another default device": lambda: jax.default_device(jax.local_devices(backend="cpu")[-1]),
    "leak checks": jax.checking_leaks,
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_the_program_sets_around_its_loop_does_not_matter(target: CudaDevice, zero_copy: bool, name: str):  # noqa: FBT001
    data: dict[str, npt.NDArray[Any]] = {
        "x": _numbers("float32", (12, 5)),
        "y": np.arange(12),
        "z": _numbers("bfloat16", (12, 2)),
    }
    feed = Feed(data, batch_size=4, to="jax", device=target, zero_copy=zero_copy)
    with SURROUNDINGS[name]():
        kept = list(feed)
    for number, batch in enumerate(kept):
        rows = slice(number * 4, number * 4 + 4)
        assert _same(batch["x"], data["x"][rows])
        assert _same(batch["y"], data["y"][rows].astype(np.int32))
        assert _same(batch["z"], data["z"][rows])


def test_a_consumer_on_another_thread_gets_its_batches(target: CudaDevice):
    feed = Feed(np.arange(24, dtype=np.float32).reshape(12, 2), batch_size=4, to="jax", device=target)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: [float(batch.sum()) for batch in feed]).result(60)
    assert found == [28, 92, 156]


def test_fixed_addresses_are_refused(target: CudaDevice):
    with pytest.raises(UsageError, match="fixed addresses"):
        next(iter(Feed(np.zeros((4, 2)), batch_size=2, to="jax", device=target, fixed=True)))


def test_prefetch_gives_arrays_on_the_device(target: CudaDevice, zero_copy: bool):  # noqa: FBT001 - a fixture
    batches = [{"x": np.full((3, 2), n, np.float32)} for n in range(6)]
    found = list(prefetch(batches, to="jax", device=target, zero_copy=zero_copy))
    assert [_same(batch["x"], batches[n]["x"]) for n, batch in enumerate(found)] == [True] * 6


def test_arrays_are_on_the_device_that_was_asked_for(cuda: CudaDevice):
    batch = next(iter(Feed(np.zeros((4, 2), np.float32), batch_size=2, to="jax")))
    assert (batch.device.platform, batch.device.local_hardware_id) == ("gpu", cuda.index)
    on_host = next(
        iter(Feed({"x": np.zeros((4, 2), np.float32), "y": np.arange(4)}, batch_size=2, to="jax", device="host"))
    )
    assert {leaf.device.platform for leaf in on_host.values()} == {"cpu"}
    assert (on_host["x"] + 1).device.platform == "cpu"


def test_the_default_device_is_where_jax_puts_new_arrays(cuda: CudaDevice):
    framework = framework_named("jax")
    assert framework.default_device() == cuda.name
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        assert framework.default_device() == "host"


# ------------------------------------------------------------ several devices


@pytest.fixture
def two(two_cuda_or_fake: tuple[CudaDevice, CudaDevice], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Two devices as JAX knows them. The twins need a process with two CPU devices: tests/feed starts one."""
    if not _is_twin(two_cuda_or_fake[0]):
        api = two_cuda_or_fake[0]._context.api
        before = api.cuCtxGetCurrent()[1]
        yield list(jax.local_devices(backend="cuda")[:2])
        api.cuCtxSetCurrent(before)  # JAX leaves that of the device which it used last
        return
    if len(jax.devices("cpu")) == 1:
        pytest.skip("needs two CPU devices of JAX's")
    monkeypatch.setattr(_jax_imports, "import_memory", _import_on_twin)
    monkeypatch.setattr(_jax, "_name_of", lambda device: f"cuda:{device.id}")
    for module in (_feed, _iteration):
        monkeypatch.setattr(module, "open_device", lambda name: two_cuda_or_fake[int(name.removeprefix("cuda:"))])
    yield jax.devices("cpu")[:2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("spec", [("data",), (), (None, "data"), ("data", None, None)], ids=str)
def test_a_sharded_batch_is_one_array_with_its_shards_on_their_devices(
    two: list[Any],
    zero_copy: bool,  # noqa: FBT001 - a fixture
    spec: tuple[str | None, ...],
    workers: int,
):
    """Labels, which have one axis only, are split by the first entry of the spec."""
    sharding = NamedSharding(Mesh(np.array(two), ("data",)), PartitionSpec(*spec))
    data = {"x": _numbers("float32", (24, 6, 5)), "y": np.arange(24), "h": _numbers("bfloat16", (24, 2))}
    feed = Feed(data, batch_size=8, to=sharding, zero_copy=zero_copy, workers=workers)
    kept = [*feed, *feed]
    for number, batch in enumerate(kept):
        rows = slice(number % 3 * 8, number % 3 * 8 + 8)
        assert batch["x"].sharding.is_equivalent_to(sharding, 3)
        assert _same(batch["x"], data["x"][rows])
        assert _same(batch["y"], data["y"][rows].astype(np.int32))
        assert _same(batch["h"], data["h"][rows])
        for shard in batch["x"].addressable_shards:
            assert _same(shard.data, data["x"][rows][shard.index])
    assert feed.statistics().host_syncs == 0


def test_the_areas_of_a_sharded_feed_are_not_written_while_a_computation_reads_them(two: list[Any], zero_copy: bool):  # noqa: FBT001
    mesh = Mesh(np.array(two), ("data",))
    data = np.repeat(np.arange(80, dtype=np.float32), 1 << 14).reshape(80, 128, 128)
    feed = Feed(
        data,
        batch_size=2,
        to=NamedSharding(mesh, PartitionSpec("data")),
        zero_copy=zero_copy,
        workers=2,
        budget_bytes=6 << 16,
    )

    @jax.jit
    def step(carry: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As `_after_much_work`, row by row: nothing goes from one device to another."""
        for _ in range(6):
            carry = jnp.tanh(carry @ carry)
        after = jnp.sum(carry) * 0
        return carry, jnp.min(batch, axis=(1, 2)) + after, jnp.max(batch, axis=(1, 2)) + after

    carry = jax.device_put(np.eye(256, dtype=np.float32), NamedSharding(mesh, PartitionSpec()))
    probes = []
    for batch in feed:
        carry, low, high = step(carry, batch)
        probes.append((low, high))
        del batch
    for number, (low, high) in enumerate(probes):
        assert np.asarray(low).tolist() == np.asarray(high).tolist() == [2 * number, 2 * number + 1]


def test_a_batch_that_does_not_divide_is_refused_by_name(two: list[Any]):
    sharding = NamedSharding(Mesh(np.array(two), ("data",)), PartitionSpec("data"))
    feed = Feed({"x": np.zeros((7, 3), np.float32)}, batch_size=4, to=sharding)
    batches = iter(feed)
    next(batches)
    with pytest.raises(UsageError, match="leaf 'x' has 3 rows: the mesh splits them by 'data' in 2") as caught:
        next(batches)
    assert "drop_last=True" in caught.value.hint
