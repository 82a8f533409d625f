"""Random calls of LaS attention in all its forms: what is drawn, and the tensors of a call.

Everything about attack number n follows from the seed and n, so that a single one can be repeated:
``python -m tests.adversarial.operators n``.
"""

import math
import random
from dataclasses import dataclass, field, fields

import torch

from longlens.ops.las.decay import FOLD_RANGE
from tests.ops.las.layouts import LAYOUTS, SAME_VALUES, laid_out

SEED = 17
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# The largest entries of queries and keys, and of values, for which docs/reliability.md promises
# finite results
LARGEST = {torch.float64: 1e150, torch.float32: 1e18, torch.bfloat16: 1e18, torch.float16: 65_504.0}
LARGEST_VALUE = {
    torch.float64: 1e300, torch.float32: 1e30, torch.bfloat16: 1e30, torch.float16: 6e4,
}  # fmt: skip
# and the largest scores for which it promises gradients
LARGEST_SCORE = {
    torch.float64: 1e12, torch.float32: 1e6, torch.bfloat16: 1e6, torch.float16: 1e6,
}  # fmt: skip
FORMS = ("attention",) * 7 + ("decode", "varlen", "packed")


@dataclass
class Attack:
    """One call; sizes as in `las_attention`, of which "decode" makes single steps."""

    number: int
    form: str
    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    layouts: tuple[str, ...]
    query_size: float
    key_size: float
    value_size: float
    alpha_kind: str
    mask_kind: str
    offset_kind: str
    options: dict = field(default_factory=dict)
    bounded: float = 0.0  # alpha_max as a multiple of the largest α; 0: not given
    impl: str = "auto"

    def __str__(self):
        return "\n".join(f"  {f.name} = {getattr(self, f.name)!r}" for f in fields(self))


def draw_attack(number: int) -> Attack:
    """Attack number `number`."""
    rng = random.Random(f"{SEED}-{number}")
    form, dtype = rng.choice(FORMS), rng.choice(DTYPES)
    causal = form == "decode" or rng.random() < 0.65
    smoothing = rng.choice(["causal", "centered", "masked"] if causal else ["causal", "centered"])
    window = rng.choice([1, 1, 3, 5, 9, 33, 71, rng.randint(1, 40) * 2 - 1])
    if smoothing == "causal":
        window = rng.choice([window, 2, 4, rng.randint(1, 50)])
    elif form == "decode" and smoothing == "centered":
        window = 1
    length = rng.choice([rng.randint(1, 20), rng.randint(1, 130), *(1, 2, 63, 64, 65, 129)])
    keys = length
    if form == "attention":
        keys = max(1, length + rng.choice([0, 0, 0, 0, 0, 1, 70, -3, -length // 2]))
    width, value_width = _width(rng), _width(rng)
    width += width % 2 if form == "packed" else 0
    if form == "packed" or rng.random() < 0.5:
        value_width = width
    kv_heads = rng.randint(1, 2)
    options = dict(
        window=window, smoothing=smoothing, edge=rng.choice(["zero", "renormalize"]),
        is_causal=causal, scale=rng.choice([None, None, 10 ** rng.uniform(-3, 1)]),
        chunk=rng.choice([None, None, None, 1, 5, 16, 64]),
    )  # fmt: skip
    scale = options["scale"] or width**-0.5
    ordinary, largest = rng.random() < 0.5, LARGEST[dtype]
    reach = math.log10(largest)
    query_size = (
        1.0 if ordinary else 10 ** rng.uniform(-min(reach, 4 if reach < 5 else reach), reach)
    )
    # scores of some standard deviation, rarely an extreme one
    spread = 10 ** (rng.uniform(-2, 3) if rng.random() < 0.8 else rng.uniform(0, reach))
    key_size = 1.0 if ordinary else spread / (query_size * scale * math.sqrt(width))
    value_size = 1.0
    if not ordinary:
        value_size = rng.choice([1.0, 1.0, 10 ** rng.uniform(-3, 3), LARGEST_VALUE[dtype] / 3])
    impls = ["auto"] * 8 + ["sdpa"]
    if dtype in DTYPES[:2]:  # in half precision the plain formula rounds its scores
        impls.append("reference")
    impl = rng.choice(impls) if form != "decode" else "auto"
    offset_kind = "default"
    if form == "attention" and rng.random() < 0.3:
        offset_kind = rng.choice(["zero", "some", "before", "beyond", "tensor", "one tensor"])
    return Attack(
        number, form, dtype, rng.choice([1, 1, 1, 2]), kv_heads * rng.choice([1, 1, 2]), kv_heads,
        length, keys, width, value_width, tuple(rng.choice(LAYOUTS) for _ in range(5)),
        query_size, min(key_size, largest), value_size,
        rng.choice(["none", "zero", "any", "any", "equal", "limit", "limit", "huge"]),
        rng.choice(["none"] * 5 + ["random", "left", "right", "empty row"]) if form != "varlen"
        else "none",
        offset_kind, options, rng.choice([0.0, 0.0, 1.0, 1.3]), impl,
    )  # fmt: skip


def _width(rng):
    return rng.choice(
        [rng.randint(1, 16), rng.randint(1, 16), rng.randint(1, 64), rng.randint(1, 300)]
    )


def tensors(attack: Attack):
    """Query, key and value (B, heads, length, width), α and the mask, laid out in some way.

    They are on torch's default device, the same numbers on each.
    """
    g = torch.Generator().manual_seed(attack.number)
    B, L, S = attack.batch, attack.queries, attack.keys

    def draw(shape, size, largest, layout):
        x = torch.randn(shape, generator=g, dtype=torch.float64, device="cpu") * size
        x = x.clamp(-largest, largest).to(attack.dtype)
        return laid_out(x.to(torch.get_default_device()), layout)

    largest = LARGEST[attack.dtype] / (2 if attack.form == "packed" else 1)  # rotation adds two
    lay = attack.layouts
    q = draw((B, attack.heads, L, attack.width), attack.query_size, largest, lay[0])
    k = draw((B, attack.kv_heads, S, attack.width), attack.key_size, largest, lay[1])
    terms = 1 if attack.dtype == torch.float16 else S + attack.options["window"]
    most = LARGEST_VALUE[attack.dtype] / terms  # float16 adds up in float32
    v = draw((B, attack.kv_heads, S, attack.value_width), attack.value_size, most, lay[2])
    return q, k, v, _alpha(attack, g), _mask(attack, g)


def _alpha(attack: Attack, g: torch.Generator):
    if attack.alpha_kind == "none":
        return None
    heads = attack.heads
    share = torch.rand(heads, generator=g, dtype=torch.float64, device="cpu")
    share = share.to(torch.get_default_device())
    length = max(attack.queries, attack.keys)
    # on a CPU float16 is computed in float32
    limit = FOLD_RANGE[torch.float32 if attack.number % 2 else attack.dtype]
    rates = {
        "zero": share * 0,
        "any": 10 ** (6 * share - 4),
        "equal": share[:1].expand(heads),
        # on both sides of the longest fold
        "limit": limit / length * (0.98 + 0.04 * share),
        "huge": 1e3 * (1 + share),
    }[attack.alpha_kind]
    dtype = torch.float64 if attack.number % 3 == 0 else torch.float32
    layout = ("dense", "every other column", "odd offset")[attack.number % 3]
    if attack.alpha_kind == "equal":
        return rates.to(dtype)
    return laid_out(rates.to(dtype)[None], layout)[0]


def _mask(attack: Attack, g: torch.Generator):
    B, S = attack.batch, attack.keys
    if attack.mask_kind == "none":
        return None
    place, cut = torch.arange(S), torch.randint(0, S, (B, 1), generator=g, device="cpu")
    cut = cut.to(place.device)
    mask = torch.rand(B, S, generator=g, device="cpu").to(place.device) > 0.4
    if attack.mask_kind == "left" or attack.form == "decode":  # contiguous, as a prompt is
        mask = place >= cut
    elif attack.mask_kind == "right":
        mask = place <= cut
    elif attack.mask_kind == "empty row":
        mask[0] = False
    same = attack.layouts[3] if attack.layouts[3] in SAME_VALUES else "transposed"
    return laid_out(mask.expand(B, S), same)


def options_of(attack: Attack, alpha, mask) -> dict:
    """The keyword arguments of `las_attention`."""
    options = dict(attack.options, alpha=alpha, key_mask=mask, enable_gqa=True, impl=attack.impl)
    if alpha is not None and attack.bounded:
        options["alpha_max"] = float(alpha.max()) * attack.bounded
    S, B = attack.keys, attack.batch
    offset = {
        "default": None, "zero": 0, "some": S // 2, "before": -min(4, attack.queries),
        "beyond": S + 2, "tensor": torch.arange(B) * 3 - 2, "one tensor": torch.tensor([S // 3]),
    }[attack.offset_kind]  # fmt: skip
    return options | dict(query_offset=offset)


def exact_call(attack: Attack, q, k, v, alpha, mask) -> dict:
    """What the reference takes: every default filled in, float64."""
    options = options_of(attack, alpha, mask)
    offset = options["query_offset"]
    return dict(
        alpha=None if alpha is None else alpha.double(), key_mask=mask,
        query_offset=k.shape[2] - q.shape[2] if offset is None else offset,
        scale=options["scale"] or q.shape[3] ** -0.5,
        **{n: options[n] for n in ("window", "smoothing", "edge", "is_causal", "chunk")},
    )  # fmt: skip
