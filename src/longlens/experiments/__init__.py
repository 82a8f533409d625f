"""Experiments: declared tables and figures, the runs that they ask for, and what came of them.

>>> import tempfile
>>> from longlens.runs import sweep
>>> table7, folder = find("table7"), tempfile.mkdtemp()
>>> cells = table7.cells(only=["LaS", "CumSum"], seeds=2, quick=True, runs=folder)
>>> records = sweep(cells)  # or on="ray"; the same call again goes on where it was cut off
>>> [(record.name, record.status) for record in records]
[('las--cumsum--0', 'finished'), ('las--cumsum--1', 'finished')]
>>> table = table7.results(records)  # labelled, with the published numbers
>>> table.records[1].row, table.records[1].seed, table.published["LaS"]["CumSum"]
('LaS', 1, 0.997)
"""

from longlens.experiments.catalog import find
from longlens.experiments.catalog.base import Experiment, Run

__all__ = ["Experiment", "Run", "find"]
