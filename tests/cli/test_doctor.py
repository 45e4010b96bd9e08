"""`interlock doctor`: the rules on facts that are made up, the facts of this machine, and what is printed."""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from interlock.cli._diagnosis import _children, _examine, _packages
from interlock.cli._diagnosis._children import Answer, ask, framework_facts, without_paths
from interlock.cli._diagnosis._copies import measure_hash, measure_host_copies, thread_counts
from interlock.cli._diagnosis._examine import _cuda_facts, disk_facts
from interlock.cli._diagnosis._facts import (
    Disk,
    Facts,
    FrameworkFacts,
    HostCopy,
    HostFacts,
    Link,
    Package,
    Report,
)
from interlock.cli._diagnosis._findings import findings
from interlock.cli._diagnosis._host import host_facts
from interlock.cli._diagnosis._link import measure_copies
from interlock.cli._diagnosis._packages import KNOWN, packages
from interlock.cli._diagnosis._text import as_text
from interlock.cli._diagnosis._verdict import drain_verdict, feed_verdict, verdict
from interlock.devices._cuda_facts import DeviceFacts, DriverFacts, PcieLink
from interlock.lowlevel import HostDevice, SimulatedDevice

ROOT = Path(__file__).parents[2]
GIB = 1 << 30

DRIVER = DriverFacts(found=True, version="580.65.06", cuda_version="13.0", device_count=1)
DEVICE = DeviceFacts(0, "NVIDIA H200", 140 * GIB, 139 * GIB, "0000:1a:00.0", 0, "9.0", 3, True, PcieLink(5, 16, 5, 16))  # noqa: FBT003 - as the driver has it
HOST = HostFacts(
    cores_online=16,
    cores_usable=16,
    memory_bytes=128 * GIB,
    memory_available_bytes=100 * GIB,
    shared_memory_bytes=64 * GIB,
    shared_memory_free_bytes=64 * GIB,
    transparent_huge_pages="madvise",
    numa_nodes=(0, 1),
    numa_nodes_usable=(0, 1),
)
LINK = Link("cuda:0", 256 << 20, 5, 55.2, 55.0, 95.1, 9.1, 6.2, 900.0, 290.0)
COPIES = (HostCopy(1, 7.5), HostCopy(2, 12.0), HostCopy(4, 17.7), HostCopy(8, 21.0), HostCopy(16, 21.5))
TORCH = FrameworkFacts("torch", "2.11.0", "13.0", ("cpu", "cuda"), ("NVIDIA H200",))
FINE = Facts(
    system="Linux 6.1 x86_64",
    python="3.12.3",
    packages=(Package("cuda-core", "1.2.0", ""), Package("cuda-bindings", "13.3.1", "")),
    driver=DRIVER,
    devices=(DEVICE,),
    frameworks=(TORCH,),
    host=HOST,
    links=(LINK,),
    copy_bytes=256 << 20,
    host_copies=COPIES,
    hash_gb_per_s=1.8,
    disk=Disk(256 << 20, 64 << 20, 1.2),
)


def plain(facts):
    """Return facts as they come out of JSON."""
    return json.loads(json.dumps(asdict(facts)))


# ------------------------------------------------------------ verdict


@pytest.mark.parametrize(
    ("copies", "speed", "said"),
    [
        (COPIES, 55.2, ["One thread copies 7.5 GB/s, the link takes 55: 8 threads fill at most 21 of it", "read_into"]),
        (COPIES, 20.0, ["8 threads fill it, and then the link is the limit."]),
        (COPIES, 23.5, ["16 threads fill it", "Pass workers=16."]),
        (COPIES[:4], 55.2, ["8 threads fill at most 21 of it"]),
        (COPIES, 6.0, ["one thread fills the link, which is the limit"]),
        ((HostCopy(1, 7.5), HostCopy(2, 20.0), HostCopy(4, 7.0)), 55.2, ["2 threads fill at most 20 of it"]),
        (COPIES[:1], 55.2, ["it fills at most 7.5 of it"]),
        ((*COPIES, HostCopy(32, 30.0)), 55.2, ["32 threads fill at most 30 of it", "Pass workers=32."]),
    ],
)
def test_a_feed_is_as_fast_as_the_slower_of_copies_and_link(copies, speed, said):
    text = feed_verdict(copies, replace(LINK, pinned_to_device_gb_per_s=speed))
    for part in said:
        assert part in text


def test_without_a_device_the_copies_alone_are_the_limit():
    assert "One thread copies 7.5 GB/s, 8 threads 21. No device's link was measured" in feed_verdict(COPIES, None)


def test_without_measurements_nothing_is_claimed():
    assert "nothing can be said" in feed_verdict((), LINK)
    assert "nothing can be said" in drain_verdict(LINK, None, None)


@pytest.mark.parametrize(
    ("disk", "hashed", "said"),
    [
        (
            1.2,
            1.8,
            "The link takes 55 GB/s, the storage takes 1.2 GB/s, one thread hashes 1.8 meanwhile: the storage is",
        ),
        (
            200.0,
            1.8,
            "meanwhile: hashing is the limit of parquet:; npy:, hashed by several threads, may reach the link.",
        ),
        (9.0, 1.8, "hashing is the limit of parquet:; npy:, hashed by several threads, may reach the storage."),
        (200.0, 100.0, "meanwhile: the link is the limit, unless the sink's format takes longer."),
    ],
)
def test_a_drain_is_as_fast_as_the_slowest_of_link_storage_and_hashing(disk, hashed, said):
    assert said in drain_verdict(LINK, hashed, Disk(1 << 28, 1 << 26, disk))


@pytest.mark.parametrize("disk", [None, Disk(0, 1 << 26, None, "no space")])
def test_a_storage_that_was_not_measured_is_said_to_be(disk):
    assert "was not measured: --sink FOLDER" in drain_verdict(LINK, 1.8, disk)


# ------------------------------------------------------------ findings


def found(**changes) -> str:
    """Return the findings of a machine that is fine but for `changes`, as one text."""
    return "\n".join(f"{one.what}: {one.why}; {one.hint}" for one in findings(replace(FINE, **changes)))


def test_nothing_is_found_on_a_machine_that_is_fine():
    assert findings(FINE) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"driver": DriverFacts(found=True, device_count=0)}, "CUDA_VISIBLE_DEVICES"),
        ({"packages": (Package("torch", "2.1", "pip install -U x", "older than 2.4"),)}, "torch 2.1 does not fit"),
        (
            {"packages": (Package("cuda-core", None, "pip install it"), *FINE.packages[1:])},
            "cuda-core is not installed: a feed and a drain cannot use the GPU without; pip install it",
        ),
        (
            {"packages": (Package("cuda-bindings", "14.0.1", ""),)},
            "is newer than the driver: the driver serves CUDA 13.0; pip install 'cuda-bindings<14'",
        ),
        (
            {"frameworks": (FrameworkFacts("torch", "2.13.0+cpu", None, ("cpu",)),)},
            "torch is a build for the CPU, beside a GPU",
        ),
        (
            {"frameworks": (FrameworkFacts("torch", "2.14", "14.1", ("cpu",)),)},
            "it was built for CUDA 14.1, the driver serves 13.0",
        ),
        ({"frameworks": (FrameworkFacts("jax", "0.10", None, ("cpu",)),)}, "pip install -U 'jax[cuda13]'"),
        ({"frameworks": (FrameworkFacts("cupy", "14.0", "13.0"),)}, "cupy sees no GPU"),
        ({"frameworks": (FrameworkFacts("jax", error="no answer in 8 s"),)}, "could not be asked for its devices"),
        ({"driver": replace(DRIVER, device_count=2)}, "torch sees 1 of 2 devices"),
        ({"host": replace(HOST, cores_quota=3.5)}, "gives 3.5 cores' worth of time, of 16 cores"),
        ({"host": replace(HOST, cores_quota=3.5)}, "pass workers=4"),
        ({"host": replace(HOST, numa_nodes_usable=(1,))}, "cuda:0 is at NUMA node 0, this process at 1"),
        ({"host": replace(HOST, transparent_huge_pages="never")}, "transparent huge pages are off"),
        ({"host": replace(HOST, shared_memory_bytes=64 << 20)}, "shm has 64 MiB"),
        ({"host": replace(HOST, memory_available_bytes=GIB)}, "only 1.0 GiB of memory are left"),
        ({"links": (replace(LINK, error="refused"),)}, "cuda:0 could not be measured: refused"),
        ({"devices": (replace(DEVICE, pcie=PcieLink(4, 8, 5, 16)),)}, "PCIe 4 x8: the device can do PCIe 5 x16"),
        ({"links": (replace(LINK, pinned_to_device_gb_per_s=20.0),)}, "carries 20.0 GB/s: its lanes could carry 63"),
        ({"disk": Disk(0, 1 << 26, None, "No space left")}, "storage could not be measured: No space left"),
    ],
)
def test_each_thing_that_is_wrong_is_found(changes, said):
    assert said in found(**changes)


def test_a_small_limit_on_locked_memory_is_named_only_where_pinning_failed():
    small = replace(HOST, locked_memory_limit_bytes=64 << 10)
    assert found(host=small) == ""
    refused = (replace(LINK, error="refused"),)
    assert "limit on locked memory is 65536 bytes" in found(host=small, links=refused)
    assert "locked" not in found(host=replace(HOST, locked_memory_limit_bytes=8 * GIB), links=refused)


def test_a_device_whose_link_is_slower_than_another_s_is_named():
    second = replace(DEVICE, index=1, pcie=None)
    links = (LINK, replace(LINK, device="cuda:1", pinned_to_device_gb_per_s=13.0))
    driver = replace(DRIVER, device_count=2)
    both = replace(TORCH, devices=("NVIDIA H200",) * 2)
    said = found(driver=driver, devices=(DEVICE, second), links=links, frameworks=(both,))
    assert said == "the link of cuda:1 carries 13.0 GB/s: another device's carries 55.2; "


def test_a_machine_without_a_gpu_is_fine_whatever_frameworks_are_built_for():
    here = replace(
        FINE,
        driver=DriverFacts(found=False),
        devices=(),
        links=(),
        frameworks=(FrameworkFacts("torch", "2.13.0", "13.0", ("cpu",)), FrameworkFacts("jax", "0.10")),
        packages=(Package("cuda-core", None, "pip install it"),),
    )
    assert findings(here) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"driver": DriverFacts(found=True, error="cuInit says CUDA_ERROR_UNKNOWN (999)")}, "cuInit says"),
        ({"frameworks": (FrameworkFacts("torch", error="ended with SIGSEGV", crashed=True),)}, "cannot be imported"),
    ],
)
def test_what_is_installed_and_does_not_work_is_broken_and_comes_first(changes, said):
    first = findings(replace(FINE, host=replace(HOST, cores_quota=2.0), **changes))[0]
    assert first.broken
    assert said in f"{first.what}: {first.why}"


def test_cupy_that_cannot_be_imported_is_no_fault_without_a_driver():
    crashed = (FrameworkFacts("cupy", error="ImportError: libcuda.so.1", crashed=True),)
    assert [one.broken for one in findings(replace(FINE, frameworks=crashed))] == [True]
    without = replace(FINE, frameworks=crashed, driver=DriverFacts(found=False), devices=(), links=())
    assert [one.broken for one in findings(without)] == [False]


# ------------------------------------------------------------ packages


GOOD = {"numpy": "2.4.0", "torch": "2.11.0", "jax": "0.11.2", "jaxlib": "0.11.2", "jax-cuda13-plugin": "0.11.2"}
GOOD |= {"cupy-cuda13x": "14.2.0", "cuda-core": "1.2.0", "cuda-bindings": "13.3.1", "interlock": "1.0"}


def problems(versions):
    return {one.name: one.problem for one in packages(versions, "13.0") if one.problem}


def test_versions_that_fit_are_said_to():
    assert problems(GOOD) == {}
    assert all(one.version for one in packages(GOOD, "13.0"))


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"torch": "2.3.1+cu121"}, "torch", "older than 2.4"),
        ({"numpy": "1.26.4"}, "numpy", "older than 2.0"),
        ({"jaxlib": "0.12.0", "jax-cuda13-plugin": "0.12.0"}, "jaxlib", "newer than jax 0.11.2"),
        ({"jax-cuda13-plugin": "0.11.1"}, "jax-cuda-plugin", "JAX leaves out a plugin of another version"),
        ({"cupy-cuda12x": "14.2.0"}, "cupy", "cupy-cuda13x and cupy-cuda12x are both installed"),
    ],
)
def test_versions_that_do_not_fit_are_named(changes, name, said):
    found = problems(GOOD | changes)
    assert list(found) == [name]
    assert said in found[name]


def test_what_is_missing_has_its_command_for_the_driver_s_cuda():
    missing = {one.name: one.install for one in packages({}, "12.8")}
    assert missing["cuda-core"] == "pip install 'interlock[cuda]'"
    assert (missing["cupy"], missing["jax-cuda-plugin"]) == ("pip install cupy-cuda12x", "pip install 'jax[cuda12]'")
    assert {one.name: one.install for one in packages({}, None)}["cupy"] == "pip install cupy-cuda13x"


def test_a_plugin_that_does_not_fit_is_installed_anew_with_jax():
    old = GOOD | {"jax-cuda13-plugin": "0.11.1"}
    assert next(one for one in packages(old, "13.0") if one.problem).install == "pip install -U 'jax[cuda13]'"


def test_lowest_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    minimum = dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(needs), re.MULTILINE))
    assert len(minimum) > len(KNOWN)
    for known in KNOWN:
        for distribution in known.distributions:
            if distribution in minimum:
                assert known.minimum == minimum[distribution]


def test_installed_versions_ask_nobody_but_the_metadata(monkeypatch):
    def version(name):
        if name == "numpy":
            return "2.4.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(_packages, "version", version)
    assert _packages.installed_versions() == {"numpy": "2.4.0"}


# ------------------------------------------------------------ host


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\n"


def test_control_groups_of_the_second_version_limit_cores_and_memory(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/inner/memory.max": "268435456\n",
            "sys/fs/cgroup/outer/inner/memory.current": "200000000\n",
            "sys/fs/cgroup/outer/inner/memory.stat": "anon 1\ninactive_file 100000000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    facts = host_facts(root)
    assert facts.cores_quota == 1.5
    assert (facts.memory_bytes, facts.memory_limit_bytes) == (GIB, 256 << 20)
    assert facts.memory_available_bytes == 268435456 - 200000000 + 100000000


def test_control_groups_of_the_first_version_do_too(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "300000000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "100000000\n",
        },
    )
    facts = host_facts(root)
    assert (facts.cores_quota, facts.memory_limit_bytes, facts.memory_available_bytes) == (2.0, 300000000, 200000000)


def test_a_control_group_without_a_limit_has_none(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    facts = host_facts(machine(tmp_path, files))
    assert (facts.cores_quota, facts.memory_limit_bytes, facts.memory_available_bytes) == (None, None, GIB // 2)


def test_pages_and_nodes_are_read(tmp_path):
    core = min(os.sched_getaffinity(0))
    root = machine(
        tmp_path,
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
            "sys/devices/system/node/node0/cpulist": f"{core}-{core + 3},{core + 9}\n",
            "sys/devices/system/node/node1/cpulist": "100000-100003\n",
            "sys/devices/system/node/has_cpu": "0-1\n",
        },
    )
    facts = host_facts(root)
    assert (facts.transparent_huge_pages, facts.numa_nodes, facts.numa_nodes_usable) == ("never", (0, 1), (0,))


def test_a_system_that_tells_nothing_is_no_error(tmp_path):
    facts = host_facts(tmp_path)
    assert (facts.memory_bytes, facts.cores_quota, facts.shared_memory_bytes, facts.numa_nodes) == (
        None,
        None,
        None,
        (),
    )
    assert facts.cores >= 1


@pytest.mark.parametrize(("usable", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (8, 0.2, 1), (2, 16.0, 2)])
def test_threads_that_run_at_once_are_bounded_by_cores_and_quota(usable, quota, cores):
    assert HostFacts(16, usable, quota).cores == cores


# ------------------------------------------------------------ processes of their own


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """Return a function that makes the text of a module the torch of the processes that are asked."""

    def make(text):
        (tmp_path / "torch.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return framework_facts("torch", ask("torch", timeout_s=20))

    return make


VERSIONS = "__version__ = '9.9'\nclass version: cuda = '13.0'\n"
WITH_GPU = """
class cuda:
    is_available = lambda: True
    device_count = lambda: 2
    get_device_name = 'GPU {}'.format
"""


def test_a_framework_tells_what_it_sees_whatever_it_prints_and_however_it_ends(framework):
    facts = framework(
        f'print(\'{{"error": "noise"}}\')\nimport atexit, os\natexit.register(os.abort)\n{VERSIONS}{WITH_GPU}'
    )
    assert (facts.version, facts.cuda_version, facts.devices) == ("9.9", "13.0", ("GPU 0", "GPU 1"))
    assert (facts.error, facts.crashed) == (None, False)


def test_an_import_that_ends_the_process_is_a_crash(framework):
    facts = framework("import os\nos.abort()\n")
    assert facts.crashed
    assert facts.error == "the process ended with SIGABRT"


def test_an_import_that_fails_is_a_crash_and_names_no_folder(framework):
    facts = framework("raise ImportError('libx.so: cannot open (/home/somebody/env/lib/libx.so)')\n")
    assert facts.crashed
    assert facts.error == "ImportError: libx.so: cannot open (…/libx.so)"


def test_a_driver_that_refuses_a_framework_is_no_crash(framework):
    facts = framework(f"{VERSIONS}class cuda:\n    def is_available(): raise RuntimeError('too old')\n")
    assert (facts.version, facts.error, facts.crashed) == ("9.9", "RuntimeError: too old", False)


def test_an_import_that_hangs_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = ask("torch", timeout_s=0.5)
    assert (answer.found, answer.error, answer.crashed) == ((), "no answer in 0 s", False)
    assert not framework_facts("torch", answer).crashed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no file /home/me/data/x.so here", "no file …/x.so here"),
        ("see ~/work/x.py", "see …/x.py"),
        ("GB/s and 1/2 stay, https://a.org/b too", "GB/s and 1/2 stay, https://a.org/b too"),
        ("a\n  b", "a b"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_errors_of_others_are_shown_without_folders_in_one_line(text, shown):
    assert without_paths(text) == shown


def test_the_driver_s_answers_are_kept_when_its_process_dies_while_it_measures():
    said = ({"driver": plain(DRIVER)}, {"device": plain(DEVICE)})
    driver, devices, links = _cuda_facts(Answer(said, "no answer in 7 s", crashed=False, seconds=7.0))
    assert (driver, devices, links) == (DRIVER, (DEVICE,), ())
    driver, devices, links = _cuda_facts(Answer(said[:1], "no answer in 7 s", crashed=False, seconds=7.0))
    assert driver.error == "no answer in 7 s"
    driver, devices, links = _cuda_facts(Answer(said, "ended with SIGSEGV", crashed=True, seconds=1.0))
    assert driver.error == "ended with SIGSEGV"


def test_a_driver_that_does_not_answer_is_broken():
    driver, _, _ = _cuda_facts(Answer((), "no answer in 7 s", crashed=False, seconds=7.0))
    assert driver.error == "no answer in 7 s"


# ------------------------------------------------------------ measurements


def test_threads_double_up_to_the_cores():
    assert [thread_counts(cores) for cores in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_host_copies_and_hashing_are_measured():
    found = measure_host_copies([1, 2], 8 << 20, 5.0)
    assert [copy.threads for copy in found] == [1, 2]
    assert all(copy.gb_per_s > 0.05 for copy in found)
    assert measure_hash() > 0.01


def test_no_further_number_of_threads_is_tried_when_the_time_is_over():
    assert [copy.threads for copy in measure_host_copies([1, 2, 4], 1 << 20, -1.0)] == [1]


@pytest.mark.parametrize("device", [HostDevice(), SimulatedDevice("lazy")], ids=["host", "simulated"])
def test_a_link_is_measured_through_the_device_s_own_copies(device):
    link = measure_copies(device, 1 << 20, repeats=1)
    figures = [value for name, value in Report.as_dict(report(links=(link,)))["links"][0].items() if "gb_per_s" in name]
    assert len(figures) == 5
    assert all(figure > 0 for figure in figures)


def test_the_storage_is_measured_and_nothing_is_left(tmp_path):
    disk = disk_facts(ask("disk", str(tmp_path), "0", timeout_s=60))  # no time: one piece
    assert (disk.written_bytes, disk.error) == (64 << 20, None)
    assert disk.gb_per_s is not None
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_refuses_is_no_crash():
    disk = disk_facts(ask("disk", "/proc", "1", timeout_s=60))
    assert disk.gb_per_s is None
    assert disk.error


# ------------------------------------------------------------ what is printed


def report(**changes) -> Report:
    facts = replace(FINE, **changes)
    return Report(facts, verdict(facts), findings(facts), 4.2)


def test_the_text_fits_80_columns_and_says_what_counts():
    text = as_text(report(host=replace(HOST, cores_quota=2.0)))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    for part in (
        "NVIDIA H200, 140.0 GiB",
        "PCIe 5 x16",
        "to the device    55.2       9.1",
        "takes 290 ms per GiB",
        "storage  1.20 GB/s",
        "8 threads fill at most 21",
        "the storage is the limit",
        "warning: the control group",
        "1 finding, in 4.2 s",
    ):
        assert part in text


@pytest.fixture
def bare(monkeypatch):
    """Let no framework be there, which takes seconds to ask."""
    monkeypatch.setattr(_examine, "_is_there", lambda _: False)


@pytest.mark.usefixtures("bare")
def test_json_has_the_keys_that_are_documented(bench, tmp_path):
    said = bench.call("doctor", "--json", "--sink", tmp_path)
    assert said.code == 0
    assert said.err == ""
    document = (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")
    table = document.partition("## What `interlock doctor --json` holds")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert documented == list(said.json)
    assert said.json["format"] == 1
    full = json.loads(json.dumps(report().as_dict()))
    assert list(full) == list(said.json)
    for inner in ("packages", "devices", "frameworks", "links", "host_copies"):
        for key in full[inner][0]:
            assert f"`{key}`" in table, f"{inner}.{key}"
    for inner in ("driver", "host", "disk", "verdict"):
        for key in full[inner]:
            assert f"`{key}`" in table, f"{inner}.{key}"


@pytest.mark.usefixtures("bare")
def test_without_a_gpu_it_says_what_cannot_be_measured_and_succeeds(bench, monkeypatch):
    monkeypatch.setattr(
        _examine, "ask", lambda *_, **__: Answer(({"driver": {"found": False}},), None, crashed=False, seconds=0.1)
    )
    said = bench.call("doctor")
    assert said.code == 0
    assert "not measured: the link: there is no CUDA driver here" in said.out
    assert "not measured: the storage: --sink FOLDER measures it" in said.out
    assert "nothing wrong was found" in said.out


@pytest.mark.usefixtures("bare")
def test_quick_measures_nothing(bench, monkeypatch):
    monkeypatch.setattr(_examine, "measure_host_copies", None)
    said = bench.call("doctor", "--quick", "--json")
    assert said.code == 0
    assert (said.json["links"], said.json["host_copies"], said.json["disk"]) == ([], [], None)
    assert said.json["unmeasured"] == ["no speed: --quick measures nothing"]


@pytest.mark.usefixtures("bare")
def test_what_is_broken_makes_exit_code_1(bench, monkeypatch):
    broken = {"driver": {"found": True, "error": "cuInit says CUDA_ERROR_UNKNOWN (999)"}}
    monkeypatch.setattr(_examine, "ask", lambda *_, **__: Answer((broken,), None, crashed=False, seconds=0.1))
    said = bench.call("doctor", "--quick")
    assert said.code == 1
    assert "broken: the CUDA driver does not work: cuInit says CUDA_ERROR_UNKNOWN (999)" in said.out.replace("\n", " ")


def test_frameworks_of_this_machine_are_asked_apart(bench):
    said = bench.call("doctor", "--quick", "--json")
    versions = {one["name"]: one["version"] for one in said.json["packages"]}
    seen = {one["name"]: one["version"] for one in said.json["frameworks"] if one["error"] is None}
    assert seen
    assert all(version.startswith(versions[name]) for name, version in seen.items())  # `+cu130` may follow


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--quick", "--sink", "."], "--sink and --quick exclude each other"),
        (["--sink", "no/such/folder"], "there is no folder no/such/folder"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(bench, options, text):
    said = bench.call("doctor", *options)
    assert said.code == 2
    assert text in said.err


@pytest.mark.usefixtures("bare")
def test_nothing_private_is_shown(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    said = bench.call("doctor", "--json", "--sink", tmp_path)
    for private in ("hunter2", str(Path.home()) + "/", str(tmp_path), os.environ.get("USER") or "no such user"):
        assert private not in said.out


def test_processes_of_their_own_find_the_same_packages(monkeypatch):
    monkeypatch.setattr("sys.path", ["", "/some/where"])
    environment = _children._environment()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(Path.cwd()), "/some/where"]
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
