"""The floor of an audit: what is reached without training a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Linear probes of the diagnostics.
LOCAL = ("bag_of_tokens", "bigrams", "trigrams")  # of 1, 2 and 3 neighbouring positions
PROBES = (*LOCAL, "tokens_in_place")


def floor_of(diagnostics: Mapping[str, Any] | None, chance: float) -> dict[str, Any] | None:
    """The best probe, chosen on validation, and the best that looks at neighbours alone.

    A small validation split may choose one that is below chance on test: then the next one counts.

    Args:
        diagnostics: of an audit; None: not measured.
        chance: accuracy without looking at the input.

    >>> probes = dict(bigrams=dict(validation=0.6, test=0.61))
    >>> floor_of(probes, 0.5)
    {'name': 'bigrams', 'test': 0.61, 'local': {'name': 'bigrams', 'test': 0.61}}
    >>> floor_of({}, 0.5)
    {'name': 'chance', 'test': 0.5, 'local': None}
    """
    if diagnostics is None:
        return None
    local = _best([name for name in LOCAL if name in diagnostics], diagnostics)
    above = [name for name in PROBES if name in diagnostics and diagnostics[name]["test"] >= chance]
    best = _best(above, diagnostics) or {"name": "chance", "test": chance}
    return {**best, "local": local}


def _best(names: list[str], diagnostics: Mapping[str, Any]) -> dict[str, Any] | None:
    if not names:
        return None
    name = max(names, key=lambda each: diagnostics[each]["validation"])
    return {"name": name.replace("_", " "), "test": diagnostics[name]["test"]}
