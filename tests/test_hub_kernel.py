"""The layout for the Hugging Face Hub: loads by itself, computes the same, twice side by side."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from longlens import decay_rates, las_attention

HUB = Path(__file__).parents[1] / "hub"
# what kernel-builder puts beside the package, with an identifier of the build
OPS = """import torch

ops = torch.ops.{name}


def add_op_namespace_prefix(op_name):
    return f"{name}::{{op_name}}"
"""
PROGRAM = """
import importlib.util, sys, torch

sys.modules["longlens"] = None  # importing it raises

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path + "/__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

kernels = [load(f"_longlens_las_{build}", path) for build, path in enumerate(sys.argv[1:3])]
saved = torch.load(sys.argv[3])
q, k, v = (t.requires_grad_() for t in saved["tensors"])
for las in kernels:
    for options in saved["options"]:
        out = las.las_attention(q, k, v, **options)
        found = (out, *torch.autograd.grad(out.sum(), (q, k, v)))
        for found, true in zip(found, saved[str(options)]):
            torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-5)
    assert "forward_kernel" in las.explain(q, k, v, impl="triton").steps
    las.LaSCache(k.detach(), v.detach()).attend(q[:, :, :1].detach())
print(*sorted({str(n) for b in (0, 1) for n in dir(getattr(torch.ops, f"_longlens_las_{b}"))}))
"""


def make(folder):
    spec = importlib.util.spec_from_file_location("hub_make", HUB / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make(folder)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return make(tmp_path_factory.mktemp("hub") / "kernel")


def test_the_code_is_portable(package):
    """Relative imports of itself, torch, triton and the standard library; Python 3.10 reads it."""
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    assert "las/triton/forward.py" in names and "las/sharded.py" not in names
    for path in package.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text, feature_version=(3, 10))
        assert "longlens::" not in text.replace("``longlens::name``", "")
        assert "torch.ops.longlens" not in text
        for node in ast.walk(tree):
            roots = []
            if isinstance(node, ast.Import):
                roots = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = [node.module.partition(".")[0]]
            assert set(roots) <= {*sys.stdlib_module_names, "torch", "triton"}, (path, roots)


def test_the_build_file_is_what_the_builder_reads(package):
    config = tomllib.loads((package.parents[1] / "build.toml").read_text())
    assert config["general"]["name"].replace("-", "_") == package.name
    assert config["general"]["license"] == "MIT" and "torch-noarch" in config
    rust = pytest.importorskip("kernels._rust")
    rust.Build.open(package.parents[1])  # raises for whatever it does not know


def test_a_build_loads_and_computes_the_same(tmp_path):
    build = make(tmp_path / "kernel")
    (build / "_ops.py").write_text(OPS.format(name="_longlens_las_here"))
    spec = importlib.util.spec_from_file_location("_longlens_las_here", build / "__init__.py")
    las = sys.modules["_longlens_las_here"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(las)
    q, k, v = torch.randn(3, 1, 2, 150, 8).unbind()
    for options in (dict(window=3, local=20), dict(alpha=decay_rates(2, 3.0), window=3)):
        expected = las_attention(q, k, v, **options)
        assert torch.equal(las.las_attention(q, k, v, **options), expected)
    assert "las_kernel" in dir(torch.ops._longlens_las_here)


@pytest.mark.slow
def test_two_builds_load_side_by_side_and_compute_the_same(package, tmp_path):
    pytest.importorskip("triton")
    builds = []
    for number in range(2):
        build = make(tmp_path / f"kernel{number}")
        (build / "_ops.py").write_text(OPS.format(name=f"_longlens_las_{number}"))
        builds.append(str(build))
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3)]
    alpha = decay_rates(2, 0.05)
    calls = [
        dict(alpha=alpha, window=5),
        dict(alpha=alpha, window=3, is_causal=False, impl="triton"),
        dict(window=3, local=8, impl="triton"),
        dict(window=3, smoothing="masked"),
    ]
    saved = dict(tensors=[t.detach() for t in tensors], options=calls)
    for options in calls:
        out = las_attention(*tensors, **options | dict(impl="reference"))
        grads = torch.autograd.grad(out.sum(), tensors)
        saved[str(options)] = [out.detach(), *grads]
    torch.save(saved, tmp_path / "saved.pt")
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *builds, str(tmp_path / "saved.pt")],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    assert {"las_kernel", "las_prologue", "merged_attention"} <= set(found.stdout.split())


def test_the_library_of_the_hub_loads_a_build(package, tmp_path):
    kernels = pytest.importorskip("kernels")
    variant = tmp_path / "repository" / "build" / "torch-cpu"
    built = make(tmp_path / "kernel")
    built.rename(variant.parent.mkdir(parents=True) or variant)
    (variant / "_ops.py").write_text(OPS.format(name="_longlens_las_cpu_test"))
    about = dict(name="longlens-las", id="_longlens_las_cpu_test", version=0, license="MIT")
    about |= {"python-depends": [], "backend": {"type": "cpu"}}
    (variant / "metadata.json").write_text(json.dumps(about))
    las = kernels.get_local_kernel(tmp_path / "repository", backend="cpu")
    q = torch.randn(1, 2, 20, 8)
    torch.testing.assert_close(
        las.las_attention(q, q, q, window=3), las_attention(q, q, q, window=3)
    )
