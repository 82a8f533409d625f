"""Searching over options: what may vary, and who chooses.

``lr=1e-4:1e-2:log`` is a range (``:log``: even in the logarithm), ``dim=64:512:64`` one of whole
numbers in steps, ``mixer=las,s4d`` a choice. A grid needs choices, or ranges with a number of
points: ``lr=1e-4:1e-2:log:5``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from longlens.experiments.cells import Cell, with_options
from longlens.experiments.storage import need_optuna

SAMPLERS = ("random", "tpe")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None  # of a grid

    @property
    def whole(self) -> bool:
        """Whether these are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def values(self) -> list[float]:
        """The points of a grid."""
        if self.step is not None:
            count = int((self.high - self.low) / self.step + 1e-9) + 1
            return [self.low + i * self.step for i in range(count)]
        if self.points is None:
            raise ValueError(
                f"a grid needs the number of points of {self.low}:{self.high}, as in "
                f"{self.low}:{self.high}:log:5"
            )
        share = [i / max(1, self.points - 1) for i in range(self.points)]
        if self.log:
            values = [self.low * (self.high / self.low) ** part for part in share]
        else:
            values = [self.low + (self.high - self.low) * part for part in share]
        return [round(v) for v in values] if self.whole else [float(f"{v:.6g}") for v in values]


Choices = list[Any]


def _value(word: str) -> Any:
    """Read a word as JSON where it is some (numbers, true, null, lists), else as it stands."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def parse(words: Iterable[str]) -> dict[str, Range | Choices]:
    """Read a search space.

    >>> parse(["lr=1e-4:1e-2:log", "dim=64,128", "depth=2:6"])
    {'lr': Range(low=0.0001, high=0.01, log=True, step=None, points=None), 'dim': [64, 128],
     'depth': Range(low=2, high=6, log=False, step=None, points=None)}
    """
    space: dict[str, Range | Choices] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise ValueError(f"search must be name=low:high[:log] or name=a,b,c, got {word!r}")
        if name in space:
            raise ValueError(f"search names {name!r} twice")
        parts = text.split(":")
        if len(parts) > 1 and all(isinstance(_value(part), int | float) for part in parts[:2]):
            space[name] = _range(name, text, parts)
        else:
            space[name] = [_value(part) for part in text.split(",")]
    if not space:
        raise ValueError("search names no option")
    return space


def _range(name: str, text: str, parts: list[str]) -> Range:
    low, high, rest = _value(parts[0]), _value(parts[1]), parts[2:]
    log = bool(rest) and rest[0] == "log"
    numbers = [_value(part) for part in rest[log:]]
    if not low < high or len(numbers) > 1 or not all(isinstance(n, int | float) for n in numbers):
        raise ValueError(
            f"{name}: a range is low:high, with :log, :step or :log:points, got {text}"
        )
    if log and low <= 0:
        raise ValueError(f"{name}: the logarithm needs numbers above 0, got {text}")
    if log:
        return Range(low, high, log=True, points=int(numbers[0]) if numbers else None)
    return Range(low, high, step=numbers[0] if numbers else None)


@dataclass(frozen=True)
class Search:
    """What a search varies, on top of which options."""

    base: Cell
    space: Mapping[str, Range | Choices]
    sampler: str = "tpe"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        space = {n: asdict(v) if isinstance(v, Range) else list(v) for n, v in self.space.items()}
        values = {"base": self.base, "space": space, "sampler": self.sampler, "seed": self.seed}
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Search:
        """Rebuild a search from :meth:`to_json`'s values."""
        space = {n: Range(**v) if isinstance(v, dict) else v for n, v in values["space"].items()}
        return cls(values["base"], space, values["sampler"], values["seed"])


def grid_choices(space: Mapping[str, Range | Choices]) -> dict[str, Choices]:
    """All values of every option, for a grid.

    >>> grid_choices(parse(["lr=1e-4:1e-2:log:3", "dim=64,128", "depth=2:6:2"]))
    {'lr': [0.0001, 0.001, 0.01], 'dim': [64, 128], 'depth': [2, 4, 6]}
    """
    return {n: v.values() if isinstance(v, Range) else list(v) for n, v in space.items()}


def choose(search: Search, study: Any, trial_id: int, number: int) -> Cell:
    """Choose the options of a claimed trial of ``study``.

    The sampler is made anew for each trial, seeded by the search's seed and the trial's number:
    workers never draw the same numbers, and which worker takes a trial does not matter.
    """
    optuna = need_optuna()
    seed = (search.seed * 1_000_003 + number) % 2**32
    if search.sampler == "random":
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
    else:  # constant_liar: trials that still run count, so that workers try different places
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    trial = optuna.trial.Trial(study, trial_id)
    options: dict[str, Any] = {}
    for name, among in search.space.items():
        if not isinstance(among, Range):
            # Optuna keeps choices in its storage, which takes plain values only.
            words = [json.dumps(value) for value in among]
            options[name] = json.loads(trial.suggest_categorical(name, words))
        elif among.whole:
            step = int(among.step or 1)
            options[name] = trial.suggest_int(
                name, int(among.low), int(among.high), log=among.log, step=step
            )
        else:
            options[name] = trial.suggest_float(
                name, among.low, among.high, log=among.log, step=among.step
            )
    return with_options(search.base, options)
