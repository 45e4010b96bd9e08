"""Programs on other libraries, and on parts of PyTorch that run in threads: clean, and equal to the CPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from interlock import check

SCHEDULES = ("lazy", "starve:default", "pct:1")


def is_right(report):
    return (report.failure, report.hazards, report.unsupported, report.schedules[0].outcome) == (None, (), (), "clean")


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def compare(program, before=lambda: None, schedules=SCHEDULES):
    before()
    expected = program()
    for schedule in schedules:
        before()
        with check.simulate(schedule, raise_on_hazard=False) as session:
            found = program()
        assert is_right(session.report()), schedule
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), schedule
    before()


def test_an_accelerate_loop():
    accelerate = pytest.importorskip("accelerate")

    def reset():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def program():
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
        data = TensorDataset(torch.randn(24, 6), torch.randint(3, (24,)))
        model = torch.nn.Linear(6, 3)
        update = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = DataLoader(data, batch_size=8, pin_memory=device() == "cuda")
        model, update, batches = accelerator.prepare(model, update, batches)
        losses = []
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                update.step()
                update.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
        return [torch.tensor(losses), *(one.cpu() for one in accelerator.unwrap_model(model).state_dict().values())]

    compare(program, reset)


def test_training_and_generation_with_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    layers = {"num_hidden_layers": 1, "max_position_embeddings": 32}

    def program():
        torch.manual_seed(0)
        bert = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **layers)).to(device())
        update = torch.optim.AdamW(bert.parameters(), lr=1e-3)
        tokens, mask = torch.randint(40, (2, 3, 9)), torch.ones(3, 9, dtype=torch.long)
        mask[0, 6:] = 0
        found = []
        for batch in tokens:
            labels = torch.randint(2, (3,)).to(device())
            result = bert(input_ids=batch.to(device()), attention_mask=mask.to(device()), labels=labels)
            result.loss.backward()
            update.step()
            update.zero_grad()
            found.append(result.loss.detach().cpu())
        llama: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **layers)).to(device()).eval()
        prompt = torch.randint(3, 40, (2, 4)).to(device())
        found.append(llama.generate(prompt, max_new_tokens=2, do_sample=False, pad_token_id=0).cpu())
        return found

    compare(program, schedules=("lazy", "pct:1"))


@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_with_workers_that_stay_and_a_pinning_thread():
    def program():
        data = TensorDataset(torch.arange(64.0).view(16, 4))
        options = {"num_workers": 1, "persistent_workers": True, "pin_memory": device() == "cuda"}
        batches = DataLoader(data, batch_size=4, **options)
        totals = []
        for _ in range(2):
            for (batch,) in batches:
                assert batch.is_pinned() is (device() == "cuda")
                totals.append(batch.to(device(), non_blocking=True).sum())
        return [torch.stack(totals).cpu()]

    compare(program)


def threaded(*, waits):
    """Let each of three threads compute on a stream of its own; the main thread uses what they made."""
    results, events = [], []
    lock = threading.Lock()

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            made = torch.full((8,), float(number), device="cuda") * 2
        with lock:
            results.append(made)
            events.append(stream.record_event())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for event in events if waits else ():
        event.wait()
    return torch.stack([one.sum() for one in results]).sum().item()


@pytest.mark.parametrize("schedule", ["lazy", "eager", "pct:1"])
def test_threads_have_a_current_stream_each(schedule):
    with check.simulate(schedule, raise_on_hazard=False) as session:
        assert threaded(waits=True) == 48.0
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert is_right(session.report())


def test_to_join_a_thread_is_not_to_wait_for_its_stream():
    with check.simulate(raise_on_hazard=False) as session:
        threaded(waits=False)
    assert {hazard.kind for hazard in session.report().hazards} == {"unordered-read"}
