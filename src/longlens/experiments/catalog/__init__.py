"""The papers' tables and figures, one short file each; ``find`` returns any of them by name.

>>> find("table2").published["LaS"]["Image"]
70.44
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from longlens.experiments.catalog.base import Experiment

NAMES = (
    "table2", "table3", "table4", "figure5", "figure6", "table7", "table8", "figure3", "table9",
    "locality", "techniques", "readings", "lasplus", "minutes", "lineup", "farfield", "cost",
    "fit", "sweep", "heads", "directions", "scaling", "decays", "lengths", "subtrees",
    "scratchpad", "augmented", "curriculum", "signals", "optimisers",
)  # fmt: skip
SAME = {"figure2": "table8"}  # curves of the same runs


def find(name: str) -> Experiment:
    """The experiment of that name, or the one that a Python file declares as ``EXPERIMENT``.

    Raises:
        ValueError: there is none.
    """
    name = SAME.get(name, name)
    if name in NAMES:
        declared: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
        return declared
    if name.endswith(".py"):
        return _from_file(Path(name))
    near = get_close_matches(name, NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"{name!r} is no experiment{hint}; there are {', '.join(NAMES)}, and files")


def _from_file(path: Path) -> Experiment:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise ValueError(f"{path} must set EXPERIMENT to an Experiment, got {experiment!r}")
    return experiment
