"""Sharded feeds, in a process that has four CPU devices: how many there are is settled when JAX starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = {
    "four CPU devices": [str(HERE / "four_devices.py")],
    "two devices that stand for CUDA's": [
        str(HERE.parent / "gpu" / "test_feed_jax.py"),
        "-k",
        "fake and (sharded or divide)",
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sharded_feed_passes_its_tests_on(name: str):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PROGRAMS[name]]
    result = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "needs two CPU devices" not in result.stdout
