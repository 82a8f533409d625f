"""`import longlens` needs torch and numpy only, neither before a name is used, and is quick."""

import subprocess
import sys
import textwrap

from tests.alone import run_alone


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_runs_with_torch_and_numpy_alone():
    run_alone(
        """
        assert "safetensors" in blocked
        import torch, longlens
        layer = longlens.LaSAttention(dim=32, num_heads=4)
        layer(torch.randn(1, 10, 32)).sum().backward()
        q = torch.randn(1, 2, 70, 8)
        longlens.las_attention(q, q, q, alpha=longlens.decay_rates(2), is_causal=False)
        """,
        ["torch", "numpy"],
    )


def test_importing_the_package_imports_nothing_heavy():
    out = python(
        """
        import sys, time
        start = time.perf_counter()
        import longlens
        took = time.perf_counter() - start
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        assert {"las_attention", "LaSAttention"} <= set(dir(longlens))
        try:
            longlens.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        print(took)
        """
    )
    assert float(out) < 1.0  # a few milliseconds; torch alone would take longer than this
