"""Generation: states and full passes give the same tokens."""

import pytest
import torch

from longlens.config import ModelConfig
from longlens.layers import MIXERS, build, options_of
from longlens.models.build import build_model
from longlens.models.generate import generate, sample

CAUSAL = [k for k in MIXERS if "bidirectional" in options_of(k) or build(k, 16).causal]


def language_model(key, **changes):
    known = options_of(key)
    options = {k: v for k, v in {"num_heads": 2, "chunk": 4, "state": 8}.items() if k in known}
    if "chunk" in known and known["chunk"] is None:
        del options["chunk"]
    return build_model(
        ModelConfig(
            mixer=key,
            mixer_options=options,
            bidirectional=False if "bidirectional" in known else None,
            dim=16,
            depth=2,
            vocab_size=11,
            max_length=24,
            head="language",
            **changes,
        )
    )


@pytest.mark.parametrize("key", CAUSAL)
def test_greedy_generation_is_the_argmax_of_full_passes(key):
    model = language_model(key).double()
    prompt = torch.randint(11, (2, 5))
    tokens = generate(model, prompt, 8, temperature=0)
    expected = prompt
    for _ in range(8):
        new = model.eval()(expected)[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat([expected, new], 1)
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
@pytest.mark.parametrize("key", ["softmax", "las", "lru", "mega-chunk"])
def test_states_give_the_logits_of_the_full_pass(key, positions):
    model = language_model(key, positions=positions).double().eval()
    x = torch.randint(11, (2, 9))
    full = model(x)
    first, state = model.advance(x[:, :4])
    rest = [first]
    for t in range(4, 9):
        y, state = model.advance(x[:, t : t + 1], state)
        rest.append(y)
    torch.testing.assert_close(torch.cat(rest, 1), full, rtol=1e-6, atol=1e-7)


def test_states_are_refused_where_there_are_none():
    model = language_model("hyena")
    with pytest.raises(ValueError, match="Hyena has no step"):
        generate(model, torch.zeros(1, 2, dtype=torch.long), 2, use_cache=True)
    assert generate(model, torch.zeros(1, 2, dtype=torch.long), 2).shape == (1, 4)


def test_a_bidirectional_model_does_not_generate():
    config = ModelConfig(mixer="s4", dim=16, depth=1, vocab_size=5, head="denoising")
    with pytest.raises(ValueError, match="never see ahead"):
        generate(build_model(config), torch.zeros(1, 2, dtype=torch.long), 2)


def test_a_classifier_does_not_generate():
    model = build_model(ModelConfig(mixer="las", dim=16, depth=1, vocab_size=5))
    with pytest.raises(ValueError, match="head='language', got head='classification'"):
        generate(model, torch.zeros(1, 2, dtype=torch.long), 2)


def test_sampling():
    logits = torch.tensor([[0.0, 1.0, 5.0, 4.0]]).expand(4000, 4)
    assert set(sample(logits, temperature=0).tolist()) == {2}
    assert set(sample(logits, top_k=2).tolist()) == {2, 3}
    share = (sample(logits) == 2).float().mean()
    assert abs(share - logits[0].softmax(-1)[2]) < 0.03
    hot = (sample(logits, temperature=100.0) == 0).float().mean()
    assert 0.2 < hot < 0.3
    with pytest.raises(ValueError, match="temperature must not be negative, got -1"):
        sample(logits, temperature=-1)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        sample(logits, top_k=0)


def test_seeded_sampling_repeats_and_training_mode_comes_back():
    model = language_model("lru", dropout=0.5).train()
    prompt = torch.randint(11, (2, 3))
    draws = [
        generate(model, prompt, 6, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    ]
    assert torch.equal(*draws)
    assert model.training


def test_stop_token_ends_rows():
    model = language_model("lru").eval()
    tokens = generate(model, torch.randint(11, (3, 2)), 20, temperature=5.0, stop_token=4)
    for row in tokens[:, 2:].tolist():
        if 4 in row:
            assert set(row[row.index(4) :]) == {4}


def test_prompts_must_have_tokens():
    with pytest.raises(ValueError, match=r"prompt must be \(B, L\) with L at least 1"):
        generate(language_model("lru"), torch.zeros(1, 0, dtype=torch.long), 2)
