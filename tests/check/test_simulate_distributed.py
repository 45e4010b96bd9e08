"""Collectives in a simulation: on a stream of their own, with peers that hold the same values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives

from interlock import check
from interlock.errors import UsageError

dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning"),
    pytest.mark.filterwarnings("ignore:barrier\\(\\):UserWarning"),
]
SCHEDULES = ("lazy", "eager", "starve:collective", "starve:default", "pct:1")


def run(program, schedule="lazy", ranks=2, rank=0):
    torch.manual_seed(3)
    with check.simulate(schedule, raise_on_hazard=False) as session:
        dist.init_process_group("nccl", init_method="tcp://localhost:29500", rank=rank, world_size=ranks)
        result = program()
        dist.destroy_process_group()
    return result, session.report()


def is_right(report):
    return (report.failure, report.hazards, report.unsupported, report.schedules[0].outcome) == (None, (), (), "clean")


def on_device(*values):
    return torch.tensor(values, device="cuda")


# ------------------------------------------------------------ values


def all_reduce():
    x = on_device(1.0, 2.0)
    dist.all_reduce(x)
    return x


def mean():
    x = on_device(1.0, 2.0)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x


def product():
    x = on_device(3.0)
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    return x


def all_gather():
    found = [torch.zeros(2, device="cuda") for _ in range(dist.get_world_size())]
    dist.all_gather(found, on_device(1.0, 2.0))
    return torch.stack(found)


def all_gather_into_tensor():
    found = torch.zeros(2, 2, device="cuda")
    dist.all_gather_into_tensor(found, on_device(1.0, 2.0))
    return found


def reduce_scatter():
    found = torch.zeros(1, device="cuda")
    dist.reduce_scatter(found, [on_device(5.0), on_device(7.0)])
    return found


def reduce_scatter_tensor():
    found = torch.zeros(1, device="cuda")
    dist.reduce_scatter_tensor(found, on_device(5.0, 7.0))
    return found


def broadcast():
    x = on_device(4.0)
    dist.broadcast(x, src=1)
    return x


def all_to_all():
    found = torch.zeros(2, device="cuda")
    dist.all_to_all_single(found, on_device(5.0, 7.0))
    return found


def exchange():
    x, found = on_device(1.0, 2.0), torch.zeros(2, device="cuda")
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, found, 0), dist.P2POp(dist.isend, x, 0)]):
        work.wait()
    return found


def send_then_receive():
    x, found = on_device(1.0, 2.0), torch.zeros(2, device="cuda")
    sent = dist.isend(x, 0)
    dist.recv(found, 0)
    sent.wait()
    return found


def coalesced():
    x, y = on_device(1.0), on_device(2.0)
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(y)
    return torch.cat([x, y])


def on_the_host():
    x = torch.tensor([1.0, 2.0])
    dist.all_reduce(x)
    return x


def subgroup():
    x = on_device(3.0)
    group = dist.new_group([1])
    dist.all_reduce(x, group=group)
    return torch.cat([x, on_device(float(dist.get_world_size(group)))])


def callback():
    x = on_device(1.0, 2.0)
    return dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 10).wait()


VALUES = [
    (all_reduce, [2.0, 4.0]),
    (mean, [1.0, 2.0]),
    (product, [9.0]),
    (all_gather, [[1.0, 2.0], [1.0, 2.0]]),
    (all_gather_into_tensor, [[1.0, 2.0], [1.0, 2.0]]),
    (reduce_scatter, [14.0]),
    (reduce_scatter_tensor, [14.0]),
    (broadcast, [4.0]),
    (all_to_all, [7.0, 7.0]),
    (exchange, [1.0, 2.0]),
    (send_then_receive, [1.0, 2.0]),
    (coalesced, [2.0, 4.0]),
    (on_the_host, [2.0, 4.0]),
    (subgroup, [3.0, 1.0]),
    (callback, [20.0, 40.0]),
]


@pytest.mark.parametrize(("program", "expected"), VALUES, ids=[program.__name__ for program, _ in VALUES])
def test_a_collective_gives_rank_1_what_two_identical_ranks_compute_under_every_schedule(program, expected):
    for schedule in SCHEDULES:
        result, report = run(lambda: program().tolist(), schedule, ranks=2, rank=1)
        assert (schedule, result) == (schedule, expected)
        assert is_right(report), schedule


def test_functional_collectives_are_awaited_before_their_result_is_used():
    def program():
        x, world = on_device(1.0, 2.0), dist.group.WORLD
        found = [
            functional.all_reduce(x, "sum", world) + 1,
            functional.all_gather_tensor(x, 0, world),
            functional.reduce_scatter_tensor(x, "avg", 0, world),
            functional.broadcast(x, 0, world),
            functional.all_to_all_single(x, None, None, world),
            *functional.all_reduce_coalesced([x], "max", world),
        ]
        return [one.tolist() for one in found]

    for schedule in SCHEDULES:
        result, report = run(program, schedule)
        assert result == [[3.0, 5.0], [1.0, 2.0, 1.0, 2.0], [1.0], [1.0, 2.0], [1.0, 1.0], [1.0, 2.0]]
        assert is_right(report), schedule


def test_a_functional_operator_that_is_not_awaited_is_found():
    def program():
        name = dist.group.WORLD.group_name
        return torch.ops._c10d_functional.all_reduce(on_device(1.0), "sum", name) + 1

    (hazard,) = run(program)[1].hazards
    assert (hazard.kind, hazard.accesses[1].operation) == ("unawaited-collective", "aten::add")


def test_ddp_says_that_it_cannot_be_simulated():
    with pytest.raises(UsageError, match="DistributedDataParallel cannot be simulated"):
        run(lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("cuda")))


def test_objects_are_gathered_and_sent():
    def program():
        gathered, sent = [None, None], [{"epoch": 3}]
        dist.all_gather_object(gathered, {"rank": 0})
        dist.broadcast_object_list(sent, src=0)
        dist.barrier()
        return gathered, sent

    result, report = run(program)
    assert result == ([{"rank": 0}] * 2, [{"epoch": 3}])
    assert is_right(report)


def test_the_group_says_who_it_is():
    def program():
        return dist.get_backend(), dist.get_world_size(), dist.get_rank(), dist.is_initialized()

    assert run(program, ranks=4, rank=3)[0] == ("nccl", 4, 3, True)
    assert not dist.is_initialized()


def test_a_group_that_the_program_leaves_ends_with_the_simulation():
    with check.simulate():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized()


def test_a_message_that_nobody_sends_cannot_be_simulated():
    with pytest.raises(UsageError, match="recv cannot be simulated"):
        run(lambda: dist.recv(torch.zeros(1, device="cuda"), 1))


# ------------------------------------------------------------ order


def unawaited(*, waits):
    x = on_device(1.0, 2.0)
    work = dist.all_reduce(x, async_op=True)
    if waits:
        work.wait()
    return (x * 2).tolist()


def test_a_result_that_is_used_before_the_wait_is_found_with_its_witness():
    result, report = run(lambda: unawaited(waits=False))
    (hazard,) = report.hazards
    assert hazard.kind == "unawaited-collective"
    assert [place.operation for place in hazard.accesses] == ["dist.all_reduce", "aten::mul"]
    assert hazard.accesses[0].timeline.endswith("/collective")
    assert result == [2.0, 4.0], "nothing has reduced yet"


def test_the_same_after_the_wait_is_right():
    result, report = run(lambda: unawaited(waits=True))
    assert result == [4.0, 8.0]
    assert is_right(report)


def test_an_input_that_is_changed_under_a_collective_is_found():
    def program():
        x, found = on_device(1.0, 2.0), torch.zeros(2, 2, device="cuda")
        work = dist.all_gather_into_tensor(found, x, async_op=True)
        x.zero_()
        work.wait()

    (hazard,) = run(program)[1].hazards
    assert (hazard.kind, hazard.accesses[1].operation) == ("unawaited-collective", "aten::zero_")


def test_a_collective_comes_after_what_the_current_stream_was_given():
    def program():
        x = torch.zeros(2, device="cuda")
        x.add_(3)
        dist.all_reduce(x, async_op=True).wait()
        return x.tolist()

    for schedule in SCHEDULES:
        result, report = run(program, schedule)
        assert result == [6.0, 6.0]
        assert is_right(report)


def test_memory_that_is_dropped_under_a_collective_stays_until_it_is_done():
    def program():
        found = torch.zeros(4, device="cuda")
        work = dist.all_gather_into_tensor(found, on_device(1.0, 2.0), async_op=True)
        other = torch.full((2,), -1.0, device="cuda")
        work.wait()
        return found.tolist(), other.tolist()

    result, report = run(program, "starve:collective")
    assert result == ([1.0, 2.0, 1.0, 2.0], [-1.0, -1.0])
    assert is_right(report)


def test_a_query_that_says_done_is_a_proof():
    def program():
        x = on_device(1.0)
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        return x.tolist()

    result, report = run(program)
    assert result == [2.0]
    assert is_right(report)
