"""The columns that several tables share: what data stand behind a label.

A label with published numbers stands for the published data and nothing else. What stands in for
data that are not free has a column of its own, so that its numbers are never averaged or compared
with published ones by accident.
"""

from __future__ import annotations

from longlens.runs.cell import Cell

TASKS: dict[str, Cell] = {
    "ListOps": {"task": "listops"},
    "Text": {"task": "text", "length": 4096},
    "Retrieval": {"task": "retrieval"},
    "Image": {"task": "image"},
    "Pathfinder": {"task": "pathfinder", "task_options": {"origin": "lra"}},
    "Path-X": {"task": "pathx", "task_options": {"origin": "lra"}},
    "Retrieval (PeerRead)": {"task": "retrieval-peerread"},
    "Pathfinder (own)": {"task": "pathfinder"},
    "Path-X (own)": {"task": "pathx"},
}
LRA = tuple(TASKS)

# Which line of a table of recipes a column follows.
FOLLOWS = {"Retrieval (PeerRead)": "Retrieval", "Pathfinder (own)": "Pathfinder",
           "Path-X (own)": "Path-X"}  # fmt: skip

DATA_NOTES = (
    "Text: 2,500 reviews are held out of train for validation, so 22,500 train; published runs "
    "often select on test.",
    "Retrieval needs LRA's AAN pairs, Pathfinder and Path-X LRA's images "
    "(longlens data prepare … --from); Retrieval (PeerRead), Pathfinder (own) and Path-X (own) "
    "stand in for them, and their numbers compare with nothing published.",
)


def recipe_of(column: str) -> str:
    """The line of a table of recipes that a column follows.

    >>> recipe_of("Pathfinder (own)"), recipe_of("Text")
    ('Pathfinder', 'Text')
    """
    return FOLLOWS.get(column, column)
