"""LaS attention in a language model of x-transformers: pip install x-transformers, then

python examples/x_transformers_lm.py
"""

import torch
from torch import Tensor, nn
from x_transformers import Decoder, TransformerWrapper
from x_transformers.attend import Attend, Intermediates

from longlens import las_attention
from longlens.layers.decay import DecayRates


class LaSAttend(nn.Module):
    """In the place of x-transformers' `Attend`: q, k, v (B, H, N, D) to (B, H, N, D)."""

    def __init__(
        self, attend: Attend, num_heads: int, bound: float = 1e-3, window: int = 5
    ) -> None:
        super().__init__()
        if attend.dropout:
            raise ValueError(f"LaS attention has no dropout, got attn_dropout={attend.dropout}")
        self.causal, self.scale, self.window = attend.causal, attend.scale, window
        self.decay = DecayRates(num_heads, bound)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **others: object
    ) -> tuple[Tensor, Intermediates]:
        """`mask` is of keys alone: (B, N) or (B, 1, 1, N), True for a real token."""
        asked = [name for name, value in others.items() if value is not None and name != "causal"]
        if asked or (mask is not None and mask.ndim == 4 and mask.shape[1:3] != (1, 1)):
            raise ValueError(f"LaS attention takes a mask of keys and nothing else, got {asked}")
        alpha, alpha_max = self.decay.rates()
        out = las_attention(
            q, k, v, alpha=alpha, alpha_max=alpha_max, window=self.window, scale=self.scale,
            key_mask=None if mask is None else mask.reshape(mask.shape[0], -1),
            is_causal=self.causal, enable_gqa=True,
        )  # fmt: skip
        return out, Intermediates()


def use_las(model: nn.Module, num_heads: int, **options: float) -> int:
    """Replace the attention of every layer in place, and say how many there were."""
    layers = [m for m in model.modules() if isinstance(getattr(m, "attend", None), Attend)]
    for layer in layers:
        layer.attend = LaSAttend(layer.attend, num_heads, **options)
    return len(layers)


def main() -> None:
    """Replace, compare, and take a training step."""
    torch.manual_seed(0)
    decoder = Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=decoder)
    tokens = torch.randint(0, 100, (2, 64))
    before = model(tokens)
    print(f"{use_las(model, 4, bound=0.0, window=1)} layers replaced")
    off = (model(tokens) - before).abs().max()
    print(f"without decay and smoothing nothing changes, off by {off:.0e}")
    assert off < 1e-4, off
    for layer in model.modules():
        if isinstance(layer, LaSAttend):
            layer.window, layer.decay = 5, DecayRates(4, 1e-3)
    logits = model(tokens)
    nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    print(f"LaS attention changes the logits by {(logits - before).abs().max():.3f}")


if __name__ == "__main__":
    main()
