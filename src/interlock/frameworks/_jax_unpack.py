"""From the bytes of a slot to JAX arrays: one compiled function per layout.

It is compiled ahead of time, on a thread of its own: what a program sets around its loop (a default device, a mesh,
`jax.disable_jit`, a transfer guard) then says nothing about our bytes.
"""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np

from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock._core._handover import Leaf

_NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
_PARTS = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}
"""What XLA cannot reinterpret bytes as, and what it is made of instead."""
_PLAIN = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
})  # fmt: skip
_NARROW = frozenset(name for name in dir(jnp) if name.startswith(("bfloat16", "float8_")))
"""Element types of `ml_dtypes` of whole bytes; those of less than a byte have another form in XLA's memory."""


@final
class Arrival(NamedTuple):
    """What an element type of the host is in a JAX array.

    Attributes:
        dtype: Its dtype there.
        as_is: Whether memory that holds such elements can be the array itself.
    """

    dtype: np.dtype[Any]
    as_is: bool


def arrival(dtype: np.dtype[Any], label: str = "an array") -> Arrival:
    """Return what `dtype` becomes under the thread's configuration.

    Args:
        dtype: Element type on the host.
        label: Whose it is, for messages.

    Raises:
        UsageError: JAX has no such arrays.
    """
    found = _arrival(dtype, _is_wide())
    if found is None:
        raise UsageError(
            f"JAX cannot take {label} of dtype {dtype}",
            why="it takes numbers of whole bytes in this machine's byte order",
            hint="cast it in the source",
        )
    return found


@cache
def _arrival(dtype: np.dtype[Any], wide: bool) -> Arrival | None:  # noqa: FBT001 - a key
    if dtype.name not in _PLAIN | _NARROW or not dtype.isnative:
        return None
    arrived = dtype if wide else np.dtype(_NARROWED.get(dtype.name, dtype))
    return Arrival(arrived, arrived == dtype and dtype.name in _PLAIN)


def _is_wide() -> bool:
    config: Any = jax.config  # JAX gives it no types
    return bool(config.jax_enable_x64)


def unpack(carrier: jax.Array, leaves: Sequence[Leaf]) -> list[jax.Array]:
    """Return the leaves as arrays in XLA's own memory, on the carrier's device.

    Args:
        carrier: The packed bytes, as uint8 or uint32, on one device.
        leaves: Where what lies.

    Ordering: queued as any computation on `carrier`. Does not wait, but for the compilation of a new layout.
    """
    run = prepare(leaves, carrier.size, carrier.dtype, carrier.device)
    config: Any = jax.config
    if config.jax_disable_jit:
        with jax.disable_jit(disable=False):
            return run(carrier)
    return run(carrier)


def prepare(
    leaves: Sequence[Leaf], count: int, dtype: np.dtype[Any], device: Any
) -> Callable[[jax.Array], list[jax.Array]]:
    """Return the compiled function for a carrier of `count` elements of `dtype` on `device`.

    Raises:
        UsageError: JAX has no arrays of some leaf's dtype.
    """
    compiled: Callable[[jax.Array], list[jax.Array]] = _compiled(tuple(leaves), _is_wide(), count, dtype, device)
    return compiled


@lru_cache(maxsize=256)
def _compiled(leaves: tuple[Leaf, ...], wide: bool, count: int, dtype: np.dtype[Any], device: Any) -> Any:  # noqa: ARG001, FBT001 - a key
    targets = [arrival(leaf.dtype, leaf.label).dtype for leaf in leaves]

    def run(carrier: jax.Array) -> list[jax.Array]:
        return [
            _array(_bytes_of(carrier, leaf), leaf).astype(target) for leaf, target in zip(leaves, targets, strict=True)
        ]

    found: list[Any] = []

    def compile_it() -> None:
        shaped: Any = jax.ShapeDtypeStruct  # JAX gives it no types
        carrier = shaped((count,), dtype, sharding=jax.sharding.SingleDeviceSharding(device))
        try:
            with _wide_types(), jax.disable_jit(disable=False):
                found.append(jax.jit(run).lower(carrier).compile())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            found.append(error)

    thread = threading.Thread(target=compile_it, name="interlock-compile")
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _wide_types() -> Any:
    """Return the context in which 64-bit values can be named, so that they can be narrowed."""
    home: Any = jax if hasattr(jax, "enable_x64") else jax.experimental  # where older versions have it
    return home.enable_x64(True)  # noqa: FBT003 - its own signature


def _bytes_of(carrier: jax.Array, leaf: Leaf) -> jax.Array:
    unit = carrier.dtype.itemsize
    start = leaf.offset_bytes // unit
    return jax.lax.slice_in_dim(carrier, start, start + -(-leaf.size_bytes // unit))


def _array(part: jax.Array, leaf: Leaf) -> jax.Array:
    """Reinterpret the bytes of one leaf."""
    name = leaf.dtype.name
    element = np.dtype(_PARTS.get(name, leaf.dtype))
    flat = _reinterpreted(part, element)[: leaf.size_bytes // element.itemsize]
    if name == "bool":
        flat = flat != 0
    elif name in _PARTS:
        pairs = flat.reshape(-1, 2)
        flat = jax.lax.complex(pairs[:, 0], pairs[:, 1])
    return flat.reshape(leaf.shape)


def _reinterpreted(part: jax.Array, element: np.dtype[Any]) -> jax.Array:
    unit = part.dtype.itemsize
    if element.itemsize > unit:
        part = part.reshape(-1, element.itemsize // unit)
    return jax.lax.bitcast_convert_type(part, element).reshape(-1)
