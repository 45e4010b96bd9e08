"""What a dataset is: its run, its conditions, its schema."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, final

from interlock.drain._files import check_of
from interlock.drain._schema import Column, Schema, check_same
from interlock.errors import SinkConflictError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from interlock.drain._storage import Storage

FORMAT = 1
_LONGEST_VALUE = 60


@final
@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of `run.json`.

    Attributes:
        sink: Scheme of the sink, as `parquet`.
        run: 32 hexadecimal digits; the first eight are in the names of the shards.
        fingerprint: The conditions under which the rows are made; None if nobody said.
        total: Rows that there will be, or None.
        schema: Columns, once a shard was begun.
        ids: `int` or `str`, once a shard was begun.
        outputs: What is done to outputs before they are stored, in words, by name; None if that was not recorded.
    """

    sink: str
    run: str
    fingerprint: dict[str, Any] | None
    total: int | None
    schema: Schema | None = None
    ids: str | None = None
    outputs: dict[str, list[str]] | None = None

    @classmethod
    def new(
        cls,
        sink: str,
        fingerprint: dict[str, Any] | None,
        total: int | None,
        outputs: dict[str, list[str]] | None = None,
    ) -> RunRecord:
        """Return the record of a dataset that begins now."""
        return cls(sink, os.urandom(16).hex(), fingerprint, total, outputs=outputs)

    @classmethod
    def read(cls, storage: Storage) -> RunRecord | None:
        """Return the record in a folder, or None if there is none.

        Raises:
            SinkConflictError: It is damaged, or of another format.
        """
        record = cls._read(storage, storage.layout.run_file)
        if record is None or record.schema is not None:
            return record
        others = (other for other in _schemas(storage, record.run) if other.schema is not None)
        first = next(others, record)
        return replace(record, schema=first.schema, ids=first.ids)

    @classmethod
    def _read(cls, storage: Storage, name: str) -> RunRecord | None:
        content = storage.read(name)
        if content is None:
            return None
        path = storage.where(name)
        try:
            value = json.loads(content)
            if value.pop("check") != check_of(value):
                raise _bad_record(path, "it does not match its check")
            if value["format"] != FORMAT:
                raise _bad_record(path, f"it has the format {value['format']!r}, this version writes {FORMAT}")
            schema = value["schema"]
            columns = None if schema is None else tuple(Column.from_json(one) for one in schema)
            run = str(value["run"])
            int(run, 16)
            outputs = value.get("outputs")
            return cls(str(value["sink"]), run, value["fingerprint"], value["total"], columns, value["ids"], outputs)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, SinkConflictError):
                raise
            raise _bad_record(path, f"it is damaged: {error}") from error

    def save(self, storage: Storage) -> None:
        """Replace the record in a folder, durably."""
        self._save(storage, storage.layout.run_file)

    def save_schema(self, storage: Storage) -> None:
        """Replace what a folder knows of the rows of a rank, durably."""
        self._save(storage, storage.layout.schema_file)

    def _save(self, storage: Storage, name: str) -> None:
        schema = None if self.schema is None else [column.as_json() for column in self.schema]
        value = {"format": FORMAT, **asdict(self), "schema": schema}
        content = json.dumps({**value, "check": check_of(value)}, indent=1).encode() + b"\n"
        storage.replace(name, content)

    def check_conditions(self, wanted: RunRecord, sink: str) -> None:
        """Refuse to mix rows that were made under different conditions, or stored after other reductions.

        Raises:
            SinkConflictError: They differ; the message names each condition that does, with both values.
        """
        check_fingerprint(self.fingerprint, wanted.fingerprint, sink)
        if self.outputs is not None and wanted.outputs is not None:
            both = (self.outputs, wanted.outputs)
            before, now = ({f"outputs.{name}": one for name, one in each.items()} for each in both)
            check_fingerprint(before, now, sink)

    def with_schema(self, schema: Schema, ids: str) -> RunRecord:
        """Return the record with columns and the kind of ids."""
        return replace(self, schema=schema, ids=ids)


def _bad_record(path: str, why: str) -> SinkConflictError:
    return SinkConflictError(f"cannot use {path}", why=why, hint="write to another sink")


def _schemas(storage: Storage, run: str) -> Iterator[RunRecord]:
    """Yield what each rank knows of the rows of a run."""
    for rank in storage.ranks():
        record = RunRecord._read(storage, storage.layout.of(rank).schema_file)  # noqa: SLF001 - of this module
        if record is not None and record.run == run:
            yield record


def other_schema(storage: Storage, mine: RunRecord) -> str:
    """Return how the rows of other ranks differ from those of one; empty if they do not."""
    storage.refresh()
    for other in _schemas(storage, mine.run):
        if other.schema is None or mine.schema is None:
            continue
        if other.ids != mine.ids:
            return f"ids are {mine.ids} and {other.ids}"
        try:
            check_same(other.schema, mine.schema)
        except UsageError as error:
            return f"{error.what}: {error.why}"
    return ""


def forget_schemas(storage: Storage) -> None:
    """Remove what ranks but 0 know of their rows."""
    storage.remove(*(storage.layout.of(rank).schema_file for rank in storage.ranks() if rank))


def plain_fingerprint(fingerprint: Mapping[str, object] | None) -> dict[str, Any] | None:
    """Return `fingerprint` as what JSON makes of it.

    Raises:
        UsageError: A key is not a string, or a value is not JSON.
    """
    if fingerprint is None:
        return None
    plain: dict[str, Any] = {}
    for key, value in fingerprint.items():
        if not isinstance(key, str):
            raise UsageError(f"fingerprint key {key!r} is not a string")
        try:
            plain[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"fingerprint[{key!r}] cannot be stored",
                why=str(error),
                hint="use strings, numbers, lists and dicts of them",
            ) from error
    return plain


def check_fingerprint(stored: dict[str, Any] | None, given: dict[str, Any] | None, sink: str) -> None:
    """Refuse to mix rows that were made under different conditions.

    Raises:
        SinkConflictError: The two differ; the message names each key that does, with both values.
    """
    if given is None or stored == given:
        return
    if stored is None:
        raise SinkConflictError(
            f"{sink} holds rows whose conditions were not recorded",
            why="it was written without a fingerprint",
            hint="use --restart (restart=True) to begin anew, or another sink",
        )
    before, now = _flat(stored), _flat(given)
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key) or (key in before) != (key in now)]
    differences = "; ".join(f"{key} was {_short(before, key)}, is now {_short(now, key)}" for key in keys)
    raise SinkConflictError(
        f"{sink} was written under other conditions",
        why=differences,
        hint="use --restart (restart=True) to discard what is there, or another sink",
    )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat.update(_flat(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _short(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "not there"
    text = json.dumps(values[key])
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
