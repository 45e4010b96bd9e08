"""What happens to one operation on device tensors: at once on the oracle, later on the adversary."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, final

import torch

from interlock._core._events import observed
from interlock.check._simulate._torch_effects import Effects, effects_of
from interlock.check._simulate._torch_tensor import (
    Cell,
    SimTensor,
    check_supported,
    poison,
    regions,
    reseat,
    wrap,
    wrap_new,
)
from interlock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock._core._events import Region
    from interlock._core._queue import OperationQueue
    from interlock.check._simulate._engine import Engine

Tensor = torch.Tensor
_copy: Any = torch._C.TensorBase.copy_  # noqa: SLF001 - not the patched one
_SEQUENCES = (list, tuple)


@final
class Work:
    """An operation on the adversary's memory.

    Attributes:
        func: The operator, or a function of the same arguments.
        args: Its arguments, cells in the place of tensors.
        kwargs: The same by name.
        flat: Whether no cell is inside a sequence, and none given by name.
        outputs: Where its results go: a cell, or a list of cells and Nones, or None.
        inference: Whether it was queued in inference mode, where operators may choose other kernels.
        state: The random state to draw from.
        result: What it returned, where somebody asks.
    """

    __slots__ = (
        *("args", "engine", "flat", "func", "inference", "kwargs", "name", "outputs", "result", "state"),
        "wants_result",
    )

    def __init__(self, engine: Engine, name: str, func: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.engine = engine
        self.name = name
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.flat = True
        self.inference = torch.is_inference_mode_enabled()
        self.outputs: Any = None
        self.state: Tensor | None = None
        self.wants_result = False
        self.result: Any = None

    def __call__(self) -> None:
        """Run; what poison makes fail leaves poison, as a kernel that trips over it would."""
        if self.flat:
            args = [x.get() if type(x) is Cell else x for x in self.args]
            kwargs = self.kwargs
        else:
            args, kwargs = to_values(self.args), {name: to_values(x) for name, x in self.kwargs.items()}
        try:
            if self.inference:
                result = _in_inference(self.state, self.func, args, kwargs)
            elif self.state is None:
                result = self.func(*args, **kwargs)
            else:
                result = _with_state(self.state, self.func, args, kwargs)
        except (RuntimeError, IndexError, ValueError) as error:
            self.engine.session.note(f"{self.name} failed on wrong values, as a device-side assertion would: {error}")
            self.engine.session.diverged(f"{self.name} failed on the adversary's values: {error}")
            return
        outputs = self.outputs
        if type(outputs) is Cell:
            outputs.put(result)
        elif outputs is not None:
            store(outputs, result)
        if self.wants_result:
            self.result = result


def _in_inference(state: Tensor | None, func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    with torch.inference_mode():
        return func(*args, **kwargs) if state is None else _with_state(state, func, args, kwargs)


def _with_state(state: Tensor, func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    generator = torch.default_generator
    before = generator.get_state()
    generator.set_state(state)
    try:
        return func(*args, **kwargs)
    finally:
        generator.set_state(before)


def to_values(value: Any) -> Any:
    """Replace cells by the adversary's tensors."""
    kind = type(value)
    if kind is Cell:
        return value.get()
    if kind in _SEQUENCES:
        return kind(to_values(x) for x in value)
    return value


def store(outputs: Any, result: Any) -> None:
    """Put results into cells."""
    if type(outputs) is Cell:
        outputs.put(result)
    elif isinstance(outputs, _SEQUENCES) and isinstance(result, _SEQUENCES):
        for cell, one in zip(outputs, result, strict=False):
            store(cell, one)


@final
class Operands:
    """The arguments of one operation, taken apart.

    Attributes:
        oracle: Arguments for the oracle.
        adversary: Arguments for the adversary, with cells.
        tensors: The device tensors among them.
        written: Those that the operation writes.
    """

    __slots__ = (
        "adversary",
        "dispatcher",
        "effects",
        "flat",
        "func",
        "kw_adversary",
        "kw_oracle",
        "oracle",
        "tensors",
        "written",
    )

    def __init__(self, dispatcher: Dispatcher, func: Any, effects: Effects, args: Any, kwargs: dict[str, Any]) -> None:
        self.dispatcher = dispatcher
        self.func = func
        self.effects = effects
        self.tensors: list[SimTensor] = []
        self.written: list[SimTensor] = []
        self.flat = True
        self.oracle: list[Any] = []
        self.adversary: list[Any] = []
        tensors, oracle, adversary = self.tensors, self.oracle, self.adversary
        for x in args:
            kind = type(x)
            if kind is SimTensor:
                tensors.append(x)
                oracle.append(x.oracle)
                adversary.append(x.cell)
            elif kind in _SEQUENCES or isinstance(x, Tensor):
                one, other = self._take(x)
                oracle.append(one)
                adversary.append(other)
            else:
                oracle.append(x)
                adversary.append(x)
        if effects.written:
            for index in effects.written:
                if index < len(args):
                    self._mark(args[index])
        self.kw_oracle = self.kw_adversary = kwargs
        if kwargs:
            self._take_keywords(kwargs)

    def _mark(self, value: Any) -> None:
        if isinstance(value, SimTensor):
            self.written.append(value)
        elif type(value) in _SEQUENCES:
            for x in value:
                self._mark(x)
        elif isinstance(value, Tensor):
            self.dispatcher.refuse_mixture(self.func)

    def _take_keywords(self, kwargs: dict[str, Any]) -> None:
        self.kw_oracle, self.kw_adversary = {}, {}
        for name, value in kwargs.items():
            if name == "device":
                one: Any = None if value is None else torch.device("cpu")
                other: Any = one
            elif name == "pin_memory":
                one = other = False
            else:
                one, other = self._take(value)
                if name in self.effects.written_names:
                    self._mark(value)
                self.flat = self.flat and one is other
            self.kw_oracle[name], self.kw_adversary[name] = one, other

    def _take(self, value: Any) -> tuple[Any, Any]:
        kind = type(value)
        if isinstance(value, SimTensor):
            self.tensors.append(value)
            return value.oracle, value.cell
        if kind in _SEQUENCES:
            if not any(isinstance(x, (Tensor, *_SEQUENCES)) for x in value):
                return value, value
            pairs = [self._take(x) for x in value]
            self.flat = False
            return kind(one for one, _ in pairs), kind(other for _, other in pairs)
        if isinstance(value, Tensor):
            return self.dispatcher.lift(self.func, self.effects, value, sys.getrefcount(value))
        return value, value


@final
class Dispatcher:
    """Runs operations for one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.special: dict[int, Callable[[Any, Any, dict[str, Any]], Any]] = {}
        """Operators with a rule of their own, by their `id`."""
        self.host: Callable[[Any, Any, dict[str, Any]], Any]
        self.host_value: Callable[[Tensor, str], Tensor]
        """Reads a host tensor on the host now; returns what a correct program finds there."""
        self.inner_references = 0
        """References to a tensor that no Python code holds, as `lift` counts them; measured at the start."""
        self.in_backward: Callable[[], bool] = lambda: False
        self.backward_stream: Callable[[], None] = lambda: None

    def __call__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation that has a device tensor among its arguments, or asks for one."""
        if not self.engine.live:
            raise UsageError(f"{func} on a simulated tensor", why="its simulation has ended", hint="keep it inside")
        special = self.special.get(id(func))
        if special is not None:
            return special(func, args, kwargs)
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation on device tensors by the general rule."""
        effects = effects_of(func)
        if effects.taken_apart:
            return func.decompose(*args, **kwargs)
        operands = Operands(self, func, effects, args, kwargs)
        if effects.view:
            return self._view(func, operands)
        if effects.reshapes:
            return self._reshape(func, operands, args, kwargs)
        if self.in_backward():
            self.backward_stream()
        if effects.uninitialised:
            return self._empty(func, operands)
        return self._run(func, effects, operands, args)

    # ------------------------------------------------------------ kinds of operations

    def _view(self, func: Any, operands: Operands) -> Any:
        base = operands.tensors[0]
        result = func(*operands.oracle, **operands.kw_oracle)
        if result is base.oracle:
            return base
        block, handle = base.cell.block, base.handle
        if isinstance(result, _SEQUENCES):
            return type(result)(wrap(one, block, handle) for one in result)
        if (
            operands.effects.may_copy
            and base.oracle.untyped_storage().data_ptr() != result.untyped_storage().data_ptr()
        ):
            return self._run(func, effects_of(func), operands, ())
        return wrap(result, block, handle)

    def _reshape(self, func: Any, operands: Operands, args: Any, kwargs: dict[str, Any]) -> Any:
        """Change metadata in place: of the oracle's view, of the cell, and of the tensor object itself."""
        tensor: SimTensor = args[0]
        if effects_of(func).name in {"aten::resize_", "aten::set_"}:
            return self._resize(func, operands, tensor, args, kwargs)
        oracle = tensor.oracle.detach()
        func(oracle, *operands.oracle[1:], **operands.kw_oracle)
        with self.engine.guard():
            func(*args, **kwargs)
        reseat(tensor, oracle, tensor.cell.block, tensor.handle)
        return tensor

    def _resize(self, func: Any, operands: Operands, tensor: SimTensor, args: Any, kwargs: dict[str, Any]) -> Any:
        why = "it changes the storage of a tensor in place"
        if func is torch.ops.aten.resize_.default:
            oracle = tensor.oracle.detach()
            before = oracle.untyped_storage().nbytes()
            func(oracle, *operands.oracle[1:], **operands.kw_oracle)
            if oracle.untyped_storage().nbytes() == before:
                with self.engine.guard():
                    func(*args, **kwargs)
                reseat(tensor, oracle, tensor.cell.block, tensor.handle)
                return tensor
            why = "it makes a tensor's storage larger in place"
        raise self.unsupported(str(func), why, "make a new tensor")

    def _empty(self, func: Any, operands: Operands) -> Any:
        oracle = func(*operands.oracle, **operands.kw_oracle)
        return self.uninitialised(oracle)

    def uninitialised(self, oracle: Tensor) -> SimTensor:
        """Return a device tensor over memory that nothing wrote; both memories hold poison."""
        check_supported(oracle, "empty", self.engine)
        if oracle.numel():
            poison(oracle)
        return wrap_new(self.engine, oracle, self.engine.stream)

    def _run(self, func: Any, effects: Effects, operands: Operands, args: Any) -> Any:
        engine = self.engine
        queue = engine.stream
        capture = engine.capture
        if capture is not None and capture.covers(queue):
            capture.before(operands)
        else:
            capture = None
        state = torch.default_generator.get_state() if effects.random and not effects.pure_random else None
        result = func(*operands.oracle, **operands.kw_oracle)
        work = Work(engine, effects.name, func, operands.adversary, operands.kw_adversary)
        work.flat, work.state = operands.flat, state
        made: list[SimTensor] = []
        outputs, work.outputs = self._outputs(result, operands, made, queue, {})
        if effects.pure_random:
            copy_random(work, result)
        if capture is not None:
            capture.add(operands, result, work, made)
            return outputs
        blocking = effects.blocking and _needs_host(effects, args)
        work.wants_result = blocking
        self.submit(queue, work, effects.name, operands.tensors, operands.written, made)
        if self.in_backward():
            _keep_gradients(queue, operands.tensors, made)
        if blocking:
            engine.finish(queue, effects.name)
            if not isinstance(outputs, (Tensor, *_SEQUENCES)):
                return self._answer(work, operands, outputs)
        return outputs

    def _outputs(
        self,
        result: Any,
        operands: Operands,
        made: list[SimTensor],
        queue: OperationQueue,
        blocks: dict[int, SimTensor],
    ) -> tuple[Any, Any]:
        """Return what the operation returns, and the cells that the adversary's results go to."""
        if isinstance(result, Tensor):
            for tensor in operands.tensors:
                if tensor.oracle is result:
                    return tensor, None
            check_supported(result, operands.effects.name, self.engine)
            sibling = blocks.get(result.untyped_storage().data_ptr()) if made and result.numel() else None
            if sibling is not None:  # two results in one storage
                out = wrap(result, sibling.cell.block, sibling.handle)
            else:
                out = wrap_new(self.engine, result, queue)
            if operands.effects.many:
                blocks[result.untyped_storage().data_ptr()] = out
            made.append(out)
            return out, out.cell
        if isinstance(result, _SEQUENCES):
            pairs = [self._outputs(one, operands, made, queue, blocks) for one in result]
            return type(result)(one for one, _ in pairs), [cell for _, cell in pairs]
        return result, None

    def submit(
        self,
        queue: OperationQueue,
        work: Callable[[], None],
        name: str,
        tensors: Sequence[SimTensor],
        written: Sequence[SimTensor],
        made: Sequence[SimTensor] = (),
        *,
        host_reads: tuple[Region, ...] = (),
        host_writes: tuple[Region, ...] = (),
    ) -> int:
        """Queue work that touches the given tensors, and say so. Returns its tick."""
        engine = self.engine
        for tensor in tensors:
            block = tensor.cell.block
            if block.home is not queue:
                if block.shared is None:
                    block.shared = set()
                block.shared.add(queue)
        if observed():
            if engine.freed:
                engine.sweep()
            if written:
                changed = {id(tensor) for tensor in written}
                tensors = [tensor for tensor in tensors if id(tensor) not in changed]
            reads, writes = regions(tensors), regions(written) + regions(made)
            engine.accesses(queue, name, [*reads, *host_reads], [*writes, *host_writes])
        return engine.enqueue(queue, work, name)

    def _answer(self, work: Work, operands: Operands, expected: Any) -> Any:
        """Return the value that the host got, which is the adversary's."""
        found = work.result
        same = found == expected or (found != found and expected != expected)  # noqa: PLR0124 - NaN
        if not same:
            self.wrong(operands.tensors, f"{work.name} gave {found!r}, a correct run gives {expected!r}")
        return expected if found is None else found

    def wrong(self, tensors: Sequence[SimTensor], message: str) -> None:
        """Tell of a wrong value read from device tensors."""
        for region in regions(tensors):
            self.engine.session.witness(region, message)
        self.engine.session.diverged(message)

    # ------------------------------------------------------------ host tensors among the arguments

    def lift(self, func: Any, effects: Effects, value: Tensor, references: int) -> tuple[Any, Any]:
        """Return what a host tensor stands for in an operation on device tensors.

        A tensor without dimensions counts as a number. One that no Python code holds was made inside of a composite
        operator, for which the device is the CPU: it is a constant. Any other is the user's mistake, as on a GPU.
        """
        counts = value.dim() == 0 or effects.host_indices
        if not counts and references > self.inner_references and not self.in_backward():
            self.refuse_mixture(func)
        expected = self.host_value(value, effects.name)
        return expected, value.clone()

    def refuse_mixture(self, func: Any) -> None:
        """Raise what PyTorch raises when devices are mixed."""
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(when checking arguments of {func})"
        )

    def unsupported(self, operation: str, why: str, hint: str = "") -> UsageError:
        """Report and return the refusal of something that cannot be simulated."""
        self.engine.session.unsupported(operation, why)
        return UsageError(f"{operation} cannot be simulated", why=why, hint=hint)


def _keep_gradients(queue: OperationQueue, used: Sequence[SimTensor], made: Sequence[SimTensor]) -> None:
    """Keep gradients for the streams that a backward pass takes them to, as PyTorch's engine does."""
    for tensor in made:
        tensor.cell.block.gradient = True
    for tensor in used:
        block = tensor.cell.block
        if block.gradient and block.home is not queue:
            block.kept_for = {*(block.kept_for or ()), queue}


def _needs_host(effects: Effects, args: Any) -> bool:
    """Tell whether the operation makes the host wait: an index does only if it is a mask."""
    if not effects.host_indices:
        return True
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])


def copy_random(work: Work, result: Tensor) -> None:
    """Let the adversary take the numbers that the oracle drew."""
    drawn = result.clone()
    if work.outputs is None:
        work.func, work.args, work.kwargs = _assign, [work.args[0], drawn], {}
    else:
        work.func, work.args, work.kwargs = _same, [drawn], {}
    work.flat = True


def _assign(target: Tensor, value: Tensor) -> None:
    _copy(target, value)


def _same(value: Tensor) -> Tensor:
    return value
