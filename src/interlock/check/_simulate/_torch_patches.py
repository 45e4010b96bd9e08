"""Puts a simulation into PyTorch, and takes it out again."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch

from interlock.check._simulate._engine import Engine
from interlock.check._simulate._patching import Patches
from interlock.check._simulate._torch_amp import patch_amp
from interlock.check._simulate._torch_arrays import patch_arrays
from interlock.check._simulate._torch_autograd import Backward
from interlock.check._simulate._torch_compile import patch_compile
from interlock.check._simulate._torch_copies import Copies
from interlock.check._simulate._torch_cuda import Generator, patch_cuda
from interlock.check._simulate._torch_device import StandIn
from interlock.check._simulate._torch_dispatch import Dispatcher
from interlock.check._simulate._torch_distributed import patch_distributed
from interlock.check._simulate._torch_drains import DeviceArrays
from interlock.check._simulate._torch_exports import patch_exports
from interlock.check._simulate._torch_factories import Factories, Watch, patch_factories
from interlock.check._simulate._torch_files import patch_files
from interlock.check._simulate._torch_graphs import patch_graphs
from interlock.check._simulate._torch_hosts import Hosts
from interlock.check._simulate._torch_methods import Methods
from interlock.check._simulate._torch_storages import patch_storages
from interlock.check._simulate._torch_streams import Streams, use
from interlock.check._simulate._torch_surface import patch_tensors
from interlock.check._simulate._torch_tensor import SimTensor, poison
from interlock.devices import stand_in
from interlock.errors import UsageError
from interlock.frameworks import on_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interlock.check._simulate._reports import Listener
    from interlock.devices import Schedule

aten = torch.ops.aten
_active: Engine | None = None
_has_real_cuda = torch.cuda.is_available


@final
class _Guard:
    """Run what is inside as kernels do: below autograd, autocast and all modes, in any thread.

    Host accesses inside are the simulator's own, and nobody is told.
    """

    __slots__ = ("_current", "_grad", "_guard", "_quiet")

    def __init__(self, current: Any) -> None:
        self._current = current

    def __enter__(self) -> None:
        current = self._current
        self._quiet, current.quiet = current.quiet, True
        self._grad = torch.is_grad_enabled()
        self._guard = _force(_INCLUDED, _ABOVE)
        self._guard.__enter__()
        _set_grad(True)  # noqa: FBT003 - as in PyTorch; some kernels keep what backward needs only then

    def __exit__(self, *error: object) -> None:
        _set_grad(self._grad)
        self._guard.__exit__(*error)
        self._current.quiet = self._quiet


def _key_sets() -> tuple[Any, Any]:
    c: Any = torch._C  # noqa: SLF001
    keys = c.DispatchKey.__members__
    above = c.DispatchKeySet(keys["Python"])
    prefixes = ("Autograd", "Autocast", "FuncTorch", "Functionalize", "Python", "ADInplaceOrView", "PreDispatch")
    for name, key in keys.items():
        if name.startswith(prefixes) and not name.startswith("AutogradNested"):
            above = above | c.DispatchKeySet(key)
    return c.DispatchKeySet(keys["BackendSelect"]), above


_INCLUDED, _ABOVE = _key_sets()
_force: Any = torch._C._ForceDispatchKeyGuard  # noqa: SLF001 - guards have no public name
_set_grad: Any = torch._C._set_grad_enabled  # noqa: SLF001 - as above


@contextmanager
def activate(schedule: Schedule | str, session: Listener | None, *, beside_a_gpu: bool) -> Iterator[Engine]:
    """See `interlock.check._simulate.activate`."""
    global _active  # noqa: PLW0603 - PyTorch is patched for the whole process
    if _active is not None:
        raise UsageError("a simulation is active already", hint="leave it before you enter another")
    if _has_real_cuda() and not beside_a_gpu:
        raise UsageError(
            "this machine has a real CUDA device, which the program could not reach in a simulation",
            hint="hide it with CUDA_VISIBLE_DEVICES=''",
        )
    engine = _active = Engine(schedule, session)
    patches = Patches()
    with ExitStack() as stack:
        stack.callback(_forget)
        stack.callback(patches.undo)
        _install(engine, patches, stack)
        try:
            yield engine
        finally:
            engine.drain()
            engine.live = False


def _forget() -> None:
    global _active  # noqa: PLW0603
    _active = None
    use(None)


def _install(engine: Engine, patches: Patches, stack: ExitStack) -> None:
    engine.guard, engine.poison = partial(_Guard, engine.current), poison
    dispatcher, hosts = Dispatcher(engine), Hosts(engine)
    copies, backward = Copies(dispatcher, hosts), Backward(engine)
    methods, factories = Methods(dispatcher, copies, hosts), Factories(dispatcher, hosts)
    watch = Watch(factories)
    engine.stream_changed = backward.changed
    dispatcher.in_backward, dispatcher.backward_stream = backward.is_running, backward.follow
    dispatcher.host_value = lambda tensor, name: _read(hosts, tensor, name)
    rules: dict[Any, Any] = {
        aten.copy_.default: lambda func, args, kwargs: _copy(copies, hosts, func, args, kwargs),
        aten._to_copy.default: copies.to_copy,  # noqa: SLF001 - its name
        aten._foreach_copy_.default: copies.foreach_copy_,
        aten.is_pinned.default: lambda _func, args, _kwargs: hosts.is_pinned(args[0]),
        aten._pin_memory.default: lambda _func, args, _kwargs: methods.pin_memory(args[0]),  # noqa: SLF001
    }
    dispatcher.special = {id(func): rule for func, rule in rules.items()}
    use(Streams(engine))
    stack.callback(stand_in("cuda", StandIn(dispatcher, hosts)))
    SimTensor.dispatch = staticmethod(dispatcher)
    patch_cuda(patches, engine)
    patches.set(torch, "Generator", Generator)
    patch_factories(patches, methods, patch_exports(patches, dispatcher))
    patch_files(patches, methods)
    patch_tensors(patches, methods)
    patch_storages(patches, dispatcher)
    patch_arrays(patches, hosts)
    patch_amp(patches)
    patch_graphs(patches)
    patch_distributed(patches, dispatcher, stack)
    stack.callback(on_devices(DeviceArrays(dispatcher)))
    patch_compile(patches, engine.session, stack)
    _patch_autograd(patches, backward)
    _patch_threads(patches, watch)
    torch.__future__.set_swap_module_params_on_conversion(True)
    stack.callback(torch.__future__.set_swap_module_params_on_conversion, False)  # noqa: FBT003 - as in PyTorch
    stack.enter_context(watch)
    _measure(dispatcher)


def _read(hosts: Hosts, tensor: Any, name: str) -> Any:
    hosts.touch(tensor, "read", name)
    return hosts.expected(tensor)


def _copy(copies: Copies, hosts: Hosts, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], SimTensor) or isinstance(args[1], SimTensor):
        return copies.copy_(func, args, kwargs)
    return hosts.run(func, args, kwargs)


def _patch_autograd(patches: Patches, backward: Backward) -> None:
    original = torch.autograd.graph._engine_run_backward  # noqa: SLF001 - what both public functions call

    def run(*args: Any, **kwargs: Any) -> Any:
        return backward.run(original, args, kwargs)

    patches.set(torch.autograd.graph, "_engine_run_backward", run)
    patches.set(torch.autograd, "_engine_run_backward", run)


def _patch_threads(patches: Patches, watch: Watch) -> None:
    """Put the mode on in every thread that starts."""
    original: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined] # noqa: SLF001 - `run` is overridden
    process = os.getpid()

    def start(self: threading.Thread) -> None:
        if os.getpid() != process:
            original(self)
            return
        with Watch.like(watch):
            original(self)

    patches.set(threading.Thread, "_bootstrap_inner", start)


def _measure(dispatcher: Dispatcher) -> None:
    """Find how many references a tensor has that no Python code holds."""
    counts: list[int] = []
    lift = dispatcher.lift

    def measure(func: Any, effects: Any, value: Any, references: int) -> Any:
        counts.append(references)
        dispatcher.inner_references = references
        return lift(func, effects, value, references)

    dispatcher.lift = measure  # type: ignore[method-assign]
    try:
        torch.nn.functional.one_hot(torch.zeros(2, dtype=torch.int64, device="cuda"), 2)
    finally:
        dispatcher.lift = lift  # type: ignore[method-assign]
