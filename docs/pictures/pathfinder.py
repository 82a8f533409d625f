"""Compare Pathfinder with the original: ``python docs/pictures/pathfinder.py FOLDER [--quick]``.

FOLDER holds ``images_32.npz`` and ``images_128.npz`` with ``images`` (N, S, S) uint8 and ``labels``
(N,), drawn by the public generator (github.com/drewlinsley/pathfinder) with the parameters of the
Long Range Arena. Writes results/pathfinder.json, the table of docs/tasks.md, and pathfinder.png.
Every figure is taken from the pictures alone, in the same way for both.
"""

import heapq
import json
import sys
from pathlib import Path

import numpy as np
import torch
from flood_fill import find_markers, trace
from torch import nn

from longlens.tasks.gallery import contact_sheet
from longlens.tasks.order import generator, permutation
from longlens.tasks.pathfinder.generate import make_images
from longlens.tasks.pathfinder.parameters import parameters
from longlens.tasks.png import write_png
from longlens.training.provenance import provenance

HERE = Path(__file__).parent
RECORD = HERE.parents[1] / "results" / "pathfinder.json"
INK = 16  # a pixel brighter than this (of 255) has ink
BRIGHT = 100  # and one brighter than this belongs to a dash, not to its blurred rim
LINK = 2.25  # longest step of the tracer, in pixels; at 32 × 32 all of versions 1 to 4 are solved
STRIDE = {32: 3.2, 128: 6.5}  # longest step of a walk that crosses every gap of a contour
EPOCHS = 8
SAME_MIX = 10  # of ours for each picture of the original at 128 × 128, with the same margin
NOTES = (
    "Original: the public generator with LRA's parameters; markers' brightness repaired.",
    "Gap: from a patch of bright pixels to the nearest of another. Contour: the shortest walk over "
    "ink between the markers of label 1, median.",
    "Touching: 7 of 9 pixels of a square away from the markers have ink; one dash has 6 at most.",
    "Accuracies: tracer on all images; the others on each half of them, fitted to the other half.",
)


class Pictures:
    """Pictures (N, S, S) with labels (N,) and what is found in them."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.size = images.shape[1]
        self.radius = parameters(self.size).marker_radius
        found = [find_markers(picture, self.radius) for picture in images]
        self.markers = np.array(found)  # (N, 2, 2), rows and columns
        y, x = np.mgrid[: self.size, : self.size]
        away = (y - self.markers[:, :, 0, None, None]) ** 2
        away = away + (x - self.markers[:, :, 1, None, None]) ** 2
        self.away = (away > (self.radius + 2) ** 2).all(axis=1)  # (N, S, S)
        self.dashes = [self._dashes(number) for number in range(len(images))]
        # whether it has the smaller of the two margins of 128 × 128, (N,)
        self.narrow = np.array([np.median(gaps or [0]) < 4.5 for _, gaps in self.dashes])

    def _dashes(self, number):
        """Lengths of the patches of one picture that are away from the markers, and their gaps."""
        patches = split(self.images[number] > BRIGHT)
        lengths, gaps = [], []
        for here, patch in enumerate(patches):
            if not self.away[number][tuple(patch.T)].all():
                continue
            lengths.append(np.sqrt(squares(patch, patch).max()) + 1)
            others = [
                squares(patch, other).min() for there, other in enumerate(patches) if there != here
            ]
            gaps.append(np.sqrt(min(others)))
        return lengths, gaps


def squares(a, b):
    """Squared distances between points (n, 2) and (m, 2)."""
    return ((a[:, None] - b) ** 2).sum(axis=-1)


def split(ink):
    """Split the true pixels of a picture into patches whose pixels touch, each (n, 2)."""
    left, patches = {(int(y), int(x)) for y, x in np.argwhere(ink)}, []
    while left:
        patch, front = [], [left.pop()]
        while front:
            y, x = front.pop()
            patch.append((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            front += near
        patches.append(np.array(patch))
    return patches


def walk(picture, start, goal, radius, stride):
    """Length of the shortest walk over ink from one marker to the other; None if there is none."""
    reach = int(stride)
    steps = [
        (np.hypot(dy, dx), dy, dx)
        for dy in range(-reach, reach + 1)
        for dx in range(-reach, reach + 1)
        if 0 < np.hypot(dy, dx) <= stride
    ]
    size, best, queue = len(picture), {}, [(0.0, *start)]
    while queue:
        length, y, x = heapq.heappop(queue)
        if (y, x) in best:
            continue
        best[y, x] = length
        if (y - goal[0]) ** 2 + (x - goal[1]) ** 2 <= radius**2:
            return length
        for cost, dy, dx in steps:
            ny, nx = y + dy, x + dx
            if 0 <= ny < size and 0 <= nx < size and picture[ny, nx] > INK and (ny, nx) not in best:
                heapq.heappush(queue, (length + cost, ny, nx))
    return None


def walks(pictures):
    """Median length of the walk between the markers of one contour."""
    rows = np.flatnonzero(pictures.labels == 1)
    stride = STRIDE[pictures.size]
    lengths = [
        walk(pictures.images[i], *map(tuple, pictures.markers[i]), pictures.radius, stride)
        for i in rows
    ]
    return np.median([length for length in lengths if length is not None])


def touching(pictures):
    """Share of pictures in which dashes lie side by side or cross."""
    ink = (pictures.images > INK) & pictures.away
    inner = pictures.size - 2
    shifts = [(dy, dx) for dy in range(3) for dx in range(3)]
    full = sum(ink[:, dy : dy + inner, dx : dx + inner].astype(int) for dy, dx in shifts)
    return (full.max(axis=(1, 2)) >= 7).mean()


def halves(labels, fit):
    """Accuracy on each half of ``fit(train rows, test rows)``, which returns predictions."""
    order = permutation(len(labels), 0)
    one, two = np.sort(order[::2]), np.sort(order[1::2])
    right = [(fit(a, b) == labels[b]).sum() for a, b in ((one, two), (two, one))]
    return sum(right) / len(labels)


def marker_probe(pictures):
    """Accuracy of a logistic regression on 300 random waves of the markers' places alone."""
    place = pictures.markers / pictures.size - 0.5
    order = place[:, :, 0].argsort(axis=1)[:, :, None]
    place = np.take_along_axis(place, order, axis=1).reshape(-1, 4)
    apart = np.linalg.norm(place[:, :2] - place[:, 2:], axis=1, keepdims=True)
    plain = np.concatenate([place, apart], axis=1)
    plain = (plain - plain.mean(axis=0)) / plain.std(axis=0)
    rng = np.random.default_rng(1)
    waves = np.cos(plain @ rng.normal(size=(5, 300)) * 0.7 + rng.random(300) * 2 * np.pi)
    waves = np.concatenate([waves * np.sqrt(2), np.ones((len(waves), 1))], axis=1)

    def fit(train, test):
        x, y, weights = waves[train], pictures.labels[train], np.zeros(301)
        for _ in range(10):  # Newton's method
            share = 1 / (1 + np.exp(-x @ weights))
            curvature = (x * (share * (1 - share))[:, None]).T @ x + 10 * np.eye(301)
            weights += np.linalg.solve(curvature, x.T @ (y - share) - 10 * weights)
        return waves[test] @ weights > 0

    return halves(pictures.labels, fit)


class Window(nn.Module):
    """A network whose features see a square of 5 or 21 pixels and are pooled over the picture."""

    def __init__(self, window, width=16):
        super().__init__()
        sizes = {5: [(5, 1), (1, 1), (1, 1)], 21: [(7, 1), (3, 2), (3, 1), (3, 1), (3, 1)]}[window]
        layers, channels = [], 1
        for kernel, stride in sizes:
            layers += [
                nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            channels = width
        self.features, self.head = nn.Sequential(*layers), nn.Linear(2 * width, 2)

    def forward(self, x):
        """Pictures (B, 1, S, S) to scores (B, 2)."""
        features = self.features(x)
        return self.head(torch.cat([features.mean((2, 3)), features.amax((2, 3))], dim=1))


def window_network(pictures, window, epochs):
    """Accuracy of a network that sees ``window`` pixels at a time."""
    inputs = torch.from_numpy(pictures.images)[:, None].float() / 64
    targets = torch.from_numpy(pictures.labels).long()

    def fit(train, test):
        torch.manual_seed(0)
        model = Window(window)
        steps = epochs * (len(train) // 50)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
        for step in range(steps):
            epoch, start = divmod(step, len(train) // 50)
            if start == 0:
                order = train[permutation(len(train), 1, epoch)]
            rows = order[50 * start : 50 * start + 50]
            loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            return torch.cat(
                [model(inputs[part]).argmax(1) for part in np.array_split(test, 20)]
            ).numpy()

    return halves(pictures.labels, fit)


def geometry(pictures):
    """Figures of geometry and brightness."""
    lengths, gaps = (np.concatenate(part) for part in zip(*pictures.dashes, strict=True))
    images, narrow = pictures.images, pictures.narrow
    wide = ("1",) if pictures.size == 32 else ("2", "3")
    apart = np.linalg.norm(pictures.markers[:, 0] - pictures.markers[:, 1], axis=1)
    figures = {}
    for margin, keep in zip(wide, (narrow, ~narrow), strict=False):
        gaps = [part for (_, part), kept in zip(pictures.dashes, keep, strict=True) if kept]
        figures[f"gap with margin {margin}, mean (pixels)"] = np.concatenate(gaps).mean()
    return figures | {
        "dash, median (pixels)": np.median(lengths),
        "dash, or dashes that touch, mean (pixels)": np.mean(lengths),
        "contour (pixels)": walks(pictures),
        "pixels with ink": (images > INK).sum(axis=(1, 2)).mean(),
        "mean brightness of ink": images[images > INK].mean(),
        "gray levels in an image, mean": np.mean([len(np.unique(image)) for image in images]),
        "between the markers, mean (pixels)": np.mean(apart),
    }


def accuracies(pictures, epochs):
    """Figures in percent, for many pictures only."""
    traced = [trace(image, pictures.radius, LINK, INK) for image in pictures.images]
    return {
        "touching contours (% of images)": 100 * touching(pictures),
        "flood-fill tracer (%)": 100 * (np.array(traced) == pictures.labels).mean(),
        "markers' places alone (%)": 100 * marker_probe(pictures),
        "network, window 5 × 5 (%)": 100 * window_network(pictures, 5, epochs),
        "network, window 21 × 21 (%)": 100 * window_network(pictures, 21, epochs),
    }


def original(folder, size):
    """Pictures of the original."""
    with np.load(folder / f"images_{size}.npz") as file:
        return Pictures(file["images"], file["labels"])


def ours(like):
    """As many pictures of this generator; at 128 × 128 more, in the same shares of margins."""
    size, count = like.size, len(like.images)
    many = count if size == 32 else 2 * SAME_MIX * count
    images, labels, _ = make_images(parameters(size), generator(1), many)
    pictures = Pictures(images.reshape(-1, size, size), labels)
    if size == 32:
        return pictures
    wanted = [(side, SAME_MIX * (like.narrow == side).sum()) for side in (True, False)]
    keep = [np.flatnonzero(pictures.narrow == side)[:most] for side, most in wanted]
    return Pictures(pictures.images[np.concatenate(keep)], labels[np.concatenate(keep)])


def main():
    """Measure, write the record and draw the picture."""
    folder, quick = Path(sys.argv[1]), "--quick" in sys.argv
    sets = {}
    for size in (32, 128):
        sets[f"original, {size}"] = original(folder, size)
        sets[f"ours, {size}"] = ours(sets[f"original, {size}"])
    rows = {}
    for column, pictures in sets.items():
        figures = geometry(pictures)
        if pictures.size == 32:
            figures |= accuracies(pictures, 1 if quick else EPOCHS)
        for name, value in ({"images": len(pictures.images)} | figures).items():
            rows.setdefault(name, {"figure": name})[column] = float(f"{value:.4g}")
    ordered = sorted(rows.values(), key=lambda row: not row["figure"].startswith(("images", "gap")))
    for row in ordered:
        print(row)
    if quick:
        return
    values = {
        "schema": 1,
        "kind": "comparison",
        "title": "Pathfinder beside the original",
        "notes": NOTES,
        "rows": ordered,
        "provenance": provenance(),
    }
    RECORD.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    draw_sheet(sets)


def draw_sheet(sets):
    """Draw originals on the left and ours on the right, label 1 above label 0."""
    sheets = []
    for size, columns, scale in ((32, 5, 4), (128, 3, 2)):
        sides = []
        for name in ("original", "ours"):
            pictures = sets[f"{name}, {size}"]
            rows = [np.flatnonzero(pictures.labels == label)[:columns] for label in (1, 0)]
            chosen = [pictures.images[i] for i in np.concatenate(rows)]
            sides.append(contact_sheet(chosen, columns, scale))
        space = np.full((len(sides[0]), 16), 255, np.uint8)
        sheets.append(np.concatenate([sides[0], space, sides[1]], axis=1))
    width = max(sheet.shape[1] for sheet in sheets)
    lines = []
    for sheet in sheets:
        spare = width - sheet.shape[1]
        lines.append(
            np.pad(sheet, ((0, 16), (spare // 2, spare - spare // 2)), constant_values=255)
        )
    write_png(HERE / "pathfinder.png", np.concatenate(lines)[:-16])


if __name__ == "__main__":
    main()
