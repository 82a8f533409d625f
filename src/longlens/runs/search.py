"""Searching over options: what may vary, and who chooses.

``lr=1e-4:1e-2:log`` is a range (``:log``: even in the logarithm), ``dim=64:512:64`` one of whole
numbers in steps, ``mixer=las,s4d`` a choice. A range of an option that takes fractions holds them,
also where its ends are whole: ``dropout=0:1``. Of options inside others the type is not known here:
there a range of fractions has one at an end, as in ``mixer_options.bound=0.0:1``. A grid needs
choices, or ranges with a number of points: ``lr=1e-4:1e-2:log:5``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from longlens.runs.cell import Cell, cell_key, plain_value, with_options
from longlens.runs.record import Record
from longlens.training.options import TrainOptions

SAMPLERS = ("random", "tpe")
FRACTIONS = {f.name: "float" in str(f.type) for f in fields(TrainOptions)}


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
            steps = [self.low + i * self.step for i in range(count)]
            return [v if isinstance(v, int) else float(f"{v:.6g}") for v in steps]
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
        if len(parts) > 1 and all(isinstance(plain_value(part), int | float) for part in parts[:2]):
            space[name] = _range(name, text, parts)
        else:
            space[name] = _choices(text)
    if not space:
        raise ValueError("search names no option")
    return space


def _choices(text: str) -> Choices:
    """Words between commas; all of them as JSON where they are some, as in ``[3,5],[7,9]``."""
    try:
        return list(json.loads(f"[{text}]"))
    except ValueError:
        return [plain_value(part) for part in text.split(",")]


def _range(name: str, text: str, parts: list[str]) -> Range:
    low, high, rest = plain_value(parts[0]), plain_value(parts[1]), parts[2:]
    log = bool(rest) and rest[0] == "log"
    numbers = [plain_value(part) for part in rest[log:]]
    if not low < high or len(numbers) > 1 or not all(isinstance(n, int | float) for n in numbers):
        raise ValueError(
            f"{name}: a range is low:high, with :log, :step or :log:points, got {text}"
        )
    if numbers and not numbers[0] > 0:
        raise ValueError(f"{name}: steps and numbers of points are above 0, got {text}")
    if numbers and not log and numbers[0] > high - low:
        raise ValueError(
            f"{name}: a step is at most the width of its range, got {text}; a number of points is "
            "written low:high:log:points"
        )
    if log and low <= 0:
        raise ValueError(f"{name}: the logarithm needs numbers above 0, got {text}")
    if FRACTIONS.get(name) or (numbers and not log and not isinstance(numbers[0], int)):
        low, high = float(low), float(high)
    if log:
        return Range(low, high, log=True, points=int(numbers[0]) if numbers else None)
    return Range(low, high, step=numbers[0] if numbers else None)


def grid_choices(space: Mapping[str, Range | Choices]) -> dict[str, Choices]:
    """All values of every option, for a grid.

    >>> grid_choices(parse(["lr=1e-4:1e-2:log:3", "dim=64,128", "depth=2:6:2"]))
    {'lr': [0.0001, 0.001, 0.01], 'dim': [64, 128], 'depth': [2, 4, 6]}
    """
    return {n: v.values() if isinstance(v, Range) else list(v) for n, v in space.items()}


def tune(
    base: Cell,
    space: Mapping[str, Range | Choices],
    trials: int,
    *,
    sampler: str = "tpe",
    seed: int = 0,
    run: Callable[[Sequence[Cell]], Sequence[Record]],
    at_once: int = 1,
) -> list[tuple[Cell, Record]]:
    """Search over options: ask Optuna for some, run them, tell it what came out, ask again.

    Nothing is stored but the records of the runs. What is asked follows from the seed and from what
    was told, so the same call again asks for the same runs, finds them finished, and goes on.

    Args:
        base: options that all trials share.
        space: what varies.
        trials: how many runs.
        sampler: "random" or "tpe".
        seed: of the sampler.
        run: runs cells and returns their records, as :func:`longlens.runs.sweep` does.
        at_once: trials that are asked for before the first of them is told.

    Returns:
        the cells with their records, in the order in which they were asked for.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {sampler!r}")
    optuna = need_optuna()
    kinds = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    study = optuna.create_study(direction="maximize", sampler=kinds[sampler](seed=seed))
    trained: list[tuple[Cell, Record]] = []
    known: dict[str, Record] = {}  # a sampler may ask for the same run twice
    while len(trained) < trials:
        asked = [study.ask() for _ in range(min(at_once, trials - len(trained)))]
        cells = [with_options(base, _suggest(trial, space)) for trial in asked]
        new = {cell_key(cell): cell for cell in cells if cell_key(cell) not in known}
        known |= dict(zip(new, run(list(new.values())), strict=True))
        for trial, cell in zip(asked, cells, strict=True):
            record = known[cell_key(cell)]
            value = selection_value(record)
            if value is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, value)
            trained.append((cell, record))
    return trained


def _suggest(trial: Any, space: Mapping[str, Range | Choices]) -> dict[str, Any]:
    """The options that Optuna chooses for a trial."""
    options: dict[str, Any] = {}
    for name, choices in space.items():
        if not isinstance(choices, Range):
            # Optuna compares choices by their values and takes plain ones only.
            words = [json.dumps(value) for value in choices]
            options[name] = json.loads(trial.suggest_categorical(name, words))
            continue
        low, high, log, step = choices.low, choices.high, choices.log, choices.step
        if step is not None:  # as many as fit
            high = low + step * int((high - low) / step + 1e-9)
        if choices.whole:
            options[name] = trial.suggest_int(name, int(low), int(high), log=log, step=step or 1)
        else:
            options[name] = trial.suggest_float(name, low, high, log=log, step=step)
    return options


def selection_value(record: Record) -> float | None:
    """A record's validation metric, turned so that higher is better.

    >>> selection_value(Record(status="finished", metrics={"validation": {"loss": 0.5}},
    ...                        metric={"name": "loss", "higher_is_better": False}))
    -0.5
    """
    value = record.value("validation")
    return value if value is None or record.metric["higher_is_better"] else -value


def need_optuna() -> Any:
    """Optuna, or a message that says how to get it."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise ValueError("a search needs Optuna: pip install 'longlens[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
