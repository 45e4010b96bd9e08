"""The program of a process of its own: asks what may hang, crash or take memory, and writes JSON lines to its stdout.

It is started by path, and loads nothing of Interlock unless it asks the CUDA driver. What others print goes to stderr.
The last line is `{"done": true}`: what happens after it, as in a framework's own way out, says nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Found = dict[str, Any]
PIECE_BYTES = 64 << 20
"""As a drain's shards are by default."""
_PIECES = 4


def _torch() -> Iterator[Found]:
    torch = importlib.import_module("torch")
    yield {"version": str(torch.__version__), "cuda_version": torch.version.cuda, "platforms": ["cpu"]}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield {"devices": names, "platforms": ["cpu", "cuda"]}


def _jax() -> Iterator[Found]:
    jax = importlib.import_module("jax")
    yield {"version": str(jax.__version__)}
    devices = jax.devices()
    names = [device.device_kind for device in devices if device.platform in {"gpu", "cuda"}]
    found: Found = {"devices": names, "platforms": sorted({device.client.platform for device in devices})}
    if names:
        found["cuda_version"] = _cuda_of(devices[0].client.platform_version)
    yield found


def _cuda_of(text: str) -> str | None:
    """Read the `cuda 13000` of what XLA says of itself."""
    number = text.rpartition("cuda ")[2].strip()
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdecimal() else None


def _cupy() -> Iterator[Found]:
    cupy = importlib.import_module("cupy")
    runtime = cupy.cuda.runtime
    number = runtime.runtimeGetVersion()
    yield {"version": str(cupy.__version__), "cuda_version": f"{number // 1000}.{number % 1000 // 10}"}
    names = [runtime.getDeviceProperties(index)["name"].decode() for index in range(runtime.getDeviceCount())]
    yield {"devices": names, "platforms": ["cuda"]}


def _cuda(measure_bytes: str, seconds: str) -> Iterator[Found]:
    ends_s = time.monotonic() + float(seconds)
    facts = importlib.import_module("interlock.devices._cuda_facts")
    driver = facts.driver_facts()
    yield {"driver": asdict(driver)}
    if driver.error or not facts.can_ask_devices():
        return
    for index in range(driver.device_count):
        yield {"device": asdict(facts.device_facts(index, driver.device_count))}
    if not int(measure_bytes):
        return
    link = importlib.import_module("interlock.cli._diagnosis._link")
    for index in range(driver.device_count):
        if time.monotonic() < ends_s:
            yield from link.measure(index, int(measure_bytes))


def _disk(folder: str, seconds: str) -> Iterator[Found]:
    """Write as a drain does: so much, then sync. The file has no name, so that nothing can be left behind."""
    ends_s = time.monotonic() + float(seconds)
    piece = os.urandom(1 << 20) * (PIECE_BYTES >> 20)  # storage may squeeze zeros, and this it cannot squeeze much
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        for number in range(1, _PIECES + 1):
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            yield {"written_bytes": number * PIECE_BYTES, "seconds": time.perf_counter() - began}
            if time.monotonic() > ends_s:
                return


_PROBES: dict[str, Callable[..., Iterator[Found]]] = {
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
    "cuda": _cuda,
    "disk": _disk,
}


def main(name: str, *arguments: str) -> int:
    """Run a probe. An error of what it asks is told as `error`, with `loaded` if it had answered before."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def tell(found: Found) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        loaded = False
        try:
            for found in _PROBES[name](*arguments):
                tell(found)
                loaded = True
        except BaseException as error:  # noqa: BLE001 - whatever others raise is what was to be found out
            tell({"error": f"{type(error).__name__}: {error}".removesuffix(": "), "loaded": loaded})
        tell({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
