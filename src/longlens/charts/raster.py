"""Charts as PNG, and matrices as coloured pixels. Pillow and resvg_py load when they are needed."""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# From dark to bright in even steps of lightness, so that it reads as well without colours.
ANCHORS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30",
           "#fde725")  # fmt: skip
NOTHING = 255  # number of the transparent colour
FONTS = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Segoe UI")


@cache
def _palette() -> list[int]:
    """Red, green and blue of 255 colours, one after the other, and of the transparent one."""
    anchors = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in ANCHORS]
    colours: list[int] = []
    for number in range(NOTHING):
        place = number / (NOTHING - 1) * (len(anchors) - 1)
        below = min(int(place), len(anchors) - 2)
        share = place - below
        for start, end in zip(anchors[below], anchors[below + 1], strict=True):
            colours.append(round(start + share * (end - start)))
    return [*colours, 255, 255, 255]


def colour_map(values: npt.NDArray[np.floating], low: float, high: float) -> bytes:
    """A matrix as a PNG of one pixel a value; NaN is transparent."""
    import numpy as np
    from PIL import Image

    share = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    numbers = np.where(np.isnan(values), NOTHING, np.nan_to_num(share) * (NOTHING - 1))
    picture = Image.fromarray(numbers.round().astype(np.uint8), "P")
    picture.putpalette(_palette())
    file = io.BytesIO()
    picture.save(file, "PNG", transparency=NOTHING, optimize=True)
    return file.getvalue()


def data_uri(png: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def check_pictures() -> None:
    """Raise unless everything that pictures need is there."""
    try:
        import PIL  # noqa: F401

        font()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"pictures need {error.name}: pip install 'longlens[lab]', or leave them out with "
            "--no-pictures"
        ) from None


@cache
def font() -> str:
    """A font that this machine has."""
    from resvg_py import svg_to_bytes

    def drawn(name: str) -> bytes:
        word = f'<text y="9" font-size="9" font-family="{name}">x</text>' if name else ""
        picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{word}</svg>'
        return bytes(svg_to_bytes(svg_string=picture))

    for name in FONTS:
        if drawn(name) != drawn(""):
            return name
    raise ValueError(f"PNG files need a font, one of {', '.join(FONTS)}, and none is installed")


def as_png(picture: str, zoom: float = 1.5) -> bytes:
    """A chart that is a file of its own as a PNG."""
    from resvg_py import svg_to_bytes

    return bytes(
        svg_to_bytes(svg_string=picture, zoom=zoom, background="#ffffff", sans_serif_family=font())
    )
