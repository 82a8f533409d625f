"""Probes in the record of an audit: what is kept of each, and what the verdict makes of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longlens.lens.probe import Outcome, nested

NAMES = {"anywhere": "probe, anywhere", "in place": "probe, in place"}


def to_json(outcome: Outcome) -> dict[str, Any]:
    """A probe as JSON values; who was right is packed, eight test examples a byte."""
    return {
        "where": outcome.where,
        "receptive_field": outcome.reach,
        "seed": outcome.seed,
        "validation": outcome.left_out,
        "error": outcome.error,
        "test": outcome.test,
        "right": base64.b64encode(np.packbits(outcome.right).tobytes()).decode(),
        "tested": len(outcome.right),
        "features": outcome.features,
        "seconds": outcome.seconds,
    }


def from_json(values: Mapping[str, Any]) -> Outcome:
    """The probe that :func:`to_json` wrote.

    >>> right = np.arange(11) % 3 == 0
    >>> outcome = Outcome("window", 9, 0, 0.5, 1.0, right, 84, 0.1)
    >>> from_json(to_json(outcome)).right.tolist() == right.tolist()
    True
    """
    packed = np.frombuffer(base64.b64decode(values["right"]), np.uint8)
    right = np.unpackbits(packed, count=values["tested"]).astype(bool)
    return Outcome(
        values["where"], values["receptive_field"], values["seed"], values["validation"],
        values["error"], right, values["features"], values["seconds"],
    )  # fmt: skip


def probe_points(probes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The probes as points of the curve: each the best, left out, of all that see no more."""
    outcomes = [from_json(values) for values in probes]
    return [
        {
            "model": NAMES.get(outcome.where, f"probe {outcome.reach}"),
            "receptive_field": outcome.reach,
            "seed": outcome.seed,
            "validation": best.left_out,
            "test": best.test,
            "right": best.right,
            "probe": True,
        }
        for outcome, best in zip(outcomes, nested(outcomes), strict=True)
    ]
