"""LaS attention over a split sequence: two and three processes (gloo) against one."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from longlens import LaSAttention, SoftmaxAttention, las_attention
from longlens.ops.las import las_attention_sharded

from . import sharded_jobs as jobs
from .cases import Case, cases, error, over_budget, run
from .test_exact import BOUND, READINGS
from .world import JobError, World

# Uneven, odd, shorter than the halo of any window used here, and a single position.
SPLITS = {2: [(37, 64), (1, 52), (70, 3)], 3: [(40, 1, 30), (2, 65, 33), (1, 1, 1), (5, 6, 80)]}


@pytest.fixture(scope="module")
def processes():
    processes = World()
    yield processes
    processes.close()


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def world(request, processes):
    return processes.team(request.param)


def whole(pieces, sequence_dim=2, joined=4):
    """Join the ranks' pieces of the first results and add up the others."""
    columns = [[torch.from_numpy(x) for x in column] for column in zip(*pieces, strict=True)]
    return [torch.cat(c, dim=sequence_dim) for c in columns[:joined]] + [
        sum(c) for c in columns[joined:]
    ]


def run_sharded(world, case, lengths, dtype=torch.float64, through=torch.float64, **options):
    return whole(
        world.run(jobs.attend, case=case, lengths=lengths, dtype=dtype, through=through, **options)
    )


def check(world, case, lengths, **options):
    expected = run(case, "reference")
    found = run_sharded(world, case, lengths, **options)
    for a, b, name in zip(found, expected, ("out", *"qkvα"), strict=False):
        assert error(a, b) < BOUND, (name, case, lengths, options)


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize(("causal", "smoothing", "edge"), READINGS)
def test_every_reading(world, exchange, causal, smoothing, edge):
    variants = itertools.product([5, 33], [None, 0.02, 3.0])
    splits = itertools.cycle(SPLITS[world.size])
    for index, (window, rate) in enumerate(variants):
        lengths = next(splits)
        options = dict(is_causal=causal, smoothing=smoothing, edge=edge, window=window)
        length = sum(lengths)
        case = Case(2, 2, 2, length, length, 8, 8, rate, index % 2 == 0, index, options)
        check(world, case, lengths, exchange=exchange, tell_lengths=index % 3 == 0)


@pytest.mark.parametrize("causal", [True, False])
def test_a_sliding_window(world, causal):
    for index, lengths in enumerate(SPLITS[world.size]):
        options = dict(is_causal=causal, window=3, edge="renormalize", local=(4, 7, 30, 70)[index])
        length = sum(lengths)
        case = Case(2, 1, 2, length, length, 8, 8, 0.02, index == 0, index, options)
        check(world, case, lengths, exchange="gather")


@pytest.mark.parametrize("causal", [True, False])
def test_a_sliding_window_in_chunks(world, causal):
    for index, lengths in enumerate(SPLITS[world.size]):
        options = dict(is_causal=causal, window=3, chunk=32, local=(2, 4, 7, 30)[index])
        length = sum(lengths)
        case = Case(2, 1, 2, length, length, 8, 8, 0.02, index == 0, index, options)
        check(world, case, lengths, exchange="gather")


@settings(max_examples=25)
@given(case=cases(lengths=(3, 5, 13, 65, 131)), data=st.data())
def test_any_call(world, case, data):
    length = case.queries
    cuts = data.draw(
        st.lists(
            st.integers(1, length - 1),
            min_size=world.size - 1,
            max_size=world.size - 1,
            unique=True,
        )
    )
    lengths = np.diff([0, *sorted(cuts), length]).tolist()
    case = replace(case, keys=length, options={**case.options, "query_offset": None})
    case.options.pop("query_offset")
    check(world, case, lengths, exchange="gather")
    if case.options["chunk"] is None and (
        case.options["smoothing"] != "masked" or case.options["window"] <= 65
    ):
        check(world, case, lengths, exchange="ring")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_low_precision_stays_in_the_budget(world, exchange, dtype):
    lengths = SPLITS[world.size][0]

    def runner(case, impl, dtype, *, through, device):
        return run_sharded(world, case, lengths, dtype, through, exchange=exchange)

    for causal, smoothing in ((True, "causal"), (True, "masked"), (False, "centered")):
        options = dict(is_causal=causal, smoothing=smoothing, window=5)
        case = Case(2, 2, 2, sum(lengths), sum(lengths), 16, 16, 0.05, True, 1, options)
        assert over_budget(case, None, dtype, runner=runner) == []


@pytest.mark.parametrize("exchange", ["gather", "ring"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("softmax", dict(rotary=True)),
        ("las", dict(rotary=True, num_kv_heads=2, learned_alpha=True, bound=0.05)),
        ("las", dict(rotary=True, causal=False, bound=0.3, edge="renormalize")),
    ],
)
def test_layers(world, exchange, kind, options):
    lengths, masked = SPLITS[world.size][0], kind == "las"
    found = whole(
        world.run(
            jobs.layer, kind=kind, lengths=lengths, masked=masked, exchange=exchange, **options
        ),
        sequence_dim=1,
        joined=2,
    )
    torch.manual_seed(0)
    module = {"las": LaSAttention, "softmax": SoftmaxAttention}[kind](16, 4, **options).double()
    x = torch.randn(2, sum(lengths), 16, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, sum(lengths)) > 0.3 if masked else None
    y = module(x, mask)
    (y * torch.arange(1.0, 17)).sum().backward()
    for a, b in zip(found, [y, x.grad, *(p.grad for p in module.parameters())], strict=True):
        # Angles are float32 in every precision, and a position is exact in it: equal to rounding.
        assert error(a, b.detach()) < BOUND


def test_folded_inputs_make_plain_causal_attention(world):
    lengths = SPLITS[world.size][1]
    for smoothing, edge in itertools.product(("causal", "centered"), ("zero", "renormalize")):
        options = dict(window=9, smoothing=smoothing, edge=edge)
        case = Case(2, 2, 2, sum(lengths), sum(lengths), 8, 8, 0.5, False, 1, options)
        folded = whole(world.run(jobs.fold, case=case, lengths=lengths, **options), joined=3)
        q, k, v, alpha, _, _ = case.tensors()
        expected = las_attention(q, k, v, alpha=alpha, enable_gqa=True, impl="reference", **options)
        assert error(F.scaled_dot_product_attention(*folded, is_causal=True), expected) < BOUND


@pytest.mark.parametrize(
    ("exchange", "options"),
    [
        ("gather", dict(window=5)),
        ("ring", dict(window=5)),
        ("ring", dict(window=5, is_causal=False)),
        ("ring", dict(window=5, smoothing="masked")),
    ],
)
def test_no_rank_holds_a_matrix(processes, exchange, options):
    length = 4096
    growth = max(
        processes.team(2).run(jobs.peak_growth, length=length, exchange=exchange, **options)
    )
    assert growth < 4 * length * (2 * length) / 4  # a quarter of this rank's rows of the matrix


def test_every_rank_says_what_is_wrong(world):
    def said(**by_rank):
        answers = world.attempt(jobs.wrong, **by_rank)
        assert all(isinstance(a, JobError) for a in answers)
        return [str(a).partition("\n")[0] for a in answers]

    n = world.size
    for name, values in dict(
        window=[3] + [5] * (n - 1),
        smoothing=["masked"] + ["causal"] * (n - 1),
        batch=[2] + [1] * (n - 1),
        dtype=[torch.float64] + [torch.float32] * (n - 1),
        masked=[True] + [False] * (n - 1),
        exchange=["ring"] + ["gather"] * (n - 1),
    ).items():
        for text in said(**{"window": [3] * n, name: values}):
            assert "every rank must have the same" in text, text
    for text in said(length=[0] + [4] * (n - 1)):
        assert "every rank must hold at least one position, got lengths [0, 4" in text
    for text in said(lengths=[[5]] * n):
        assert f"lengths must hold {n} positive integers" in text
    for text in said(lengths=[[4] * n] * n):
        assert "holds 4 positions, but its tensors hold 5" in text
    for text in said(exchange=["ring"] * n, chunk=[2] * n):
        assert "exchange='ring' does not take chunk, got chunk=2" in text
    for text in said(exchange=["ring"] * n, local=[2] * n):
        assert "exchange='ring' does not take local, got local=(1, 0)" in text
    for text in said(exchange=["ring"] * n, window=[67] * n, smoothing=["masked"] * n):
        assert "up to window=65, got 67" in text
    for text in said(exchange=["ring"] * n, impl=["reference"] * n):
        assert "impl must be one of ('auto', 'sdpa') with exchange='ring'" in text
    for text in said(exchange=["star"] * n):
        assert "exchange must be one of ('gather', 'ring'), got 'star'" in text
    for text in said(group=[None] * n):
        assert "group must be a ProcessGroup" in text


def test_groups(processes):
    outside, *inside = processes.team(3).attempt(jobs.outsider)
    assert "that this process is part of" in str(outside)
    assert all(np.allclose(out, 1) for out in inside)
    for out, refusal in processes.team(3).run(jobs.mesh):
        assert np.allclose(out, 1) and "mesh of one dimension, got one of 2" in refusal


def test_a_layer_with_a_group_can_be_copied(processes):
    assert all(processes.team(2).run(jobs.copied))


def test_without_torch_distributed():
    q = torch.zeros(1, 1, 3, 4)
    with pytest.raises(ValueError, match="start the script with torchrun"):
        las_attention_sharded(q, q, q, group=None)
    with pytest.raises(ValueError, match="must hold the same positions of the sequence, got 2 and"):
        las_attention_sharded(q[:, :, :2], q, q, group=None)


@pytest.mark.parametrize("method", ["prefill", "step"])
def test_layers_over_a_split_sequence_do_not_decode(method):
    module = LaSAttention(8, 2, sequence_group="a group")
    with pytest.raises(ValueError, match="sequence_group"):
        getattr(module, method)(torch.zeros(1, 8) if method == "step" else torch.zeros(1, 3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["2", "3"])
@pytest.mark.parametrize("exchange", ["gather", "ring"])
def test_the_example_agrees_with_one_process(ranks, exchange):
    """Under torchrun and DDP, with pieces of different lengths."""
    script = Path(__file__).parents[3] / "examples" / "split_sequence.py"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), "--length", "1001", "--exchange", exchange],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("positions") == int(ranks)
    assert float(done.stdout.split()[-1]) < 1e-5
