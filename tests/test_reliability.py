"""The counts on docs/reliability.md are those that the adversarial tests recorded."""

import torch

from tests.adversarial.attacks import LARGEST, LARGEST_SCORE, LARGEST_VALUE
from tests.adversarial.counts import BLOCK, PAGE, table


def test_the_page_shows_what_was_counted():
    block = BLOCK.search(PAGE.read_text())
    assert block is not None
    assert block[0] == block[1] + table() + block[2], "make test-adversarial RECORD=1 writes it"


def test_the_page_promises_what_is_attacked():
    page = " ".join(PAGE.read_text().split())
    for names, dtype in (("float64", torch.float64), ("float32, bfloat16", torch.float32)):
        entries, values = (
            f"{table[dtype]:g}".replace("e+", "e") for table in (LARGEST, LARGEST_VALUE)
        )
        assert f"| {names} | {entries} | {values} divided by keys + window |" in page
    assert LARGEST[torch.bfloat16] == LARGEST[torch.float32]
    scores = [
        f"{LARGEST_SCORE[dtype]:.0e}".replace("e+0", "e").replace("e+", "e")
        for dtype in (torch.float32, torch.float64)
    ]
    assert f"stay below {scores[0]}, in float64 below {scores[1]}" in page
