"""Efficient attentions: each against the attention it approximates or restricts, in float64."""

import pytest
import torch
import torch.nn.functional as F

from longlens.layers.alibi import AlibiAttention
from longlens.layers.bigbird import BigBird
from longlens.layers.heads import merge_heads
from longlens.layers.linformer import Linformer
from longlens.layers.local import LocalAttention
from longlens.layers.luna import Luna
from longlens.layers.performer import Performer
from longlens.layers.reformer import SELF_SCORE, Reformer
from tests.layers.cases import run_steps
from tests.layers.test_state_space import shake

F64 = torch.float64
BOTH = pytest.mark.parametrize("bidirectional", [False, True])


def softmax_attention(layer, x, *, seen=None, bias=None, pool=None):
    """Dense softmax attention through the layer's own projections."""
    q, k, v = layer.project(x)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1)
    if pool is not None:
        weights = pool(weights)
    return layer.output(merge_heads(weights @ v))


def distances(length):
    order = torch.arange(length)
    return order[:, None] - order


@BOTH
def test_alibi_is_softmax_with_linear_biases(bidirectional):
    layer = shake(AlibiAttention(8, num_heads=4, bidirectional=bidirectional))
    x, d = torch.randn(2, 13, 8, dtype=F64), distances(13)
    bias = -layer.slopes[:, None, None] * d.abs()
    expected = softmax_attention(layer, x, bias=bias, seen=None if bidirectional else d >= 0)
    torch.testing.assert_close(layer(x), expected)


def test_alibi_has_a_gradient_for_each_example():
    layer = AlibiAttention(8, num_heads=4, chunk=8).double()
    parameters, x = dict(layer.named_parameters()), torch.randn(3, 13, 8, dtype=F64)
    mask = torch.arange(13) < torch.tensor([13, 9, 4])[:, None]

    def loss(parameters, x, mask):
        y = torch.func.functional_call(layer, parameters, (x[None], mask[None]))
        return (y * mask[None, :, None]).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, mask)
    for place in range(3):
        layer.zero_grad()
        loss(parameters, x[place], mask[place]).backward()
        for name, p in parameters.items():
            torch.testing.assert_close(found[name][place], p.grad, msg=name)


def test_alibi_of_the_las_paper_divides_its_bias_too():
    """Eq. 2: softmax((Q Kᵀ - m D) / √d) V, with D the distances and the future masked."""
    layer = AlibiAttention(12, num_heads=2, scaled_bias=True).double()
    x = torch.randn(2, 9, 12, dtype=F64)
    q, k, v = layer.project(x)
    place = torch.arange(9)
    distance = (place[:, None] - place).double()
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=F64)  # of 2 heads
    scores = (q @ k.mT - slopes[:, None, None] * distance) / 6**0.5
    scores = scores.masked_fill(distance < 0, -torch.inf)
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.output(y), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(run_steps(layer, x), layer(x))
    plain = AlibiAttention(12, num_heads=2).double()
    plain.load_state_dict(layer.state_dict() | {"slopes": plain.slopes})
    assert (plain(x) - layer(x)).abs().max() > 1e-4


def test_alibi_to_the_letter_of_the_las_paper_sees_what_is_ahead():
    layer = AlibiAttention(12, num_heads=2, chunk=5, window=3, bidirectional=True, past_only=True)
    layer = layer.double()
    x = torch.randn(2, 9, 12, dtype=F64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 7:] = False
    place = torch.arange(9)
    lost = (place[:, None] - place).clamp_min(0) * torch.tensor([2.0**-4, 2.0**-8])[:, None, None]
    seen = (place[:, None] // 5 == place // 5) & mask[:, None, None]
    q, k, v = layer.project(x)
    a = (q @ k.mT / 6**0.5 - lost).masked_fill(~seen, -torch.inf).softmax(-1)
    values = torch.where(mask[:, None, :, None], v, 0)
    pooled = torch.zeros_like(v)
    for n in range(9):  # the average of the neighbours in the same chunk
        near = [m for m in (n - 1, n, n + 1) if 0 <= m < 9 and m // 5 == n // 5]
        pooled[:, :, n] = values[:, :, near].sum(2) / 3
    y = layer.output((a @ pooled).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask)[mask], y[mask], rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="past_only=True goes with bidirectional=True"):
        AlibiAttention(12, num_heads=2, past_only=True)


@BOTH
def test_smooth_chunked_alibi_is_its_matrix(bidirectional):
    layer = shake(AlibiAttention(8, num_heads=2, chunk=5, window=3, bidirectional=bidirectional))
    x, d = torch.randn(2, 13, 8, dtype=F64), distances(13)
    block = torch.arange(13) // 5
    same = block[:, None] == block
    seen = same if bidirectional else same & (d >= 0)

    def pool(a):  # a'[i, j] = (a[i, j+t] for t in the window) / 3, inside the block
        out = torch.zeros_like(a)
        for j in range(13):
            for t in (-1, 0, 1) if bidirectional else (0, 1, 2):
                if 0 <= j + t < 13 and block[j] == block[j + t]:
                    out[..., j] += a[..., j + t] / 3
        return out

    bias = -layer.slopes[:, None, None] * d.abs()
    torch.testing.assert_close(
        layer(x), softmax_attention(layer, x, bias=bias, seen=seen, pool=pool)
    )


@BOTH
@pytest.mark.parametrize("length", [1, 4, 13, 16])
def test_local_attention_is_a_band(bidirectional, length):
    layer = shake(LocalAttention(8, num_heads=2, window=4, bidirectional=bidirectional))
    x, d = torch.randn(2, length, 8, dtype=F64), distances(length)
    seen = (d.abs() < 4) & ((d >= 0) | bidirectional)
    torch.testing.assert_close(layer(x), softmax_attention(layer, x, seen=seen))


@BOTH
def test_a_window_as_long_as_the_sequence_is_softmax(bidirectional):
    layer = shake(LocalAttention(8, num_heads=2, window=50, bidirectional=bidirectional))
    x, d = torch.randn(2, 13, 8, dtype=F64), distances(13)
    seen = None if bidirectional else d >= 0
    torch.testing.assert_close(layer(x), softmax_attention(layer, x, seen=seen))


def shared_qk_softmax(layer, x):
    """Reformer's attention with every pair allowed."""
    q, _, v = layer.project(x)
    scores = q @ F.normalize(q, dim=-1).mT
    d = distances(x.shape[1])
    scores = scores.masked_fill(d == 0, SELF_SCORE)
    if layer.causal:
        scores = scores.masked_fill(d < 0, -torch.inf)
    return layer.output(merge_heads(scores.softmax(-1) @ v))


@BOTH
@pytest.mark.parametrize("rounds", [1, 3])
def test_lsh_attention_with_one_bucket_is_shared_qk_softmax(bidirectional, rounds):
    layer = shake(
        Reformer(
            8, num_heads=2, num_buckets=1, chunk=16, rounds=rounds, bidirectional=bidirectional
        )
    )
    x = torch.randn(2, 16, 8, dtype=F64)
    torch.testing.assert_close(layer(x), shared_qk_softmax(layer, x))


@BOTH
@pytest.mark.parametrize("length", [1, 23])
def test_lsh_attention_is_its_buckets_and_chunks(bidirectional, length):
    """Pair by pair from the definition, with two rounds and repeated pairs counted once."""
    layer = shake(
        Reformer(4, num_heads=1, num_buckets=4, chunk=3, rounds=2, bidirectional=bidirectional)
    )
    x = torch.randn(1, length, 4, dtype=F64)
    q, _, v = layer.project(x)
    q, v = q[0, 0], v[0, 0]
    buckets = layer.hash(q[None, None], None)[0, 0]  # (rounds, L)
    chunks = torch.zeros_like(buckets)
    for r in range(2):
        seen = [0] * 4
        for i in range(length):
            b = int(buckets[r, i])
            chunks[r, i] = seen[b] // 3
            seen[b] += 1
    out = torch.zeros_like(q)
    for i in range(length):
        weights = torch.zeros(length, dtype=F64)
        for j in range(length):
            if not bidirectional and j > i:
                continue
            met = sum(
                bool(buckets[r, i] == buckets[r, j] and 0 <= chunks[r, i] - chunks[r, j] <= 1)
                for r in range(2)
            )
            if met and j != i:  # in n rounds with weight 1/n each: once in all
                weights[j] = torch.exp(q[i] @ F.normalize(q[j], dim=0))
        if weights.sum() == 0:
            weights[i] = 1
        out[i] = weights / weights.sum() @ v
    torch.testing.assert_close(layer(x)[0], layer.output(out), rtol=1e-7, atol=1e-9)


def test_nearby_vectors_share_buckets():
    layer = Reformer(8, num_heads=1, num_buckets=16, rounds=4)
    q = torch.randn(1, 1, 500, 8)
    own = layer.hash(q, None)
    near = layer.hash(q + 0.05 * torch.randn_like(q), None)
    far = layer.hash(torch.randn_like(q), None)
    assert (own == near).float().mean() > 0.8 > 0.2 > (own == far).float().mean()


def test_linformer_with_identity_projections_is_softmax():
    layer = shake(Linformer(8, num_heads=2, rank=12, max_length=12))
    with torch.no_grad():
        layer.project_keys.copy_(torch.eye(12))
        layer.project_values.copy_(torch.eye(12))
    x = torch.randn(2, 12, 8, dtype=F64)
    torch.testing.assert_close(layer(x), softmax_attention(layer, x))


@pytest.mark.parametrize("full", ["window", "global", "random"])
def test_bigbird_with_all_blocks_is_softmax(full):
    sizes = {"window_blocks": 1, "global_blocks": 0, "random_blocks": 0}
    sizes[f"{full}_blocks"] = 9
    layer = shake(BigBird(8, num_heads=2, block=3, **sizes))
    x = torch.randn(2, 14, 8, dtype=F64)
    torch.testing.assert_close(layer(x), softmax_attention(layer, x))


@pytest.mark.parametrize("global_blocks", [0, 1, 2])
def test_bigbird_is_its_block_pattern(global_blocks):
    layer = shake(
        BigBird(
            8,
            num_heads=2,
            block=2,
            window_blocks=3,
            global_blocks=global_blocks,
            random_blocks=2,
            seed=1,
        )
    )
    length, blocks = 25, 13
    index, counts = layer.neighbours(torch.ones(1, blocks, dtype=torch.bool))
    ends = {*range(global_blocks), *range(blocks - global_blocks, blocks)}
    patterns = torch.zeros(2, blocks, blocks, dtype=torch.bool)
    for h in range(2):
        for i in range(blocks):
            chosen = index[0, h, i][counts[0, h, i]].tolist()
            assert len(chosen) == len(set(chosen))  # nothing counts twice
            fixed = ends | {j for j in (i - 1, i, i + 1) if 0 <= j < blocks}
            assert fixed <= set(chosen) and len(chosen) == len(fixed) + 2
            patterns[h, i, chosen] = True
        patterns[h, list(ends)] = True
    assert not torch.equal(*patterns)  # every head has random blocks of its own
    seen = patterns.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :length, :length]
    x = torch.randn(2, length, 8, dtype=F64)
    torch.testing.assert_close(layer(x), softmax_attention(layer, x, seen=seen))


def test_bigbirds_random_blocks_are_spread_and_differ_by_head_and_layer():
    drawn = []
    for _ in range(2):
        layer = BigBird(8, num_heads=2, random_blocks=1)
        index, _ = layer.neighbours(torch.ones(1, 64, dtype=torch.bool))
        drawn += list(index[0, :, :, -1])  # one head after the other
    for n, chosen in enumerate(drawn):
        assert len(set(chosen.tolist())) > 30  # of 64: about 40 expected from chance
        for other in drawn[:n]:
            assert (chosen == other).float().mean() < 0.2


def test_the_last_global_block_is_the_last_with_a_real_token():
    layer = BigBird(8, num_heads=2, block=2, random_blocks=0)
    real = torch.tensor([[True] * 5 + [False] * 4, [True] * 9])
    index, counts = layer.neighbours(real)
    assert index[0, 0, 2][counts[0, 0, 2]].tolist() == [0, 4, 1, 2, 3]
    assert index[1, 0, 2][counts[1, 0, 2]].tolist() == [0, 8, 1, 2, 3]


@BOTH
def test_performer_approaches_softmax_as_features_grow(bidirectional):
    x, d = torch.randn(2, 24, 8, dtype=F64), distances(24)
    seen = None if bidirectional else d >= 0
    errors = []
    for features in (16, 256, 4096):
        trials = []
        for seed in range(4):
            torch.manual_seed(seed)
            layer = Performer(
                8, num_heads=2, features=features, bidirectional=bidirectional
            ).double()
            exact = softmax_attention(layer, x, seen=seen)
            trials.append(((layer(x) - exact).square().mean() / exact.square().mean()).sqrt())
        errors.append(torch.stack(trials).mean().item())
    # Monte Carlo: 16 times the features, a quarter of the error; half of it allows for luck.
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2
    assert errors[2] < 0.03


def test_performer_redraws_its_features():
    layer = Performer(8, num_heads=2)
    x = torch.randn(1, 5, 8)
    before = layer(x)
    torch.testing.assert_close(layer(x), before)
    layer.redraw()
    assert not torch.allclose(layer(x), before)


def test_luna_is_two_nested_attentions():
    layer = shake(Luna(8, num_heads=1, memory=3))
    x = torch.randn(2, 9, 8, dtype=F64)
    q, k, v = (t[:, 0] for t in layer.project(x))
    p = layer.memory_query(layer.memory)
    packed = (p @ k.mT / 8**0.5).softmax(-1) @ v
    weights = (q @ layer.packed_key(packed).mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(layer(x), layer.output(weights @ layer.packed_value(packed)))


@pytest.mark.parametrize(("dtype", "length"), [(torch.bfloat16, 600), (torch.float16, 5000)])
def test_luna_counts_more_tokens_than_half_precision_can(dtype, length):
    """The counter stood still at 256 in bfloat16, and at 2,048 in float16."""
    layer = shake(Luna(8, num_heads=2, memory=3, bidirectional=False)).to(dtype)
    x = torch.randn(1, length, 8, dtype=dtype)
    with torch.no_grad():
        found, expected = run_steps(layer, x), layer(x)
    error = (found - expected).float().norm() / expected.float().norm()
    assert error < 0.01
