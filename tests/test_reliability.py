"""The counts on docs/reliability.md are those that the adversarial tests recorded."""

from tests.adversarial.counts import BLOCK, PAGE, table


def test_the_page_shows_what_was_counted():
    block = BLOCK.search(PAGE.read_text())
    assert block is not None
    assert block[0] == block[1] + table() + block[2], "make test-adversarial RECORD=1 writes it"
