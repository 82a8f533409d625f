"""Which modules of a transformers model get decay rates, and which models get an error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from longlens.hf.options import Options
from longlens.hf.state import LaSState

NAME = "las"  # of the attention implementation, and of the module that holds the rates

ENCODER = "las_encoder"  # LaS attention in the encoder of an encoder-decoder model, SDPA elsewhere

# Names by which transformers' attention modules take the tokens of a second sequence.
SECOND_SEQUENCE = (
    "key_value_states", "encoder_hidden_states", "cross_attention_states", "context",
    "context_hidden_states", "key", "keys", "k", "key_tensor",
)  # fmt: skip
CROSS = re.compile(r"cross|encoder_attn|encdec", re.IGNORECASE)
SOFTMAX = {"softmax", "scaled_dot_product_attention"}


def uses_las(module: nn.Module) -> bool:
    """Whether the configuration of a module says `attn_implementation="las"`."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == NAME


def attention_modules(model: nn.Module) -> Iterator[tuple[int, str, Any]]:
    """The modules that look `las` up in transformers: their layer's index, name and they."""
    order: dict[int, int] = {}  # modules seen so far for each configuration
    for name, module in model.named_modules():
        if not uses_las(module) or not _asks_for_attention(type(module)):
            continue
        key = id(module.config)
        count = order.get(key, 0)
        order[key] = count + 1
        index = getattr(module, "layer_idx", None)
        yield (count if index is None else index), name, module


def check_model(model: PreTrainedModel) -> None:
    """Raise where a part of the model would not have LaS attention although its config says so."""
    for part in model.modules():
        if not isinstance(part, PreTrainedModel) or not uses_las(part):
            continue
        others = _other_attention(part)
        if others and (others[0][1] or not any(True for _ in attention_modules(part))):
            raise ValueError(unable(type(part), others[0][0]))
    for _, name, module in attention_modules(model):
        config = module.config
        crossing = getattr(config, "is_encoder_decoder", False)
        crossing = crossing or getattr(config, "add_cross_attention", False)
        if crossing and CROSS.search(f"{type(module).__name__} {name.rpartition('.')[2]}"):
            raise ValueError(
                "attn_implementation='las' supports self-attention only, and "
                f"{type(model).__name__} has cross attention ({name}): positions of two sequences "
                "have no distance; attn_implementation='las_encoder' takes its encoder alone"
            )


def unable(model: type, module: type | None = None) -> str:
    """The error for a class that cannot take part."""
    where = "" if module is None else f" ({module.__name__})"
    return (
        f"{model.__name__} cannot take attn_implementation='las': its attention{where} does not "
        "go through transformers' AttentionInterface"
    )


def new_state(module: Any, options: Options) -> LaSState:
    """The rates of one attention module."""
    own = getattr(module.config, "is_causal", None)
    options.check(causal=bool(getattr(module, "is_causal", True) if own is None else own))
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    state = LaSState(_heads(module), options, None if device.type == "meta" else device)
    state.inputs = tuple(inspect.signature(type(module).forward).parameters)[1:]
    return state


def refuse_second_sequence(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module's forward: raise where keys come from other tokens."""
    if not uses_las(module):
        return
    names = module.las.inputs
    inputs = dict(zip(names, args, strict=False)) | kwargs
    tokens = inputs.get(names[0])
    for name in SECOND_SEQUENCE:
        other = inputs.get(name)
        if other is not None and other is not tokens:
            raise ValueError(
                "attn_implementation='las' supports self-attention only, and "
                f"{type(module).__name__} got {name}: positions of two sequences have no distance"
            )


def refuse_weights(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a model's forward: raise where attention weights are asked for."""
    if uses_las(model) and (kwargs.get("output_attentions") or model.config.output_attentions):
        raise ValueError(
            "attn_implementation='las' does not support attention weights as output "
            f"(output_attentions), which {type(model).__name__} is asked for"
        )


def _asks_for_attention(kind: type) -> bool:
    """Whether a module's forward looks the attention function up itself."""
    forward = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    return (
        "ALL_ATTENTION_FUNCTIONS"
        in getattr(forward, "__code__", _asks_for_attention.__code__).co_names
    )


def _other_attention(part: nn.Module) -> list[tuple[type, bool]]:
    """Attention modules of a part's own that look nothing up, and whether they are softmax."""
    found = []
    stack = [part]
    while stack:
        module = stack.pop()
        kind = type(module)
        if module is not part and isinstance(module, PreTrainedModel):
            continue
        if _asks_for_attention(kind) or "Pool" in kind.__name__:
            continue
        stack.extend(module.children())
        if "Attention" in kind.__name__:
            names = {
                name
                for function in vars(kind).values()
                if inspect.isfunction(function)
                for name in inspect.unwrap(function).__code__.co_names
            }
            found.append((kind, bool(names & SOFTMAX) or isinstance(module, nn.MultiheadAttention)))
    return sorted(found, key=lambda entry: not entry[1])


def _heads(module: Any) -> int:
    for owner in (module, module.config):
        for name in ("num_heads", "num_attention_heads"):
            heads = getattr(owner, name, None)
            if isinstance(heads, int):
                return heads
    raise ValueError(
        f"attn_implementation='las' cannot tell the number of heads of {type(module).__name__}"
    )
