"""Every mixer that has public code computes what that code does, and the record says so."""

import json

import pytest
import torch

from longlens.layers.reformer import Reformer
from tests.layers.cases import KEYS
from tests.layers.originals.__main__ import RECORD, row
from tests.layers.originals.attention import reformer
from tests.layers.originals.measure import deviation
from tests.layers.originals.table import COMPARISONS, NO_CODE, Comparison

ROWS = [(key, comparison) for comparison in COMPARISONS for key in comparison.keys]


@pytest.mark.parametrize(("key", "comparison"), ROWS, ids=[key for key, _ in ROWS])
def test_a_mixer_is_its_authors_code(key, comparison):
    assert deviation(key, comparison) <= comparison.within


def test_every_mixer_is_compared_or_has_nothing_to_be_compared_with():
    compared = [key for key, _ in ROWS]
    assert len(compared) == len(set(compared))
    assert set(compared) | set(NO_CODE) == set(KEYS) and not set(compared) & set(NO_CODE)


def test_the_record_has_the_rows_of_today():
    rows = json.loads(RECORD.read_text())["rows"]
    assert rows == [row(c, r["deviation"]) for c, r in zip(COMPARISONS, rows, strict=True)]
    for comparison, measured in zip(COMPARISONS, rows, strict=True):
        assert measured["deviation"] <= comparison.within


def test_a_different_scale_is_noticed(monkeypatch):
    """The mistake that the comparison was made for: unit keys, and 1/√d as well."""

    def scaled(layer, q, v, mask):
        return attend(layer, q / q.shape[-1] ** 0.5, v, mask)

    attend = Reformer._attend
    monkeypatch.setattr(Reformer, "_attend", scaled)
    options = ({"rounds": 1, "chunk": 32, "num_buckets": 4},)
    assert deviation("reformer", Comparison(("reformer",), "", reformer, "", options)) > 1e-3


def test_the_rotations_of_heads_differ():
    layer = Reformer(8, num_heads=2, num_buckets=8)
    q = torch.randn(1, 1, 200, 4).expand(-1, 2, -1, -1)
    first, second = layer.hash(q, None)[0]
    assert (first == second).float().mean() < 0.5
