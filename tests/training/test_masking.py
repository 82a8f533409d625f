"""Hidden tokens: the share, padding, the generator."""

import pytest
import torch

from longlens.training.examples import mask_tokens


def test_share_and_padding():
    tokens = torch.randint(1, 16, (200, 500))
    lengths = torch.randint(1, 501, (200, 1))
    real = torch.arange(500) < lengths
    tokens[~real] = 0
    corrupted, where = mask_tokens(tokens, real, torch.Generator().manual_seed(0), 0.3, 16)
    assert not where[~real].any()
    share = where[real].double().mean().item()
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / real.sum().item()) ** 0.5
    assert (corrupted[where] == 16).all() and torch.equal(corrupted[~where], tokens[~where])


def test_pairs_and_no_mask():
    tokens = torch.randint(256, (4, 2, 300))
    corrupted, where = mask_tokens(tokens, None, torch.Generator().manual_seed(0), 0.3, 256)
    assert corrupted.shape == where.shape == tokens.shape and where.any(2).all()


def test_the_generator_decides_and_inputs_stay():
    tokens = torch.randint(256, (4, 300))
    kept = tokens.clone()
    generator = torch.Generator().manual_seed(7)
    first, second = (mask_tokens(tokens, None, generator, 0.3, 256)[1] for _ in range(2))
    again = mask_tokens(tokens, None, torch.Generator().manual_seed(7), 0.3, 256)[1]
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert torch.equal(tokens, kept)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_senseless_rate(rate):
    with pytest.raises(ValueError, match=f"rate must be between 0 and 1, got {rate}"):
        mask_tokens(torch.zeros(1, 2).long(), None, torch.Generator(), rate, 1)


def test_floats_are_refused():
    with pytest.raises(ValueError, match=r"integer tokens, got torch\.float32"):
        mask_tokens(torch.zeros(1, 2), None, torch.Generator(), 0.3, 1)
