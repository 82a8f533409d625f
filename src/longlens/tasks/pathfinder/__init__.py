"""Pathfinder: do the two markers lie on one dashed contour, or on two? See docs/tasks.md."""
