"""One contract for the whole registry: what a user may rely on, whichever key they build."""

import copy
import time

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from longlens.layers import MIXERS
from longlens.layers.heads import MultiHead
from longlens.models.count import flop_count
from tests.layers.cases import CASES, DEFAULTS, IDS, KEYS, directions, make, run_steps
from tests.layers.memory import saved_bytes

DIM = 16
every_case = pytest.mark.parametrize(("key", "direction"), CASES, ids=IDS)
MULTI_HEAD = [case for case in CASES if issubclass(MIXERS[case[0]].load(), MultiHead)]
every_key = pytest.mark.parametrize(("key", "direction"), DEFAULTS, ids=[k for k, _ in DEFAULTS])


def padded_batch(lengths, *, dtype=torch.float32):
    x = torch.randn(len(lengths), max(lengths), DIM, dtype=dtype)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return x, mask


@every_case
def test_forward_and_every_gradient_are_finite(key, direction):
    mixer = make(key, DIM, **direction)
    x, mask = padded_batch([19, 11])
    x.requires_grad_()
    y = mixer(x, mask)
    assert y.shape == x.shape and y.dtype == x.dtype
    assert y.isfinite().all()
    y[mask].square().sum().backward()
    assert x.grad.isfinite().all()
    for name, p in mixer.named_parameters():
        assert p.grad is not None, f"no gradient reaches {name}"
        assert p.grad.isfinite().all() and p.grad.abs().max() > 0, name


@every_key
def test_a_mask_of_another_kind_is_named(key, direction):
    """One of 0 and 1, as tokenizers make it, must not end in an error of PyTorch's."""
    mixer = make(key, DIM, **direction)
    x, mask = padded_batch([19, 11])
    for wrong, got in [
        (mask.long(), r"torch.int64 of shape \(2, 19\)"),
        (mask[:, 1:], r"torch.bool of shape \(2, 18\)"),
        (mask.tolist(), r"\[\[True"),
    ]:
        asked = r"mask must be a bool tensor of shape \(2, 19\), True for a real token, got "
        with pytest.raises(ValueError, match=asked + got):
            mixer(x, wrong)


@every_case
def test_bfloat16_autocast(key, direction):
    mixer = make(key, DIM, **direction)
    x, mask = padded_batch([19, 11])
    exact = mixer(x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, mask)
    assert y.isfinite().all()
    y[mask].float().square().sum().backward()
    for name, p in mixer.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
    if key != "reformer":  # a rounded vector may hash into another bucket
        error = (y.float() - exact)[mask].square().mean() / exact[mask].square().mean()
        assert error.sqrt() < 0.05


@every_case
def test_a_module_in_bfloat16_is_the_module_of_its_rounded_weights(key, direction):
    """Positions, poles and kernels stay exact: beyond 256 bfloat16 does not know all positions."""
    mixer = make(key, DIM, max_length=500, **direction).bfloat16()
    exact, x = copy.deepcopy(mixer).float(), torch.randn(1, 500, DIM, dtype=torch.bfloat16)
    results = [(mixer(x), exact(x.float()))]
    if hasattr(mixer, "step") and mixer.causal:
        results.append((run_steps(mixer, x[:, :9]), exact(x[:, :9].float())))
    for y, expected in results:
        assert y.dtype == torch.bfloat16
        if key != "reformer":  # a rounded vector may hash into another bucket
            error = (y.float() - expected).square().mean() / expected.square().mean()
            assert error.sqrt() < 0.02


@every_case
def test_the_default_dtype_is_that_of_new_weights_alone(key, direction):
    """Programs set it to bfloat16 to load large models; positions and rates stay exact."""
    mixer, x = make(key, DIM, max_length=500, **direction), torch.randn(1, 500, DIM)
    exact = mixer(x)
    torch.set_default_dtype(torch.bfloat16)
    try:
        torch.testing.assert_close(mixer(x), exact, rtol=0, atol=1e-6)
        made = make(key, DIM, max_length=500, **direction)
    finally:
        torch.set_default_dtype(torch.float32)
    assert made(x.bfloat16()).isfinite().all()


@every_case
def test_padded_batch_equals_single_examples(key, direction):
    mixer = make(key, DIM, **direction).double()
    x, mask = padded_batch([23, 9, 1], dtype=torch.float64)
    x[~mask] = 1e3  # whatever stands there must not matter
    together = mixer(x, mask)
    assert together.isfinite().all()
    for row, length in enumerate(mask.sum(1)):
        alone = mixer(x[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1, :length], alone, rtol=1e-9, atol=1e-10)


@every_case
def test_padding_anywhere_has_no_influence(key, direction):
    mixer = make(key, DIM, **direction).double()
    x = torch.randn(2, 23, DIM, dtype=torch.float64)
    mask = torch.rand(2, 23) < 0.7
    mask[:, 4] = True
    other = torch.where(mask[..., None], x, torch.randn_like(x))
    torch.testing.assert_close(
        mixer(x, mask)[mask], mixer(other, mask)[mask], rtol=1e-9, atol=1e-10
    )


@every_case
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_no_number_in_padding_reaches_real_tokens(key, direction, value):
    """A weight of zero is not enough: zero times NaN is NaN."""
    mixer = make(key, DIM, **direction).double()
    x = torch.randn(2, 23, DIM, dtype=torch.float64)
    mask = torch.rand(2, 23) < 0.7
    mask[:, 4] = True
    filled = x.masked_fill(~mask[..., None], value)
    names, parameters = zip(*mixer.named_parameters(), strict=True)
    ours, theirs = mixer(filled, mask)[mask], mixer(x, mask)[mask]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    found = torch.autograd.grad(ours.square().sum(), parameters)
    expected = torch.autograd.grad(theirs.square().sum(), parameters)
    for name, a, b in zip(names, found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-8 * b.abs().max() + 1e-10, name


@every_case
def test_causality(key, direction):
    mixer = make(key, DIM, **direction).double()
    x = torch.randn(1, 24, DIM, dtype=torch.float64, requires_grad=True)
    y = mixer(x)[:, 10]
    (grad,) = torch.autograd.grad((y * torch.randn_like(y)).sum(), x)
    grad = grad[0].abs().amax(-1)
    largest = grad.max()
    assert grad[:10].max() > 0  # the past counts in every mixer
    if mixer.causal:
        # An FFT spreads rounding errors over all positions; anything real is far larger.
        assert grad[11:].max() <= 1e-12 * largest
        changed = x.detach().clone()
        changed[:, 11:] = 100 * torch.randn(1, 13, DIM, dtype=torch.float64)
        torch.testing.assert_close(mixer(changed)[:, :11], mixer(x)[:, :11], rtol=1e-8, atol=1e-10)
    else:
        assert grad[11:].max() > 1e-9 * largest


@every_case
def test_receptive_field_is_what_gradients_see(key, direction):
    mixer = make(key, DIM, **direction).double()
    length = 40
    x = torch.randn(1, length, DIM, dtype=torch.float64, requires_grad=True)
    y = mixer(x)
    seen = []
    for i in range(length) if mixer.receptive_field else (length - 1, length // 2):
        (grad,) = torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)
        reach = grad[0].abs().amax(-1)
        seen.append(torch.nonzero(reach > 1e-10 * reach.max())[:, 0])
    if mixer.receptive_field:
        assert max(len(s) for s in seen) == mixer.receptive_field
    else:
        furthest = max(length - 1 - s.min() for s in seen[:1])
        assert furthest >= length // 2


@every_case
def test_an_empty_batch(key, direction):
    """Parameters have gradients, of zeros: data parallelism waits for those of every rank."""
    mixer = make(key, DIM, **direction)
    for mask in (None, torch.ones(0, 23, dtype=torch.bool)):
        y = mixer(torch.randn(0, 23, DIM), mask)
        assert y.shape == (0, 23, DIM)
        y.sum().backward()
        for name, p in mixer.named_parameters():
            assert p.grad is not None and not p.grad.any(), name


@pytest.mark.parametrize(("key", "direction"), MULTI_HEAD)
def test_an_empty_sequence(key, direction):
    assert make(key, DIM, **direction)(torch.randn(2, 0, DIM)).shape == (2, 0, DIM)


@every_case
def test_shapes_without_memory(key, direction):
    with torch.device("meta"):
        mixer = make(key, DIM, **direction)
        x = torch.empty(2, 20, DIM, requires_grad=True)
        y = mixer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape


@every_case
def test_odd_lengths(key, direction):
    mixer = make(key, DIM, max_length=1000, **direction)
    for length in (1, 2, 3, 127, 1000):
        with torch.no_grad():
            y = mixer(torch.randn(1, length, DIM))
        assert y.shape == (1, length, DIM) and y.isfinite().all()


# torch.compile makes an instance of autograd functions, which warns since torch 2.13.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning")


def check_compiled(key, direction, backend):
    torch.compiler.reset()
    mixer = make(key, DIM, **direction)
    x, mask = padded_batch([19, 11])
    fast = torch.compile(mixer, fullgraph=True, backend=backend)
    y, expected = fast(x, mask), mixer(x, mask)
    scale = expected[mask].abs().max()
    assert (y - expected)[mask].abs().max() <= 1e-4 * scale
    names, parameters = zip(*mixer.named_parameters(), strict=True)
    weight = torch.randn_like(x)[mask]
    ours = torch.autograd.grad((y[mask] * weight).sum(), parameters)
    theirs = torch.autograd.grad((expected[mask] * weight).sum(), parameters)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-6, name


# Keys that differ from another one by an option that takes no other path when compiled.
ALIKE = ("rope", "l", "l-chunk", "s", "s-chunk", "softmax-chunk", "alibi-chunk", "s4-v1")


@pytest.mark.parametrize("key", [key for key, _ in DEFAULTS if key not in ALIKE])
def test_compiles_in_one_graph(key):
    check_compiled(key, {}, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "direction"),
    [c for c in CASES if c[1]],
    ids=[i for i, c in zip(IDS, CASES, strict=True) if c[1]],
)
def test_compiles_in_one_graph_in_every_direction(key, direction):
    check_compiled(key, direction, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_a_compiled_layer_takes_other_lengths(key):
    torch.compiler.reset()
    mixer = make(key, DIM)
    fast = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    for length in (20, 33, 47):  # the second one makes the length a symbol
        x = torch.randn(2, length, DIM)
        torch.testing.assert_close(fast(x), mixer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["softmax-chunk", "las-chunk", "alibi-chunk"])
def test_a_chunked_layer_compiles_once_for_any_number_of_blocks(key):
    torch.compiler.reset()
    mixer = make(key, DIM, chunk=8)
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(mixer, fullgraph=True, backend=counter)
    for length in (20, 36, 60, 84):
        x = torch.randn(2, length, DIM)
        torch.testing.assert_close(fast(x), mixer(x), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2  # the first length, and every other one


def check_programs(key):
    """A layer with an FFT makes one program for a length, and one for all others of its range."""
    torch.compiler.reset()
    mixer = make(key, DIM)
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(mixer, fullgraph=True, backend=counter)
    with torch.no_grad():
        for length in (60, 36, 44, 51):
            x = torch.randn(2, length, DIM)
            torch.testing.assert_close(fast(x), mixer(x), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2


@pytest.mark.parametrize("key", ["s4d", "mega"])
def test_a_convolution_compiles_once_for_a_range_of_lengths(key):
    check_programs(key)


@pytest.mark.slow
@pytest.mark.parametrize("key", [k for k in KEYS if make(k).cost == "L log L"])
def test_every_convolution_compiles_once_for_a_range_of_lengths(key):
    check_programs(key)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor warns of its own parts, and of complex numbers
@every_key
def test_inductor(key, direction):
    check_compiled(key, direction, "inductor")


@every_case
def test_state_dict_makes_an_equal_layer(key, direction):
    mixer = make(key, DIM, **direction)
    torch.manual_seed(123)
    other = make(key, DIM, **direction)
    x = torch.randn(2, 17, DIM)
    assert not torch.allclose(mixer(x), other(x))
    other.load_state_dict(copy.deepcopy(mixer.state_dict()))
    assert torch.equal(mixer(x), other(x))


@every_key
def test_same_seed_same_layer_same_result(key, direction):
    results = []
    for _ in range(2):
        torch.manual_seed(7)
        mixer = make(key, DIM, **direction)
        x = torch.randn(2, 17, DIM)
        results += [mixer(x), mixer(x)]
    assert all(torch.equal(results[0], r) for r in results[1:])


# What four times the length may cost, for each stated class. The upper bounds leave room for
# per-sequence work; the lower bound of "L log L" keeps it apart from "L".
GROWTH = {"L": (3.3, 4.1), "L log L": (4.05, 5.6), "L^2": (8.0, 17.0)}


@every_case
def test_cost_class(key, direction):
    work, memory = [], []
    small = {"state": 4} if key == "ss" else {}  # its per-layer part grows with the state cubed
    for length in (64, 256) if key in ("lstm", "gru") else (256, 1024):  # no need for long loops
        torch.manual_seed(0)
        # In float64 ALiBi leaves out no tiles of vanishing weights.
        mixer = make(key, DIM, max_length=length, **direction, **small).double()
        x = torch.randn(1, length, DIM, dtype=torch.float64, requires_grad=True)
        work.append(flop_count(lambda m=mixer, x=x: m(x)))
        memory.append(saved_bytes(lambda m=mixer, x=x: m(x)))
    low, high = GROWTH[mixer.cost]
    assert low <= work[1] / work[0] <= high, f"{work[1] / work[0]:.2f}"
    assert memory[1] / memory[0] <= (16.5 if mixer.cost == "L^2" else 4.6)


STEPPING = [key for key, _ in DEFAULTS if hasattr(make(key, DIM), "step")]


@pytest.mark.parametrize("key", STEPPING)
def test_step_equals_forward(key):
    mixer = make(key, DIM, **directions(key)[0]).double()
    x = torch.randn(2, 27, DIM, dtype=torch.float64)
    # The decay rates of LaS stay float32 whatever the layer's precision.
    tol = 1e-7 if key in ("las", "las-chunk", "l", "l-chunk") else 1e-9
    torch.testing.assert_close(run_steps(mixer, x), mixer(x), rtol=tol, atol=tol)


@pytest.mark.parametrize("key", STEPPING)
def test_steps_of_an_empty_batch(key):
    mixer = make(key, DIM, **directions(key)[0])
    assert run_steps(mixer, torch.randn(0, 3, DIM)).shape == (0, 3, DIM)


@pytest.mark.parametrize("key", [k for k in STEPPING if len(directions(k)) == 2])
def test_step_refuses_what_is_not_causal(key):
    with pytest.raises(ValueError, match="bidirectional"):
        make(key, DIM, bidirectional=True).step(torch.zeros(1, DIM))


@pytest.mark.slow
@every_key
def test_measured_time_follows_the_class(key, direction):
    """Processor time from L to 4L: clearly less than the next class would take (16, 16, 64 times).

    The class's own factor (4, 5, 16) is no bound: an L × L matrix leaves the caches on the way. Not
    wall time: one thread does the work, and what other programs do must not matter.
    """
    times = []
    for length in (512, 2048):
        mixer = make(key, 32, max_length=length, **direction)
        x = torch.randn(4, length, 32)
        with torch.no_grad():
            mixer(x)
            best = float("inf")
            for _ in range(5):
                start = time.process_time()
                mixer(x)
                best = min(best, time.process_time() - start)
        times.append(best)
    assert times[1] / times[0] < {"L": 8, "L log L": 10, "L^2": 48}[mixer.cost]
