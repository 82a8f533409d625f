"""Giving a transformers model its decay rates, and `configure`."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedModel,
    StaticCache,
)
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticSlidingWindowLayer
from transformers.utils import logging

from longlens.hf.attention import las_attention_forward
from longlens.hf.mask import las_mask
from longlens.hf.modules import (
    ENCODER,
    NAME,
    attention_modules,
    check_model,
    new_state,
    refuse_second_sequence,
    refuse_weights,
    unable,
)
from longlens.hf.options import CONFIG_KEY, OptionArguments, read_options, write_options
from longlens.hf.state import LaSState, state_of

RATES = rf"\.{NAME}\.alpha$"

logger = logging.get_logger(__name__)


def configure(model: PreTrainedModel, **options: Unpack[OptionArguments]) -> None:
    """Set the options of LaS attention in every layer of `model`; those not given stay as they are.

    The options are kept in `model.config`, so that `save_pretrained` and `from_pretrained` carry
    them. Rates are made anew where `bound`, `spacing` or `layers` is given; call this before making
    an optimizer, since `learned_alpha` adds or removes parameters, and before adding an adapter.

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
    modules = [(index, module) for index, _, module in attention_modules(model)]
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
        if not isinstance(module.las, LaSState):
            raise ValueError(
                "an adapter of this model has rates of its own, which new options would replace: "
                "call longlens.hf.configure before the adapter is added"
            )
        changed = read_options(module.config).change(**options)
        planned.append((module, new_state(module, changed.at(index)), changed))
    new_rates = "bound" in options or "spacing" in options or "layers" in options
    for module, state, changed in planned:
        if not new_rates:
            _keep_rates(module.las.alpha, state)
        module.las = state
        write_options(module.config, changed)


@torch.no_grad()
def _keep_rates(alpha: torch.Tensor, state: LaSState) -> None:
    """Give a new state the rates that there are: an optimizer knows them, or they are frozen."""
    if isinstance(alpha, torch.nn.Parameter) == state.learned_alpha:
        state.alpha = alpha
    else:
        state.alpha.copy_(alpha)
    state.follow()


def attach(model: PreTrainedModel) -> None:
    """Give every attention module that is to use LaS attention its rates, if it has none yet."""
    if model.config._attn_implementation == ENCODER:
        _part_encoder(model)
    check_model(model)
    found = False
    for index, _, module in attention_modules(model):
        found = True
        if state_of(module) is None:
            options = read_options(module.config)
            module.las = new_state(module, options.at(index))
            write_options(module.config, options)
            module.register_forward_pre_hook(refuse_second_sequence, with_kwargs=True)
    if found:  # a checkpoint without rates gets them; one with rates keeps their precision
        for name in ("_keys_to_ignore_on_load_missing", "_keep_in_fp32_modules_strict"):
            setattr(model, name, {*(getattr(model, name) or ()), RATES})
        if refuse_weights not in model._forward_pre_hooks.values():
            model.register_forward_pre_hook(refuse_weights, with_kwargs=True)


def _part_encoder(model: PreTrainedModel) -> None:
    """Give the encoder of an encoder-decoder model a configuration of its own, with `las`."""
    encoder = model.get_encoder()
    if encoder is model:
        return  # inside the constructor of the whole, which comes here, too
    if not isinstance(encoder, PreTrainedModel):
        raise ValueError(unable(type(model)))
    if encoder.config._attn_implementation == ENCODER:
        own = copy.deepcopy(encoder.config)
        own._attn_implementation = NAME
        theirs = encoder.config
        for module in encoder.modules():
            if getattr(module, "config", None) is theirs:
                module.config = own
        encoder._has_own_config = True


# What the methods of transformers' base class do in addition, each around the original.


@contextlib.contextmanager
def _constructed(model: PreTrainedModel) -> Iterator[None]:
    """`post_init`: the end of the constructor, of from_config and from_pretrained."""
    yield
    attach(model)
    config = model.config
    if getattr(config, CONFIG_KEY, None) and config._attn_implementation not in (NAME, ENCODER):
        logger.warning_once(
            "this model's configuration asks for LaS attention, but it is made with "
            f"attn_implementation={config._attn_implementation!r}; pass attn_implementation='las'"
        )


@contextlib.contextmanager
def _chosen(model: PreTrainedModel, requested_attention: Any, *_: Any, **__: Any) -> Iterator[None]:
    """`get_correct_attn_implementation`: the constructor, before it makes layers.

    Some classes look their attention up in tables of their own, and would raise a KeyError.
    """
    home = type(model).__module__
    if requested_attention in (NAME, ENCODER) and home.startswith("transformers."):
        tables = [n for n in vars(sys.modules[home]) if n.endswith("_ATTENTION_CLASSES")]
        if tables or not model._can_set_attn_implementation():
            raise ValueError(unable(type(model)))
    yield


@contextlib.contextmanager
def _switched(
    model: PreTrainedModel, attn_implementation: Any, *_: Any, **__: Any
) -> Iterator[None]:
    """`set_attn_implementation`, which says in the log alone that it cannot switch."""
    yield
    for part in model.modules():  # transformers 5.4 knows nothing of such a configuration
        if part is not model and getattr(part, "_has_own_config", False):
            part.config._attn_implementation = model.config._attn_implementation
    named = isinstance(attn_implementation, dict)
    wanted = attn_implementation.get("") if named else attn_implementation
    if wanted in (NAME, ENCODER) and model.config._attn_implementation != wanted:
        raise ValueError(unable(type(model)))
    for part in model.modules() if attn_implementation == NAME else ():
        if isinstance(part, PreTrainedModel) and not part._can_set_attn_implementation():
            raise ValueError(unable(type(part)))
    attach(model)


@contextlib.contextmanager
def _initialized(model: PreTrainedModel) -> Iterator[None]:
    """`initialize_weights`: rates that a checkpoint does not hold come without a value."""
    yield
    for state in model.modules():
        if isinstance(state, LaSState) and not getattr(state.alpha, "_is_hf_initialized", False):
            state.restore()


@contextlib.contextmanager
def _saved(model: PreTrainedModel, *_: Any, **__: Any) -> Iterator[None]:
    """`save_pretrained`: the configuration names the attention implementation, for this once.

    So the checkpoint loads with LaS attention, and not at all where `longlens.hf` is missing.
    """
    config = model.config
    parts = {"": config} | {name: getattr(config, name, None) for name in config.sub_configs}
    names = {n: getattr(c, "_attn_implementation", None) for n, c in parts.items()}
    ours = {n: name for n, name in names.items() if name in (NAME, ENCODER)}
    if config._attn_implementation == ENCODER:
        write_options(config, read_options(model.get_encoder().config))
    if ours:
        config.attn_implementation = ours[""] if len({*names.values()}) == 1 else ours
    try:
        yield
    finally:
        if ours:
            del config.attn_implementation


@contextlib.contextmanager
def _cached(cache: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """A new cache: smoothing reaches beyond a sliding window, so its layers keep more keys."""
    yield
    owner = DynamicCache if isinstance(cache, DynamicCache) else StaticCache
    named = inspect.signature(owner.__init__).bind(cache, *args, **kwargs).arguments
    config = named.get("config")
    config = None if config is None else config.get_text_config(decoder=True)
    if getattr(config, "_attn_implementation", None) != NAME:
        return
    more = read_options(config).window - 1
    for layer in cache.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.sliding_window += more
            layer._sliding_window_tensor += more
        elif isinstance(layer, StaticSlidingWindowLayer):
            layer.max_cache_len = min(layer.max_cache_len + more, named["max_cache_len"])


def extend_transformers() -> None:
    """Register `las`, and make models attach their rates wherever transformers switches to it.

    transformers has no hook for weights that belong to an attention implementation, so some
    methods of its base class do more. Models without LaS attention are left alone.
    """
    AttentionInterface.register(NAME, las_attention_forward)
    AttentionMaskInterface.register(NAME, las_mask)
    # the decoder of a model whose encoder alone has LaS attention is as with "sdpa"
    AttentionInterface.register(ENCODER, AttentionInterface()["sdpa"])
    AttentionMaskInterface.register(ENCODER, AttentionMaskInterface()["sdpa"])
    _extend("post_init", _constructed)
    _extend("get_correct_attn_implementation", _chosen)
    _extend("set_attn_implementation", _switched)
    _extend("initialize_weights", _initialized)
    _extend("save_pretrained", _saved)
    for cache in (DynamicCache, StaticCache):
        _extend("__init__", _cached, cache)


def _extend(
    name: str,
    step: Callable[..., contextlib.AbstractContextManager[None]],
    owner: type = PreTrainedModel,
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with step(self, *args, **kwargs):
            return original(self, *args, **kwargs)

    setattr(owner, name, method)
