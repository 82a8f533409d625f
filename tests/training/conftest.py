"""Training tests reuse one tiny data set."""

from __future__ import annotations

from pathlib import Path

import pytest


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
