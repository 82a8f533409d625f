"""LaS attention with the signature, the parameters and the semantics of `nn.MultiheadAttention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from longlens.layers.decay import DecayRates
from longlens.ops.las import las_attention, las_weights
from longlens.ops.las.checks import check_options, may_read, reading_is_free
from longlens.ops.las.transforms import functional


class LaSMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with LaS attention, for self-attention in other people's models.

    Parameters have the same names and shapes, so a state dict of the original loads but for the
    rates; `from_torch` does that in one call, and `replace_attention` in a whole model.

    >>> layer = nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True)
    >>> layer.self_attn = LaSMultiheadAttention.from_torch(layer.self_attn, window=5)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bound: float = 1e-3,
        spacing: str = "uniform",
        window: int = 5,
        smoothing: str | None = None,
        edge: str = "zero",
        learned_alpha: bool = False,
        alpha_max: float | None = None,
    ) -> None:
        """Make the layer.

        Args:
            embed_dim: width of the input and output.
            num_heads: number of heads.
            dropout: must be 0: fused attention never forms the weights that it would thin out.
            bias: whether the projections have biases.
            add_bias_kv: must be False: the extra key has no position.
            add_zero_attn: must be False: the extra key has no position.
            kdim: None or embed_dim: keys are the tokens themselves.
            vdim: None or embed_dim.
            batch_first: inputs are (batch, length, embed_dim), not (length, batch, embed_dim).
            device: where the parameters are; None: torch's default device.
            dtype: of the projections; None: torch's default dtype. Rates are never below float32.
            bound: as in `LaSAttention`, as are all further options.
            spacing: as in `LaSAttention`.
            window: as in `LaSAttention`.
            smoothing: None: causal under a causal mask, else centered.
            edge: as in `LaSAttention`.
            learned_alpha: as in `LaSAttention`.
            alpha_max: as in `LaSAttention`.
        """
        wrong = {
            "dropout": (dropout, 0, "fused attention never forms the weights"),
            "add_bias_kv": (add_bias_kv, False, "the extra key has no position"),
            "add_zero_attn": (add_zero_attn, False, "the extra key has no position"),
            "kdim": (embed_dim if kdim is None else kdim, embed_dim, "it is self-attention"),
            "vdim": (embed_dim if vdim is None else vdim, embed_dim, "it is self-attention"),
        }
        for name, (value, allowed, why) in wrong.items():
            if value != allowed:
                raise ValueError(
                    f"{name} of LaSMultiheadAttention must be {allowed}, got {value}: {why}"
                )
        super().__init__(
            embed_dim, num_heads, bias=bias, batch_first=batch_first, device=device, dtype=dtype
        )
        # torch's fast path for encoders, which takes the weights and calls no forward, stays off
        self._qkv_same_embed_dim = False
        self.window, self.smoothing, self.edge = window, smoothing, edge
        check_options(window, smoothing, edge, smoothing in ("causal", "masked"), None)
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

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention, **options: Any) -> LaSMultiheadAttention:
        """A LaS layer with the weights of `layer`; `options` are `bound`, `window` and so on."""
        weight = layer.out_proj.weight
        made = cls(
            layer.embed_dim,
            layer.num_heads,
            layer.dropout,
            layer.in_proj_bias is not None,
            layer.bias_k is not None,
            layer.add_zero_attn,
            layer.kdim,
            layer.vdim,
            layer.batch_first,
            weight.device,
            weight.dtype,
            **options,
        )
        made.load_state_dict(layer.state_dict(), strict=False)
        for name, parameter in layer.named_parameters():  # what was frozen stays so
            made.get_parameter(name).requires_grad_(parameter.requires_grad)
        return made.train(layer.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention.forward`, for self-attention.

        Args:
            query: (L, B, E), or (B, L, E) with `batch_first`, or (L, E).
            key: the same tensor as `query`, or another object with the same memory.
            value: as `query`; may be another tensor, such as the tokens without their positions.
            key_padding_mask: (B, L), True or -inf where a token is padding, False or 0 elsewhere.
            need_weights: also return the smoothed attention matrix, for small lengths.
            attn_mask: None or a causal mask; no other can be served.
            average_attn_weights: average these weights over the heads.
            is_causal: whether `attn_mask` is causal; here it may be left out then. Where reading
                the mask would wait for a GPU, and in compiled code, this is believed.

        Returns:
            The output, shaped like `query`, and the weights (B, L, L) or (B, H, L, L), or None.
        """
        if not _same(query, key):
            raise ValueError(
                "LaSMultiheadAttention is self-attention: key must be the same tensor as query, "
                "since positions of two sequences have no distance"
            )
        if query.is_nested:
            raise ValueError(
                "LaSMultiheadAttention takes no nested tensors: make nn.TransformerEncoder with "
                "enable_nested_tensor=False, or set its use_nested_tensor to False"
            )
        batched = query.ndim == 3
        q, k, v = (t if batched else t[:, None] for t in (query, key, value))  # (L, 1, E)
        if batched and self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        if q.shape[2] != self.embed_dim or v.shape != q.shape:
            raise ValueError(
                f"query and value must have {self.embed_dim} columns and one shape, got "
                f"{tuple(query.shape)} and {tuple(value.shape)}"
            )
        causal = _causal(attn_mask, q.shape[0], is_causal)
        heads = self._heads(q, k, v)
        alpha, alpha_max = self.decay()
        options: dict[str, Any] = dict(
            alpha=alpha, alpha_max=alpha_max, window=self.window, smoothing=self.smoothing,
            edge=self.edge, is_causal=causal, key_mask=_real(key_padding_mask, batched),
        )  # fmt: skip
        out = las_attention(*heads, **options)  # (B, H, L, D)
        out = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))  # (L, B, E)
        if batched and self.batch_first:
            out = out.transpose(0, 1)
        weights = las_weights(heads[0], heads[1], **options) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if batched:
            return out, weights
        return out[:, 0], None if weights is None else weights[0]

    def _heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(L, B, E) tokens to queries, keys and values (B, H, L, D)."""
        E, bias = self.embed_dim, self.in_proj_bias
        parts = [
            nn.functional.linear(x, self.in_proj_weight[a:b], None if bias is None else bias[a:b])
            for x, a, b in ((q, 0, E), (k, E, 2 * E), (v, 2 * E, 3 * E))
        ]
        split = [p.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for p in parts]
        return split[0], split[1], split[2]


def replace_attention(model: nn.Module, **options: Any) -> int:
    """Make every `nn.MultiheadAttention` of a model a LaS layer with its weights.

    Args:
        model: changed in place.
        options: those of `LaSMultiheadAttention`: `bound`, `window` and so on.

    Returns:
        How many layers were replaced. A layer that is called with a second sequence raises then.

    >>> layer = nn.TransformerEncoderLayer(32, 4, dropout=0.0, batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 3)
    >>> replace_attention(model, bound=0.003)
    3
    """
    modules = list(model.modules())
    made: dict[nn.Module | None, LaSMultiheadAttention] = {  # all, before the model changes
        layer: LaSMultiheadAttention.from_torch(layer, **options)
        for layer in modules
        if isinstance(layer, nn.MultiheadAttention)
        and type(layer) is not LaSMultiheadAttention
        and layer is not model
    }
    for module in modules:
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # decided before, for the layers that it had
        for name, child in list(module._modules.items()):  # a layer of two names stays one
            if child in made:
                setattr(module, name, made[child])
    return len(made)


def _same(query: Tensor, key: Tensor) -> bool:
    """Whether they are one tensor: reentrant checkpoints and FSDP hand it over as two objects."""
    if key is query or functional() or not may_read(query):
        return key is query
    mine, other = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (query, key))
    return mine == other


def _real(padding: Tensor | None, batched: bool) -> Tensor | None:
    if padding is None:
        return None
    real = ~padding if padding.dtype == torch.bool else padding == 0
    if padding.dtype != torch.bool and _at_hand(padding):
        other = padding[~real & (padding != -torch.inf)]
        if len(other):
            raise ValueError(
                "key_padding_mask of LaSMultiheadAttention must hold 0 for a real token and -inf "
                f"for padding, got {float(other[0]):g}"
            )
    return real if batched else real[None]


def _at_hand(mask: Tensor) -> bool:
    """Whether reading is free, and the mask no batch of them, as inside of `torch.func.vmap`."""
    return reading_is_free(mask) and not functional()


def _causal(mask: Tensor | None, length: int, is_causal: bool) -> bool:
    """Whether a call is causal; a mask that is neither causal nor empty raises.

    One that is said to be causal is read only where that costs nothing.
    """
    if mask is None or (is_causal and not _at_hand(mask)):
        return is_causal
    hidden = mask if mask.dtype == torch.bool else mask == -torch.inf
    plain = mask.dtype == torch.bool or bool((mask[~hidden] == 0).all())
    square = hidden.shape[-2:] == (length, length)
    later = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
    if plain and square and bool((hidden == later).all()):
        return True
    if plain and not is_causal and not hidden.any():
        return False
    raise ValueError(
        f"attn_mask of LaSMultiheadAttention must be None or causal, got {mask.dtype} of shape "
        f"{tuple(mask.shape)}; padding goes to key_padding_mask"
    )
