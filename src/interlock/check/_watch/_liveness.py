"""Which variables of a frame are read again: one that is overwritten first holds its value for nobody."""

from __future__ import annotations

import bisect
import dis
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FrameType

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")
_LOADS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE")
_ACTS = ("CALL", "PRECALL", "FOR_ITER", "SEND", "BINARY", "STORE_ATTR", "BEFORE_WITH", "LOAD_ATTR", "WITH", "COMPARE")
"""What may run code that cannot be seen: calls, and operators and attributes with methods of their own."""
_WRITERS = frozenset(
    (
        "fill",
        "copyto",
        "put",
        "putmask",
        "place",
        "itemset",
        "sort",
        "partition",
        "shuffle",
        "step",
        "readinto",
        "recv_into",
        "load_state_dict",
        "byteswap",
    )
)
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "DELETE_FAST", "DELETE_NAME")


def live_names(frame: FrameType) -> frozenset[str]:
    """Return the variables that `frame` may read after the call it is in, before it writes them.

    A loop that has asked for its next item is taken to get one. Variables shared with inner functions count as read.
    """
    shared = frame.f_code.co_cellvars + frame.f_code.co_freevars
    return _live(frame.f_code, frame.f_lasti) | frozenset(shared)


@lru_cache(maxsize=512)
def _live(code: CodeType, offset: int) -> frozenset[str]:
    instructions = list(dis.get_instructions(code))
    index_of = {instruction.offset: index for index, instruction in enumerate(instructions)}
    current = max(
        0, bisect.bisect_right([one.offset for one in instructions], offset) - 1
    )  # it may be in a cache entry
    following = [_successors(instructions, index, index_of) for index in range(len(instructions))]
    after = _live_in(instructions, following)
    steps = following[current]
    if instructions[current].opname.startswith("FOR_ITER"):
        steps = [current + 1]
    return frozenset().union(*(after[step] for step in steps))


def _live_in(instructions: list[dis.Instruction], following: list[list[int]]) -> list[frozenset[str]]:
    effects = [_effect(instruction) for instruction in instructions]
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            reads, writes = effects[index]
            out = frozenset[str]().union(*(live[step] for step in following[index]))
            now = reads | (out - writes)
            if now != live[index]:
                live[index], changed = now, True
    return live


def _effect(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return what an instruction reads, and what it writes before it reads anything."""
    name, value = instruction.opname, instruction.argval
    if isinstance(value, tuple) and "_FAST_" in name:  # two variables in one instruction, since Python 3.13
        first, second = name.partition("_FAST_")[0], name.rpartition("_FAST_")[2]
        reads = {value[1]} if second.startswith("LOAD") and value[1] != value[0] else set()
        writes = {value[0]} if first == "STORE" else set()
        if first == "LOAD":
            reads.add(value[0])
        elif second.startswith("STORE"):
            writes.add(value[1])
        return frozenset(reads), frozenset(writes)
    if not isinstance(value, str):
        return frozenset(), frozenset()
    if name.startswith(_LOADS):
        return frozenset({value}), frozenset()
    return frozenset(), frozenset({value} if name.startswith(_STORES) else ())


def _successors(instructions: list[dis.Instruction], index: int, index_of: dict[int, int]) -> list[int]:
    instruction = instructions[index]
    found = []
    if not instruction.opname.startswith(_ENDS) and index + 1 < len(instructions):
        found.append(index + 1)
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        target = index_of.get(instruction.argval)
        if target is not None:
            found.append(target)
    return found


@lru_cache(maxsize=8192)
def strength_of_line(code: CodeType, line: int) -> int:
    """Tell how likely a line writes memory: 2 if it says so, 1 if it calls or computes anything, 0 if it cannot.

    It says so by an assignment to elements or in place, or by a method that is named for it, as `fill` or `add_`.
    """
    strength, current = 0, 0
    for instruction in dis.get_instructions(code):
        current = _line_of(instruction) or current
        if current != line:
            continue
        if _says_that_it_writes(instruction, code):
            return 2
        if instruction.opname.startswith(_ACTS):
            strength = 1
    return strength


def _says_that_it_writes(instruction: dis.Instruction, code: CodeType) -> bool:
    name, value = instruction.opname, instruction.argval
    if name in {"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"}:
        return True
    if name == "BINARY_OP":
        return instruction.argrepr.endswith("=")
    if name in {"LOAD_METHOD", "LOAD_ATTR"} and isinstance(value, str):
        return value in _WRITERS or (value.endswith("_") and not value.endswith("__"))
    if name == "KW_NAMES":
        value = code.co_consts[instruction.arg or 0]
    return name in {"KW_NAMES", "LOAD_CONST"} and isinstance(value, tuple) and "out" in value


@lru_cache(maxsize=8192)
def names_in_line(code: CodeType, line: int) -> frozenset[str]:
    """Return the variables that a line reads."""
    found: set[str] = set()
    current = 0
    for instruction in dis.get_instructions(code):
        current = _line_of(instruction) or current
        if current == line:
            found |= _effect(instruction)[0]
    return frozenset(found)


def _line_of(instruction: dis.Instruction) -> int | None:
    positions = instruction.positions
    return positions.lineno if positions is not None else None


def constant_keys(code: CodeType, name: str) -> frozenset[object] | None:
    """Return the constants that `code` looks up in the variable `name`, or None if it does anything else with it."""
    instructions = [one for one in dis.get_instructions(code) if one.opname not in {"EXTENDED_ARG", "NOP"}]
    keys = set()
    for index, instruction in enumerate(instructions):
        if instruction.argval != name or not instruction.opname.startswith(_LOADS):
            continue
        key, subscript, *_ = [*instructions[index + 1 : index + 3], instruction, instruction]
        is_subscript = subscript.opname == "BINARY_SUBSCR" or subscript.argrepr == "[]"
        if not key.opname.startswith("LOAD_CONST") or not is_subscript:
            return None
        keys.add(key.argval)
    return frozenset(keys) or None


@lru_cache(maxsize=8192)
def is_inside_with(code: CodeType, line: int) -> bool:
    """Tell whether a line lies in the body of a `with`, or in a function that acquires something by name."""
    if "acquire" in code.co_names:
        return True
    instructions = {one.offset: one for one in dis.get_instructions(code)}
    following = dict(zip(instructions, list(instructions)[1:], strict=False))
    at_line, current = set(), 0
    for offset, instruction in instructions.items():
        current = _line_of(instruction) or current
        if current == line:
            at_line.add(offset)
    entries: Any = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined] # typeshed does not know it
    for entry in entries:
        handler = instructions.get(following.get(entry.target, -1))
        is_with = handler is not None and handler.opname == "WITH_EXCEPT_START"
        if is_with and any(entry.start <= offset < entry.end for offset in at_line):
            return True
    return False
