"""Examples in docstrings and Markdown files are run, so they cannot go stale."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import longlens
from longlens.layers import MIXERS

ROOT = Path(__file__).parent.parent
LAS = "longlens.ops.las.triton"
KERNELS = [f"{LAS}.{name}" for name in ("forward", "backward", "prologue", "mirror", "decode")]
KERNELS.append("longlens.ops.norm_kernels")  # all need triton and have no examples
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(longlens.__path__, "longlens.") if m.name not in KERNELS
)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("src/**/*.md")),
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    names = {"torch": torch} | {n: getattr(longlens, n) for n in longlens.__all__}
    result = doctest.testmod(
        module, extraglobs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


def test_the_public_functions_have_examples():
    for name in longlens.__all__:
        if name != "__version__":
            assert ">>>" in getattr(longlens, name).__doc__, name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_blocks_of_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a page may leave files, and data
    monkeypatch.setenv("LONGLENS_DATA", str(tmp_path / "data"))
    scope = {}
    with patch.dict(MIXERS):  # a page adds one of its own
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(block, scope)
