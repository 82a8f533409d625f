"""The drawing of docs/concepts.md: python docs/pictures/las.py (needs longlens and no more).

The bars are what `las_weights` computes for one query of 24 keys, with a decay strong enough to be
seen at this length.
"""

from __future__ import annotations

from pathlib import Path

import torch

from longlens import las_weights
from longlens.charts.svg import standalone

KEYS, WINDOW, ALPHA = 24, 5, 0.07
WIDTH, LEFT, STEP = 480, 16, 18.7  # of the picture, of its margin, from bar to bar
ROW = 138

# How well each key matches the query: two good matches, one far and one near.
SCORES = torch.tensor(
    [
        *(0.3, -0.6, 0.5, 3.4, -0.4, 0.2, -0.9, 0.6, 0.1, -0.5, 0.8, -0.2),
        *(0.4, -0.7, 0.3, 0.9, -0.3, 0.2, 3.2, -0.5, 0.7, -0.2, 0.4, 0.5),
    ],
    dtype=torch.float64,
)

TITLE = "What LaS attention does, for one query, in four steps"
TEXTS = (  # a heading and two lines each
    """1  Scores
How well does each earlier position match the query?
Two match well: one far away, one near.""",
    """2  Decay (local)
Every score is multiplied by a factor (the line) that falls
with distance: far scores, high or low, move towards zero.""",
    """3  Softmax
Scores become weights that sum to one. The near match wins.
Far positions are not cut off: they all count about alike.""",
    """4  Smoothing (smooth)
Each weight is averaged over five neighbours: attention goes
to a stretch of the sequence, not to a single position.""",
)


def row(weights: torch.Tensor) -> torch.Tensor:
    """The last query's row of a matrix of weights."""
    return weights[0, 0, -1]


def steps() -> list[torch.Tensor]:
    """What the four steps give for the last query, all by the library's own definition."""
    q = torch.zeros(1, 1, KEYS, 1, dtype=torch.float64)
    q[..., -1, 0] = 1.0  # of width 1, so that a score is the key itself
    k = SCORES.view(1, 1, KEYS, 1)
    alpha = torch.tensor([ALPHA], dtype=torch.float64)
    distance = torch.arange(KEYS - 1, -1, -1, dtype=torch.float64)
    decayed = SCORES * torch.exp(-ALPHA * distance)
    local = row(las_weights(q, k, alpha=alpha))
    torch.testing.assert_close(local, decayed.softmax(0))
    return [SCORES, decayed, local, row(las_weights(q, k, alpha=alpha, window=WINDOW))]


def bar(place: int, value: float, base: float, scale: float, look: str) -> str:
    """One key's bar, up or down from ``base``."""
    top = base - max(value, 0) * scale
    x = LEFT + place * STEP
    return f'<rect x="{x:.1f}" y="{top:.1f}" width="13" height="{abs(value) * scale:.1f}" {look}/>'


def panel(
    number: int, values: torch.Tensor, before: torch.Tensor | None, scale: float
) -> list[str]:
    """Heading, two lines of text and the bars of one step, with an outline of what was before."""
    top = 20 + number * ROW
    title, *lines = TEXTS[number].splitlines()
    parts = [f'<text x="{LEFT}" y="{top}" font-weight="600" fill="currentColor">{title}</text>']
    for line, text in enumerate(lines):
        y = top + 19 + 17 * line
        parts.append(f'<text x="{LEFT}" y="{y}" font-size="13.5" fill="currentColor">{text}</text>')
    scores = number < 2
    base = top + 91 if scores else top + 108
    colour = 'class="c0" color="#0072b2"' if scores else 'class="c1" color="#c44e00"'
    for place, value in enumerate(values.tolist()):
        parts.append(bar(place, value, base, scale, f'{colour} fill="currentColor"'))
        if before is not None:
            look = 'fill="none" stroke="currentColor" stroke-dasharray="2 2" opacity=".55"'
            parts.append(bar(place, float(before[place]), base, scale, look))
    end = LEFT + KEYS * STEP - 5
    parts.append(f'<path d="M{LEFT} {base}H{end:.1f}" stroke="currentColor" opacity=".6"/>')
    return parts


def factor_curve() -> str:
    """The factor of step 2, drawn as a line above the bars."""
    points = []
    for place in range(KEYS):
        height = 44 * float(torch.exp(torch.tensor(-ALPHA * (KEYS - 1 - place))))
        points.append(f"{LEFT + place * STEP + 6.5:.1f},{20 + ROW + 91 - height:.1f}")
    return (
        f'<polyline class="c2" color="#007a5a" points="{" ".join(points)}" fill="none" '
        'stroke="currentColor" stroke-width="2"/>'
    )


def draw() -> str:
    """The picture as SVG."""
    found = steps()
    height = 20 + 4 * ROW + 12
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{TITLE}" font-family="system-ui, sans-serif" font-size="15">',
        f"<title>{TITLE}</title>",
    ]
    before = [None, found[0], None, found[2]]
    scales = [13.5, 13.5] + 2 * [64 / float(found[2].max())]
    for number, values in enumerate(found):
        parts += panel(number, values, before[number], scales[number])
    parts.append(factor_curve())
    y = height - 8
    small = 'font-size="13" fill="currentColor" class="quiet"'
    parts.append(f'<text x="{LEFT}" y="{y}" {small}>← far away · dashed: before the step</text>')
    parts.append(f'<text x="{WIDTH - LEFT}" y="{y}" text-anchor="end" {small}>the query →</text>')
    return standalone("\n".join([*parts, "</svg>"]))


if __name__ == "__main__":
    (Path(__file__).parent / "las.svg").write_text(draw())
