"""Counting, the table of the zoo, and the LaS paper's Table 10."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from longlens.cli.layers import COLUMNS, fitted, main
from longlens.layers import build
from longlens.models.aspects import decays, describe, is_recurrent, paper
from longlens.models.count import OperationCounter, flop_count, parameter_count
from longlens.tables import Table
from tests.layers.cases import KEYS
from tests.layers.memory import saved_bytes

# Table 10: decaying, regularised, unique initialisation, stable, gating, complex, normalised,
# non-recurrent.
TABLE_10 = {
    "ss": "YNYNNNNY",
    "s4-v1": "YNYYNYNY",
    "dss": "YNNYNYNY",
    "gss": "YNNYYNNY",
    "mega": "YNYYYNNY",
    "s5": "YNNYNYNN",
    "sgconv": "YYYNNNNN",
    "dlr": "YNNYNYNY",
    "h3": "YNYYYYNY",
    "longconv": "YYYNNNNY",
    "lru": "YNYYNYYN",
    "tnn": "YNNNNNNY",
}
# Where this zoo says otherwise, and why; docs/zoo.md repeats it for readers.
DIFFERENT = {
    "dss": {"special_init"},  # λ starts at the skew-HiPPO spectrum, as its paper says
    "s5": {"special_init"},  # λ starts at HiPPO-N, as its paper says
    # its DSS has complex λ, and a layer norm before it in the paper's listing
    "gss": {"complex", "normalized"},
    "sgconv": {"non_recurrent"},  # an FFT convolution; no step depends on the one before
    "tnn": {"gating"},  # the gated Toeplitz unit multiplies two functions of the input
}
FIELDS = (
    *("decaying", "regularized", "special_init", "stable", "gating", "complex", "normalized"),
    "non_recurrent",
)


@pytest.mark.parametrize("key", list(TABLE_10))
def test_table_10(key):
    row = describe(key, dim=32)
    for name, published in zip(FIELDS, TABLE_10[key], strict=True):
        differs = getattr(row, name) != (published == "Y")
        assert differs == (name in DIFFERENT.get(key, ())), name


def test_attention_without_bias_does_not_decay_and_alibi_does():
    assert not decays(build("softmax", 32), 256, 32)
    assert not decays(build("linear", 32), 256, 32)
    assert decays(build("alibi", 32), 256, 32)
    assert decays(build("local", 32, window=16), 256, 32)


def test_loops_and_scans_are_recurrent_and_kernels_are_not():
    for key in ("lstm", "gru", "lru", "s5"):
        assert is_recurrent(build(key, 16), 16), key
    for key in ("softmax", "alibi", "s-alibi-chunk", "performer", "reformer"):
        assert not is_recurrent(build(key, 16), 16), key
    for key in ("s4d", "ss", "sgconv", "mega"):
        assert not is_recurrent(build(key, 16), 16), key


def test_every_mixer_cites_its_paper():
    for key in KEYS:
        assert any(year in paper(key) for year in map(str, range(1997, 2027))), key


def test_counts_match_what_can_be_done_by_hand():
    assert parameter_count(build("conv", 8, kernel_size=3)) == 8 * 3 + 8 + 64 + 8
    a, b = torch.randn(8, 16), torch.randn(16, 32)
    assert flop_count(lambda: a @ b) == 2 * 8 * 16 * 32
    x = torch.randn(2, 64)
    assert flop_count(lambda: torch.fft.rfft(x)) == 2.5 * 128 * 6
    assert flop_count(lambda: x.view(64, 2)) == 0
    q = torch.randn(1, 2, 32, 8)
    attention = nn.functional.scaled_dot_product_attention
    assert flop_count(lambda: attention(q, q, q)) == 4 * 2 * 32 * 32 * 8


def test_saved_bytes_counts_shared_memory_once():
    x = torch.randn(100, requires_grad=True)
    assert saved_bytes(lambda: x * x) == 400
    assert saved_bytes(lambda: x.exp()) == 400
    assert saved_bytes(lambda: x + 1) == 0


def test_followed_operators_are_those_on_the_input():
    x, w = torch.randn(4), torch.randn(4)
    with OperationCounter(follow=x) as counter:
        (w * w).exp() + x.neg()
    assert counter.followed_calls.total() == 2 and counter.calls.total() == 4


def test_table_on_the_command_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["s4d", "lstm", "--dim", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["key", "cost", "direction", "step"]
    assert lines[1].startswith("s4d") and "arXiv 2206.11893" in lines[1]
    assert lines[2].startswith("lstm")


def test_the_table_fits_into_80_columns(capsys, monkeypatch):
    widest = ["L log L", "bidirectional", "y", "1,445,120", *"yyyyyyyy", "a paper"]
    table, note = fitted(Table(list(COLUMNS.values()), [[key, *widest] for key in KEYS]), 80).split(
        "\n\n"
    )
    assert len(table.splitlines()) == 1 + len(KEYS) and "papers" in note
    assert max(map(len, table.splitlines())) <= 80
    for columns, has_paper in (("80", False), ("200", True)):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["s4d", "--dim", "16"]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= int(columns)
        assert ("arXiv 2206.11893" in out) == has_paper


@pytest.mark.slow
def test_the_table_in_the_documentation_is_what_the_command_prints(capsys):
    assert main(["--format", "markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "zoo.md"
    assert capsys.readouterr().out in page.read_text(encoding="utf-8")


def test_json_and_markdown(capsys):
    assert main(["conv", "--json", "--dim", "8"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["key"] == "conv" and row["cost"] == "L" and row["parameters"] == 8 * 5 + 8 + 72
    assert main(["conv", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| key | cost |")


def test_options_and_unknown_keys_on_the_command_line(capsys):
    assert main(["s4", "--options"]) == 0
    assert "bidirectional = True" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 's4'"):
        main(["s44"])
