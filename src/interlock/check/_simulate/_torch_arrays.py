"""NumPy views of page-locked memory that say when they are read and written.

A view is taken once and used many times, so the moment it is made says nothing. What is handed out instead is an array
of a subclass: each use of it is a host access at the program's own line. What goes past Python (a C extension, the
buffer protocol) is not seen; it meets poison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from interlock._core._events import Pattern, Region

if TYPE_CHECKING:
    from interlock.check._simulate._patching import Patches
    from interlock.check._simulate._torch_hosts import Hosts

_READING = (
    *("sum", "mean", "std", "var", "prod", "min", "max", "argmin", "argmax", "any", "all", "cumsum", "cumprod", "ptp"),
    *("copy", "tolist", "tobytes", "tofile", "item", "astype", "dot", "nonzero", "round", "clip", "take", "compress"),
    *("choose", "repeat", "searchsorted", "argsort", "argpartition", "trace", "conj", "conjugate", "flatten", "dump"),
    *("dumps", "__float__", "__int__", "__bool__", "__index__", "__complex__", "__repr__", "__str__", "__format__"),
    *("__contains__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"),
)
_WRITING = ("fill", "sort", "partition", "put", "itemset", "byteswap", "setfield", "__setstate__")
_ONLY_VIEWS = {
    *("reshape", "transpose", "swapaxes", "moveaxis", "rollaxis", "squeeze", "expand_dims", "broadcast_to", "split"),
    *("array_split", "hsplit", "vsplit", "dsplit", "atleast_1d", "atleast_2d", "atleast_3d", "ravel", "flip", "shape"),
    *("ndim", "size", "shares_memory", "may_share_memory", "result_type", "can_cast", "iscomplexobj", "isrealobj"),
    *(
        "diagonal",
        "real",
        "imag",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "byte_bounds",
        "min_scalar_type",
    ),
}
"""Functions that look at no values."""


class WatchedArray(np.ndarray[Any, Any]):
    """A view of memory that copies may be under way to or from. Made by `watched` only."""

    hosts: Hosts | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.hosts = getattr(source, "hosts", None)

    def touch(self, mode: str, name: str, *, exact: bool = True) -> None:
        """Say that the bytes of the view are used now."""
        if self.hosts is not None and self.size:
            self.hosts.touch_array(self, mode, name, exact=exact)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs = kwargs.get("out", ())
        name = f"numpy.{ufunc.__name__}"
        for one in inputs:
            if isinstance(one, WatchedArray):
                one.touch("write" if method == "at" and one is inputs[0] else "read", name)
        for one in outputs:
            if isinstance(one, WatchedArray):
                one.touch("write", name)
        if outputs:
            kwargs["out"] = tuple(plain(one) for one in outputs)
        result = getattr(ufunc, method)(*(plain(one) for one in inputs), **{key: plain(x) for key, x in kwargs.items()})
        if len(outputs) == 1:
            return outputs[0]
        return outputs or result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        del types
        name = func.__name__
        if name not in _ONLY_VIEWS:
            written = [args[0] if name in {"copyto", "put", "place", "putmask", "fill_diagonal"} and args else None]
            written.append(kwargs.get("out"))
            for one in _arrays((args, kwargs)):
                one.touch("write" if any(one is other for other in written) else "read", f"numpy.{name}")
        result = func(*plain(args), **plain(kwargs))
        return watched(result, self.hosts)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(found, np.ndarray):
            if not _inside(found, self):  # an index that makes a copy
                self.touch("read", "numpy read")
                return plain(found)
            return found
        element = _element(self, key)
        (element if element is not None else self).touch("read", "numpy read")
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, WatchedArray):
            value.touch("read", "numpy read")
        place = _element(self, key)
        if place is not None:
            place.touch("write", "numpy write")
        else:
            self.touch("write", "numpy write", exact=False)
        super().__setitem__(key, plain(value))

    def __iter__(self) -> Any:
        if self.ndim == 1:
            self.touch("read", "numpy read")
            return iter(plain(self))
        return (self[index] for index in range(len(self)))

    @property
    def data(self) -> memoryview:
        """The bytes; what is done to them is not seen."""
        self.touch("read", "numpy data", exact=False)
        return plain(self).data  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.touch("read", "numpy read", exact=bool(copy))
        return np.asarray(plain(self), dtype=dtype)


def _method(name: str, mode: str) -> Any:
    def method(self: WatchedArray, *args: Any, **kwargs: Any) -> Any:
        self.touch(mode, f"numpy.{name.strip('_')}")
        return getattr(plain(self), name)(*plain(args), **plain(kwargs))

    method.__name__ = name
    return method


for _name in _READING:
    if hasattr(np.ndarray, _name):
        setattr(WatchedArray, _name, _method(_name, "read"))
for _name in _WRITING:
    if hasattr(np.ndarray, _name):
        setattr(WatchedArray, _name, _method(_name, "write"))


def plain(value: Any) -> Any:
    """Replace watched arrays by ordinary ones over the same bytes."""
    if isinstance(value, WatchedArray):
        return value.view(np.ndarray)
    if type(value) in {tuple, list}:
        return type(value)(plain(one) for one in value)
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value


def watched(value: Any, hosts: Hosts | None) -> Any:
    """Return an array that says when it is used, if its bytes are page-locked."""
    if hosts is None:
        return value
    if type(value) is np.ndarray and value.size and hosts.is_pinned_at(_bounds(value)[0]):
        array = value.view(WatchedArray)
        array.hosts = hosts
        return array
    if type(value) in {tuple, list}:
        return type(value)(watched(one, hosts) for one in value)
    return value


def _arrays(value: Any) -> list[WatchedArray]:
    if isinstance(value, WatchedArray):
        return [value]
    if type(value) in {tuple, list}:
        return [array for one in value for array in _arrays(one)]
    return _arrays(list(value.values())) if type(value) is dict else []


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    low, high = np.lib.array_utils.byte_bounds(array.view(np.ndarray))
    return int(low), int(high)


def _inside(part: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> bool:
    if not part.size:
        return True
    low, high = _bounds(whole)
    start, end = _bounds(part)
    return low <= start and end <= high


def _element(array: WatchedArray, key: Any) -> WatchedArray | None:
    """Return the view that an index names; None if it names no view."""
    keys = key if isinstance(key, tuple) else (key,)
    if not all(isinstance(one, (int, np.integer, slice, type(None), type(Ellipsis))) for one in keys):
        return None
    if not any(one is Ellipsis for one in keys):
        keys = (*keys, Ellipsis)
    found = np.ndarray.__getitem__(array, keys)
    return found if isinstance(found, WatchedArray) else None


def array_region(array: np.ndarray[Any, Any], allocation: Any, start: int) -> Region:
    """Return the bytes of an array in an allocation that begins at address `start`."""
    low, high = _bounds(array)
    if array.nbytes == high - low:
        return Region(allocation, low - start, high - low)
    strides = tuple(abs(stride) for stride in array.strides)
    return Region(allocation, low - start, high - low, Pattern(array.itemsize, tuple(array.shape), strides))


def patch_arrays(patches: Patches, hosts: Hosts) -> None:
    """Let NumPy's ways to a tensor's memory hand out watched arrays."""
    import torch  # noqa: PLC0415 - this file knows arrays; only the way in knows tensors

    for name in ("asarray", "asanyarray", "from_dlpack"):
        original = getattr(np, name)

        def convert(source: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            if isinstance(source, torch.Tensor) and hosts.is_pinned(source):
                return watched(original(source.numpy().view(np.ndarray), *args, **kwargs), hosts)
            return original(source, *args, **kwargs)

        patches.set(np, name, convert)
