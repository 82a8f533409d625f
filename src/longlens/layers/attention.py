"""Multi-head attention, softmax or LaS (Zimerman & Wolf, ICML 2024), on the same projections.

Left open by the paper, so options here: the smoothing and its edges, what the bound B means,
positional encoding (none by default, or rotary), causality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longlens.layers.base import Aspects, check_choice, check_positive, zero_padding
from longlens.layers.decay import DecayRates
from longlens.layers.split import SplitSequence
from longlens.ops.las import las_attention, las_attention_packed, las_attention_sharded, las_weights
from longlens.ops.las.checks import check_options
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.sharded import EXCHANGES
from longlens.ops.rotary import rotary_angles, rotate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

CACHE_OPTIONS = ("window", "smoothing", "edge", "chunk")  # what a cache shares with its layer


def _head_width(dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """The width of a head, once the numbers of heads are checked."""
    if num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be a positive multiple of num_kv_heads, got {num_heads} and "
            f"{num_kv_heads}"
        )
    if head_dim is None and dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads={num_heads}, got {dim}")
    head_dim = dim // num_heads if head_dim is None else head_dim
    check_positive(dim=dim, head_dim=head_dim)
    return head_dim


class SoftmaxAttention(SplitSequence, nn.Module):
    """Multi-head softmax attention, (B, L, dim) -> (B, L, dim).

    >>> layer = SoftmaxAttention(dim=64, num_heads=4, rotary=True)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    aspects = Aspects(stable=True)

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: bool = False,
        rotary_base: float = 10_000.0,
        chunk: int | None = None,
        bias: bool = True,
        impl: str = "auto",
        sequence_group: ProcessGroup | DeviceMesh | None = None,
        sequence_exchange: str = "gather",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer.

        Args:
            dim: width of the input and output.
            num_heads: number of query heads.
            num_kv_heads: number of key and value heads, a divisor of `num_heads`; None: as many.
            head_dim: width of a head; None: dim / num_heads.
            causal: whether a position sees only itself and what comes before.
            rotary: rotate queries and keys by their positions.
            rotary_base: base of the rotary wavelengths.
            chunk: attend inside blocks of this many positions only.
            bias: whether the projections have biases.
            impl: the implementation of `las_attention`.
            sequence_group: the ranks that share each sequence. Every one then calls the layer with
                a contiguous part of it (and of its mask), in the order of the ranks; lengths may
                differ. None: the input is the whole sequence.
            sequence_exchange: how they share it, "gather" or "ring": see `las_attention_sharded`.
            device: where the parameters are; None: torch's default device.
            dtype: of the projections; None: torch's default dtype.
        """
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.dim, self.num_heads, self.num_kv_heads = dim, num_heads, num_kv_heads
        self.head_dim = _head_width(dim, num_heads, num_kv_heads, head_dim)
        if rotary and self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        self.causal, self.chunk, self.impl = causal, chunk, impl
        self.rotary, self.rotary_base = rotary, rotary_base
        check_choice("sequence_exchange", sequence_exchange, EXCHANGES)
        self.sequence_group, self.sequence_exchange = sequence_group, sequence_exchange
        self.window, self.edge = 1, "zero"
        self.smoothing = check_options(1, None, "zero", causal, chunk)
        heads, kind = num_heads + 2 * num_kv_heads, dict[str, Any](device=device, dtype=dtype)
        self.qkv = nn.Linear(dim, heads * self.head_dim, bias=bias, **kind)
        self.out = nn.Linear(num_heads * self.head_dim, dim, bias=bias, **kind)

    @property
    def receptive_field(self) -> int | None:
        """Positions that one output can depend on; None: unbounded."""
        return self.chunk

    @property
    def cost(self) -> str:
        """How the arithmetic grows with the length."""
        return "L^2" if self.chunk is None else "L"

    def rates(self) -> tuple[Tensor | None, float | None]:
        """The decay rate of each head and a static bound on them; (None, None): no decay."""
        return None, None

    def _packed(self, x: Tensor) -> Tensor:
        """(B, L, dim) -> all heads (B, Hq + 2·Hkv, L, D): queries, keys, values; a view."""
        heads: Tensor = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        if not self.rotary:
            return None
        return rotary_angles(positions, self.head_dim, self.rotary_base)

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, L, dim) -> query (B, Hq, L, D), key and value (B, Hkv, L, D), rotated."""
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, k, v = self._packed(x).split(sizes, dim=1)
        angles = self._angles(positions)
        if angles is not None:
            q, k = rotate(q, *angles), rotate(k, *angles)
        return q, k, v

    def _semantics(self, mask: Tensor | None) -> dict[str, Any]:
        """The options of `las_attention`."""
        alpha, alpha_max = self.rates()
        return dict(
            alpha=alpha,
            alpha_max=alpha_max,
            window=self.window,
            smoothing=self.smoothing,
            edge=self.edge,
            is_causal=self.causal,
            key_mask=mask,
            chunk=self.chunk,
            impl=self.impl,
        )

    def _output(self, y: Tensor) -> Tensor:
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[2] != self.dim:
            raise ValueError(f"x must have shape (batch, length, {self.dim}), got {tuple(x.shape)}")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix along the sequence: x (B, L, dim), mask (B, L) bool with True for a real token."""
        self._check_input(x)
        x = zero_padding(x, mask)  # a NaN there would reach the weights' gradients
        if self.sequence_group is not None:
            return self._output(self._attend_split(x, mask))
        positions = torch.arange(x.shape[1], device=x.device)
        y = las_attention_packed(
            self._packed(x),
            self.num_heads,
            self.num_kv_heads,
            angles=self._angles(positions),
            **self._semantics(mask),
        )
        return self._output(y)

    def weights(self, x: Tensor) -> Tensor:
        """The smoothed attention matrices of x (B, L, dim), for small lengths: (B, Hq, L, L)."""
        q, k, _ = self._project(x, torch.arange(x.shape[1], device=x.device))
        options = {n: v for n, v in self._semantics(None).items() if n != "impl"}
        return las_weights(q, k, enable_gqa=True, **options)

    def _attend_split(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with this rank's queries to the whole sequence: (B, L, dim) -> (B, Hq, L, D)."""
        layout = self._layout(x, mask)
        positions = torch.arange(*layout.span, device=x.device)
        return las_attention_sharded(
            *self._project(x, positions),
            group=layout.group,
            lengths=[stop - start for start, stop in layout.spans],
            exchange=self.sequence_exchange,
            enable_gqa=True,
            **self._semantics(mask),
        )

    def prefill(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, LaSCache]:
        """`forward`, and the cache from which `step` goes on.

        Rows may have different lengths: their real tokens must be contiguous in `mask`. Each row
        counts its positions from its own first token, wherever the padding is, and the next token
        follows its last one.
        """
        self._check_input(x)
        self._check_decodes()
        x = zero_padding(x, mask)
        mask = mask if x.shape[1] else None  # an empty prompt has no padding
        if mask is not None:  # padding moves to the right for the time being
            place = torch.arange(x.shape[1], device=x.device)
            first = mask.int().argmax(-1, keepdim=True)
            there, back = (place + first) % x.shape[1], (place - first) % x.shape[1]
            x, mask = x.gather(1, there[..., None].expand_as(x)), mask.gather(1, there)
        positions = torch.arange(x.shape[1], device=x.device)
        q, k, v = self._project(x, positions)
        y = self._output(las_attention(q, k, v, enable_gqa=True, **self._semantics(mask)))
        cache = self._cache(k, v, mask)
        return (y if mask is None else y.gather(1, back[..., None].expand_as(y))), cache

    def _cache(self, k: Tensor, v: Tensor, mask: Tensor | None) -> LaSCache:
        options = {name: getattr(self, name) for name in CACHE_OPTIONS}
        return LaSCache(k, v, key_mask=mask, **options)

    def _check_decodes(self) -> None:
        if self.sequence_group is not None:
            raise ValueError(
                "a layer with a sequence_group cannot decode step by step: set it to None on a "
                "rank that holds the whole sequence"
            )
        if not self.causal:
            raise ValueError("a bidirectional layer (causal=False) cannot decode step by step")
        if self.smoothing == "centered" and self.window > 1:
            raise ValueError(
                "smoothing='centered' lets a position see values ahead of it, so the layer cannot "
                "decode step by step; use 'causal' or 'masked'"
            )

    def step(self, x: Tensor, state: LaSCache | None = None) -> tuple[Tensor, LaSCache]:
        """One token: x (B, dim) -> (B, dim). The state is updated in place and returned.

        Generate under `torch.no_grad()`: a backward pass through several steps raises, since later
        tokens are written into the state that it needs.
        """
        self._check_decodes()
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"x must have shape (batch, {self.dim}), got {tuple(x.shape)}")
        if state is None:
            positions = torch.zeros(1, dtype=torch.long, device=x.device)
        else:
            self._check_state(state)
            positions = state.tokens[:, None]
        q, k, v = self._project(x[:, None], positions)
        if state is None:
            state = self._cache(k, v, None)
        else:
            state.append(k, v)
        y = state.attend(q, alpha=self.rates()[0], impl=self.impl)
        return self._output(y)[:, 0], state

    def _check_state(self, state: LaSCache) -> None:
        for name in CACHE_OPTIONS:
            ours, theirs = getattr(self, name), getattr(state, name)
            if ours != theirs:
                raise ValueError(
                    f"state comes from another configuration: its {name} is {theirs!r}, this "
                    f"layer's is {ours!r}"
                )

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return f"heads={self.num_heads}, causal={self.causal}, rotary={self.rotary}"


class LaSAttention(SoftmaxAttention):
    """Multi-head Local-and-Smooth attention, (B, L, dim) -> (B, L, dim).

    >>> layer = LaSAttention(dim=256, num_heads=8, bound=1e-3, window=5)
    >>> layer(torch.randn(2, 100, 256)).shape
    torch.Size([2, 100, 256])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        bound: float = 1e-3,
        spacing: str = "uniform",
        window: int = 5,
        smoothing: str | None = None,
        edge: str = "zero",
        learned_alpha: bool = False,
        alpha_max: float | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: bool = False,
        rotary_base: float = 10_000.0,
        chunk: int | None = None,
        bias: bool = True,
        impl: str = "auto",
        sequence_group: ProcessGroup | DeviceMesh | None = None,
        sequence_exchange: str = "gather",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer.

        Args:
            dim: width of the input and output.
            num_heads: number of query heads.
            bound: the bound B of the decay rates; 0 for no decay (S-attention).
            spacing: how the rates fill the range, see `decay_rates`.
            window: width P of the smoothing; 1 for none (L-attention).
            smoothing: "causal", "centered", "masked"; None: causal if `causal` else centered.
            edge: "zero" or "renormalize".
            learned_alpha: make the rates a parameter, kept inside [0, alpha_max].
            alpha_max: the largest rate that learning may reach; None: max(0.05, bound).
            num_kv_heads: as in `SoftmaxAttention`, as are all further options.
            head_dim: as in `SoftmaxAttention`.
            causal: as in `SoftmaxAttention`.
            rotary: as in `SoftmaxAttention`.
            rotary_base: as in `SoftmaxAttention`.
            chunk: as in `SoftmaxAttention`.
            bias: as in `SoftmaxAttention`.
            impl: as in `SoftmaxAttention`.
            sequence_group: as in `SoftmaxAttention`.
            sequence_exchange: as in `SoftmaxAttention`.
            device: as in `SoftmaxAttention`.
            dtype: as in `SoftmaxAttention`; rates are never below float32.
        """
        super().__init__(
            dim, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, causal=causal,
            rotary=rotary, rotary_base=rotary_base, chunk=chunk, bias=bias, impl=impl,
            sequence_group=sequence_group, sequence_exchange=sequence_exchange, device=device,
            dtype=dtype,
        )  # fmt: skip
        self.window, self.edge = window, edge
        self.smoothing = check_options(window, smoothing, edge, self.causal, self.chunk)
        self.decay = DecayRates(
            num_heads,
            bound,
            spacing,
            learned_alpha=learned_alpha,
            alpha_max=alpha_max,
            device=device,
        )
        if dtype is not None:
            self.decay.to(dtype)
        self.aspects = Aspects(regularized=window > 1, special_init=bound > 0, stable=True)

    @property
    def alpha(self) -> Tensor:
        """The decay rate of each head, (heads,), as it is stored."""
        return self.decay.alpha

    @property
    def alpha_max(self) -> float:
        """A bound on the rates."""
        return self.decay.alpha_max

    def rates(self) -> tuple[Tensor | None, float | None]:
        """The decay rate of each head, (heads,), and a static bound on them."""
        found: tuple[Tensor | None, float | None] = self.decay()
        return found

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Checkpoints of earlier versions hold the rates as the layer's own."""
        if f"{prefix}alpha" in state_dict:
            state_dict[f"{prefix}decay.alpha"] = state_dict.pop(f"{prefix}alpha")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return (
            f"{super().extra_repr()}, window={self.window}, smoothing={self.smoothing!r}, "
            f"edge={self.edge!r}, alpha_max={self.alpha_max:.4g}"
        )
