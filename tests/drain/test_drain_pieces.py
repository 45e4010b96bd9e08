"""Values in several parts, on one device or several: every row comes whole and once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from interlock._core._fence import Fence
from interlock._core._protocols import DeviceArray, Piece, Pieces
from interlock.devices import SimulatedDevice
from interlock.drain import Drain
from interlock.errors import UsageError

VALUES = np.arange(12 * 6, dtype=np.float32).reshape(12, 6)
CUTS = {
    "rows": [(0, 0, 4, 6), (4, 0, 3, 6), (7, 0, 5, 6)],
    "columns": [(0, 0, 12, 2), (0, 2, 12, 1), (0, 3, 12, 3)],
    "both": [(0, 0, 6, 4), (0, 4, 6, 2), (6, 0, 6, 4), (6, 4, 6, 2)],
}


def cut(devices, how: str, values: np.ndarray = VALUES) -> Pieces:
    """Each part on the next of the devices, written there by a stream."""
    pieces = []
    for number, (row, column, rows, columns) in enumerate(CUTS[how]):
        device = devices[number % len(devices)]
        part = np.ascontiguousarray(values[row : row + rows, column : column + columns])
        memory = device.allocate(part.nbytes)
        stream = device.stream("compute")

        def run(memory=memory, part=part) -> None:
            memory.view()[:] = part.tobytes()

        device.launch(stream, run, writes=[memory], name="produce")
        array = DeviceArray(device, memory, part.shape, "float32", device.record(stream), stable=True)
        pieces.append(Piece(array, (row, column)))
    return Pieces(values.shape, "float32", tuple(pieces))


@pytest.mark.parametrize("budget_bytes", [1 << 20, 400])
@pytest.mark.parametrize("schedule", ["lazy", "eager", "starve:drain", "random:1", "random:2"])
@pytest.mark.parametrize("how", CUTS)
def test_parts_on_several_devices_land_where_they_belong(sink, columns, how, schedule, budget_bytes):
    devices = [SimulatedDevice(schedule, index=0), SimulatedDevice("lazy", index=1)]
    with Drain(sink, budget_bytes=budget_bytes) as drain:
        for batch in range(3):
            drain.put(np.arange(12) + 12 * batch, {"x": cut(devices, how, VALUES + batch), "y": np.arange(12)})
        assert drain.statistics().host_syncs == 0
    assert np.array_equal(columns(sink)["x"], np.concatenate([VALUES, VALUES + 1, VALUES + 2]))


def test_parts_that_partition_the_rows_are_not_copied_again_on_the_host(tmp_path):
    device = SimulatedDevice("eager")
    with Drain(f"npy:{tmp_path / 'out'}") as drain:
        drain.put(range(12), cut([device], "rows"))
        drain.flush()
        (staging,) = drain._intake._stagings.values()
        assert staging.pool.allocated_bytes == 320  # one slot: 288 bytes, aligned


def test_rows_in_parts_that_came_twice_are_compared(sink, columns):
    devices = [SimulatedDevice("lazy", index=0), SimulatedDevice("lazy", index=1)]
    with Drain(sink) as drain:
        drain.put(range(12), cut(devices, "both"))
        drain.put(range(12), cut(devices, "both"))
        with pytest.raises(UsageError, match="id 0 was put twice with different values"):
            drain.put(range(12), cut(devices, "both", VALUES + 1))
    assert len(columns(sink)["id"]) == 12


def test_parts_that_may_change_are_refused(sink):
    device = SimulatedDevice("lazy")
    array = DeviceArray(device, device.allocate(24), (1, 6), "float32", Fence.EMPTY)
    with Drain(sink) as drain, pytest.raises(UsageError, match=r"output 'x'.*parts.*stable"):
        drain.put([1], {"x": Pieces((1, 6), "float32", (Piece(array, (0, 0)),))})


def test_jax_arrays_sharded_over_several_devices_are_written_whole(tmp_path):
    """As on several GPUs, on several devices that JAX makes of the CPU; the arrays are deleted right after `put`."""
    pytest.importorskip("jax")
    program = """
        import sys, numpy as np, jax
        from jax.sharding import NamedSharding, PartitionSpec as P
        from interlock import Drain
        values = np.arange(96, dtype=np.float32).reshape(8, 12)
        mesh = jax.make_mesh((2, 2), ("a", "b"))
        with Drain(sys.argv[1]) as drain:
            for number, spec in enumerate([P(), P("a"), P(("a", "b")), P(None, "b"), P("a", "b")]):
                array = jax.device_put(values + number, NamedSharding(mesh, spec))
                drain.put(np.arange(8) + 8 * number, array)
                array.delete()
    """
    path = tmp_path / "out"
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}
    program = textwrap.dedent(program)
    subprocess.run([sys.executable, "-c", program, f"npy:{path}"], check=True, timeout=100, env=environment)
    (shard,) = (one for one in path.iterdir() if one.name.startswith("part-"))
    values = np.arange(96, dtype=np.float32).reshape(8, 12)
    assert np.array_equal(np.load(shard / "output.npy"), np.concatenate([values + number for number in range(5)]))
