"""Objects of Python files: `file.py:NAME` and `package.module:NAME`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from interlock._core._protocols import Source, SupportsChunks, SupportsIds, SupportsReadInto
from interlock.errors import SourceError, UsageError
from interlock.frameworks import framework_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType


@final
@dataclass(frozen=True, slots=True)
class LoadedObject:
    """An object and where it came from.

    Attributes:
        value: The object.
        file: The Python file that defines it; None for a module without one.
        name: Its name there.
    """

    value: Any
    file: Path | None
    name: str

    def call(self) -> Any:
        """Call the object without arguments, with its folder importable, as while it was loaded."""
        with _importable(self.file.parent if self.file else Path.cwd()):
            return self.value()

    def digest(self) -> str:
        """Return the SHA-256 of the file's text."""
        return hashlib.sha256(self.file.read_bytes() if self.file else b"").hexdigest()


def looks_like_object(text: str) -> bool:
    """Tell whether `text` has the form `file.py:NAME` or `package.module:NAME`."""
    module, colon, name = text.rpartition(":")
    plain = all(part.isidentifier() for part in name.split("."))
    return bool(colon) and plain and (module.endswith(".py") or all(part.isidentifier() for part in module.split(".")))


def load_object(text: str) -> LoadedObject:
    """Import the file or module that `text` names and return its object.

    Args:
        text: `file.py:NAME` or `package.module:NAME`; NAME may be dotted.

    Raises:
        UsageError: There is no such file, module or name; or importing it raised, which is then the cause.
    """
    if not looks_like_object(text):
        raise UsageError(f"{text!r} does not name an object", hint="write file.py:NAME or package.module:NAME")
    place, _, name = text.rpartition(":")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise _no_such_name(place, part, value)
        value = getattr(value, part)
    file = getattr(module, "__file__", None)
    return LoadedObject(value, Path(file) if file else None, name)


def _no_such_name(place: str, name: str, holder: Any) -> UsageError:
    public = [one for one in dir(holder) if not one.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    return UsageError(f"{place} has no {name!r}", hint=f"did you mean {close[0]!r}?" if close else "check the name")


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint="check the path")
    path = path.resolve()
    name = _module_name(path)
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported", hint="give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _importable(path.parent):
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            raise _import_failed(str(path), error) from error
    return module


def _module_name(path: Path) -> str:
    """Return the file's own name, so that others of its folder import the same module; another if that is taken."""
    known = sys.modules.get(path.stem)
    if known is not None:
        free = getattr(known, "__file__", None) == str(path)
    else:
        found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
        free = path.stem.isidentifier() and (found is None or found.origin == str(path))
    return path.stem if free else f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _import_module(name: str) -> ModuleType:
    with _importable(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise _import_failed(name, error) from error
            raise UsageError(f"there is no module {error.name!r}", hint=f"looked from {Path.cwd()} on") from None
        except BaseException as error:
            raise _import_failed(name, error) from error


def _import_failed(place: str, error: BaseException) -> BaseException:
    """Return the error to raise in place of what an import raised; an interruption stays what it is."""
    if isinstance(error, (Exception, SystemExit)):
        return UsageError(f"{place} cannot be imported", why=f"{type(error).__name__}: {error}")
    return error


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let imports find the files of `folder`, as when a program of it runs."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the file may have taken it out itself
            sys.path.remove(str(folder))


@final
class PythonSource:
    """A source that a Python file defines: as it is, plus a fingerprint.

    Args:
        inner: The source.
        loaded: Where it came from.

    `id_of`, `read_into` and `chunk_starts` are there if the source has them.
    """

    id_of: Callable[[int], int | str]
    read_into: Callable[..., None]
    chunk_starts: Callable[[], Sequence[int]]

    def __init__(self, inner: Source, loaded: LoadedObject) -> None:
        self._inner = inner
        self._loaded = loaded
        self._rows = len(inner)
        if isinstance(inner, SupportsIds):
            self.id_of = inner.id_of
        if isinstance(inner, SupportsReadInto):
            self.read_into = inner.read_into
        if isinstance(inner, SupportsChunks):
            self.chunk_starts = inner.chunk_starts

    def __repr__(self) -> str:
        return f"PythonSource({self._loaded.name}: {type(self._inner).__name__}, rows={len(self)})"

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Any:
        """Return what the source gives.

        Raises:
            IndexError: There is no such sample.
            SourceError: The source has fewer samples than it said when it was opened.
        """
        if not 0 <= index < self._rows:
            raise IndexError(index)
        try:
            return self._inner[index]
        except IndexError as error:
            raise SourceError(
                f"{self._loaded.name} has no sample {index}",
                why=f"it said that it has {self._rows} samples, and raised {type(error).__name__}: {error}",
                hint="do not change a source while it is read",
            ) from error

    def fingerprint(self) -> dict[str, Any]:
        """Rows, the object's name and a digest of the file's text; what the file reads is not looked at."""
        return {
            "kind": "python",
            "rows": self._rows,
            "name": self._loaded.name,
            "content": self._loaded.digest(),
        }


@final
class _Table:
    """A dict of arrays with one first axis, by row."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: array[index] for name, array in self._arrays.items()}


def open_object(text: str) -> PythonSource:
    """Return the source that `text` names.

    Raises:
        UsageError: There is no such object, or making it raised, which is then the cause.
        SourceError: It is no source, or has no samples.
    """
    loaded = load_object(text)
    value = loaded.value
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__len__")):
        try:
            value = loaded.call()
        except Exception as error:
            raise UsageError(f"{text} could not be called", why=f"{type(error).__name__}: {error}") from error
    source = PythonSource(_as_source(value, text), loaded)
    if not len(source):
        raise SourceError(f"{text} has no samples", why="its length is 0", hint="check what it reads")
    return source


def _as_source(value: Any, text: str) -> Source:
    if isinstance(value, dict):
        lengths = {name: len(array) if hasattr(array, "__len__") else None for name, array in value.items()}
        if len(set(lengths.values())) != 1 or None in lengths.values():
            raise SourceError(
                f"{text} is a dict of arrays of different lengths", why=f"{lengths}", hint="give each all rows"
            )
        return _Table({name: _as_array(array, text) for name, array in value.items()})
    value = _as_array(value, text)
    if not isinstance(value, Source) or isinstance(value, (str, bytes, set, frozenset)):
        raise SourceError(
            f"{text} is not a source",
            why=f"it is of type {type(value).__name__}",
            hint="give an object with __len__ and __getitem__, an array, a dict of arrays, or a function returning one",
        )
    return value


def _as_array(value: Any, text: str) -> Any:
    """Return an array of a framework, or a data frame, as a NumPy array; others, also arrays on disk, as they are."""
    if framework_of(value) is None and not hasattr(value, "iloc"):
        return value
    import numpy as np  # noqa: PLC0415 - keeps NumPy out of importing this module

    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError) as error:  # a tensor with a gradient, or on a GPU
        raise SourceError(f"{text} has no NumPy form", why=str(error), hint="use .detach().cpu()") from error
    if not array.ndim:
        raise SourceError(f"{text} is a single number", hint="give an array of samples")
    return array
