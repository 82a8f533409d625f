"""From a batch of a task to what a step computes with: hiding tokens, augmenting, shifting.

All of it runs on the device and depends on the batch and a generator alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from longlens.tasks.batches import Batch
from longlens.training.scratchpad import write_values

Transform = Callable[[Tensor, Tensor | None, torch.Generator], Tensor]
"""(inputs, mask, generator) -> inputs of the same shape."""
Hide = Callable[[Tensor, Tensor | None, torch.Generator], tuple[Tensor, Tensor]]
"""(tokens, mask, generator) -> tokens with some hidden, and where (bool)."""


@dataclass(frozen=True)
class Examples:
    """The tensors of one step, all with the batch first.

    ``where`` says which positions the loss counts (None: all). Under denoising ``hidden`` says
    which inputs were hidden and ``original`` what stood there; with a scratchpad, at which brackets
    to predict which values.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    where: Tensor | None = None
    hidden: Tensor | None = None
    original: Tensor | None = None

    def tensors(self) -> dict[str, Tensor | None]:
        """The fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def split(self, rows: int) -> Iterator[Examples]:
        """Micro-batches of at most ``rows`` rows."""
        total = len(self.inputs)
        if rows >= total:
            yield self
            return
        for start in range(0, total, rows):
            yield Examples(
                **{
                    name: None if tensor is None else tensor[start : start + rows]
                    for name, tensor in self.tensors().items()
                }  # type: ignore[arg-type]
            )


@dataclass(frozen=True)
class Prepare:
    """How batches become examples.

    Args:
        kind: "supervised", or for pretraining "masked" or "causal".
        transform: augmentation, in training, and for further views of an example in a test.
        hide: hides tokens; for denoising in training only, for masked pretraining always.
        masked: give every batch a mask, also one without padding, so that there are fewer
            programs to compile.
        pairs: inputs are (B, 2, L); pretraining takes the two as rows of their own.
        scratchpad: write the values of ListOps' subexpressions behind them; in training these are
            targets of a second loss.
    """

    kind: str = "supervised"
    transform: Transform | None = None
    hide: Hide | None = None
    masked: bool = False
    pairs: bool = False
    scratchpad: bool = False

    @property
    def denoises(self) -> bool:
        """Whether there is a second loss."""
        return self.kind == "supervised" and (self.hide is not None or self.scratchpad)

    @property
    def rows_per_example(self) -> int:
        """How many rows the model gets for an example."""
        return 2 if self.pairs and self.kind != "supervised" else 1

    def __call__(
        self,
        batch: Batch,
        generator: torch.Generator,
        training: bool,
        augmented: bool | None = None,
    ) -> Examples:
        """Make the examples of a step; ``augmented`` None: in training."""
        inputs, mask = batch.inputs, batch.mask
        if mask is None and self.masked:
            shape = inputs.shape[:-1] if inputs.is_floating_point() else inputs.shape
            mask = torch.ones(shape, dtype=torch.bool, device=inputs.device)
        if (training if augmented is None else augmented) and self.transform is not None:
            inputs = self.transform(inputs, mask, generator)
        if self.pairs and self.kind != "supervised":
            inputs, mask = inputs.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        if self.kind == "causal":
            return next_tokens(inputs, mask)
        if self.kind == "masked":
            assert self.hide is not None
            corrupted, hidden = self.hide(inputs, mask, generator)
            return Examples(corrupted, inputs, mask, where=hidden)
        if self.scratchpad:
            inputs, values = write_values(inputs)
        whole = Examples(inputs, batch.targets, mask, where=mask)
        if training and self.scratchpad:
            return replace(whole, hidden=values > 0, original=values)
        if training and self.hide is not None:
            corrupted, hidden = self.hide(inputs, mask, generator)
            return replace(whole, inputs=corrupted, hidden=hidden, original=inputs)
        return whole


def read_marks(
    inputs: Tensor, mask: Tensor | None, generator: torch.Generator, first: int
) -> tuple[Tensor, Tensor]:
    """Tokens whose marks, ids from ``first`` on, all become ``first``, and where they stood.

    >>> read_marks(torch.tensor([[12, 3, 18]]), None, torch.Generator(), first=15)
    (tensor([[12,  3, 15]]), tensor([[False, False,  True]]))
    """
    return inputs.clamp(max=first), inputs >= first


def next_tokens(tokens: Tensor, mask: Tensor | None) -> Examples:
    """Predict each token (..., L) from those before it; the last position has no target.

    >>> next_tokens(torch.tensor([[5, 6, 7]]), None).targets
    tensor([[6, 7, 0]])
    """
    targets = torch.zeros_like(tokens)
    targets[..., :-1] = tokens[..., 1:]
    where = torch.zeros_like(tokens, dtype=torch.bool)
    where[..., :-1] = True if mask is None else mask[..., 1:]
    return Examples(tokens, targets, mask, where=where)


def fill_rows(tensor: Tensor, rows: int) -> Tensor:
    """Append rows (zeros; True in a mask) up to ``rows``, so that a last batch has a known shape.

    >>> fill_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    missing = rows - len(tensor)
    if missing <= 0:
        return tensor
    value = tensor.dtype == torch.bool
    return torch.cat([tensor, tensor.new_full((missing, *tensor.shape[1:]), value)])


def mask_tokens(
    inputs: Tensor, mask: Tensor | None, generator: torch.Generator, rate: float, mask_id: int
) -> tuple[Tensor, Tensor]:
    """Replace a random share of the real tokens by ``mask_id``.

    Args:
        inputs: tokens, (B, L) or (B, 2, L) for pairs.
        mask: same shape, True on real tokens; None: all are real.
        generator: all randomness; lives on the inputs' device.
        rate: each real token is hidden with this probability, independently.
        mask_id: the token that stands for a hidden one (commonly ``vocab_size``: one past the
            task's own ids).

    Returns:
        The corrupted tokens, and where they were hidden (bool, same shape): the loss is taken
        there, against ``inputs``.

    >>> tokens = torch.tensor([[5, 6, 7, 0]])
    >>> real = torch.tensor([[True, True, True, False]])
    >>> corrupted, where = mask_tokens(tokens, real, torch.Generator().manual_seed(0), 0.5, 99)
    >>> bool(where[0, 3]), bool((corrupted[where] == 99).all())
    (False, True)
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}")
    if inputs.is_floating_point():
        raise ValueError(f"inputs must be integer tokens, got {inputs.dtype}")
    where = torch.rand(inputs.shape, generator=generator, device=inputs.device) < rate
    if mask is not None:
        where &= mask
    return inputs.masked_fill(where, mask_id), where


def of_any_length(program: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled ``program`` that is told before its first call that positions vary in number.

    Otherwise the compiler makes a program for the first length alone, and another for any length
    when it sees a second one: twice the time.

    Args:
        program: takes ``Examples``, and tensors with positions last, or of floats second.
    """

    def run(*inputs: Any) -> Any:
        for value in inputs:
            for tensor in value.tensors().values() if isinstance(value, Examples) else [value]:
                if isinstance(tensor, Tensor) and tensor.dim() > 1:
                    positions = 1 if tensor.is_floating_point() else tensor.dim() - 1
                    torch._dynamo.maybe_mark_dynamic(tensor, positions)
        return program(*inputs)

    return run
