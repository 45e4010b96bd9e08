"""CUDA graphs in a simulation: captured once, replayed on fixed memory, freed under their feet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interlock import check

SCHEDULES = ("lazy", "eager", "starve:graph-1", "pct:1", "pct:2")


def run(program, schedule="lazy"):
    torch.manual_seed(3)
    with check.simulate(schedule, raise_on_hazard=False) as session:
        result = program()
    return result, session.report()


def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def is_right(report):
    return (report.failure, report.hazards, report.unsupported, report.schedules[0].outcome) == (None, (), (), "clean")


# ------------------------------------------------------------ values


def running_sum():
    total, step = torch.zeros(5, device="cuda"), torch.ones(5, device="cuda")
    graph, _ = captured(lambda: total.add_(step))
    for number in range(4):
        step.fill_(number)
        graph.replay()
    return total.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_replay_runs_what_was_captured_on_the_values_of_now(schedule):
    result, report = run(running_sum, schedule)
    assert result == [6.0] * 5
    assert is_right(report)


def test_a_capture_runs_nothing():
    def program():
        x = torch.ones(3, device="cuda")
        captured(lambda: x.mul_(2))
        return x.tolist()

    assert run(program)[0] == [1.0] * 3


def test_a_capture_draws_no_random_numbers_and_each_replay_draws_new_ones():
    def program():
        x = torch.zeros(4, device="cuda")
        before = torch.default_generator.get_state()
        graph, _ = captured(lambda: torch.nn.functional.dropout(x.normal_(), 0.5))
        unchanged = torch.equal(before, torch.default_generator.get_state())
        graph.replay()
        first = x.clone()
        graph.replay()
        return unchanged, torch.equal(first, x)

    result, report = run(program)
    assert result == (True, False)
    assert is_right(report)


def training(where, *, graphed):
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 2).to(where)
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(3, 4, device=where)

    def step():
        update.zero_grad(set_to_none=False)
        loss = model(batch).square().mean()
        loss.backward()
        update.step()
        return loss

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    data = [torch.full((3, 4), number) for number in (1.0, 2.0, 3.0)]
    if graphed:
        graph, loss = captured(step)
    losses = []
    for one in data:
        batch.copy_(one)
        if graphed:
            graph.replay()
        else:
            loss = step()
        losses.append(loss.item())
    return [torch.tensor(losses), *(value.detach().cpu() for value in model.parameters())]


@pytest.mark.parametrize("schedule", ["lazy", "starve:graph-1"])
def test_a_training_step_in_a_graph_computes_what_the_cpu_does(schedule):
    result, report = run(lambda: training("cuda", graphed=True), schedule)
    expected = training("cpu", graphed=False)
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    assert is_right(report)


def test_graphed_callables_train_as_the_module_does():
    def program(where):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to(where)
        sample = torch.randn(2, 4).to(where)
        call: Any = torch.cuda.make_graphed_callables(model, (sample.clone(),)) if where == "cuda" else model
        for _ in range(2):
            call(sample * 2).sum().backward()
        return [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]

    result, report = run(lambda: program("cuda"))
    assert all(torch.equal(one, other) for one, other in zip(result, program("cpu"), strict=True))
    assert is_right(report)


def test_a_captured_copy_to_pinned_memory_lands_at_each_replay():
    def program():
        x, host = torch.zeros(3, device="cuda"), torch.zeros(3, pin_memory=True)
        graph, _ = captured(lambda: host.copy_(x, non_blocking=True))
        found = []
        for number in range(2):
            x.fill_(number)
            graph.replay()
            torch.cuda.synchronize()
            found.append(host.tolist())
        return found

    result, report = run(program)
    assert result == [[0.0] * 3, [1.0] * 3]
    assert is_right(report)


# ------------------------------------------------------------ hazards


def guilty(report):
    return {(hazard.kind, *(place.operation for place in hazard.accesses)) for hazard in report.hazards}


def test_memory_that_a_graph_reads_and_the_program_frees_is_a_hazard_of_the_graph():
    """The graph keeps addresses only, so the tensor ends although the graph goes on."""

    def program():
        held = {"scale": torch.full((8,), 2.0, device="cuda")}
        graph, result = captured(lambda: held["scale"] * 3)
        graph.replay()
        held.clear()
        graph.replay()
        return result.cpu()

    result, report = run(program)
    assert ("stale-graph-input", "free", "aten::mul") in guilty(report)
    assert not torch.equal(result, torch.full((8,), 6.0))


def test_a_copy_out_that_the_next_replay_does_not_wait_for_is_a_hazard():
    def program(*, waits):
        side, kept = torch.cuda.Stream(), torch.zeros(4, pin_memory=True)
        x = torch.ones(4, device="cuda")
        graph, y = captured(lambda: x * 10)
        graph.replay()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            kept.copy_(y, non_blocking=True)
        if waits:
            torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        torch.cuda.synchronize()

    assert guilty(run(lambda: program(waits=False))[1]) == {("stale-graph-input", "aten::copy_", "aten::mul")}
    assert is_right(run(lambda: program(waits=True))[1])


# ------------------------------------------------------------ what CUDA refuses


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.copy_(torch.ones(3)),
        lambda _: torch.cuda.synchronize(),
        lambda _: torch.cuda.current_stream().query(),
    ],
    ids=["item", "cpu", "mask", "copy", "synchronize", "query"],
)
def test_what_makes_the_host_wait_is_refused_in_a_capture(work):
    def program():
        x = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            captured(lambda: work(x))
        assert not torch.cuda.is_current_stream_capturing()

    run(program)


def test_a_graph_must_be_captured_before_it_is_replayed_and_not_on_the_default_stream():
    def program():
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        with pytest.raises(RuntimeError, match="non-default stream"):
            graph.capture_begin()

    run(program)


def test_side_streams_that_wait_for_the_capture_are_captured_too():
    def program():
        x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()

        def forked():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x + 1
                assert torch.cuda.is_current_stream_capturing()
            torch.cuda.current_stream().wait_stream(side)
            return y * 2

        graph, result = captured(forked)
        x.fill_(4)
        graph.replay()
        return result.tolist()

    result, report = run(program)
    assert result == [10.0] * 3
    assert is_right(report)
