"""State spaces: kernels against dense matrices, scans against loops, in float64."""

import math

import pytest
import torch

from longlens.layers.base import as_complex
from longlens.layers.dlr import DLRKernel
from longlens.layers.dss import DSSKernel
from longlens.layers.gss import GSSKernel
from longlens.layers.h3 import H3
from longlens.layers.lru import LRU
from longlens.layers.s4 import S4, S4Kernel
from longlens.layers.s4d import S4D, S4DKernel, s4d_poles
from longlens.layers.s5 import S5
from longlens.layers.ss import SSKernel
from longlens.ops.conv import conv_reference
from longlens.ops.scan import scan_reference
from longlens.ops.ssm import bilinear, dense_kernel_reference, hippo_legs, hippo_nplr
from tests.layers.cases import run_steps

F64, C128 = torch.float64, torch.complex128


def shake(module, scale=0.1):
    """Move the parameters off their initial values, so that nothing holds by luck."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn_like(p))
    return module.double()


def dense_diagonal(lam, b, c, dt, *, hold=True):
    """K = C Ā^l B̄ for diagonal A as dense matrices; zero-order hold by the matrix exponential.

    lam, b: (D, N) complex, c: (M, D, N), dt: (D,).
    """
    a = torch.diag_embed(lam)
    if hold:
        # exp of [[A, B], [0, 0]]·Δ holds Ā and B̄: no division by A.
        size = a.shape[-1]
        block = torch.zeros(len(dt), size + 1, size + 1, dtype=C128)
        block[:, :size, :size] = a
        block[:, :size, size] = b
        block = torch.linalg.matrix_exp(block * dt[:, None, None])
        return block[:, :size, :size], block[:, :size, size], c
    return *bilinear(a, b, dt), c


def check(kernel, abar, bbar, c, length=40, factor=1):
    naive = factor * dense_kernel_reference(abar, bbar, c, length).real
    torch.testing.assert_close(kernel(length), naive, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("init", ["legs", "inv", "lin"])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_s4d_kernel_is_the_dense_one(init, discretization):
    kernel = shake(S4DKernel(3, state=8, directions=2, init=init, discretization=discretization))
    lam = torch.complex(-kernel.log_decay.exp(), kernel.frequency)
    dense = dense_diagonal(
        lam,
        torch.ones_like(lam),
        as_complex(kernel.c),
        kernel.log_dt.exp(),
        hold=discretization == "zoh",
    )
    check(kernel, *dense, factor=2)  # the conjugate half doubles the real part


def test_dss_exp_kernel_is_the_dense_one():
    kernel = shake(DSSKernel(3, state=5, directions=2))
    lam = torch.complex(-kernel.log_decay.exp(), kernel.frequency).expand(3, -1)
    check(
        kernel,
        *dense_diagonal(lam, torch.ones_like(lam), as_complex(kernel.w), kernel.log_dt.exp()),
    )


def test_dss_softmax_kernel_is_a_row_softmax():
    kernel = shake(DSSKernel(3, state=5, variant="softmax", max_length=40))
    lam = torch.complex(-kernel.log_decay.exp(), kernel.frequency)
    power = lam[:, None] * kernel.log_dt.exp()[:, None, None] * torch.arange(40)
    weights = torch.exp(power) / torch.exp(power).sum(-1, keepdim=True)
    naive = ((as_complex(kernel.w) / lam)[..., None] * weights).sum(2).real
    torch.testing.assert_close(kernel(40), naive)
    torch.testing.assert_close(kernel(7), naive[..., :7])  # shorter: the same taps
    # Proposition 1a: the same kernel from a dense model with B = 1/(exp(LλΔ) - 1).
    dt = kernel.log_dt.exp()
    b = 1 / (torch.exp(40 * lam * dt[:, None]) - 1)
    check(kernel, *dense_diagonal(lam.expand(3, -1), b, as_complex(kernel.w), dt))


def test_dlr_kernel_is_matrix_powers():
    kernel = shake(DLRKernel(3, state=6, directions=2))
    ratio = torch.exp(torch.complex(-kernel.log_rate.exp(), kernel.angle)).expand(3, -1)
    check(kernel, torch.diag_embed(ratio), torch.ones_like(ratio), as_complex(kernel.w))


def test_gss_kernel_is_the_dense_one():
    kernel = shake(GSSKernel(3, state=6, directions=2))
    lam = torch.complex(-kernel.log_decay.exp(), kernel.log_frequency.exp()).expand(3, -1)
    dt = torch.ones(3, dtype=F64)
    check(kernel, *dense_diagonal(lam, torch.ones_like(lam), as_complex(kernel.w), dt))


def test_ss_kernel_is_matrix_powers():
    kernel = shake(SSKernel(3, state=6, directions=2), scale=0.02)
    abar, bbar = bilinear(kernel.a, kernel.b, kernel.log_dt.exp())
    check(kernel, abar, bbar, kernel.c)


@pytest.mark.parametrize("max_length", [40, 41, 64])
def test_s4_kernel_is_the_dense_one(max_length):
    kernel = shake(S4Kernel(3, state=8, directions=2, max_length=max_length))
    check(kernel, *kernel.dense())


@pytest.mark.parametrize("ssms", [1, 2])
def test_s4_with_shared_state_space_models(ssms):
    """Channel c takes A and B number c mod ssms; its step size and C stay its own."""
    kernel = shake(S4Kernel(4, state=8, max_length=40, ssms=ssms))
    check(kernel, *kernel.dense())
    alone = S4Kernel(4, state=8, max_length=40).double()
    with torch.no_grad():
        for name in ("log_decay", "frequency", "p", "b"):
            mine = getattr(kernel, name)
            assert len(mine) == ssms
            getattr(alone, name).copy_(mine[torch.arange(4) % ssms])
        alone.log_dt.copy_(kernel.log_dt)
        alone.truncated_c.copy_(kernel.truncated_c)
    torch.testing.assert_close(kernel(40), alone(40))
    layer = shake(S4(4, state=8, max_length=12, ssms=ssms))
    x = torch.randn(2, 12, 4, dtype=F64)
    torch.testing.assert_close(run_steps(layer, x), layer(x))
    with pytest.raises(ValueError, match="ssms must divide dim = 4, got 3"):
        S4(4, ssms=3)


def test_s4_starts_as_hippo():
    """Real, dense HiPPO-LegS, bilinear, no structure: the S4 kernel with the same C is equal."""
    kernel = S4Kernel(2, state=8, max_length=50).double()
    abar, bbar = bilinear(*hippo_legs(8), kernel.log_dt.exp())
    _, _, _, v = hippo_nplr(8)
    c_truncated = 2 * (as_complex(kernel.truncated_c) @ v.conj().T).real  # C̃ in the real basis
    rest = torch.eye(8, dtype=F64) - torch.linalg.matrix_power(abar, 50)
    c = torch.linalg.solve(rest.mT, c_truncated[..., None])[..., 0]
    # Parameters are stored in float32 before .double(): that is the error that remains.
    naive = dense_kernel_reference(abar, bbar, c, 50)
    torch.testing.assert_close(kernel(50), naive, rtol=1e-4, atol=1e-5)


def test_s4_refuses_longer_sequences():
    with pytest.raises(ValueError, match=r"has 9 positions .* max_length=8"):
        S4(4, state=2, max_length=8)(torch.zeros(1, 9, 4))


@pytest.mark.parametrize("modes", [4, 16])
def test_initial_poles_have_their_closed_forms(modes):
    n, size = torch.arange(modes, dtype=F64), 2 * modes
    for init in ("legs", "inv", "lin"):
        torch.testing.assert_close(s4d_poles(init, modes).real, torch.full_like(n, -0.5))
    torch.testing.assert_close(s4d_poles("lin", modes).imag, math.pi * n)
    inverse = size / math.pi * (size / (2 * n + 1) - 1)
    torch.testing.assert_close(s4d_poles("inv", modes).imag, inverse)
    torch.testing.assert_close(s4d_poles("legs", modes), hippo_nplr(size)[0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [S5, LRU])
def test_scan_layers_are_their_loops(kind, bidirectional):
    layer = shake(kind(6, state=8, bidirectional=bidirectional))
    x = torch.randn(2, 45, 6, dtype=F64)
    ratio, b, c = layer.discrete()
    drive = x.to(C128) @ b.T
    y = (scan_reference(ratio, drive) @ c[0].T).real
    if bidirectional:
        back = scan_reference(ratio, drive.flip(1)).flip(1)
        y = y + (back @ c[1].T).real
    y = y + layer.skip * x
    expected = layer.activate(y) if kind is S5 else layer.mix(y)
    torch.testing.assert_close(layer(x), expected)


def test_lru_starts_on_its_ring_with_normalised_input():
    layer = LRU(4, state=2000, r_min=0.5, r_max=0.8, max_phase=1.0)
    ratio = layer.discrete()[0]
    radius, phase = ratio.abs(), torch.angle(ratio)
    assert radius.min() >= 0.5 - 1e-5 and radius.max() <= 0.8 + 1e-5
    assert phase.min() >= 0 and phase.max() <= 1
    # Uniform on the ring's area: the mean of |λ|² is the middle.
    assert radius.square().mean().item() == pytest.approx((0.25 + 0.64) / 2, abs=0.01)
    torch.testing.assert_close(
        layer.log_gamma.exp(), torch.sqrt(1 - radius**2), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("bidirectional", [False, True])
def test_frame_is_kernel_skip_activation_projection(bidirectional):
    layer = shake(S4D(4, state=4, bidirectional=bidirectional, output="glu"))
    x = torch.randn(2, 20, 4, dtype=F64)
    k = layer.kernel(20)
    y = conv_reference(x, k[0], k[1] if bidirectional else None) + layer.skip * x
    hidden = torch.nn.functional.gelu(y) @ layer.mix.project.weight.T + layer.mix.project.bias
    value, gate = hidden.chunk(2, -1)
    torch.testing.assert_close(layer(x), value * torch.sigmoid(gate))


@pytest.mark.parametrize("head_dim", [1, 2])
def test_h3_is_two_nested_sums(head_dim):
    layer = shake(H3(4, state=4, shift=3, head_dim=head_dim))
    x = torch.randn(1, 12, 4, dtype=F64)
    q, k, v = (x @ layer.project.weight.T + layer.project.bias).chunk(3, -1)
    shifted = conv_reference(k, layer.shift_taps)
    taps = layer.kernel(12)[0]
    expected = torch.zeros(1, 12, 4, dtype=F64)
    for h in range(4 // head_dim):
        for i in range(head_dim):
            for j in range(head_dim):
                a, b = h * head_dim + i, h * head_dim + j
                product = (shifted[..., a] * v[..., b])[..., None]
                memory = conv_reference(product, taps[h : h + 1])[..., 0]
                memory = memory + layer.skip[h] * product[..., 0]
                expected[..., b] += q[..., a] * memory
    torch.testing.assert_close(layer(x), layer.output(expected))


@pytest.mark.parametrize("kind", [S4Kernel, S4DKernel, DSSKernel, DLRKernel, SSKernel])
def test_long_kernels_are_finite_and_accurate_in_float32(kind):
    options = {"max_length": 4096} if kind in (S4Kernel, DSSKernel) else {}
    kernel = kind(4, state=32, **options)
    single = kernel(4096)
    exact = kernel.double()(4096)
    assert single.isfinite().all()
    assert (single - exact).abs().max() / exact.abs().max() < 2e-3
