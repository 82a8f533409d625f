"""What a prepared data set is: the facts that a model and a training loop need to know of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from longlens.tasks.errors import DataError
from longlens.untrusted import check_shape

Kind = Literal["classification", "regression", "next_token"]
SPLITS = ("train", "validation", "test")
SHAPE = {
    **dict.fromkeys(("kind", "inputs"), str),
    "max_length": int,
    **dict.fromkeys(("vocab_size?", "pad_id?", "num_classes?", "channels?"), int),
    **dict.fromkeys(("target_dim?", "target_length?"), int),
    "pair": bool,
    "image?": [int],
    **dict.fromkeys(("encoding?", "stands_in_for?", "readout?"), str),
    "class_names?": [str],
    "extras": [str],
}


@dataclass(frozen=True)
class Spec:
    """The shape of a task.

    ==============  ============================  ==================================
    kind            a batch's inputs              a batch's targets
    ==============  ============================  ==================================
    classification  (B, L) tokens, (B, L, C)      (B,) class numbers
                    floats or (B, 2, L) pairs
    regression      (B, L) or (B, L, C)           (B, T, D): the last T positions
    next_token      (B, L) tokens                 (B, L): the token after each input
    ==============  ============================  ==================================

    >>> Spec(kind="classification", inputs="tokens", max_length=1024, vocab_size=256,
    ...      num_classes=10).pair
    False
    """

    kind: Kind
    inputs: Literal["tokens", "floats"]
    max_length: int  # the longest example (next_token: 0, the window is chosen with the batches)
    vocab_size: int | None = None  # token ids are 0 … vocab_size-1, padding included
    pad_id: int | None = None  # None: no example is shorter than max_length
    num_classes: int | None = None
    channels: int | None = None  # C of float inputs
    target_dim: int | None = None  # D of regression targets
    target_length: int | None = None  # T of regression targets
    pair: bool = False  # an example is two sequences (Retrieval)
    image: tuple[int, int] | None = None  # rows and columns, where it is an image row by row
    encoding: str | None = None  # how `longlens data show` reads tokens: see tasks/decode.py
    class_names: tuple[str, ...] | None = None
    extras: tuple[str, ...] = ()  # further arrays with a row for each example (ListOps: operator)
    stands_in_for: str | None = None  # set where the data are not the ones that papers report on
    readout: Literal["last"] | None = None  # a classification that is read out at one position only

    def __post_init__(self) -> None:
        if self.kind not in ("classification", "regression", "next_token"):
            raise DataError(
                f"kind must be classification, regression or next_token, got {self.kind!r}"
            )
        if self.inputs not in ("tokens", "floats"):
            raise DataError(f"inputs must be tokens or floats, got {self.inputs!r}")
        if self.inputs == "tokens" and not self.vocab_size:
            raise DataError("a task on tokens needs vocab_size")
        if self.kind == "classification" and not self.num_classes:
            raise DataError("a classification task needs num_classes")
        if self.readout not in (None, "last"):
            raise DataError(f"readout must be 'last' or None, got {self.readout!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key != "readout" or value is not None  # younger than the other fields' identities
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Spec:
        """Rebuild a spec from :meth:`to_json`'s values."""
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - names):
            raise DataError(
                f"the manifest's spec has fields that this version does not know: {unknown}"
            )
        try:
            check_shape(values, SHAPE, "spec")
        except ValueError as error:
            raise DataError(f"the manifest is damaged ({error})") from None
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**plain)
