"""The one exception that every part of ``longlens.tasks`` raises for a problem with data."""

from __future__ import annotations


class DataError(ValueError):
    """A data set, a source or an option cannot be used; the message says which and what helps.

    The command line prints the message as one line and exits with code 1.

    >>> raise DataError("listops: seed must be 0 or more, got -1")
    Traceback (most recent call last):
    longlens.tasks.errors.DataError: listops: seed must be 0 or more, got -1
    """
