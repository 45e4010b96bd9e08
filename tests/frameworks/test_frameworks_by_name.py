"""Which framework batches are for: by name, by a JAX sharding, and what is said where there is none."""

from __future__ import annotations

import sys

import jax
import pytest

from interlock.errors import UsageError
from interlock.frameworks import framework_for, framework_named


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_name_says_which_and_no_sharding(name):
    framework, sharding = framework_for(name)
    assert (framework.name, sharding) == (name, None)


def test_a_sharding_is_for_jax():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    framework, found = framework_for(sharding)
    assert framework.name == "jax"
    assert found is sharding


@pytest.mark.parametrize("to", ["tensorflow", 3, None])
def test_anything_else_is_refused_with_what_there_is(to):
    with pytest.raises(UsageError, match="use one of numpy, torch, jax, cupy"):
        framework_for(to)


def test_a_missing_framework_is_refused_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for name in ("_cupy", "_cupy_receiver", "_cupy_drain"):
        monkeypatch.delitem(sys.modules, f"interlock.frameworks.{name}", raising=False)
    framework_named.cache_clear()
    with pytest.raises(UsageError, match=r"cupy is not installed.*pip install 'interlock\[cupy\]'"):
        framework_for("cupy")
    framework_named.cache_clear()
