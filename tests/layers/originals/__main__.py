"""``python -m tests.layers.originals`` measures all and writes results/originals.json."""

import json
from pathlib import Path

from longlens.training.provenance import provenance
from tests.layers.originals.measure import deviation
from tests.layers.originals.table import COMPARISONS

RECORD = Path(__file__).parents[3] / "results" / "originals.json"
NOTES = (
    "Deviation: the largest difference of outputs, relative to the largest output, over options of "
    "the layer (directions, variants), in float64, with weights moved off their initial values.",
    "Compared with the mathematics of that code, written anew in numpy (tests/layers/originals).",
)


def row(comparison, worst):
    return {
        "layer": ", ".join(comparison.keys),
        "compared with": comparison.code,
        "deviation": float(f"{worst:.1e}"),
        "what remains different": comparison.remains,
    }


def main():
    rows = [row(c, max(deviation(key, c) for key in c.keys)) for c in COMPARISONS]
    values = {
        "schema": 1,
        "kind": "comparison",
        "title": "Layers against their authors' code",
        "notes": NOTES,
        "rows": rows,
        "provenance": provenance(),
    }
    RECORD.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    for line in rows:
        print(f"{line['layer']}: {line['deviation']:.1e}")


if __name__ == "__main__":
    main()
