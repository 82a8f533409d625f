"""LaSMultiheadAttention against nn.MultiheadAttention and against LaS attention itself."""

import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from longlens import LaSAttention, LaSMultiheadAttention, SoftmaxAttention, replace_attention
from longlens.ops.las import las_attention

CAUSAL = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)


def tokens(batch_first=True):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 32, generator=generator, dtype=torch.float64)
    return x if batch_first else x.transpose(0, 1)


def original(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(32, 4, dtype=torch.float64, **options)


def padding():
    return torch.arange(9) >= torch.tensor([9, 6])[:, None]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        dict(),
        dict(key_padding_mask=padding()),
        dict(key_padding_mask=torch.zeros(2, 9).double().masked_fill(padding(), -torch.inf)),
        dict(attn_mask=CAUSAL, is_causal=True),
        dict(attn_mask=CAUSAL),
        dict(attn_mask=CAUSAL < 0),
        dict(attn_mask=torch.zeros(9, 9).double()),
    ],
    ids=lambda masks: "+".join(f"{k}-{getattr(v, 'dtype', v)}" for k, v in masks.items()) or "none",
)
def test_without_decay_and_smoothing_it_is_the_original(batch_first, average, masks):
    layer = original(batch_first=batch_first)
    las = LaSMultiheadAttention.from_torch(layer, bound=0.0, window=1)
    x = tokens(batch_first)
    expected, their_weights = layer(x, x, x, average_attn_weights=average, **masks)
    out, weights = las(x, x, x, average_attn_weights=average, **masks)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights, their_weights)
    assert las(x, x, x, need_weights=False, **masks)[1] is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_it_is_las_attention(bias, causal):
    las = LaSMultiheadAttention.from_torch(
        original(bias=bias, batch_first=True), bound=0.3, window=3, learned_alpha=True
    )
    x, moved = tokens(), tokens() + 1
    out, weights = las(moved, moved, x, attn_mask=CAUSAL if causal else None)
    projections = las.in_proj_weight.chunk(3)
    biases = las.in_proj_bias.chunk(3) if bias else (None,) * 3
    q, k, v = (
        nn.functional.linear(t, w, b).unflatten(-1, (4, 8)).transpose(1, 2)
        for t, w, b in zip((moved, moved, x), projections, biases, strict=True)
    )
    y = las_attention(q, k, v, alpha=las.decay.alpha, window=3, is_causal=causal, impl="reference")
    torch.testing.assert_close(out, las.out_proj(y.transpose(1, 2).flatten(2)))
    assert (weights.sum(-1) <= 1 + 1e-9).all() and (weights.sum(-1) < 0.999).any()  # the edges
    out.sum().backward()
    assert all(p.grad is not None for p in las.parameters())


def test_one_sequence_without_batch():
    las = LaSMultiheadAttention.from_torch(original(), window=3)
    x = tokens(False)
    batch, weights = las(x, x, x)
    row = x[:, 1].clone()
    out, own = las(row, row, row)
    torch.testing.assert_close(out, batch[:, 1])
    torch.testing.assert_close(own, weights[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [True, False])
@torch.no_grad()
def test_torchs_encoder_takes_it_and_its_fast_path_stays_off(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x, real = tokens(), ~padding()
    expected = encoder(x, src_key_padding_mask=~real)
    assert replace_attention(encoder, bound=0.0, window=1) == 2
    out = encoder(x, src_key_padding_mask=~real)
    torch.testing.assert_close(out[real], expected[real])
    assert replace_attention(encoder) == 0  # none is left
    encoder.layers[0].self_attn.window = 3
    assert (encoder(x, src_key_padding_mask=~real) - out)[real].abs().max() > 1e-3


def test_a_saved_state_dict_of_the_original_loads():
    layer, las = original(), LaSMultiheadAttention(32, 4, dtype=torch.float64)
    report = las.load_state_dict(layer.state_dict(), strict=False)
    assert report.missing_keys == ["decay.alpha"] and not report.unexpected_keys
    assert torch.equal(las.in_proj_weight, layer.in_proj_weight)


def test_the_signature_is_that_of_the_original():
    theirs = list(inspect.signature(nn.MultiheadAttention).parameters)
    assert list(inspect.signature(LaSMultiheadAttention).parameters)[: len(theirs)] == theirs
    forward = inspect.signature(nn.MultiheadAttention.forward).parameters
    ours = inspect.signature(LaSMultiheadAttention.forward).parameters
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in forward.values()
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dropout=0.1), r"dropout of LaSMultiheadAttention must be 0, got 0\.1: fused"),
        (dict(add_bias_kv=True), "add_bias_kv of LaSMultiheadAttention must be False"),
        (dict(kdim=16), "kdim of LaSMultiheadAttention must be 32, got 16"),
        (dict(window=0), "window must be an integer >= 1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        LaSMultiheadAttention(32, 4, **options)


def test_what_is_no_self_attention_is_refused():
    las, x = LaSMultiheadAttention(32, 4, batch_first=True, dtype=torch.float64), tokens()
    with pytest.raises(ValueError, match="key must be the same tensor as query"):
        las(x, x.clone(), x)
    band = torch.ones(9, 9).triu(-2).bool()
    for mask in (band, CAUSAL * 0 + 0.5, CAUSAL[:, :5]):
        with pytest.raises(ValueError, match="attn_mask of LaSMultiheadAttention must be None or"):
            las(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_tensor_may_come_as_several_objects(batch_first):
    """Reentrant checkpoints and FSDP make them, which was refused."""
    layer = LaSMultiheadAttention.from_torch(original(batch_first=batch_first))
    x = tokens(batch_first).clone().requires_grad_()
    expected = torch.autograd.grad(layer(x, x, x)[0].square().sum(), x)[0]
    checkpoint(layer, x, x, x, use_reentrant=True)[0].square().sum().backward()
    torch.testing.assert_close(x.grad, expected)
    for other in (x.detach().clone(), x[:, :1].expand_as(x), x.detach().mT):
        with pytest.raises(ValueError, match="key must be the same tensor as query"):
            layer(x, other, x)


@pytest.mark.parametrize("mask", [CAUSAL.mT, 0.5 * CAUSAL.exp(), torch.zeros(9, 9)])
def test_a_mask_that_is_called_causal_has_to_be(mask):
    """It was not looked at."""
    layer = LaSMultiheadAttention.from_torch(original(batch_first=True))
    x = tokens()
    with pytest.raises(ValueError, match="attn_mask"):
        layer(x, x, x, attn_mask=mask, is_causal=True)


@pytest.mark.parametrize("value", [0.5, -1e9, float("nan")])
def test_a_padding_mask_holds_zero_and_minus_infinity(value):
    """Finite numbers, which torch adds to scores, counted as padding."""
    layer = LaSMultiheadAttention.from_torch(original(batch_first=True))
    x, mask = tokens(), torch.zeros(2, 9)
    mask[1, 3] = value
    with pytest.raises(ValueError, match="key_padding_mask"):
        layer(x, x, x, key_padding_mask=mask)


def test_replacing_keeps_what_is_shared_and_what_is_frozen():
    class Block(nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.first = self.second = attention

    shared = original().requires_grad_(False)
    shared.out_proj.bias.requires_grad_(True)
    model = nn.Sequential(Block(shared), Block(shared))
    assert replace_attention(model) == 1
    layers = [layer for block in model for layer in (block.first, block.second)]
    assert all(layer is layers[0] for layer in layers)
    assert type(layers[0]) is LaSMultiheadAttention
    trained = [name for name, p in layers[0].named_parameters() if p.requires_grad]
    assert trained == ["out_proj.bias"]


def test_a_model_with_a_layer_that_cannot_be_replaced_stays_as_it_is():
    fits, dropout = (nn.TransformerEncoderLayer(16, 2, 16, p, batch_first=True) for p in (0.0, 0.1))
    model = nn.Sequential(fits, dropout)
    with pytest.raises(ValueError, match="dropout"):
        replace_attention(model)
    assert all(type(m.self_attn) is nn.MultiheadAttention for m in model)


@pytest.mark.parametrize("kind", [LaSAttention, SoftmaxAttention, LaSMultiheadAttention])
def test_device_and_dtype_are_torchs_own(kind):
    layer = kind(32, 4, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta for p in layer.parameters())
    layer = kind(32, 4, dtype=torch.bfloat16)
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    if kind is not SoftmaxAttention:
        assert layer.decay.alpha.dtype == torch.float32
        assert kind(32, 4, dtype=torch.float64).decay.alpha.dtype == torch.float64


def test_signatures_hide_nothing():
    for kind in (LaSAttention, SoftmaxAttention, LaSMultiheadAttention):
        kinds = {p.kind for p in inspect.signature(kind).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds
    with pytest.raises(TypeError, match=r"LaSAttention\.__init__\(\) got an unexpected"):
        LaSAttention(32, 4, windows=3)
