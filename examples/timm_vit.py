"""LaS attention in a Vision Transformer of timm: pip install timm, then

python examples/timm_vit.py

A ViT's tokens are its patches row by row after the class token; LaS attention takes that order for
the positions.
"""

import timm
import torch
from timm.layers import Attention
from torch import Tensor, nn

from longlens import las_attention
from longlens.layers.decay import DecayRates


class LaSViTAttention(Attention):
    """timm's attention, with its projections and norms, around `las_attention`."""

    def __init__(
        self, *args: object, bound: float = 1e-3, window: int = 5, **options: object
    ) -> None:
        super().__init__(*args, **options)
        if self.attn_drop.p:
            raise ValueError(f"LaS attention has no dropout, got attn_drop={self.attn_drop.p}")
        self.window = window
        self.decay = DecayRates(self.num_heads, bound)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        if attn_mask is not None:
            raise ValueError("LaS attention takes no mask of queries by keys")
        gate = None if self.gate is None else self.gate(x).sigmoid()
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        alpha, alpha_max = self.decay.rates()
        y = las_attention(
            self.q_norm(q), self.k_norm(k), v, alpha=alpha, alpha_max=alpha_max,
            window=self.window, is_causal=is_causal,
        )  # fmt: skip
        y = self.norm(y.transpose(1, 2).flatten(2))
        return self.proj_drop(self.proj(y if gate is None else y * gate))


def main() -> None:
    """Make a small ViT twice, with the same weights, and compare."""
    torch.manual_seed(0)
    size = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=10)
    plain = timm.models.VisionTransformer(**size).eval()
    las = timm.models.VisionTransformer(**size, attn_layer=LaSViTAttention).eval()
    las.load_state_dict(plain.state_dict(), strict=False)
    images = torch.randn(2, 3, 32, 32)
    print(f"LaS attention changes the logits by {(las(images) - plain(images)).abs().max():.3f}")
    for block in las.blocks:
        block.attn.window, block.attn.decay = 1, DecayRates(4, 0.0)
    off = (las(images) - plain(images)).abs().max()
    print(f"without decay and smoothing it is timm's own attention, off by {off:.0e}")
    assert off < 1e-5, off
    nn.functional.cross_entropy(las.train()(images), torch.tensor([1, 2])).backward()


if __name__ == "__main__":
    main()
