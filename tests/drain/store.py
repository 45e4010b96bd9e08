"""An object store in a folder, for tests: no rename, no append, objects appear whole, and any call can be made to fail.

`hook` is called before each call with its name and path, and in the middle of each upload as `part`.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem

CHANGES = ("pipe", "put", "part", "cp", "rm")


class FolderStore(AbstractFileSystem):  # type: ignore[misc]
    """`bucket:///path`: each object a file at that path."""

    protocol = "bucket"
    cachable = False
    refuses = True
    """Whether an object can be created only where there is none."""
    placing: ClassVar[Any] = threading.Lock()
    """Held while an object appears: who ends the process holds it, so that no folder is left without objects."""
    hook: ClassVar[Any] = staticmethod(lambda *_: None)

    @classmethod
    def _strip_protocol(cls, path) -> str:
        return str(path).removeprefix("bucket://").removeprefix("loose://")

    def _place(self, source: Any, path: str, mode: str) -> None:
        """Give an object its content in one step."""
        root = path.partition("/part-")[0].partition("/_interlock")[0]
        part = f"{root}/_parts/{os.getpid()}-{threading.get_ident()}.part"  # as of an upload that is not completed
        Path(part).parent.mkdir(parents=True, exist_ok=True)
        with Path(part).open("wb") as file:
            shutil.copyfileobj(source, file) if hasattr(source, "read") else file.write(source)
            type(self).hook("part", path)
        with self.placing:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            try:
                if mode == "create" and self.refuses:
                    os.link(part, path)
                else:
                    Path(part).replace(path)
            finally:
                Path(part).unlink(missing_ok=True)

    def pipe_file(self, path, value, mode="overwrite", **_):
        type(self).hook("pipe", path)
        self._place(value, path, mode)

    def put_file(self, lpath, rpath, mode="overwrite", **_):
        type(self).hook("put", rpath)
        with Path(lpath).open("rb") as file:
            self._place(file, rpath, mode)

    def get_file(self, rpath, lpath, **_):
        type(self).hook("get", rpath)
        shutil.copyfile(rpath, lpath)

    def cat_file(self, path, start=None, end=None, **_):
        type(self).hook("cat", path)
        return Path(path).read_bytes()[start:end]

    def cp_file(self, path1, path2, **_):
        type(self).hook("cp", path2)
        with Path(path1).open("rb") as file:
            self._place(file, path2, "overwrite")

    def rm_file(self, path):
        type(self).hook("rm", path)
        Path(path).unlink()
        folder = Path(path).parent
        while "part-" in folder.as_posix() and not any(folder.iterdir()):  # there are no folders without objects
            folder.rmdir()
            folder = folder.parent

    def makedirs(self, path, **_):
        """As an object store: there are no folders."""

    def find(self, path, **_):
        type(self).hook("find", path)
        if Path(path).is_file():
            return {path: {"size": Path(path).stat().st_size, "type": "file"}}
        found = {}
        for one in Path(path).rglob("*"):
            if one.is_file() and one.suffix != ".part":
                found[str(one)] = {"size": one.stat().st_size, "type": "file"}
        return found


class LooseStore(FolderStore):
    """`loose:///path`: one that writes over what is there, whatever it is asked for."""

    protocol = "loose"
    refuses = False


fsspec.register_implementation("bucket", FolderStore, clobber=True)
fsspec.register_implementation("loose", LooseStore, clobber=True)
