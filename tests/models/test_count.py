"""What arithmetic counts as, where torch's own counter has no rule."""

import math

import pytest
import torch

from longlens.layers import build
from longlens.models.count import flop_count
from longlens.runs.measure import peak_flops


@pytest.mark.parametrize("mixer", ["alibi", "fox"])
def test_threads_hide_no_arithmetic(mixer):
    layer, x = build(mixer, 16, num_heads=2), torch.randn(1, 600, 16)
    found = []
    threads = torch.get_num_threads()
    for torch_threads in (1, 2):
        torch.set_num_threads(torch_threads)
        try:
            found.append(flop_count(lambda: layer(x)))
        finally:
            torch.set_num_threads(threads)
    assert found[0] == found[1] > 2 * 600 * 600 * 16 / 2  # causal: half of the square at least


def test_a_complex_transform_costs_twice_a_real_one():
    n = 1024
    assert flop_count(lambda: torch.fft.rfft(torch.ones(n))) >= 2.5 * n * math.log2(n)
    whole = torch.ones(n, dtype=torch.complex64)
    assert flop_count(lambda: torch.fft.fft(whole)) == pytest.approx(5 * n * math.log2(n))


def test_peaks_are_those_of_the_device_and_of_no_namesake():
    assert peak_flops("NVIDIA A100-SXM4-80GB", True) == 312e12
    assert peak_flops("NVIDIA H100 PCIe", True) == 756e12
    assert peak_flops("NVIDIA GeForce RTX 4090", True) == 165e12
    for other in ("NVIDIA RTX A1000 Laptop GPU", "NVIDIA L40", "NVIDIA T400", "NVIDIA H100 NVL",
                  "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D"):  # fmt: skip
        assert peak_flops(other, True) is None, other
