"""No path but the reference holds a matrix of queries by keys: peak memory in a fresh process."""

import os
import subprocess
import sys

import pytest

MEASURE = """
import resource, sys, torch
from longlens import decay_rates, explain, las_attention
length, heads, width, backward = (int(x) for x in sys.argv[1:5])
options = eval(sys.argv[5])
q, k, v = (torch.randn(1, heads, length, width, requires_grad=bool(backward)) for _ in range(3))
alpha = options.pop("alpha", decay_rates(heads))
small = lambda t: t[:, :, :200]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
warm = las_attention(small(q), small(k), small(v), alpha=alpha, **options)  # code, threads, pools
base = peak()
out = las_attention(q, k, v, alpha=alpha, **options)
if backward:
    out.sum().backward()
print(explain(q, k, v, alpha=alpha, **options).route, (peak() - base) * 1024, peak() * 1024)
"""


def measure(length, heads, width, backward, options):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, (length, heads, width, int(backward))), options],
        capture_output=True,
        text=True,
        check=True,
        # glibc would keep freed blocks for later; the peak must count live memory alone.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    route, growth, total = done.stdout.split()
    return route, int(growth), int(total)


@pytest.mark.parametrize(
    ("route", "options"),
    [
        ("plain", "dict(alpha=None, window=5)"),
        ("folded", "dict(window=5)"),
        ("merged", "dict(window=5, is_causal=False)"),
        ("merged", "dict(window=5, smoothing='masked')"),
        ("merged", "dict(alpha=torch.tensor([0.5]))"),
    ],
)
def test_memory_is_linear(route, options):
    length, width = 6_144, 8
    found, growth, _ = measure(length, 1, width, True, options)
    assert found == route
    matrix = 4 * length**2  # 144 MiB
    assert growth < matrix / 4


def test_rows_hold_one_block_at_a_time():
    found, growth, _ = measure(4096, 1, 8, True, "dict(query_offset=torch.tensor(0), alpha=None)")
    assert found == "rows"
    assert growth < 4 * 4096**2 / 4  # a dozen such matrices would be alive without recomputing


@pytest.mark.slow
def test_a_forward_over_65536_tokens_fits_in_two_gibibytes():
    _, _, total = measure(65_536, 8, 32, False, "dict(window=5)")
    assert total < 2 * 2**30
