"""On a GPU: every mixer gives the CPU's result, trains in bfloat16 and compiles."""

import copy

import pytest
import torch

from tests.layers.cases import KEYS, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # inductor warns of its own parts and of complex numbers; cuDNN of weights that lie apart
    pytest.mark.filterwarnings("ignore"),
]
DIM = 64  # heads of 32: fused kernels need a few channels


def batch():
    x = torch.randn(3, 200, DIM)
    mask = torch.arange(200) < torch.tensor([200, 131, 7])[:, None]
    return x, mask


# Options that take another path than a mixer's defaults.
CASES = [(key, {}) for key in KEYS] + [
    ("s4", {"ssms": 1}),
    ("alibi", {"scaled_bias": True}),
    *(
        ("mega", {"relative_bias": "simple", "attention": attention, "bidirectional": both})
        for attention in ("softmax", "laplace")
        for both in (False, True)
    ),
]
IDS = [" ".join([key, *map(str, options.values())]) for key, options in CASES]


@pytest.mark.parametrize(("key", "options"), CASES, ids=IDS)
def test_equals_the_cpu(key, options):
    mixer = make(key, DIM, max_length=256, **options)
    x, mask = batch()
    exact = copy.deepcopy(mixer).double()(x.double(), mask)[mask]
    y = mixer.cuda()(x.cuda(), mask.cuda())[mask.cuda()].cpu()
    assert (y - exact).abs().max() <= 1e-3 * exact.abs().max()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("key", "options"), CASES, ids=IDS)
def test_trains_in_bfloat16(key, options, compiled):
    torch.compiler.reset()
    mixer = make(key, DIM, max_length=256, **options).cuda()
    run = torch.compile(mixer, fullgraph=True) if compiled else mixer
    x, mask = (t.cuda() for t in batch())
    exact = mixer(x, mask)[mask]
    with torch.autocast("cuda", torch.bfloat16):
        y = run(x, mask)[mask]
    y.float().square().sum().backward()
    for name, p in mixer.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    if key != "reformer":  # a rounded vector may hash into another bucket
        error = (y.float() - exact).square().mean() / exact.square().mean()
        assert error.sqrt() < 0.05
