"""Hugging Face Transformers, unmodified: a small BERT trains and a small Llama writes, from configs, on `cuda`.

interlock check examples/clean/transformers_from_config.py
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
}


def main() -> None:
    """Train one model for four steps, and let the other write."""
    torch.manual_seed(0)
    bert: Any = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    bert.cuda()
    optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-3)
    for tokens in torch.randint(40, (4, 3, 9)):
        result = bert(input_ids=tokens.cuda(), labels=torch.randint(2, (3,)).cuda())
        result.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    llama: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    llama.cuda().eval()
    prompt = torch.randint(3, 40, (2, 4)).cuda()
    written = llama.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)
    print(f"last loss {result.loss.item():.3f}; wrote {tuple(written.shape)} tokens")


if __name__ == "__main__":
    main()
