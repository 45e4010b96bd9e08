"""A training loop with Hugging Face Accelerate, unmodified, with gradient accumulation and pinned batches, on `cuda`.

interlock check examples/clean/accelerate_loop.py
"""

from __future__ import annotations

import accelerate
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train for an epoch."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    data = TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, pin_memory=True))
    losses = []
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    print(f"{len(losses)} batches on {accelerator.device}, last loss {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
