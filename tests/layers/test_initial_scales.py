"""What layers start from: the scales and values in their authors' code, one test each."""

import math

import numpy as np
import pytest
import torch

from longlens.layers.alibi import alibi_slopes
from longlens.layers.base import as_complex
from longlens.layers.dss import DSSKernel
from longlens.layers.gss import GSSKernel
from longlens.layers.h3 import H3
from longlens.layers.hyena import Hyena
from longlens.layers.lru import LRU
from longlens.layers.s4 import S4Kernel
from longlens.layers.s4d import S4DKernel
from longlens.layers.s5 import S5
from longlens.layers.ss import SSKernel

pytestmark = pytest.mark.usefixtures("_seed")


@pytest.fixture
def _seed():
    torch.manual_seed(0)


def assert_deviation(draws, expected):
    """Standard deviation of many draws with mean 0, within five of its standard errors."""
    draws = draws.detach().double().flatten()
    assert len(draws) > 2000
    error = 5 * expected / math.sqrt(2 * len(draws))
    assert draws.square().mean().sqrt().item() == pytest.approx(expected, abs=error)
    assert abs(draws.mean().item()) < 5 * expected / math.sqrt(len(draws))


def eigenbasis(state):
    """HiPPO-LegS' normal part: eigenvalues with Im > 0, their vectors V (N, N/2), and B (N,)."""
    r = np.sqrt(2 * np.arange(state) + 1)
    a = -np.tril(np.outer(r, r), -1) - np.diag(np.arange(state) + 1.0)
    values, vectors = np.linalg.eig(a + np.outer(r, r) / 2)
    keep = values.imag > 0
    return values[keep], vectors[:, keep] / np.linalg.norm(vectors[:, keep], axis=0), r


def test_lru():
    layer = LRU(48, state=100, bidirectional=True)
    for part in (0, 1):
        assert_deviation(layer.b[..., part], 1 / math.sqrt(2 * 48))
        assert_deviation(layer.c[..., part], 1 / math.sqrt(100))
    assert_deviation(LRU(3000, state=2).skip, 1.0)


def test_dss():
    kernel = DSSKernel(64, state=40)
    for part in (0, 1):
        assert_deviation(kernel.w[..., part], 1.0)


@pytest.mark.parametrize("blocks", [1, 4])
def test_s5(blocks):
    """A unitary change of basis keeps variances: 1/N for the real B, 2/N for the complex C."""
    layer = S5(200, state=64, blocks=blocks, bidirectional=True)
    for matrix, variance in ((layer.b, 1 / 64), (layer.c, 2 / 64)):
        for part in (0, 1):
            assert_deviation(matrix[..., part], math.sqrt(variance / 2))
    assert_deviation(S5(3000, state=2).skip, 1.0)


def test_ss():
    assert_deviation(SSKernel(100, state=32).c, 1.0)


def test_s4():
    kernel = S4Kernel(100, state=64, max_length=8)
    for part in (0, 1):
        assert_deviation(kernel.truncated_c[..., part], math.sqrt(0.5))


@pytest.mark.parametrize("init", ["legs", "inv", "lin"])
def test_s4d(init):
    kernel = S4DKernel(100, state=64, init=init)
    for part in (0, 1):
        assert_deviation(kernel.c[..., part], math.sqrt(0.5))


def test_s4d_with_the_b_of_hippo():
    """C starts multiplied by V*B/2, mode by mode."""
    kernel = S4DKernel(4000, state=8, b_init="hippo")
    values, vectors, b = eigenbasis(8)
    order = np.argsort(values.imag)
    np.testing.assert_allclose(kernel.frequency[0].detach(), values.imag[order], rtol=1e-5)
    scale = abs(vectors.conj().T @ b)[order] / 2
    for n, expected in enumerate(scale):
        for part in (0, 1):
            assert_deviation(kernel.c[..., n, part], expected * math.sqrt(0.5))
    for init in ("inv", "lin"):
        with pytest.raises(ValueError, match="b_init must be one of 'ones', got 'hippo'"):
            S4DKernel(4, state=8, init=init, b_init="hippo")


@pytest.mark.parametrize("z", [0.5, 1 + 2j])
def test_half_of_hippos_b_makes_s4d_tend_to_s4(z):
    """Why half: at any frequency z, (z - A_N)⁻¹ B/2 of the normal part tends to (z - A)⁻¹ B."""
    errors = []
    for state in (16, 64, 256):
        r = np.sqrt(2 * np.arange(state) + 1)
        a = -np.tril(np.outer(r, r), -1) - np.diag(np.arange(state) + 1.0)
        eye = np.eye(state)
        ours = np.linalg.solve(z * eye - (a + np.outer(r, r) / 2), r / 2)
        theirs = np.linalg.solve(z * eye - a, r)
        errors.append(abs(ours - theirs)[:4].max())
    assert errors[1] < errors[0] / 4 and errors[2] < errors[1] / 4


def test_h3():
    layer = H3(4000, state=8, shift=16)
    rest = layer.shift_taps[:, 1:]
    assert_deviation(rest, 1 / math.sqrt(3 * 16))
    assert rest.abs().max() <= 1 / 4
    assert_deviation(layer.shift_taps[:, 0], math.sqrt(1 + 1 / 48))  # with the skip term
    assert layer.kernel.discretization == "bilinear"
    expected = math.pi * torch.arange(4).expand(4000, -1)
    torch.testing.assert_close(layer.kernel.frequency.detach(), expected)
    torch.testing.assert_close(layer.kernel.log_decay.detach().exp(), torch.full((4000, 4), 0.5))


def test_gss():
    kernel = GSSKernel(2, state=3000, directions=1)
    assert_deviation(kernel.log_decay, 1.0)
    assert_deviation(kernel.log_frequency, 1.0)
    for part in (0, 1):
        assert_deviation(kernel.w[..., part], 1 / 3000)


def test_hyena():
    filters = Hyena(64, hidden=64, bands=16, order=3).filter
    assert (filters.frequency == 14.0).all()
    for layer, inputs in ((filters.layers[0], 33), (filters.layers[2], 64), (filters.last, 64)):
        assert_deviation(layer.weight, 1 / math.sqrt(3 * inputs))
        assert layer.weight.abs().max() <= 1 / math.sqrt(inputs)


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (1, [8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi(heads, powers):
    torch.testing.assert_close(alibi_slopes(heads), 2.0 ** -torch.tensor(powers))


def test_complex_parameters_are_pairs():
    """What the tests above count as parts are real and imaginary parts."""
    layer = LRU(4, state=3)
    assert torch.equal(as_complex(layer.c).real, layer.c[..., 0])
