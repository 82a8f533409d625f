"""The examples that need one process run as they are; those of other libraries where these are."""

import runpy
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "library"),
    [("torch_encoder", "torch"), ("timm_vit", "timm"), ("x_transformers_lm", "x_transformers")],
)
def test_an_example_runs(name, library, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that are not ours
        pytest.importorskip(library)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "off by" in capsys.readouterr().out
