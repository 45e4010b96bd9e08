"""Blocks of tokens of one length, out of documents of any length."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from interlock.errors import SourceError, UsageError
from interlock.feed.sources._digest import digest_file
from interlock.feed.sources._storage import as_location

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


@final
class PackedTokens:
    """Blocks of `length` tokens: documents one after the other, cut where a block is full.

    Every token is in one block, in the order of the documents; none is left out but a tail that does not fill a block.
    Without document bounds a sample is an array of shape (length,); with them a dict of three, as attention over packed
    documents needs: `tokens`, `segment` (1 for the first document in the block, then 2 …; 0 for padding) and `position`
    (of each token in its document), both int32. The index is the documents' ends: 8 bytes each.

    Args:
        tokens: A one-dimensional array or memory map; the path of a `.npy` file, which is mapped; or, with
            `lengths`, a source whose samples are documents, each a one-dimensional array.
        length: Tokens in a block. For next-token prediction over 4096 positions, 4097.
        lengths: Length of each document, in order. With an array or file: where its documents end.
        tail: What to do with tokens that do not fill a block: `drop` or `pad`.
        padding: The token that fills a padded block.

    Raises:
        UsageError: An argument that cannot be meant.
        SourceError: There is no full block, or the lengths do not add up to the tokens.

    Copies: each token once: from the array, the map or the document into the block.
    """

    def __init__(
        self,
        tokens: Any,
        *,
        length: int,
        lengths: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        tail: Literal["drop", "pad"] = "drop",
        padding: int = 0,
    ) -> None:
        if length < 1 or tail not in {"drop", "pad"}:
            hint = "give a positive length, and 'drop' or 'pad'"
            raise UsageError(f"blocks cannot have length {length} and tail {tail!r}", hint=hint)
        self._path = as_location(tokens) if isinstance(tokens, (str, os.PathLike)) else None
        self._tokens = _mapped(self._path) if self._path is not None else tokens
        self._flat = hasattr(self._tokens, "dtype")
        self._length = length
        self._padding = padding
        self._ends = None if lengths is None else _ends_of(lengths)
        self._total = self._count()
        self._dtype: np.dtype[Any] = np.dtype(self._tokens.dtype if self._flat else np.asarray(self._tokens[0]).dtype)
        self._blocks = self._total // length if tail == "drop" else -(-self._total // length)
        if not self._blocks:
            hint = "give shorter blocks, or tail='pad'"
            raise SourceError(f"{self._total} tokens fill no block of {length}", hint=hint)

    def _count(self) -> int:
        """Return how many tokens there are; refuse what does not fit together."""
        if not self._flat:
            if self._ends is None or len(self._ends) != len(self._tokens):
                why = "none are given" if self._ends is None else f"{len(self._ends)} for {len(self._tokens)} documents"
                raise UsageError("documents need lengths, one each", why=why, hint="give lengths=")
            return int(self._ends[-1]) if len(self._ends) else 0
        if self._tokens.ndim != 1:
            why = f"the array has shape {self._tokens.shape}"
            raise UsageError("tokens lie in one dimension", why=why, hint="give array.reshape(-1), or a source")
        total = len(self._tokens)
        if self._ends is not None and (self._ends[-1] if len(self._ends) else 0) != total:
            why = f"they add up to {self._ends[-1] if len(self._ends) else 0}, and there are {total} tokens"
            raise SourceError("the lengths of the documents do not fit the tokens", why=why)
        return total

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({} if self._path is None else {"_tokens": None})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._path is not None:
            self._tokens = _mapped(self._path)

    def __repr__(self) -> str:
        documents = "" if self._ends is None else f", documents={len(self._ends)}"
        return f"PackedTokens(blocks={self._blocks}, length={self._length}{documents})"

    def __len__(self) -> int:
        return self._blocks

    def __getitem__(self, index: int) -> Any:
        """Return one block.

        Raises:
            IndexError: There is no such block.
            SourceError: A document has not the length that it should have.
        """
        if not 0 <= index < self._blocks:
            raise IndexError(index)
        block = np.full(self._length, self._padding, self._dtype)
        if self._ends is None:
            self._fill(index, block)
            return block
        sample = {
            "tokens": block,
            "segment": np.zeros(self._length, np.int32),
            "position": np.zeros(self._length, np.int32),
        }
        self._fill_with_bounds(index, sample)
        return sample

    def read_into(self, indices: Sequence[int], out: Any) -> None:
        """As in `SupportsReadInto`: without document bounds, all in one call.

        Raises:
            IndexError: There is no such block.
            SourceError: As `__getitem__` does.
        """
        places = np.asarray(indices)
        full = self._total // self._length
        if self._ends is None and len(places) and places.min() >= 0 and places.max() < full:
            rows = np.asarray(self._tokens)[: full * self._length].reshape(full, self._length)
            np.take(rows, places, axis=0, out=out, mode="clip")  # checked above; "raise" would copy twice
            return
        for row, index in enumerate(places.tolist()):
            sample = self[index]
            if self._ends is None:
                out[row] = sample
            else:
                for name, values in sample.items():
                    out[name][row] = values

    def fingerprint(self) -> dict[str, Any]:
        """Blocks, length, dtype, number of documents, and of a file a digest of up to 256 of its blocks of 64 KiB."""
        return {
            "kind": "packed",
            "rows": self._blocks,
            "length": self._length,
            "tokens": self._total,
            "dtype": str(self._dtype),
            "documents": None if self._ends is None else len(self._ends),
            "content": None if self._path is None else digest_file(self._path),
        }

    def _fill(self, index: int, block: npt.NDArray[Any]) -> None:
        start = index * self._length
        part = self._tokens[start : start + self._length]
        block[: len(part)] = part

    def _fill_with_bounds(self, index: int, sample: dict[str, npt.NDArray[Any]]) -> None:
        ends = self._ends
        assert ends is not None  # noqa: S101 - checked by the caller
        place, stop = index * self._length, min((index + 1) * self._length, self._total)
        document = int(np.searchsorted(ends, place, side="right"))
        filled, segment = 0, 1
        while place < stop:
            begin = int(ends[document - 1]) if document else 0
            count = min(int(ends[document]), stop) - place
            if count:
                here = slice(filled, filled + count)
                sample["tokens"][here] = self._part(document, begin, place - begin, count)
                sample["segment"][here] = segment
                sample["position"][here] = np.arange(place - begin, place - begin + count)
                filled, place, segment = filled + count, place + count, segment + 1
            document += 1

    def _part(self, document: int, begin: int, offset: int, count: int) -> Any:
        """Return `count` tokens of a document, which begins at token `begin`, from its `offset` on."""
        if self._flat:
            return self._tokens[begin + offset : begin + offset + count]
        content = np.asarray(self._tokens[document])
        wanted = int(self._ends[document]) - begin if self._ends is not None else 0
        if content.shape != (wanted,) or content.dtype != self._dtype:
            why = f"it has shape {content.shape} and dtype {content.dtype}, not {(wanted,)} and {self._dtype}"
            raise SourceError(f"document {document} is not what its length says", why=why, hint="check lengths=")
        return content[offset : offset + count]


def _mapped(path: str) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot map {path}", why=str(error), hint="write it with numpy.save, as numbers") from error


def _ends_of(lengths: Any) -> npt.NDArray[np.int64]:
    array = np.asarray(lengths)
    if array.ndim != 1 or (len(array) and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise UsageError("lengths of documents are whole numbers, none negative", why=f"they are {lengths!r:.80}")
    return np.cumsum(array, dtype=np.int64)
