"""A tiny configuration for any model of transformers' registry, made from its default one."""

import contextlib
import re

import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Sizes by the names that configurations give them; the first pattern that matches counts.
SIZES = [
    (r"num_key_value_heads|num_kv_heads|kv_heads$", 2),
    (r"heads?$|num_heads|n_head", 4),
    (r"head_dim$|head_size$|d_kv$|kv_channels$|rotary_dim$", 8),
    (r"lora_rank$|lora_dim$|index_.*dim", 8),
    (r"(num_|n_)?(local_|routed_)?experts$|num_moe_experts$", 4),
    (r"top_?k$|experts_per_tok$", 2),
    (r"n_group$|topk_group$", 1),
    (r"qk_(rope|nope)_head_dim|v_head_dim|d_head$", 8),
    (r"layers?$|num_blocks$|depth$|n_layer", 2),
    (r"vocab_size", 99),
    (r"type_vocab|max_.*position|n_positions|max_.*length|seq_length$|n_ctx$", 64),
    (r"image_size$|img_size$|input_size$", 32),
    (r"patch_size$", 8),
    (r"intermediate|ffn|d_ff$|mlp_dim$|n_inner$|feed_forward|inner_dim$", 48),
    (
        r"hidden_(size|dim)$|d_model$|embed(ding)?_(dim|size)$|n_embd$|^dim$|_dim$|width$|hidden$",
        32,
    ),
    (r"sliding_window$|attention_chunk_size$|window_size$|local_attention$", 8),
    (r"num_mel_bins|num_queries|num_latents|max_.*patches|queries$", 16),
]
KEPT = re.compile(
    r"rope_|theta|eps|token_id|channels|label|spatial|kernel|conv|feat_extract|stride"
)


def registered_classes():
    """Every model class of transformers' auto classes, by name, with its model type."""
    found = {}
    for name, mapping in sorted(vars(modeling_auto).items()):
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for kind, classes in mapping.items():
                for c in classes if isinstance(classes, list | tuple) else [classes]:
                    if kind in CONFIG_MAPPING and hasattr(transformers, c):
                        found.setdefault(c, kind)
    return [(kind, name) for name, kind in sorted(found.items())]


# What cannot be told from names.
OWN = {"gpt_neo": dict(attention_types=[[["global", "local"], 1]])}


def tiny_config(kind):
    """The default configuration of a model type, shrunk."""
    return _shrunk(CONFIG_MAPPING[kind], OWN.get(kind, {}))


def _shrunk(cls, own=None):
    default = cls()
    subs = {name: getattr(default, name, None) for name in getattr(default, "sub_configs", {})}
    changes = {}
    for name, value in default.to_dict().items():
        if name in subs or name.startswith("_"):
            continue
        small = _small(name, value)
        if small != value:
            changes[name] = small
    heads = getattr(default, "num_attention_heads", None)
    if getattr(default, "num_key_value_heads", None) == heads and isinstance(heads, int):
        changes["num_key_value_heads"] = min(heads, 4)
    for name, sub in subs.items():
        if sub is not None:
            changes[name] = _shrunk(type(sub))
    changes.update(pad_token_id=0) if hasattr(default, "pad_token_id") else None
    if getattr(default, "head_dim", 0) is None:
        changes["head_dim"] = 8
    rope = getattr(default, "rope_parameters", None)
    if isinstance(rope, dict) and "mrope_section" in rope:
        changes["rope_parameters"] = rope | {"mrope_section": [2, 1, 1]}
    changes |= own or {}
    lists = [name for name, value in default.to_dict().items() if isinstance(value, list)]
    for drop in ((), ("head_dim",), ("num_key_value_heads",), lists, tuple(subs)):
        with contextlib.suppress(Exception):
            return cls(**{k: v for k, v in changes.items() if k not in drop})
    return cls(**changes)


def _small(name, value):
    if isinstance(value, bool) or KEPT.search(name):
        return 5 if name.endswith("token_id") and isinstance(value, int) and value > 90 else value
    if isinstance(value, int) and value > 0:
        for pattern, size in SIZES:
            if re.search(pattern, name):
                return min(value, size)
    return value
