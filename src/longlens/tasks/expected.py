"""The spec of a task before its data are there, for checks that need no data."""

from __future__ import annotations

from typing import Any

from longlens.tasks.build import make_options
from longlens.tasks.errors import DataError
from longlens.tasks.registry import find_task
from longlens.tasks.spec import Spec


def expected_version(name: str, **options: Any) -> int | None:
    """The version of the data that would be made now; None for what the user imported.

    >>> expected_version("listops"), expected_version("mine")
    (1, None)
    """
    try:
        info = find_task(name)
    except DataError:
        return None
    return info.version_of(make_options(info, options))


def expected_spec(name: str, **options: Any) -> Spec:
    """The spec that the task ``name`` will have when it is prepared with ``options``.

    It is exact but for ``max_length``, which is the longest that the published data or the
    generator's options allow, and the vocabulary of a text that is not the published one.

    >>> expected_spec("pathx", size=64).max_length
    4096
    """
    info = find_task(name)
    if info.spec is None:
        raise DataError(f"the shape of {name} is not known before it is prepared")
    return info.spec(make_options(info, options))
