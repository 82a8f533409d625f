"""Batches: a global order that depends on (seed, epoch) alone, gathered on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from longlens.tasks.arrays import Ints
from longlens.tasks.data import Rows, Split
from longlens.tasks.errors import DataError
from longlens.tasks.order import bucket_edges, cut_into_batches, draw, permutation
from longlens.tasks.spec import Spec

RESIDENT_SHARE = 0.5  # "auto" keeps a split on the device when it fits in this share of free memory


@dataclass(frozen=True)
class Batch:
    """One batch of ``rows`` examples (this rank's share of a global batch).

    Shapes as in :class:`longlens.tasks.spec.Spec`. ``mask`` (shape of the inputs without channels)
    is True on real positions, which padding follows, and None where nothing is padded. ``index``
    (B,) says which examples these are. ``tokens`` counts real input positions, ``padded_tokens``
    all of them: divide either by the time to get tokens/s, and say which.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None
    index: Tensor
    tokens: int
    padded_tokens: int
    extras: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on another device; trainers of other libraries call this."""
        return self._each(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The batch in pinned memory; torch's ``DataLoader`` calls this."""
        return self._each(lambda t: t.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with its tensors changed, but the index, which stays where it is."""
        return replace(
            self,
            inputs=change(self.inputs),
            targets=change(self.targets),
            mask=None if self.mask is None else change(self.mask),
            extras={key: change(value) for key, value in self.extras.items()},
        )


class Batches:
    """All batches of a split, epoch by epoch: one pass of ``for batch in batches`` is an epoch.

    Args:
        split: for example ``task["train"]``.
        batch_size: examples in a global batch, over all ranks.
        length: window of a next-token split (required there); elsewhere longer examples are cut
            to this many positions.
        seed: with the epoch, decides the order.
        shuffle: False gives the stored order, every epoch alike (evaluation).
        buckets: at most this many padded lengths; 1 pads everything to the longest.
        multiple: padded lengths are multiples of this.
        drop_last: leave out the one batch of an epoch that is not full.
        rank: this process takes rows ``rank*B/world_size …`` of every global batch, so the global
            batches are the same whatever the number of ranks.
        world_size: the number of processes that share each batch.
        device: where batches come out.
        resident: keep the whole split on the device (True), gather on the host (False), or decide
            by the device's free memory ("auto").
        limit: use only this many examples, the first of a fixed random order (learning curves).

    >>> import tempfile, longlens.tasks as tasks
    >>> sizes = dict(train=10, validation=4, test=4)
    >>> task = tasks.load("cumsum", root=tempfile.mkdtemp(), length=16, **sizes)
    >>> batch = next(Batches(task["train"], batch_size=4, seed=0).epoch(0))
    >>> tuple(batch.inputs.shape), tuple(batch.targets.shape), batch.tokens
    ((4, 16, 1), (4, 16, 1), 64)
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        length: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        buckets: int = 8,
        multiple: int = 64,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: str | torch.device = "cpu",
        resident: bool | Literal["auto"] = "auto",
        limit: int | None = None,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise DataError(
                f"batch_size must be a positive multiple of world_size {world_size}, "
                f"got {batch_size}"
            )
        if not 0 <= rank < world_size:
            raise DataError(f"rank must be in 0 … {world_size - 1}, got {rank}")
        if length is not None and length < 1:
            raise DataError(f"length must be 1 or more, got {length}")
        self.split, self.batch_size, self.length = split, batch_size, length
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.rank, self.world_size = rank, world_size
        self.device = torch.device(device)
        self.streaming = split.spec.kind == "next_token"
        self.lengths = (
            _window_lengths(split, length, shuffle) if self.streaming else _cut(split, length)
        )
        longest = int(self.lengths.max())
        if self.streaming or split.spec.pad_id is None or int(self.lengths.min()) == longest:
            self.edges: Ints = np.array([longest])
        else:
            self.edges = bucket_edges(self.lengths, buckets, multiple)
        self.members: Ints = np.arange(len(self.lengths))
        if limit is not None:
            if not 1 <= limit <= len(self.lengths):
                raise DataError(f"limit must be in 1 … {len(self.lengths)}, got {limit}")
            self.members = np.sort(permutation(len(self.lengths), 0)[:limit])
        if resident == "auto":
            resident = self.device.type == "cuda" and (
                split.nbytes < RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]
            )
        self.resident = bool(resident)
        self._source = _Source(split, self.device if resident else None)
        self._passes = 0

    def __len__(self) -> int:
        """Return the number of global batches in an epoch."""
        whole, rest = divmod(len(self.members), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, from 0 on: each pass has an order of its own."""
        self._passes += 1
        return self.epoch(self._passes - 1)

    @property
    def shapes(self) -> list[int]:
        """The padded lengths that occur: what a compiled model will be specialised for."""
        return [int(edge) for edge in self.edges]

    def order(self, epoch: int) -> list[tuple[Ints, int]]:
        """Return the examples and the padded length of every global batch of ``epoch``."""
        if epoch < 0:
            raise DataError(f"epoch must be 0 or more, got {epoch}")
        order = self.members
        if self.shuffle:
            order = order[permutation(len(order), self.seed, epoch)]
        return cut_into_batches(self.lengths, self.edges, self.batch_size, order, self.drop_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of the batches of ``epoch``, from batch ``start`` on.

        Starting in the middle costs nothing and gives the same batches as running through.
        """
        batches = self.order(epoch)
        if not 0 <= start <= len(batches):
            raise DataError(f"start must be in 0 … {len(batches)}, got {start}")
        shift = 0
        if self.streaming and self.shuffle:  # else the same tokens would open a window every epoch
            shift = draw(int(self.edges[0]), self.seed, epoch, 1)
        share = self.batch_size // self.world_size
        for index, padded in batches[start:]:
            mine = index[self.rank * share : (self.rank + 1) * share]
            yield self._batch(mine, padded, shift)

    def examples(self, index: Ints) -> Batch:
        """These examples as one batch, padded to the longest of them."""
        return self._batch(index, int(self.lengths[index].max()), 0)

    def _batch(self, index: Ints, padded: int, shift: int) -> Batch:
        lengths = self.lengths[index]
        if self.streaming:
            starts = index * padded + shift
            lengths = np.minimum(padded, len(self.split) - 1 - starts)
            inputs, targets = self._source.windows(starts, lengths, padded)
        else:
            inputs = self._source.inputs(index, lengths, padded)
            targets = self._source.rows("targets", index)
        real = int(lengths.sum())
        mask = None
        if self.split.spec.pair:
            mask, real = self._source.pair_mask(index, self.length, padded)
        elif real != len(index) * padded:
            mask = self._source.mask(lengths, padded)
        device = self.device
        extras = {key: self._source.rows(key, index) for key in self.split.spec.extras}
        return Batch(
            inputs=_sent(inputs, device),
            targets=_sent(targets, device),
            mask=None if mask is None else _sent(mask, device),
            index=torch.from_numpy(index.copy()),
            tokens=real,
            padded_tokens=len(index) * padded * (2 if self.split.spec.pair else 1),
            extras={key: _sent(value, device) for key, value in extras.items()},
        )


def _window_lengths(split: Split, length: int | None, shuffle: bool) -> Ints:
    """Lengths of the windows that a next-token split is cut into."""
    if length is None:
        raise DataError("a next-token task needs length, the number of tokens of a window")
    count = -(-(len(split) - 1) // length)  # every token once; the last window may be short
    if shuffle:
        count = len(split) // length - 1  # only whole windows, with room for the epoch's shift
    if count < 1:
        raise DataError(
            f"length must be at most half of the split's {len(split)} tokens, got {length}"
        )
    return np.full(count, length, np.int64)


def _cut(split: Split, length: int | None) -> Ints:
    """Lengths of the examples of a split, of which at most ``length`` positions are used."""
    check_cut(split.spec, length)
    return np.minimum(split.lengths, length or split.spec.max_length)


def check_cut(spec: Spec, length: int | None) -> None:
    """Raise for examples that would lose what they are asked for if they were cut."""
    if length is None or length >= spec.max_length:
        return
    if spec.kind == "regression":
        raise DataError("a regression task cannot be cut: its targets are at the end")
    if spec.readout == "last":
        raise DataError(
            f"length must be {spec.max_length} or more, got {length}: this task is read out at its "
            "end, where its question stands"
        )


class _Source:
    """Gathers rows of a split, from tensors on the device or from memory-mapped files."""

    def __init__(self, split: Split, device: torch.device | None) -> None:
        self.split, self.device = split, device or torch.device("cpu")
        self.tensors: dict[str, Tensor] = {}
        if device is not None:
            for key, rows in split.arrays.items():
                self.tensors[key] = _tensor(rows.whole()).to(device)
            for key, rows in (split.documents.arrays if split.documents else {}).items():
                self.tensors[f"documents/{key}"] = _tensor(rows.whole()).to(device)

    def _index(self, index: Ints) -> Tensor:
        return _sent(torch.from_numpy(index), self.device)

    def _take(self, key: str, rows: Rows, index: Ints) -> Tensor:
        if key in self.tensors:
            return self.tensors[key][self._index(index)]
        return _tensor(rows.take(index))

    def rows(self, key: str, index: Ints) -> Tensor:
        """Rows of a per-example array: single integers as int64, everything else as it is."""
        taken = self._take(key, self.split.arrays[key], index)
        return taken if taken.is_floating_point() or taken.dim() > 1 else taken.long()

    def inputs(self, index: Ints, lengths: Ints, padded: int) -> Tensor:
        """Padded inputs (B, L[, C]), or (B, 2, L) for pairs."""
        split = self.split
        if split.spec.pair:
            assert split.documents is not None
            pairs = split.arrays["pairs"].take(index).astype(np.int64)
            flat = pairs.reshape(-1)
            cut = np.minimum(split.documents.lengths[flat], padded)
            starts = split.documents.starts[flat]
            rows = split.documents.arrays["flat"]
            return self._ragged("documents/flat", rows, starts, cut, padded).view(-1, 2, padded)
        if "flat" in split.arrays:
            rows = split.arrays["flat"]
            return self._ragged("flat", rows, split.starts[index], lengths, padded)
        taken = self._take("inputs", split.arrays["inputs"], index)[:, :padded]
        return taken if taken.is_floating_point() else taken.long()

    def _ragged(self, key: str, rows: Rows, starts: Ints, lengths: Ints, padded: int) -> Tensor:
        """Slices of rows, ``lengths`` from ``starts`` on, padded with pad_id or (floats) zeros."""
        floating = rows.dtype.kind == "f"
        pad = 0 if floating else self.split.spec.pad_id or 0
        if key in self.tensors:
            offsets = torch.arange(padded, device=self.device)
            inside = offsets < self._index(lengths)[:, None]
            where = (self._index(starts)[:, None] + offsets).masked_fill_(~inside, 0)
            out = self.tensors[key][where]
            inside = inside.view(*inside.shape, *[1] * (out.dim() - 2))
            return (out if floating else out.long()).masked_fill(~inside, pad)
        dtype: Any = rows.dtype if floating else np.int64
        padded_rows = np.full((len(starts), padded, *rows.shape[1:]), pad, dtype)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            padded_rows[row, :length] = rows.slice(start, start + length)
        return torch.from_numpy(padded_rows)

    def windows(self, starts: Ints, lengths: Ints, padded: int) -> tuple[Tensor, Tensor]:
        """Windows of a stream: inputs (B, L) and the tokens after them (B, L); 0 beyond the end."""
        out = self._ragged("stream", self.split.arrays["stream"], starts, lengths + 1, padded + 1)
        return out[:, :-1].contiguous(), out[:, 1:].contiguous()

    def mask(self, lengths: Ints, padded: int) -> Tensor:
        """(…, L): True where a position is real."""
        return torch.arange(padded, device=self.device) < self._index(lengths)[..., None]

    def pair_mask(self, index: Ints, length: int | None, padded: int) -> tuple[Tensor | None, int]:
        """Mask (B, 2, L) of a batch of pairs, or None if nothing is padded, and its real tokens."""
        assert self.split.documents is not None
        pairs = self.split.arrays["pairs"].take(index).astype(np.int64)
        lengths = np.minimum(self.split.documents.lengths[pairs], min(padded, length or padded))
        real = int(lengths.sum())
        return (None if real == lengths.size * padded else self.mask(lengths, padded)), real


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, without waiting for what the device is doing.

    A copy from ordinary memory may wait until the device's queue is empty; one from pinned memory
    does not.
    """
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _tensor(array: Any) -> Tensor:
    """Make a tensor of an array; uint16 and uint32, which torch cannot index, become wider."""
    if array.dtype in (np.dtype(np.uint16), np.dtype(np.uint32)):
        array = array.astype(np.int32 if array.dtype == np.uint16 else np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))
