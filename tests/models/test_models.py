"""Backbone, heads and builder."""

import dataclasses

import pytest
import torch
from torch import nn

from longlens.config import ModelConfig
from longlens.layers import MIXERS, build
from longlens.models.backbone import (
    Block,
    FeedForward,
    InputEncoding,
    TiedDropout,
    pool,
    sinusoids,
)
from longlens.models.build import HEADS, Model, build_model
from longlens.models.norms import MaskedBatchNorm, build_norm

SMALL = ModelConfig(mixer="s4d", mixer_options={"state": 4}, dim=16, depth=2, vocab_size=7)


def config(**changes):
    return dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize("norm", ["layer", "rms", "scale", "batch"])
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("feedforward", ["mlp", "silu", "glu", "none"])
def test_padding_does_not_change_a_classification(norm, prenorm, pooling, feedforward):
    options = {"norm": norm, "prenorm": prenorm, "pooling": pooling, "feedforward": feedforward}
    model = build_model(config(**options)).double().eval()
    x = torch.randint(7, (2, 12))
    mask = torch.arange(12) < torch.tensor([[12], [5]])
    together = model(x, mask)
    torch.testing.assert_close(together[:1], model(x[:1]))
    torch.testing.assert_close(together[1:], model(x[1:, :5]))


def test_nan_in_padding_reaches_no_gradient():
    model = build_model(ModelConfig(mixer="s4d", dim=8, depth=1, input_dim=3, num_outputs=2))
    x, mask = torch.randn(2, 9, 3), torch.arange(9) < torch.tensor([[9], [5]])
    expected = model(x, mask)
    y = model(x.masked_fill(~mask[..., None], float("nan")), mask)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    for name, p in model.named_parameters():
        assert p.grad.isfinite().all(), name


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
def test_positions(positions):
    mixer = {"mixer": "softmax", "mixer_options": {"num_heads": 2}, "bidirectional": True}
    model = build_model(config(positions=positions, **mixer)).double()
    x = torch.randint(7, (1, 9))
    order = torch.randperm(9)
    unordered = torch.allclose(model(x), model(x[:, order]))
    assert unordered == (positions == "none")  # mean pooling over attention knows no order itself


@pytest.mark.parametrize("key", list(MIXERS))
def test_every_mixer_fits_in_a_model(key):
    options = {"num_heads": 2} if "num_heads" in _options(key) else {}
    model = build_model(config(mixer=key, mixer_options=options, depth=1, max_length=32))
    x, mask = torch.randint(7, (2, 20)), torch.arange(20) < torch.tensor([[20], [9]])
    loss = model(x, mask).square().sum()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def _options(key):
    from longlens.layers import options_of

    return options_of(key)


def test_heads_have_their_shapes():
    x = torch.randint(7, (3, 10))
    assert build_model(config(num_outputs=4))(x).shape == (3, 4)
    assert build_model(config(head="regression", num_outputs=1))(x).shape == (3, 1)
    assert build_model(config(head="language"))(x).shape == (3, 10, 7)
    assert build_model(config(head="denoising", bidirectional=True))(x).shape == (3, 10, 7)
    pairs = torch.randint(7, (3, 2, 10))
    assert build_model(config(head="matching"))(pairs).shape == (3, 2)
    values = torch.randn(3, 10, 2)
    assert build_model(config(vocab_size=None, input_dim=2))(values).shape == (3, 2)


def test_matching_uses_both_documents_and_masks_them_apart():
    model = build_model(config(head="matching")).double()
    x = torch.randint(7, (2, 2, 10))
    mask = torch.arange(10) < torch.tensor([[10, 4], [6, 10]])[..., None]
    y = model(x, mask)
    changed = x.clone()
    changed[0, 1, 4:] = 0  # padding of the second document of the first pair
    torch.testing.assert_close(model(changed, mask), y)
    changed[0, 1, 0] = (x[0, 1, 0] + 1) % 7
    other = model(changed, mask)
    assert not torch.allclose(other[0], y[0])
    torch.testing.assert_close(other[1], y[1])


def test_cls_pooling_reads_the_whole_sequence():
    mixer = {"mixer": "softmax", "mixer_options": {"num_heads": 2}}
    model = build_model(config(pooling="cls", bidirectional=True, **mixer)).double()
    x = torch.randint(7, (2, 8))
    mask = torch.arange(8) < torch.tensor([[8], [3]])
    torch.testing.assert_close(model(x, mask)[1:], model(x[1:, :3]))
    changed = x.clone()
    changed[:, 2] = (x[:, 2] + 1) % 7
    assert (model(changed, mask) != model(x, mask)).all()
    with pytest.raises(ValueError, match="pooling='cls' reads the first position"):
        build_model(config(pooling="cls", **mixer))


def test_cls_makes_room_for_its_position():
    options = {"mixer": "s4", "pooling": "cls", "max_length": 8}
    assert build_model(config(**options))(torch.randint(7, (1, 8))).shape == (1, 2)


def test_a_language_model_never_sees_ahead():
    for changes in (
        {"bidirectional": True},
        {"mixer": "linformer", "mixer_options": {"num_heads": 2}},
        {"mixer": "las", "mixer_options": {"num_heads": 2, "smoothing": "centered"}},
    ):
        with pytest.raises(ValueError, match="never see ahead"):
            build_model(config(head="language", **{"mixer_options": {}, **changes}))
    build_model(config(head="denoising", bidirectional=True))


def test_tied_embeddings_are_one_tensor():
    model = build_model(config(head="language", tie_embeddings=True))
    assert model.head.project.weight is model.encoding.encode.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "layr"}, "unknown norm 'layr'; did you mean 'layer'"),
        ({"positions": "rotry"}, "unknown positions 'rotry'; did you mean 'rotary'"),
        ({"positions": "rotary"}, "positions='rotary' needs a mixer with the option 'rotary'"),
        ({"pooling": "average"}, "unknown pooling 'average'"),
        ({"feedforward": "gul"}, "unknown feedforward 'gul'; did you mean 'glu'"),
        ({"head": "clasification"}, "unknown head .* did you mean 'classification'"),
        ({"mixer": "s44"}, "unknown mixer 's44'; did you mean 's4'"),
        ({"head": "language", "vocab_size": None}, "vocab_size must not be None"),
        ({"numbers": True, "vocab_size": None}, "numbers=True needs vocab_size of 2 or more"),
        ({"numbers": True, "head": "denoising", "tie_embeddings": True}, "tie_embeddings needs"),
        ({"mixer": "h3", "bidirectional": True}, "'h3' is causal only"),
        (
            {"mixer": "linformer", "mixer_options": {"num_heads": 2}, "bidirectional": False},
            "'linformer' is bidirectional only",
        ),
    ],
)
def test_bad_configs_are_named(changes, message):
    changes.setdefault("mixer_options", {})
    with pytest.raises(ValueError, match=message):
        build_model(config(**changes))


def test_learned_positions_end_where_they_end():
    encoding = InputEncoding(8, vocab_size=3, positions="learned", max_length=4)
    with pytest.raises(ValueError, match="reaches position 5 but positions cover max_length=4"):
        encoding(torch.zeros(1, 5, dtype=torch.long))


def test_tokens_that_are_numbers():
    encoding = InputEncoding(4, vocab_size=256, numbers=True)
    tokens = torch.tensor([[0, 51, 255]])
    values = torch.tensor([[[-2.0], [-1.2], [2.0]]])
    torch.testing.assert_close(encoding(tokens)[0], encoding.encode(values))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_numbers_run_in_any_dtype(dtype):
    """Numbers were float32, whatever the weights were."""
    model = build_model(ModelConfig(dim=16, depth=1, vocab_size=9, numbers=True)).to(dtype)
    assert model(torch.randint(9, (2, 5))).dtype == dtype


def test_sinusoids_are_sines_and_cosines():
    code = sinusoids(50, 6)
    assert code.shape == (50, 6)
    torch.testing.assert_close(code[7, 0], torch.tensor(7.0).sin())
    torch.testing.assert_close(code[7, 3], torch.tensor(7.0).cos())
    assert sinusoids(3, 5).shape == (3, 5)


def test_sinusoids_in_half_precision_are_rounded_once():
    exact = sinusoids(1000, 6)
    torch.set_default_dtype(torch.bfloat16)
    try:
        code = sinusoids(1000, 6)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(code, exact.bfloat16())


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_model_made_without_memory(positions, assign):
    config = ModelConfig(mixer="las", dim=16, depth=1, vocab_size=9, positions=positions)
    model, x = build_model(config), torch.randint(9, (2, 5))
    with torch.device("meta"):
        empty = build_model(config)
    assert empty(x.to("meta")).shape == model(x).shape
    if not assign:
        empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict(), assign=assign)
    assert torch.equal(empty(x), model(x))


def test_masked_batch_norm_is_batch_norm_of_the_real_tokens():
    ours, theirs = MaskedBatchNorm(4), nn.BatchNorm1d(4)
    for _ in range(3):
        x, mask = torch.randn(5, 7, 4), torch.rand(5, 7) < 0.6
        x[~mask] = 1e6
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "length"), [(3, 7), (2, 64)])  # sums in one step, and in two
@pytest.mark.parametrize("masked", [True, False])
def test_the_gradients_of_batch_norm_are_those_of_its_formula(rows, length, masked):
    norm = MaskedBatchNorm(3).double()
    x = torch.randn(rows, length, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(rows, length) < 0.7 if masked else None
    upstream = torch.randn_like(x)
    found = torch.autograd.grad(norm(x, mask), (x, norm.weight, norm.bias), upstream)
    real = x if mask is None else x[mask]
    real = real.reshape(-1, 3)
    rate = (real.var(0, correction=0) + norm.eps).rsqrt()
    y = (x - real.mean(0)) * rate * norm.weight + norm.bias
    expected = torch.autograd.grad(y, (x, norm.weight, norm.bias), upstream)
    torch.testing.assert_close(found, expected)


def test_norms_keep_low_precision_in_and_out():
    for name in ("layer", "rms", "scale", "batch"):
        y = build_norm(name, 8).bfloat16()(torch.randn(2, 3, 8).bfloat16())
        assert y.dtype == torch.bfloat16


def test_scale_norm_has_one_number():
    norm = build_norm("scale", 8).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    assert [p.shape for p in norm.parameters()] == [torch.Size([])]
    with torch.no_grad():
        norm.norm.scale.fill_(1.5)
    # Nguyen & Salazar: g x / |x|, where g is √D times ours
    expected = 1.5 * 8**0.5 * x / x.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-6)
    low = build_norm("scale", 8)  # under autocast the parameter stays float32, so does the sum
    y = low((300 * x).bfloat16())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), expected / 1.5, rtol=2e-2, atol=1e-2)


def test_feed_forward_with_silu_is_its_formula():
    feed = FeedForward(4, "silu", 8)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(feed(x), feed.outer(feed.inner(x) * torch.sigmoid(feed.inner(x))))


def test_pool_takes_real_tokens_only():
    x = torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert pool(x, mask, "mean").tolist() == [[1.0, 2.0], [6.0, 7.0]]
    assert pool(x, mask, "last").tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert pool(x, None, "last").tolist() == [[4.0, 5.0], [10.0, 11.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_and_sums_all_real_tokens(dtype):
    """float16 ends at 65,504: means and variances were NaN or 0."""
    x = (4 + torch.randn(1, 70_000, 3)).to(dtype)
    mask = torch.arange(70_000)[None] < 69_000
    expected = x[:, :69_000].double().mean(1)
    found = pool(x, mask, "mean")
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=8e-3, atol=0)
    norm = MaskedBatchNorm(3).to(dtype)
    for real in (None, mask):
        y = norm(x, real)
        kept = (y[0] if real is None else y[real]).double()
        assert y.dtype == dtype
        assert kept.mean(0).abs().max() < 0.02 and (kept.std(0) - 1).abs().max() < 0.02


def test_prenorm_and_postnorm_are_what_they_say():
    class Double(nn.Module):
        causal, receptive_field, cost = True, 1, "L"

        def forward(self, x, mask=None):
            return 2 * x

    x = torch.randn(2, 3, 8)
    norm = nn.LayerNorm(8)
    pre = Block(Double(), 8, feedforward="none", prenorm=True)
    torch.testing.assert_close(pre(x), x + 2 * norm(x))
    post = Block(Double(), 8, feedforward="none", prenorm=False)
    torch.testing.assert_close(post(x), norm(3 * x))


@pytest.mark.parametrize("prenorm", [True, False])
def test_a_mixer_that_carries_its_input_gets_no_second_copy(prenorm):
    """MEGA's y = u ⊙ h + (1 - u) ⊙ x is its residual connection, x the input before any norm."""
    mixer = build("mega", 8, query_dim=4, averages=2)
    block = Block(mixer, 8, feedforward="none", prenorm=prenorm).double()
    x = 3 + 5 * torch.randn(2, 7, 8, dtype=torch.float64)
    norm = block.mix.norm
    with torch.no_grad():
        mixer.project.weight[-8:] = 0
        mixer.project.bias[-8:] = -1e4  # the gate u is closed: the input passes as it is
        kept = block(x)
        mixer.project.bias[-8:] = 1e4  # open: nothing of the input is left
        new = block(x)
    torch.testing.assert_close(kept, x if prenorm else norm(x, None))
    torch.testing.assert_close(new, mixer(norm(x, None)) if prenorm else norm(mixer(x), None))
    y, _ = block.advance(x, None)
    torch.testing.assert_close(y, new)


def test_tied_dropout_drops_whole_channels():
    y = TiedDropout(0.5).train()(torch.ones(4, 30, 50))
    assert ((y == 0).all(1) | (y == 2).all(1)).all()
    assert 0.3 < (y == 0).float().mean() < 0.7


def test_models_compile_in_one_graph():
    model = build_model(config(norm="batch", dropout=0.1, positions="learned"))
    x, mask = torch.randint(7, (2, 12)), torch.ones(2, 12, dtype=torch.bool)
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(x, mask)
    y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("norm", "dtype"),
    [(n, torch.float32) for n in ("layer", "rms", "batch")] + [("batch", torch.bfloat16)],
)
def test_compiled_norms_pass_gradients_on(norm, dtype):
    """Inputs of the weights' dtype and of a lower one: torch 2.11 compiled the former to zeros."""
    torch.compiler.reset()
    module = build_norm(norm, 6)
    program = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 5, 6).to(dtype).requires_grad_()
    mask = torch.rand(3, 5) < 0.8
    inputs = (x, *module.parameters())
    compiled, eager = program(x, mask), module(x, mask)
    assert compiled.dtype == eager.dtype
    upstream = torch.randn_like(eager)
    found = torch.autograd.grad(compiled, inputs, upstream)
    expected = torch.autograd.grad(eager, inputs, upstream)
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("head", HEADS)
def test_weights_and_config_survive_a_folder(head, tmp_path):
    options = {"num_heads": 2}
    model = build_model(
        config(mixer="reformer", mixer_options=options, head=head, tie_embeddings=True)
    ).eval()
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors"} <= names
    again = Model.from_pretrained(tmp_path).eval()
    x = torch.randint(7, (2, 2, 10) if head == "matching" else (2, 10))
    assert torch.equal(model(x), again(x))


def test_depth_and_width_are_what_the_config_says():
    model = build_model(config(depth=3))
    assert len(model.backbone.mixers()) == 3
    assert all(type(m) is type(build("s4d", 4)) for m in model.backbone.mixers())


@pytest.mark.parametrize(
    "mixer", ["las", "softmax", "alibi", "s4d", "lru", "mega", "hyena", "lstm"]
)
def test_padding_behind_the_end_needs_no_mask_in_causal_mixers(mixer):
    config = ModelConfig(
        mixer=mixer, dim=16, depth=2, vocab_size=9, bidirectional=False, norm="batch", max_length=40
    )
    model = build_model(config).double().train()
    tokens = torch.randint(9, (3, 40))
    mask = torch.arange(40) < torch.tensor([40, 23, 1])[:, None]
    with_mask = model(tokens, mask)
    model.right_padded = True
    torch.testing.assert_close(model(tokens, mask), with_mask, rtol=1e-9, atol=1e-11)


def test_mixers_that_see_ahead_keep_the_mask():
    for options in ({"bidirectional": True}, {"mixer_options": {"smoothing": "centered"}}):
        model = build_model(ModelConfig(dim=16, depth=1, vocab_size=9, **options))
        model.right_padded = True
        mask = torch.arange(20) < torch.tensor([20, 7])[:, None]
        tokens = torch.randint(9, (2, 20))
        changed = tokens.where(mask, (tokens + 1) % 9)
        torch.testing.assert_close(model(tokens, mask), model(changed, mask))


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("prenorm", [True, False])
def test_the_residual_stream_under_autocast(prenorm, numbers):
    seen = []
    outputs = {}
    for residual in ("float32", "autocast"):
        torch.manual_seed(0)
        config = ModelConfig(
            dim=16, depth=2, vocab_size=9, prenorm=prenorm, residual=residual, numbers=numbers
        )
        model = build_model(config)
        model.backbone.blocks[1].register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0].dtype)
        )
        with torch.autocast("cpu", torch.bfloat16):
            outputs[residual] = model(torch.arange(9)[None])
        model(torch.arange(9)[None])  # without autocast nothing changes
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    torch.testing.assert_close(outputs["autocast"], outputs["float32"], rtol=0.1, atol=0.05)
