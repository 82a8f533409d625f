"""Every mixer of the zoo by its key: a plain dictionary of factories, and ``build``."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from longlens.config import check_switch

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Lazy:
    """A factory that imports its class when it is first called.

    The zoo's option for both sides is ``bidirectional``; a class that spells it ``causal`` gets it
    translated.

    Args:
        module: a module of ``longlens.layers``.
        name: the class in it.
        options: defaults that this key changes.
        paper: what to cite, where the file serves several papers; None: the file's first line.
    """

    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    paper: str | None = None

    def load(self) -> Callable[..., nn.Module]:
        """The class itself."""
        target: Callable[..., nn.Module] = getattr(
            import_module(f"longlens.layers.{self.module}"), self.name
        )
        return target

    def __call__(self, dim: int, **options: Any) -> nn.Module:
        """Build the mixer; ``options`` win over what the key sets."""
        options = {**self.options, **options}
        if "bidirectional" in options and "bidirectional" not in _parameters(self.load()):
            options["causal"] = not options.pop("bidirectional")
        return self.load()(dim, **options)


def _parameters(target: Callable[..., nn.Module]) -> dict[str, inspect.Parameter]:
    """The keyword parameters of a factory.

    ``**options`` of a class are those of its parent, and those of its ``kernel_type`` if it has one
    (except for the number of directions, which follows from ``bidirectional``).
    """
    parameters = dict(list(inspect.signature(target).parameters.items())[1:])  # all but dim
    rest = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    if rest and isinstance(target, type):
        del parameters[rest[0]]
        for parent in filter(None, (getattr(target, "kernel_type", None), target.__base__)):
            parameters = {**_parameters(parent), **parameters}
        parameters.pop("directions", None)
    return parameters


_SOFTMAX = "Softmax attention: Vaswani et al. 2017 (arXiv 1706.03762)"
_ROPE = "RoPE: Su et al. 2021 (arXiv 2104.09864)"
_LSTM = "LSTM: Hochreiter & Schmidhuber 1997 (Neural Computation 9:1735)"
_GRU = "GRU: Cho et al. 2014 (arXiv 1406.1078)"
_LAS = "LaS: Zimerman & Wolf 2024 (ICML, PMLR 235)"
_FOX = "Forgetting Transformer: Lin et al. 2025 (ICLR, arXiv 2503.02130)"
_WALL = "Wall Attention: Pai et al. 2026 (Tilde Research)"
_GATED = "Gated Attention: Qiu et al. 2025 (NeurIPS, arXiv 2505.06708)"
_MTA = "Multi-Token Attention: Golovneva et al. 2025 (arXiv 2504.00927)"
_MTA_OPTIONS = {"decay": "none", "smoother": "identity", "learned_taps": True}

MIXERS: dict[str, Callable[..., nn.Module]] = {
    # attention
    "softmax": Lazy("attention", "SoftmaxAttention", {}, _SOFTMAX),
    "softmax-chunk": Lazy("attention", "SoftmaxAttention", {"chunk": 128}, _SOFTMAX),
    "rope": Lazy("attention", "SoftmaxAttention", {"rotary": True}, _ROPE),
    "las": Lazy("attention", "LaSAttention", {}, _LAS),
    "las-chunk": Lazy("attention", "LaSAttention", {"chunk": 128}, _LAS),
    "l": Lazy("attention", "LaSAttention", {"window": 1}, _LAS),
    "l-chunk": Lazy("attention", "LaSAttention", {"window": 1, "chunk": 128}, _LAS),
    "s": Lazy("attention", "LaSAttention", {"bound": 0.0}, _LAS),
    "s-chunk": Lazy("attention", "LaSAttention", {"bound": 0.0, "chunk": 128}, _LAS),
    "alibi": Lazy("alibi", "AlibiAttention"),
    "alibi-chunk": Lazy("alibi", "AlibiAttention", {"chunk": 128}),
    "s-alibi-chunk": Lazy("alibi", "AlibiAttention", {"chunk": 128, "window": 5}),
    "fox": Lazy("family", "ForgettingAttention", {}, _FOX),
    "wall": Lazy("family", "WallAttention", {}, _WALL),
    "las-taps": Lazy("family", "DecayAttention", {"learned_taps": True}, _LAS),
    "las-gauss": Lazy("family", "DecayAttention", {"smoother": "gaussian"}, _LAS),
    "las-gated": Lazy("family", "DecayAttention", {"gate": "channel"}, _GATED),
    "family": Lazy("family", "DecayAttention", {}, _LAS),
    "mta-key": Lazy("family", "DecayAttention", _MTA_OPTIONS, _MTA),
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
    "gmlp-toeplitz": Lazy("gmlp", "GMLP", {"toeplitz": True}),
    # hybrids and recurrent networks
    "mega": Lazy("mega", "Mega"),
    "mega-chunk": Lazy("mega", "Mega", {"chunk": 128}),
    "lstm": Lazy("recurrent", "LSTM", {}, _LSTM),
    "gru": Lazy("recurrent", "GRU", {}, _GRU),
}
"""Key -> factory ``(dim, **options) -> mixer``. Add your own: ``MIXERS["mine"] = MyMixer``."""


MANY = 30  # names, of which an error does not list all where it has a near match


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not there, near matches first.

    >>> str(unknown("mixer", "sd4", ["s4d", "lstm"]))
    "unknown mixer 'sd4'; did you mean 's4d'? known: 'lstm', 's4d'"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f" known: {', '.join(map(repr, names))}"
    if len(names) > MANY and near:
        listed = f" (one of {len(names)})"
    return ValueError(f"unknown {what} {name!r};{hint}{listed}")


def options_of(key: str) -> dict[str, Any]:
    """The options of a mixer with their defaults (``inspect.Parameter.empty``: required).

    >>> options_of("s4")["bidirectional"]
    True
    """
    if key not in MIXERS:
        raise unknown("mixer", key, MIXERS)
    factory = MIXERS[key]
    if not isinstance(factory, Lazy):
        return {name: p.default for name, p in _parameters(factory).items()}
    named = {name: p.default for name, p in _parameters(factory.load()).items()}
    if "causal" in named:
        named["bidirectional"] = not named.pop("causal")
    return {**named, **factory.options}


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
    >>> build("s4d", 8, bidirectonal=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: unknown option of 's4d' 'bidirectonal'; did you mean 'bidirectional' ...? known: ...
    """
    check_options(key, options)
    try:
        return MIXERS[key](dim, **options)
    except TypeError as error:
        if not options:  # then it is no value of the wrong type
            raise
        raise cannot_build(key, options, error) from error


def cannot_build(key: str, options: Mapping[str, Any], error: Exception) -> ValueError:
    """What to say where a mixer takes a value's type for granted."""
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return ValueError(f"{key} cannot be built with {given}: {error}")


def check_options(key: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``key`` is a mixer that has these options, switches true or false.

    Whatever else a value must be is the mixer's to say; but any text would count as true.
    """
    known = options_of(key)
    factory = MIXERS[key]
    takes_any = not isinstance(factory, Lazy) and any(
        p.kind is p.VAR_KEYWORD for p in _parameters(factory).values()
    )
    for name, value in options.items():
        if name not in known and not takes_any:
            raise unknown(f"option of {key!r}", name, known)
        for one in value if isinstance(value, list) else [value]:  # one for each block
            check_switch(f"{key}'s {name}", known.get(name), one)
