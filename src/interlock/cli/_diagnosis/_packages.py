"""Which packages are installed, which are not, and which do not fit each other."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, NamedTuple

from interlock.cli._diagnosis._facts import Package

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class _Known(NamedTuple):
    """A package that Interlock works with, under the names that it is published by."""

    name: str
    distributions: tuple[str, ...]
    minimum: str
    install: str


KNOWN = (
    _Known("numpy", ("numpy",), "2.0", "pip install -U numpy"),
    _Known("torch", ("torch",), "2.4", "pip install 'interlock[torch]'"),
    _Known("jax", ("jax",), "0.4.35", "pip install 'interlock[jax]'"),
    _Known("jaxlib", ("jaxlib",), "0.4.35", "pip install 'interlock[jax]'"),
    _Known("jax-cuda-plugin", ("jax-cuda13-plugin", "jax-cuda12-plugin"), "0.4.35", "pip install 'jax[cuda{cuda}]'"),
    _Known("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "14.0", "pip install cupy-cuda{cuda}x"),
    _Known("cuda-core", ("cuda-core",), "1.0", "pip install 'interlock[cuda]'"),
    _Known("cuda-bindings", ("cuda-bindings",), "12.9", "pip install 'interlock[cuda]'"),
)
"""Lowest versions as in `pyproject.toml`."""


def installed_versions() -> dict[str, str]:
    """Return the versions of the distributions that `packages` asks about."""
    found: dict[str, str] = {}
    for name in ("interlock", *(one for known in KNOWN for one in known.distributions)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def packages(versions: Mapping[str, str], cuda_version: str | None) -> tuple[Package, ...]:
    """Return what is installed and what is not.

    Args:
        versions: By distribution.
        cuda_version: Newest CUDA that the driver serves, for the command that installs; None without a driver.
    """
    cuda = "12" if cuda_version is not None and _numbers(cuda_version) < (13,) else "13"
    own = Package("interlock", versions.get("interlock"), "pip install -U interlock")
    return (own, *(_package(known, versions, cuda) for known in KNOWN))


def _package(known: _Known, versions: Mapping[str, str], cuda: str) -> Package:
    there = [one for one in known.distributions if one in versions]
    install = known.install.format(cuda=cuda)
    if not there:
        return Package(known.name, None, install)
    found = versions[there[0]]
    problem = next(_problems(known, there, versions), "")
    return Package(known.name, found, install if not problem else _mend(known, there, install), problem)


def _mend(known: _Known, there: list[str], install: str) -> str:
    if known.name == "cupy" and len(there) > 1:
        return f"pip uninstall {' '.join(there[1:])}, then pip install --force-reinstall {there[0]}"
    if known.name.startswith("jax"):
        extra = next((f"[cuda{one[8:10]}]" for one in there if one.startswith("jax-cuda")), "")
        return f"pip install -U 'jax{extra}'" if extra else "pip install -U jax jaxlib"
    return install.replace("pip install ", "pip install -U ") if " -U " not in install else install


def _problems(known: _Known, there: list[str], versions: Mapping[str, str]) -> Iterator[str]:
    found = versions[there[0]]
    if _numbers(found) < _numbers(known.minimum):
        yield f"older than {known.minimum}"
    if known.name == "cupy" and len(there) > 1:
        yield f"{' and '.join(there)} are both installed, and share a folder"
    jax, jaxlib = versions.get("jax"), versions.get("jaxlib")
    # The two rules that JAX itself holds: see check_jaxlib_version and check_plugin_version in its sources.
    if known.name == "jaxlib" and jax is not None and _numbers(found) > _numbers(jax):
        yield f"newer than jax {jax}, which refuses it"
    if known.name == "jax-cuda-plugin" and jaxlib is not None and _numbers(found) != _numbers(jaxlib):
        yield f"jaxlib is {jaxlib}: JAX leaves out a plugin of another version, and runs on the CPU"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
