"""Charts: one description, drawn as SVG for pages and files, as PNG, or in a terminal."""

from longlens.charts.braille import text_chart
from longlens.charts.plots import dot_chart, heat_map, line_chart, panels, table_chart
from longlens.charts.svg import Line, palette_css, standalone

__all__ = [
    "Line",
    "dot_chart",
    "heat_map",
    "line_chart",
    "palette_css",
    "panels",
    "standalone",
    "table_chart",
    "text_chart",
]
