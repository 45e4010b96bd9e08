"""`interlock doctor` on a machine with a GPU. Without one: tests/cli/test_doctor.py."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from interlock.devices._cuda_facts import device_facts, driver_facts


@pytest.fixture(scope="module")
def report():
    if not driver_facts().device_count:
        pytest.skip("needs a CUDA device")
    command = [sys.executable, "-m", "interlock", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.usefixtures("cuda")
def test_devices_and_links_are_described(report):
    assert report["driver"]["device_count"] == len(report["devices"]) >= 1
    assert report["devices"][0]["copy_engines"] >= 1
    link = report["links"][0]
    assert link["error"] is None
    one_way = (link["pinned_to_device_gb_per_s"], link["pinned_to_host_gb_per_s"])
    assert min(one_way) > 1
    assert link["pinned_both_gb_per_s"] > 0.9 * max(one_way)
    assert link["pin_huge_pages_ms_per_gib"] > 0


@pytest.mark.usefixtures("cuda")
def test_the_verdict_compares_copies_with_the_link(report):
    assert "the link takes" in report["verdict"]["feed"]
    assert report["verdict"]["drain"].startswith("The link takes")
    assert report["seconds"] < 25


@pytest.mark.usefixtures("cuda")
def test_frameworks_see_what_the_driver_shows(report):
    for framework in report["frameworks"]:
        assert len(framework["devices"]) == report["driver"]["device_count"], framework


@pytest.mark.usefixtures("cuda")
def test_asking_takes_no_memory_of_the_device():
    before = device_facts(0, 1).memory_free_bytes
    driver_facts()
    after = device_facts(0, 1).memory_free_bytes
    if before is None or after is None:
        pytest.skip("nothing here tells how much memory is free")
    assert abs(before - after) < 64 << 20
