"""Every mixer of the zoo by its key: a plain dictionary of factories, and ``build``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Lazy:
    """A factory that imports its class when it is first called.

    Args:
        module: a module of ``longlens.layers``.
        name: the class in it.
        options: defaults that this key changes.
    """

    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., nn.Module]:
        """The class itself."""
        target: Callable[..., nn.Module] = getattr(
            import_module(f"longlens.layers.{self.module}"), self.name
        )
        return target

    def __call__(self, dim: int, **options: Any) -> nn.Module:
        """Build the mixer; ``options`` win over what the key sets."""
        return self.load()(dim, **{**self.options, **options})


MIXERS: dict[str, Callable[..., nn.Module]] = {
    # attention
    "alibi": Lazy("alibi", "AlibiAttention"),
    "alibi-chunk": Lazy("alibi", "AlibiAttention", {"chunk": 128}),
    "local": Lazy("local", "LocalAttention"),
    "reformer": Lazy("reformer", "Reformer"),
    "linformer": Lazy("linformer", "Linformer"),
    "bigbird": Lazy("bigbird", "BigBird"),
    "performer": Lazy("performer", "Performer"),
    "luna": Lazy("luna", "Luna"),
    "linear": Lazy("linear", "LinearAttention"),
    # state spaces and linear recurrences
    "ss": Lazy("ss", "SS"),
    "s4-v1": Lazy("s4", "S4", {"output": "linear"}),
    "s4": Lazy("s4", "S4", {"bidirectional": True}),
    "dss": Lazy("dss", "DSS"),
    "s4d": Lazy("s4d", "S4D"),
    "s5": Lazy("s5", "S5"),
    "lru": Lazy("lru", "LRU"),
    "dlr": Lazy("dlr", "DLR"),
    "gss": Lazy("gss", "GSS"),
    "h3": Lazy("h3", "H3"),
    # convolutions and token mixing
    "sgconv": Lazy("sgconv", "SGConv"),
    "longconv": Lazy("longconv", "LongConv"),
    "hyena": Lazy("hyena", "Hyena"),
    "ckconv": Lazy("ckconv", "CKConv"),
    "tnn": Lazy("tnn", "TNN"),
    "conv": Lazy("conv", "ShortConv"),
    "gmlp": Lazy("gmlp", "GMLP"),
    # hybrids and recurrent networks
    "mega": Lazy("mega", "Mega"),
    "mega-chunk": Lazy("mega", "Mega", {"chunk": 128}),
    "lstm": Lazy("lstm", "LSTM"),
    "gru": Lazy("gru", "GRU"),
}
"""Key -> factory ``(dim, **options) -> mixer``. Add your own: ``MIXERS["mine"] = MyMixer``."""


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not there, near matches first.

    >>> str(unknown("mixer", "sd4", ["s4d", "lstm"]))
    "unknown mixer 'sd4'; did you mean 's4d'? known: 'lstm', 's4d'"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ValueError(f"unknown {what} {name!r};{hint} known: {', '.join(map(repr, names))}")


def options_of(key: str) -> dict[str, Any]:
    """The options of a mixer with their defaults (``inspect.Parameter.empty``: required).

    >>> options_of("s4")["bidirectional"]
    True
    """
    if key not in MIXERS:
        raise unknown("mixer", key, MIXERS)
    factory = MIXERS[key]
    target, changed = (
        (factory.load(), factory.options) if isinstance(factory, Lazy) else (factory, {})
    )
    parameters = list(inspect.signature(target).parameters.values())[1:]  # all but dim
    named = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    return {**named, **changed}


def accepts_anything(key: str) -> bool:
    """Whether a factory takes ``**options`` and so checks them itself."""
    factory = MIXERS[key]
    target = factory.load() if isinstance(factory, Lazy) else factory
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values())


def build(key: str, dim: int, **options: Any) -> nn.Module:
    """Build any mixer of the zoo.

    Args:
        key: a key of :data:`MIXERS`.
        dim: D, the width of the sequence.
        options: keyword arguments of the mixer; see :func:`options_of`.

    Returns:
        a module with ``forward(x, mask=None)`` on (B, L, D).

    Raises:
        ValueError: for an unknown key or option, with the near matches, or a bad value.

    >>> import torch
    >>> build("s4d", 8, state=4)(torch.randn(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    >>> build("s4d", 8, bidirectonal=True)
    Traceback (most recent call last):
    ValueError: unknown option of 's4d' 'bidirectonal'; did you mean 'bidirectional'? known: ...
    """
    known = options_of(key)
    if not accepts_anything(key):
        for name in options:
            if name not in known:
                raise unknown(f"option of {key!r}", name, known)
    return MIXERS[key](dim, **options)
