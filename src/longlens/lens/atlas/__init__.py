"""The atlas: audits of many tasks, one row each."""

from longlens.lens.atlas.entries import ENTRIES, Entry, find_entries
from longlens.lens.atlas.rows import atlas_row
from longlens.lens.atlas.run import make_atlas

__all__ = ["ENTRIES", "Entry", "atlas_row", "find_entries", "make_atlas"]
