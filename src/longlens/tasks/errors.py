"""The one exception that every part of ``longlens.tasks`` raises for a problem with data."""

from __future__ import annotations


class DataError(ValueError):
    """A data set, a source or an option cannot be used; the message says which and what helps.

    The command line prints the message as one line and exits with code 1.

    >>> raise DataError("listops: seed must be 0 or more, got -1")
    Traceback (most recent call last):
    longlens.tasks.errors.DataError: listops: seed must be 0 or more, got -1
    """


def check_least(options: object, owner: str = "", **least: int) -> None:
    """Raise unless every named field of ``options`` is as large as it must be at least.

    >>> from types import SimpleNamespace
    >>> check_least(SimpleNamespace(seed=-1), "text", seed=0)
    Traceback (most recent call last):
    longlens.tasks.errors.DataError: text: seed must be 0 or more, got -1
    """
    for name, low in least.items():
        if getattr(options, name) < low:
            prefix = f"{owner}: " if owner else ""
            raise DataError(f"{prefix}{name} must be {low} or more, got {getattr(options, name)}")


def check_shares(validation: float, test: float) -> None:
    """Raise unless two shares of the examples can be held out.

    >>> check_shares(0.5, 0.5)
    Traceback (most recent call last):
    longlens.tasks.errors.DataError: validation and test must be shares between 0 and 1 that ...
    """
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise DataError(
            "validation and test must be shares between 0 and 1 that leave a rest, got "
            f"{validation} and {test}"
        )
