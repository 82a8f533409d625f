"""State-space mathematics: HiPPO matrices, discretisation, and convolution kernels.

A state-space model x' = A x + B u, y = C x becomes, at step size Δ, a convolution with the kernel
K_l = C Ā^l B̄. Each structure of A has its own fast way to that kernel; `dense_kernel_reference`
is the definition that all of them are tested against.

Shapes: D channels, N state (or its half, where conjugate pairs are kept once), L kernel length.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from longlens.ops.numerics import full_precision, no_autocast

if TYPE_CHECKING:
    from torch import Tensor


FINE = 64
"""Taps per row where a kernel is made as a product of two thin matrices.

A constant: a function of the length would make every length a new compiled graph.
"""


def hippo_legs(state: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS: A (N, N) and B (N,), in float64 (arXiv 2008.07669, Theorem 2).

    A_nk = -√(2n+1)·√(2k+1) below the diagonal, -(n+1) on it, 0 above; B_n = √(2n+1).

    >>> hippo_legs(2)[0].round(decimals=4).tolist()
    [[-1.0, -0.0], [-1.7321, -2.0]]
    """
    n = torch.arange(state, dtype=torch.float64)
    b = torch.sqrt(2 * n + 1)
    a = -torch.tril(torch.outer(b, b), diagonal=-1) - torch.diag(n + 1)
    return a, b


def hippo_nplr(state: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """HiPPO-LegS as normal plus low rank: A = V (diag(λ) - p p*) V*, conjugate pairs kept once.

    A + P Pᵀ with P_n = √(n + ½) is -½ I plus a skew-symmetric matrix, hence unitarily
    diagonalisable (S4, arXiv 2111.00396, Appendix C.1).

    Args:
        state: N, even.

    Returns:
        λ (N/2,), p = V*P (N/2,), b = V*B (N/2,) and V (N, N/2): the half with Im λ > 0,
        complex128. A real A has the other half as conjugates.

    >>> lam, p, b, v = hippo_nplr(4)
    >>> bool(torch.allclose(lam.real, torch.tensor(-0.5, dtype=torch.float64)))
    True
    """
    if state < 2 or state % 2:
        raise ValueError(f"state must be even and at least 2, got {state}")
    a, b = hippo_legs(state)
    p = torch.sqrt(torch.arange(state, dtype=torch.float64) + 0.5)
    skew = a + torch.outer(p, p) + 0.5 * torch.eye(state, dtype=torch.float64)
    # -i times a skew-symmetric matrix is Hermitian: eigh is exact where eig would be fragile.
    frequency, v = torch.linalg.eigh(-1j * skew)
    frequency, v = frequency[state // 2 :], v[:, state // 2 :]
    lam = torch.complex(torch.full_like(frequency, -0.5), frequency)
    half = v.conj().T
    return lam, half @ p.to(half.dtype), half @ b.to(half.dtype), v


def log_steps(dim: int, dt_min: float, dt_max: float) -> Tensor:
    """Step sizes drawn log-uniformly from [dt_min, dt_max], as their logarithms (D,).

    >>> log_steps(3, 0.1, 0.1).exp()
    tensor([0.1000, 0.1000, 0.1000])
    """
    if not 0 < dt_min <= dt_max:
        raise ValueError(f"need 0 < dt_min <= dt_max, got dt_min={dt_min}, dt_max={dt_max}")
    low, high = math.log(dt_min), math.log(dt_max)
    return torch.rand(dim) * (high - low) + low


def stable_poles(log_decay: Tensor, frequency: Tensor) -> Tensor:
    """λ = -exp(log_decay) + i·frequency, complex, in float32 at least.

    >>> stable_poles(torch.zeros(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16))
    tensor([-1.+1.j])
    """
    return torch.complex(-torch.exp(full_precision(log_decay)), full_precision(frequency))


def hold_gain(lam: Tensor, dt: Tensor) -> Tensor:
    """(exp(Δλ) - 1)/λ, the input gain of a zero-order hold, accurate where Δλ is small.

    >>> hold_gain(torch.tensor([-1.0 + 0j]), torch.tensor([1.0])).real
    tensor([0.6321])
    """
    half = lam * dt / 2
    return 2 * torch.exp(half) * torch.sinh(half) / lam


def vandermonde(coefficients: Tensor, log_ratios: Tensor, length: int) -> Tensor:
    """K_l = Re Σ_n c_n · exp(l · r_n): the kernel of a diagonal state-space model.

    Written as a product of two thin matrices, exp(r·(64i + j)) = exp(r·64i) · exp(r·j), in real
    arithmetic: 64 + L/64 numbers per mode instead of L, and no complex matrix product.

    Args:
        coefficients: (..., D, N) complex; leading dimensions broadcast.
        log_ratios: (D, N) complex, the logarithm of the ratio of one step.
        length: L.

    Returns:
        (..., D, L) real.

    >>> c = torch.ones(1, 1, dtype=torch.complex64)
    >>> vandermonde(c, torch.log(0.5 * c), 4)
    tensor([[1.0000, 0.5000, 0.2500, 0.1250]])
    """
    with no_autocast(coefficients):
        coarse = torch.arange(0, length, FINE, device=log_ratios.device)
        fine = torch.arange(FINE, device=log_ratios.device)
        left = coefficients[..., None, :] * torch.exp(log_ratios[:, None, :] * coarse[:, None])
        right = torch.exp(log_ratios[:, :, None] * fine)
        taps = torch.matmul(left.real, right.real) - torch.matmul(left.imag, right.imag)
        return taps.flatten(-2)[..., :length]


def vandermonde_reference(coefficients: Tensor, log_ratios: Tensor, length: int) -> Tensor:
    """The sum of :func:`vandermonde` as it is written: the specification.

    >>> c = torch.ones(1, 1, dtype=torch.complex64)
    >>> vandermonde_reference(c, torch.log(0.5 * c), 2)
    tensor([[1.0000, 0.5000]])
    """
    power = torch.exp(log_ratios[..., None] * torch.arange(length, device=log_ratios.device))
    return (coefficients[..., None] * power).sum(-2).real


def cauchy(numerators: Tensor, poles: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Σ_n v_n/(z - w λ_n) + conj(v_n)/(z - w conj(λ_n)): Cauchy products over conjugate pairs.

    The two fractions share the denominator z² - 2zw·Re λ + w²|λ|². The second factor w keeps
    the bilinear transform finite at ω = -1, where z/w is not.

    Args:
        numerators: (M, D, N) complex, M products at once.
        poles: (D, N) complex.
        z: (D, L) complex.
        w: (L,) complex.

    Returns:
        (M, D, L) complex.

    >>> v = torch.tensor([[[1.0 + 0j]]]); lam = torch.tensor([[-1.0 + 0j]])
    >>> cauchy(v, lam, torch.tensor([[1.0 + 0j]]), torch.tensor([1.0 + 0j])).real
    tensor([[[1.]]])
    """
    z, w = z[:, None, :], w[None, None, :]
    real, square = poles.real[..., None], (poles.real**2 + poles.imag**2)[..., None]
    inverse = 1 / (z * z - 2 * z * w * real + w * w * square)  # (D, N, L)
    top = 2 * numerators.real
    cross = 2 * (numerators * poles.conj()).real
    first = torch.einsum("mdn,dnl->mdl", top.to(inverse.dtype), inverse)
    second = torch.einsum("mdn,dnl->mdl", cross.to(inverse.dtype), inverse)
    return z[:, 0] * first - w[0] * second


def dplr_kernel(lam: Tensor, p: Tensor, b: Tensor, c: Tensor, dt: Tensor, length: int) -> Tensor:
    """The kernel of a diagonal-minus-low-rank model by its generating function at roots of unity.

    A = diag(λ) - p p*, bilinear discretisation; the Woodbury identity reduces the resolvent to
    four Cauchy products (S4, arXiv 2111.00396, Algorithm 1).

    Args:
        lam: (D, N/2) complex, one of each conjugate pair.
        p: (D, N/2) complex.
        b: (D, N/2) complex.
        c: (M, D, N/2) complex: C (I - Ā^L), the truncation already folded in.
        dt: (D,) step sizes.
        length: L, the length that c was truncated for.

    Returns:
        (M, D, L) real.
    """
    with no_autocast(dt):
        dt = full_precision(dt)
        angle = torch.arange(length // 2 + 1, device=dt.device, dtype=dt.dtype)
        root = torch.polar(torch.ones_like(angle), angle * (-2 * math.pi / length))
        z, w = 2 * (1 - root)[None] / dt[:, None], 1 + root
        m = c.shape[0]
        pairs = torch.cat([c * b, c * p, (p.conj() * b)[None], (p.conj() * p)[None]])
        products = cauchy(pairs, lam, z, w)
        cb, cp, pb, pp = products[:m], products[m : 2 * m], products[-2], products[-1]
        spectrum = 2 * (cb - w * cp * pb / (1 + w * pp))
        taps: Tensor = torch.fft.irfft(spectrum, n=length)
        return taps


def bilinear(a: Tensor, b: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Bilinear discretisation of dense A and B for step sizes dt (D,).

    Args:
        a: (N, N), shared by the channels, or (D, N, N).
        b: (N,) or (D, N).
        dt: (D,).

    Returns:
        Ā (D, N, N) = (I - Δ/2 A)⁻¹(I + Δ/2 A) and B̄ (D, N) = (I - Δ/2 A)⁻¹ Δ B.

    >>> bilinear(-torch.eye(1), torch.ones(1), torch.tensor([2.0]))[0]
    tensor([[[0.]]])
    """
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    half = a * (dt / 2).to(a.dtype)[:, None, None]
    step = (b * dt.to(b.dtype)[:, None])[..., None]
    solution = torch.linalg.solve(eye - half, torch.cat([eye + half, step], dim=-1))
    return solution[..., :-1], solution[..., -1]


def _powers(a: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """[v, a v, a² v, …], at least ``count`` of them and a power of two, by doubling; and a^that.

    a: (D, N, N); v: (D, N, M) -> (D, N, M, at least count).
    """
    stack = v[..., None]
    while stack.shape[-1] < count:
        ahead = torch.matmul(a, stack.flatten(-2)).view(stack.shape)
        stack, a = torch.cat([stack, ahead], dim=-1), torch.matmul(a, a)
    return stack, a


def dense_kernel(a: Tensor, b: Tensor, c: Tensor, length: int) -> Tensor:
    """K_l = C Ā^l B̄ for dense Ā: powers by doubling, rows and columns of the kernel apart.

    K_(64i+j) = (C Ā^(64i)) (Ā^j B̄).

    Args:
        a: (D, N, N), already discrete.
        b: (D, N).
        c: (M, D, N).
        length: L.

    Returns:
        (M, D, L).

    >>> dense_kernel(torch.full((1, 1, 1), 0.5), torch.ones(1, 1), torch.ones(1, 1, 1), 3)
    tensor([[[1.0000, 0.5000, 0.2500]]])
    """
    with no_autocast(a):
        right, jump = _powers(a, b[..., None], FINE)  # (D, N, 1, 64)
        left, _ = _powers(jump.mT, c.permute(1, 2, 0), -(-length // FINE))  # (D, N, M, rows)
        taps = torch.einsum("dnmi,dnj->mdij", left, right[:, :, 0])
        return taps.flatten(-2)[..., :length]


def dense_kernel_reference(a: Tensor, b: Tensor, c: Tensor, length: int) -> Tensor:
    """K_l = C Ā^l B̄, one matrix-vector product per tap: the definition behind every kernel here.

    >>> dense_kernel_reference(
    ...     torch.full((1, 1, 1), 0.5), torch.ones(1, 1), torch.ones(1, 1, 1), 3
    ... )
    tensor([[[1.0000, 0.5000, 0.2500]]])
    """
    taps, x = [], b
    for _ in range(length):
        taps.append(torch.einsum("mdn,dn->md", c, x))
        x = torch.einsum("dij,dj->di", a, x)
    return torch.stack(taps, dim=-1)
