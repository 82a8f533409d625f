"""Random calls of LaS attention, as a hypothesis strategy, and the errors that the tests bound."""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from longlens import las_attention

LENGTHS = (1, 2, 3, 5, 13, 31, 64, 65, 97, 127, 131, 199, 300)


@dataclass
class Case:
    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    width: int
    value_width: int
    rate: float | None
    masked: bool
    seed: int
    options: dict = field(default_factory=dict)

    @property
    def widest(self):
        """The largest number of keys that a query sees."""
        options, far = self.options, 1 << 30
        offset, local = options.get("query_offset"), options.get("local")
        offset = self.keys - self.queries if offset is None else int(offset)
        chunk = options.get("chunk") or far
        left, right = local if isinstance(local, tuple) else [(local or far) - 1] * 2
        query, key = torch.arange(self.queries)[:, None] + offset, torch.arange(self.keys)
        seen = (query - key <= left) & (
            key - query <= (0 if options.get("is_causal", True) else right)
        )
        seen &= query.div(chunk, rounding_mode="floor") == key // chunk
        return max(seen.sum(1).tolist(), default=0)

    def largest_term(self):
        """Of a key's gradient, from queries and keys at the same place; 1 where these are few."""
        q, _, v, _, _, grad = self.tensors()
        n = min(self.queries, self.keys)
        to_weight = (grad[:, :, :n] * v.repeat_interleave(self.group, 1)[:, :, :n]).sum(-1).abs()
        scale = self.options.get("scale") or self.width**-0.5
        return max(1.0, float((to_weight * q[:, :, :n].abs().amax(-1)).max()) * scale)

    def tensors(self, dtype=torch.float64, *, through=torch.float64, device="cpu"):
        """Query, key, value, alpha, key mask and the upstream gradient, from the case's own seed.

        They are rounded to `through` and held in `dtype`, so that a float64 computation can start
        from the very numbers that a low precision one gets.
        """
        g = torch.Generator().manual_seed(self.seed)
        heads = self.kv_heads * self.group

        def draw(*shape):
            x = torch.randn(*shape, generator=g, dtype=torch.float64)
            return x.to(through).to(device=device, dtype=dtype)

        q = draw(self.batch, heads, self.queries, self.width)
        k = draw(self.batch, self.kv_heads, self.keys, self.width)
        v = draw(self.batch, self.kv_heads, self.keys, self.value_width)
        grad = draw(self.batch, heads, self.queries, self.value_width)
        alpha = mask = None
        if self.rate is not None:
            alpha = torch.rand(heads, generator=g, dtype=torch.float64).float().double() * self.rate
            alpha[0] = 0 if heads > 1 else self.rate
            alpha = alpha.to(device)
        if self.masked:
            mask = torch.rand(self.batch, self.keys, generator=g) > 0.3
            mask[0] &= self.seed % 3 > 0  # at times a sequence without a single real key
            mask = mask.to(device)
        return q, k, v, alpha, mask, grad


@st.composite
def cases(draw, lengths=LENGTHS):
    causal = draw(st.booleans())
    smoothing = draw(
        st.sampled_from(["causal", "centered", "masked"] if causal else ["causal", "centered"])
    )
    windows = [1, 3, 5, 9, 33, 71] + ([2, 4] if smoothing == "causal" else [])
    queries = draw(st.sampled_from(lengths))
    keys = draw(st.sampled_from([queries, queries, queries + 1, queries + 70, max(1, queries - 3)]))
    return Case(
        batch=draw(st.integers(1, 3)),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 1, 2, 3])),
        queries=queries,
        keys=keys,
        width=draw(st.sampled_from([1, 4, 8])),
        value_width=draw(st.sampled_from([4, 8, 3])),
        rate=draw(st.sampled_from([None, 0.0, 1e-3, 0.05, 0.3, 2.0, 50.0])),
        masked=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
        options=dict(
            is_causal=causal,
            smoothing=smoothing,
            window=draw(st.sampled_from(windows)),
            edge=draw(st.sampled_from(["zero", "renormalize"])),
            query_offset=draw(st.sampled_from([None, None, None, 0, 3, -4, keys, keys + 2])),
            chunk=draw(st.sampled_from([None, None, None, 1, 5, 16, 64])),
            scale=draw(st.sampled_from([None, None, 1.5])),
        ),
    )


@st.composite
def local_cases(draw, lengths=LENGTHS):
    """The same inside a sliding window, given as an integer or a pair."""
    case = draw(cases(lengths))
    left, right = (draw(st.sampled_from([0, 1, 2, 6, 15, 33, 64, 130])) for _ in range(2))
    pair = (left, 0 if case.options["is_causal"] else right)
    case.options["local"] = draw(st.sampled_from([left + 1, pair]))
    return case


def error(found, expected, vanished=0.1):
    """max|Δ| / max|expected|.

    Inputs and upstream gradients have unit scale, so a gradient below 0.1 has all but vanished (a
    window over the whole sequence makes the output independent of q and k); it is measured
    against 0.1 instead of against its own rounding noise.
    """
    scale = expected.abs().max().clamp(min=vanished)
    return float((found.double() - expected).abs().max() / scale)


def run(case, impl, dtype=torch.float64, *, through=torch.float64, device="cpu", **overrides):
    """Output and gradients of q, k, v and (where they are) alpha and a sink."""
    q, k, v, alpha, mask, grad = case.tensors(dtype, through=through, device=device)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    if alpha is not None:
        alpha = alpha.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        inputs.append(alpha)
    if overrides.get("sink") is not None:
        inputs.append(overrides["sink"])
    out = las_attention(
        q, k, v, alpha=alpha, key_mask=mask, enable_gqa=True, impl=impl, **case.options | overrides
    )
    grads = torch.autograd.grad(out, inputs, grad, allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, inputs, strict=True)]
    return [out.detach(), *grads]


def over_budget(case, impl, dtype, device="cpu", runner=run):
    """What exceeds the error budget in a low precision: a list of (name, error, allowed).

    Against float64, the budget is twice the error of the plain reference run in the same dtype,
    with a floor of 8 ulp (PyTorch's CPU kernels use a faster exponential) or 12 on CUDA (whose
    float32 kernel sums in another order); for the gradient of α ten times in float32, where
    folding cancels. With one or two keys, or no more than a window, the gradients of scores are
    differences of equal terms, which the reference never forms: they are measured against the
    largest of those terms.
    """
    true = run(case, "reference", through=dtype, device=device)
    plain = run(case, "reference", dtype, through=dtype, device=device)
    fast = runner(case, impl, dtype, through=dtype, device=device)
    floor = (12 if device == "cuda" else 8) * torch.finfo(dtype).eps
    few = min(case.keys, case.widest) <= max(2, case.options.get("window", 1))
    found = []
    for name, exact, slow, quick in zip(("out", *"qkvα"), true, plain, fast, strict=False):
        factor = 10 if name == "α" and dtype == torch.float32 else 2
        vanished = case.largest_term() if few and name in "qkα" else 0.1
        allowed = factor * max(error(slow, exact, vanished), floor)
        if not error(quick, exact, vanished) <= allowed:  # a NaN is over budget too
            found.append((name, error(quick, exact, vanished), allowed))
    return found
