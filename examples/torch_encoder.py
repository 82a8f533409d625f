"""LaS attention in a model of `torch.nn`: one call replaces the attention and keeps the weights.

python examples/torch_encoder.py
"""

import torch
from torch import nn

from longlens import replace_attention


def main() -> None:
    """Show that the weights are kept, then train with padding and a causal mask."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=2)
    x = torch.randn(4, 50, 64)
    before = encoder(x)
    replace_attention(encoder, bound=0.0, window=1)  # no decay, no smoothing: softmax attention
    print(f"replaced, off by {(encoder(x) - before).abs().max():.0e}")

    encoder = nn.TransformerEncoder(layer, num_layers=2)
    replace_attention(encoder, bound=1e-3, window=5, learned_alpha=True)
    padding = torch.arange(50) >= torch.tensor([50, 40, 30, 20])[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(50, dtype=torch.bool)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for step in range(5):
        out = encoder(x, mask=causal, src_key_padding_mask=padding, is_causal=True)
        loss = (out[:, :-1] - x[:, 1:])[~padding[:, 1:]].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
