"""What each operator does, from its schema; and where schemas do not say it."""

from __future__ import annotations

from typing import Any, final

import torch

aten = torch.ops.aten

UNDECLARED_WRITES: dict[str, tuple[int, ...]] = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
    "aten::batch_norm_with_update": (3, 4),
    "aten::_batch_norm_with_update": (3, 4),
}
"""Positions of tensors that the operator changes although its schema does not say so: running statistics."""

UNDECLARED_COMPOSITES = {"aten::batch_norm", "aten::instance_norm", "aten::_batch_norm_impl_index"}
"""Operators made of those above."""

MAY_COPY = {"aten::resolve_conj", "aten::resolve_neg", "aten::lift"}
"""Operators that return a view, or a copy."""

SECRET_VIEWS = {"aten::_unsafe_view", "aten::_reshape_alias", "aten::resolve_conj", "aten::resolve_neg", "aten::lift"}
"""Operators whose result may share the bytes of the input although the schema does not say so."""

HOST_INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
"""Operators on a device tensor that take index tensors of the host."""

PURE_RANDOM = {
    *("bernoulli_.float", "normal_", "uniform_", "random_", "random_.from", "random_.to", "exponential_", "geometric_"),
    *("cauchy_", "log_normal_", "rand", "randn", "randint", "randint.low", "randperm", "rand_like", "randn_like"),
    *("randint_like", "randint_like.low_dtype", "bernoulli.p", "normal.float_float"),
    *("rand.generator", "randn.generator", "randint.generator", "randint.low_generator", "randperm.generator"),
}
"""Random operators whose result depends on no tensor, so that the adversary's is a copy of the oracle's."""

NO_DATA = {"aten::is_same_size", "aten::is_pinned", "aten::sym_size", "aten::_has_compatible_shallow_copy_type"}
"""Operators that answer from metadata, so that nothing is waited for."""

UNINITIALISED = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
"""Factories that write nothing."""


@final
class Effects:
    """What an operator does.

    Attributes:
        func: The operator.
        name: As reports show it: `aten::add`.
        view: Its results are views of its first tensor.
        reshapes: It changes the metadata of its first tensor in place.
        written: Positions of the arguments that it writes.
        written_names: Keywords that it writes.
        taken_apart: It is made of others, reaches us whole in inference mode, and its schema does not say what it does.
        blocking: The host needs a value of it before it can go on.
        no_data: It answers from metadata.
        random: It draws random numbers.
        pure_random: It does, and depends on no tensor.
        uninitialised: It makes memory and writes nothing.
        host_indices: It takes index tensors of the host.
        may_copy: Its results are views, or copies.
        many: It returns more than one tensor.
    """

    __slots__ = (
        "blocking",
        "func",
        "host_indices",
        "many",
        "may_copy",
        "name",
        "no_data",
        "pure_random",
        "random",
        "reshapes",
        "taken_apart",
        "uninitialised",
        "view",
        "written",
        "written_names",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        schema = func._schema  # noqa: SLF001 - the only place where PyTorch keeps it
        self.name: str = schema.name
        arguments = schema.arguments
        writes = [
            (index, argument.name, argument.kwarg_only)
            for index, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.written = tuple(index for index, _, keyword in writes if not keyword)
        self.written += UNDECLARED_WRITES.get(self.name, ())
        self.written_names = tuple(name for _, name, keyword in writes if keyword)
        returns = schema.returns
        aliases = [one.alias_info for one in returns]
        self.view = self.name in SECRET_VIEWS or (
            any(alias is not None and not alias.is_write for alias in aliases) and not writes
        )
        composite = isinstance(func, torch._ops.OpOverload) and func._can_decompose()  # noqa: SLF001 - as above
        self.taken_apart = composite and (self.view or self.name in UNDECLARED_COMPOSITES)
        self.may_copy = self.name in MAY_COPY
        self.reshapes = torch.Tag.inplace_view in func.tags or self.name in {"aten::resize_", "aten::set_"}
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.pure_random = self.random and str(func).removeprefix("aten.").removesuffix(".default") in PURE_RANDOM
        tensors_only = all("Tensor" in str(one.type) for one in returns)
        self.no_data = self.name in NO_DATA
        self.blocking = not self.no_data and (
            torch.Tag.data_dependent_output in func.tags
            or torch.Tag.dynamic_output_shape in func.tags
            or not tensors_only
        )
        self.uninitialised = self.name in UNINITIALISED
        self.host_indices = self.name in HOST_INDICES
        self.many = len(returns) > 1 or any("[]" in str(one.type) or "List" in str(one.type) for one in returns)


_known: dict[int, Effects] = {}


def effects_of(func: Any) -> Effects:
    """Return what an operator does."""
    found = _known.get(id(func))  # an operator's own hash is slow
    if found is None:
        found = _known[id(func)] = Effects(func)
    return found
