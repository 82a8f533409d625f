"""The body of a model: input encoding with positions, blocks of mixer and feed-forward, pooling.

Shapes: B batch, L length, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longlens.layers.base import zero_padding
from longlens.layers.registry import unknown
from longlens.models.norms import build_norm

POSITIONS = ("none", "learned", "sinusoidal", "rotary")
FEEDFORWARDS = ("mlp", "silu", "glu", "none")
POOLINGS = ("mean", "last", "cls", "none")


def sinusoids(length: int, dim: int) -> Tensor:
    """Sine and cosine position codes (L, D) (Vaswani et al. 2017, §3.5).

    >>> sinusoids(1, 4)
    tensor([[0., 0., 1., 1.]])
    """
    half = -(-dim // 2)
    dtype = torch.get_default_dtype()
    wide = torch.promote_types(dtype, torch.float32)  # positions have no half precision
    rate = torch.exp(torch.arange(half, dtype=wide) * (-math.log(10000.0) / half))
    angle = torch.arange(length)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :dim].to(dtype)


class InputEncoding(nn.Module):
    """Tokens or real values to (B, L, D), with positions and an optional leading CLS position.

    Args:
        dim: D.
        vocab_size: number of tokens; None: real values (B, L, input_dim).
        input_dim: width of real-valued input.
        numbers: tokens are brightnesses or the like: real values from -2 to 2, no embedding.
        positions: "none", "learned", "sinusoidal"; "rotary" adds nothing here.
        max_length: longest sequence that learned or sinusoidal positions cover.
        cls: put a learned vector before the sequence.
        dropout: applied to the result.

    >>> InputEncoding(8, vocab_size=5)(torch.tensor([[1, 2]]))[0].shape
    torch.Size([1, 2, 8])
    """

    table: Tensor | nn.Parameter

    def __init__(
        self,
        dim: int,
        *,
        vocab_size: int | None = None,
        input_dim: int = 1,
        numbers: bool = False,
        positions: str = "none",
        max_length: int = 1024,
        cls: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if positions not in POSITIONS:
            raise unknown("positions", positions, POSITIONS)
        if numbers and (vocab_size is None or vocab_size < 2):
            raise ValueError(f"numbers=True needs vocab_size of 2 or more, got {vocab_size}")
        self.largest = vocab_size - 1 if vocab_size is not None and numbers else None
        self.encode: nn.Linear | nn.Embedding
        if vocab_size is None or numbers:
            self.encode = nn.Linear(1 if numbers else input_dim, dim)
        else:
            self.encode = nn.Embedding(vocab_size, dim)
            nn.init.normal_(self.encode.weight, std=dim**-0.5)
        self.max_length = max_length if positions in ("learned", "sinusoidal") else None
        if positions == "learned":
            self.table = nn.Parameter(0.02 * torch.randn(max_length, dim))
        elif positions == "sinusoidal":
            self.register_buffer("table", sinusoids(max_length, dim), persistent=False)
        self.sinusoidal = positions == "sinusoidal"
        self.cls = nn.Parameter(0.02 * torch.randn(dim)) if cls else None
        self.dropout = nn.Dropout(dropout)

    def _make_sinusoids(self, device: torch.device) -> None:
        """Once a model made on the meta device has memory: no checkpoint holds this table."""
        self.table = sinusoids(*self.table.shape).to(device, self.table.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        empty = self.sinusoidal and self.table.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if empty and not self.table.is_meta:  # `to_empty`
            self._make_sinusoids(self.table.device)
        return self

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        weight = state.get(f"{prefix}encode.weight")
        if self.sinusoidal and self.table.is_meta and weight is not None:  # by `assign=True`
            self._make_sinusoids(weight.device)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, first: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Encode x (B, L) or (B, L, input_dim), the sequence starting at position ``first``.

        Returns:
            (B, L, D) and the mask; with CLS both are one position longer.
        """
        if self.largest is not None:
            dtype = self.encode.weight.dtype
            wide = x.to(torch.promote_types(dtype, torch.float32))
            x = (wide * (4.0 / self.largest) - 2.0).unsqueeze(-1).to(dtype)
        elif isinstance(self.encode, nn.Linear):  # a NaN in padding would reach every gradient
            x = zero_padding(x, mask)
        h = self.encode(x)
        if self.max_length is not None:
            end = first + x.shape[1]
            if end > self.max_length:
                raise ValueError(
                    f"the sequence reaches position {end} but positions cover max_length="
                    f"{self.max_length}"
                )
            h = h + self.table[first:end].to(h.dtype)
        if self.cls is not None:
            h = torch.cat([self.cls.to(h.dtype).expand(len(h), 1, -1), h], dim=1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        return self.dropout(h), mask


class FeedForward(nn.Module):
    """Position-wise perceptron: "mlp" (GELU), "silu" or "glu" (a value times a gate's GELU).

    GELU is its tanh form: within 5e-4 of the exact one, and a third faster on a GPU.

    >>> FeedForward(8, "glu", 16)(torch.zeros(1, 2, 8)).shape
    torch.Size([1, 2, 8])
    """

    def __init__(self, dim: int, kind: str, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        self.inner = nn.Linear(dim, hidden * (2 if kind == "glu" else 1))
        self.outer = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        h = self.inner(x)
        if self.kind == "glu":
            value, gate = h.chunk(2, dim=-1)
            h = value * F.gelu(gate, approximate="tanh")
        elif self.kind == "silu":
            h = F.silu(h)
        else:
            h = F.gelu(h, approximate="tanh")
        out: Tensor = self.outer(h)
        return out


class TiedDropout(nn.Module):
    """Dropout of whole channels: one draw per example and channel, shared along the sequence.

    >>> TiedDropout(0.5).eval()(torch.ones(1, 2, 3)).sum()
    tensor(6.)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        keep = F.dropout(torch.ones_like(x[:, :1]), self.p, self.training)
        return x * keep


class Residual(nn.Module):
    """x + dropout(inner(norm(x))), or norm(x + dropout(inner(x))) after the sum.

    Args:
        inner: maps (B, L, D) to (B, L, D).
        norm: ``(x, mask) -> x``.
        prenorm: where the norm goes.
        dropout: applied to what inner returns.
    """

    def __init__(self, inner: nn.Module, norm: nn.Module, *, prenorm: bool, dropout: nn.Module):
        super().__init__()
        self.inner = inner
        self.norm = norm
        self.prenorm = prenorm
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor | None, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``run`` (usually the inner module) inside the residual branch."""
        y = run(self.norm(x, mask) if self.prenorm else x)
        x = x + self.dropout(y).to(x.dtype)  # the residual stream keeps its dtype under autocast
        out: Tensor = x if self.prenorm else self.norm(x, mask).to(x.dtype)
        return out


def sees_ahead(mixer: nn.Module) -> bool:
    """Whether an output may depend on later inputs, centred smoothing included.

    >>> from longlens.layers import build
    >>> sees_ahead(build("las", 8, smoothing="centered"))
    True
    """
    centred = getattr(mixer, "smoothing", None) == "centered" and mixer.window != 1
    return bool(centred or not mixer.causal)


class Block(nn.Module):
    """A mixer and a feed-forward part, each with its residual connection.

    Args:
        mixer: any module with the mixer signature.
        dim: D.
        norm: "layer", "rms", "scale" or "batch".
        prenorm: normalise before, else after.
        feedforward: "mlp", "silu", "glu" or "none".
        expansion: hidden width of the feed-forward part in multiples of D.
        dropout: probability.
        tied_dropout: drop whole channels.

    >>> from longlens.layers import build
    >>> Block(build("conv", 8), 8)(torch.randn(1, 4, 8)).shape
    torch.Size([1, 4, 8])
    """

    def __init__(
        self,
        mixer: nn.Module,
        dim: int,
        *,
        norm: str = "layer",
        prenorm: bool = True,
        feedforward: str = "mlp",
        expansion: float = 2.0,
        dropout: float = 0.0,
        tied_dropout: bool = False,
    ) -> None:
        super().__init__()
        if feedforward not in FEEDFORWARDS:
            raise unknown("feedforward", feedforward, FEEDFORWARDS)

        def residual(inner: nn.Module) -> Residual:
            drop = TiedDropout(dropout) if tied_dropout else nn.Dropout(dropout)
            return Residual(inner, build_norm(norm, dim), prenorm=prenorm, dropout=drop)

        self.mix = residual(mixer)
        self.carries_input = bool(getattr(mixer, "carries_input", False))
        self.feed: Residual | None = None
        if feedforward != "none":
            self.feed = residual(FeedForward(dim, feedforward, round(expansion * dim)))

    def _run(self, x: Tensor, mask: Tensor | None, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        x = self.mix(x, mask, mixer)
        if self.feed is None:
            return x
        out: Tensor = self.feed(x, mask, self.feed.inner)
        return out

    def forward(self, x: Tensor, mask: Tensor | None = None, right_padded: bool = False) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D)."""
        mixer = self.mix.inner
        seen = None if right_padded and not sees_ahead(mixer) else mask
        if self.carries_input:  # the residual connection adds x again, so take it away here
            return self._run(x, mask, lambda h: mixer(h, seen, kept=x) - x)
        return self._run(x, mask, lambda h: mixer(h, seen))

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Continue a sequence by x (B, L, D) from a state (None: from its start)."""
        mixer: Any = self.mix.inner
        carried = state

        def run(h: Tensor) -> Tensor:
            nonlocal carried
            if carried is None and hasattr(mixer, "prefill"):
                y, carried = mixer.prefill(h)
                out: Tensor = y
                return out
            outputs = []
            for t in range(h.shape[1]):
                if self.carries_input:
                    y, carried = mixer.step(h[:, t], carried, kept=x[:, t])
                    y = y - x[:, t]
                else:
                    y, carried = mixer.step(h[:, t], carried)
                outputs.append(y)
            return torch.stack(outputs, dim=1)

        return self._run(x, None, run), carried


class Backbone(nn.Module):
    """A stack of blocks, with a last norm where they normalise before.

    Args:
        blocks: the blocks, in order.
        norm: the last norm, ``(x, mask) -> x``, or None.

    >>> from longlens.layers import build
    >>> Backbone([Block(build("conv", 8), 8)], None)(torch.randn(1, 4, 8)).shape
    torch.Size([1, 4, 8])
    """

    def __init__(self, blocks: list[Block], norm: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def mixers(self) -> list[nn.Module]:
        """The mixers, in order."""
        return [block.mix.inner for block in self._ordered()]

    def _ordered(self) -> list[Block]:
        return cast("list[Block]", list(self.blocks))

    def forward(self, x: Tensor, mask: Tensor | None = None, right_padded: bool = False) -> Tensor:
        """X (B, L, D), mask (B, L) or None -> (B, L, D).

        ``right_padded`` promises that padding only follows real tokens. Mixers that never see
        ahead then do without the mask, which is faster; outputs at real tokens are the same.
        """
        for block in self.blocks:
            x = block(x, mask, right_padded)
        return x if self.norm is None else self.norm(x, mask)

    def advance(self, x: Tensor, states: list[Any] | None) -> tuple[Tensor, list[Any]]:
        """Continue a sequence by x (B, L, D): the output and the states of all blocks."""
        states = [None] * len(self.blocks) if states is None else list(states)
        for i, block in enumerate(self._ordered()):
            x, states[i] = block.advance(x, states[i])
        return (x if self.norm is None else self.norm(x, None)), states


def pool(x: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """One vector per sequence: (B, L, D), mask (B, L) or None -> (B, D).

    "mean" averages real tokens, "last" takes the last real one, "cls" the first position; "none"
    leaves all positions, (B, L, D).

    >>> x = torch.tensor([[[1.0], [3.0], [9.0]]])
    >>> pool(x, torch.tensor([[True, True, False]]), "mean"), pool(x, None, "last")
    (tensor([[2.]]), tensor([[9.]]))
    """
    if how not in POOLINGS:
        raise unknown("pooling", how, POOLINGS)
    if how == "none":
        return x
    if how == "cls":
        return x[:, 0]
    if mask is None:
        return x.mean(1) if how == "mean" else x[:, -1]
    if how == "mean":
        wide = torch.promote_types(x.dtype, torch.float32)  # float16 ends at 65,504
        total = x.masked_fill(~mask[..., None], 0).sum(1, dtype=wide)
        return (total / mask.sum(1, keepdim=True).clamp_min(1)).to(x.dtype)
    position = torch.arange(x.shape[1], device=x.device)
    last = torch.where(mask, position, 0).amax(1)
    return x[torch.arange(len(x), device=x.device), last]
