"""Giving a transformers model its decay rates, and `configure`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils import logging

from longlens.hf.attention import las_attention_forward
from longlens.hf.mask import las_mask
from longlens.hf.options import CONFIG_KEY, OptionArguments, Options, read_options, write_options
from longlens.hf.state import LaSState

NAME = "las"  # of the attention implementation, and of the module that holds the rates
RATES = rf"\.{NAME}\.alpha$"

logger = logging.get_logger(__name__)


def configure(model: PreTrainedModel, **options: Unpack[OptionArguments]) -> None:
    """Set the options of LaS attention in every layer of `model`; those not given stay as they are.

    The options are kept in `model.config`, so that `save_pretrained` and `from_pretrained` carry
    them. Rates are made anew where `bound` or `spacing` is given; call this before making an
    optimizer, since `learned_alpha` adds or removes parameters.

    Args:
        model: a transformers model with `attn_implementation="las"`.
        options: `bound`, `spacing` (the rates, see `decay_rates`), `window`, `smoothing`, `edge`,
            `chunk` (see `las_attention`), `learned_alpha`, and `layers`, the indices of the layers
            that have LaS attention, None for all; the others are plain softmax attention.

    >>> import longlens.hf
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2,
    ...                      intermediate_size=32, vocab_size=50, attn_implementation="las")
    >>> model = LlamaForCausalLM(config)
    >>> longlens.hf.configure(model, bound=0.003, window=3)
    >>> model.model.layers[0].self_attn.las
    LaSState(heads=4, alpha_max=0.003, window=3, smoothing=None, edge='zero', chunk=None)

    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model must be a transformers PreTrainedModel, got {type(model).__name__}"
        )
    attach(model)
    modules = list(_las_modules(model))
    if not modules:
        raise ValueError(
            f"no layer of this {type(model).__name__} uses LaS attention; call "
            "model.set_attn_implementation('las') first"
        )
    indices = sorted({index for index, _ in modules})
    missing = sorted(set(options.get("layers") or ()) - set(indices))
    if missing:
        raise ValueError(f"layers must be among {indices}, got {missing[0]}")
    planned = []
    for index, module in modules:  # check all before changing any
        changed = read_options(module.config).change(**options)
        planned.append((module, _new_state(module, changed.at(index)), changed))
    new_rates = "bound" in options or "spacing" in options or "layers" in options
    for module, state, changed in planned:
        if not new_rates:
            with torch.no_grad():
                state.alpha.copy_(module.las.alpha)
            state.follow()
        module.las = state
        write_options(module.config, changed)


def attach(model: PreTrainedModel) -> None:
    """Give every attention module that is to use LaS attention its rates, if it has none yet."""
    found = False
    for index, module in _las_modules(model):
        found = True
        if not isinstance(getattr(module, NAME, None), LaSState):
            options = read_options(module.config)
            module.las = _new_state(module, options.at(index))
            write_options(module.config, options)
    if found:  # a checkpoint without rates gets them; one with rates keeps their precision
        for name in ("_keys_to_ignore_on_load_missing", "_keep_in_fp32_modules_strict"):
            setattr(model, name, {*(getattr(model, name) or ()), RATES})


def _las_modules(model: nn.Module) -> Iterator[tuple[int, Any]]:
    """The attention modules with `attn_implementation="las"`, each with its layer's index."""
    order: dict[int, int] = {}  # modules seen so far for each configuration
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) != NAME:
            continue
        forward = inspect.unwrap(type(module).forward)
        if "ALL_ATTENTION_FUNCTIONS" not in forward.__code__.co_names:
            continue  # it does not look the attention function up itself
        count = order.get(id(config), 0)
        order[id(config)] = count + 1
        index = getattr(module, "layer_idx", None)
        yield (count if index is None else index), module


def _new_state(module: Any, options: Options) -> LaSState:
    config = module.config
    if (
        getattr(config, "is_encoder_decoder", False)
        or getattr(config, "add_cross_attention", False)
        or "CrossAttention" in type(module).__name__
    ):
        raise ValueError(
            f"attn_implementation='las' supports self-attention only, and {type(module).__name__} "
            "belongs to a model with cross attention: positions of two sequences have no distance"
        )
    own = getattr(config, "is_causal", None)
    options.check(causal=bool(getattr(module, "is_causal", True) if own is None else own))
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    return LaSState(_heads(module), options, None if device.type == "meta" else device)


def _heads(module: Any) -> int:
    for owner in (module, module.config):
        for name in ("num_heads", "num_attention_heads"):
            heads = getattr(owner, name, None)
            if isinstance(heads, int):
                return heads
    raise ValueError(f"cannot tell the number of heads of {type(module).__name__}")


def _warn_if_forgotten(model: PreTrainedModel) -> None:
    config = model.config
    if getattr(config, CONFIG_KEY, None) and config._attn_implementation != NAME:
        logger.warning_once(
            "this model's configuration asks for LaS attention, but it is made with "
            f"attn_implementation={config._attn_implementation!r}; pass attn_implementation='las'"
        )


def _after_construction(model: PreTrainedModel) -> None:
    attach(model)
    _warn_if_forgotten(model)


def _restore_missing_rates(model: PreTrainedModel) -> None:
    """Rates that a checkpoint does not hold come out of `from_pretrained` uninitialised."""
    for state in model.modules():
        if isinstance(state, LaSState) and not getattr(state.alpha, "_is_hf_initialized", False):
            state.restore()


def extend_transformers() -> None:
    """Register `las`, and make models attach their rates wherever transformers switches to it.

    transformers has no hook for weights that belong to an attention implementation, so three
    methods of its base class get a second step. Models without LaS attention are left alone.
    """
    AttentionInterface.register(NAME, las_attention_forward)
    AttentionMaskInterface.register(NAME, las_mask)
    _add_step("post_init", _after_construction)  # the constructor, from_config, from_pretrained
    _add_step("set_attn_implementation", attach)
    _add_step("initialize_weights", _restore_missing_rates)  # the last act of from_pretrained


def _add_step(name: str, step: Callable[[PreTrainedModel], None]) -> None:
    original = getattr(PreTrainedModel, name)

    @functools.wraps(original)
    def method(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        step(self)
        return result

    setattr(PreTrainedModel, name, method)
