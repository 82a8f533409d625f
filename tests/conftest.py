"""Set-up that must happen before torch is imported, and one random seed for every test."""

import os
from pathlib import Path

# Virtual machines that advertise AMX without allowing it kill bfloat16 matmuls with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import HealthCheck, settings

# Test tensors are small, and pytest-xdist fills the cores with processes instead.
torch.set_num_threads(1)

settings.register_profile(
    "longlens",
    deadline=None,  # the first call of a shape is slow, and CI machines differ
    derandomize=True,  # the same examples every time: a failure is a change, not luck
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("longlens")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run_options(tmp_path, data):
    """Options of a tiny run in a folder of its own."""
    from tests.training.runs import tiny

    def make(**changes):
        return tiny(tmp_path, **({"root": str(data)} | changes))

    return make
