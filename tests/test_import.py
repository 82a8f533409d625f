"""`import longlens` needs torch and numpy only, neither before a name is used, and is quick."""

import subprocess
import sys
import textwrap


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_runs_with_torch_and_numpy_alone():
    python(
        """
        import importlib.metadata, re, sys

        # Everything installed that torch and numpy do not need themselves is out of bounds.
        def closure(names):
            found = set()
            while names:
                name = names.pop()
                if name in found:
                    continue
                found.add(name)
                try:
                    needs = importlib.metadata.requires(name) or []
                except importlib.metadata.PackageNotFoundError:
                    continue
                names |= {re.split(r"[^\\w-]", n)[0].lower() for n in needs if "extra ==" not in n}
            return {name.replace("-", "_") for name in found}

        allowed = closure({"torch", "numpy"})
        owners = importlib.metadata.packages_distributions()
        blocked = {
            top for top, dists in owners.items()
            if not any(d.lower().replace("-", "_") in allowed | {"longlens"} for d in dists)
        }
        assert {"safetensors", "rich", "pytest"} <= blocked

        sys.modules.update(dict.fromkeys(blocked | {"triton", "transformers"}))  # None: not found
        import torch, longlens
        layer = longlens.LaSAttention(dim=32, num_heads=4)
        layer(torch.randn(1, 10, 32)).sum().backward()
        q = torch.randn(1, 2, 70, 8)
        longlens.las_attention(q, q, q, alpha=longlens.decay_rates(2), is_causal=False)
        """
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
