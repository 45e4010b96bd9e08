"""`interlock doctor` on a machine with a GPU. Without one: tests/cli/test_doctor.py."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from interlock.devices._cuda_facts import driver_facts

_ATTEMPTS = 3


def examined() -> dict[str, Any]:
    command = [sys.executable, "-m", "interlock", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def report():
    """What it says; again where other tests, which fill the same device meanwhile, left it no memory or no time."""
    if not driver_facts().device_count:
        pytest.skip("needs a CUDA device")
    for _ in range(_ATTEMPTS):
        found = examined()
        reached = len(found["links"]) == len(found["devices"])
        if reached and not any(one["error"] for one in (*found["links"], *found["frameworks"])):
            break
    return found


@pytest.mark.usefixtures("cuda")
def test_devices_and_links_are_described(report):
    assert report["driver"]["device_count"] == len(report["devices"]) >= 1
    names = [f"cuda:{one['index']}" for one in report["devices"]]
    assert [link["device"] for link in report["links"]] == names[: len(report["links"])] != []
    assert report["devices"][0]["copy_engines"] >= 1
    first = report["links"][0]
    assert all(value > 0 for name, value in first.items() if name.endswith(("gb_per_s", "ms_per_gib"))), first
    assert all(link["pinned_both_gb_per_s"] > 0 for link in report["links"])


@pytest.mark.usefixtures("cuda")
def test_the_verdict_compares_copies_with_the_link(report):
    assert "the link takes" in report["verdict"]["feed"]
    assert report["verdict"]["drain"].startswith("The link takes")
    assert report["seconds"] < 25


@pytest.mark.usefixtures("cuda")
def test_frameworks_see_what_the_driver_shows(report):
    for framework in report["frameworks"]:
        assert len(framework["devices"]) == report["driver"]["device_count"], framework


@pytest.mark.usefixtures("two_devices")
def test_devices_that_reach_each_other_are_named_from_both_sides(report):
    peers = {one["index"]: one["peers"] for one in report["devices"]}
    assert all(index in peers[peer] for index, reached in peers.items() for peer in reached)


@pytest.mark.usefixtures("cuda")
def test_asking_makes_no_context():
    """It would take some hundred MiB of the device; its memory is not compared, since other tests use it too."""
    program = "from interlock.devices._cuda_facts import *; driver_facts(); device_facts(0, 1)\n"
    program += (
        "from cuda.bindings import driver; print(int(driver.cuDevicePrimaryCtxGetState(driver.cuDeviceGet(0)[1])[2]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
