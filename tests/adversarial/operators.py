"""The calls of the attacks, and what is wrong about their results."""

import random
import sys
from dataclasses import dataclass

import torch

from longlens import las_attention
from longlens.ops.las import explain, las_attention_packed, las_attention_varlen
from longlens.ops.las.call import Call
from longlens.ops.las.decode import LaSCache
from longlens.ops.las.reference import reference
from longlens.ops.rotary import rotary_angles, rotate
from tests.ops.las.layouts import laid_out

from .attacks import LARGEST_SCORE, Attack, draw_attack, exact_call, options_of, tensors
from .budgets import allowed_error, gradient_terms


@dataclass
class Result:
    """What a call returned, (B, H, L, Dv), and what the reference takes for the same."""

    found: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    call: dict

    def wrong(self, attack: Attack) -> str:
        """Why the result is not what the reference says; empty: it is."""
        q, k, v = (t.detach().double().contiguous() for t in (self.q, self.k, self.v))
        if not self.found.isfinite().all():
            return "not finite"
        expected = reference(Call(q, k, v, **self.call))
        limit = allowed_error(attack.dtype, q, k, v, self.call)
        off = (self.found.double() - expected).abs() / limit
        return "" if off.max() <= 1 else f"{float(off.max()):.3g} times the error allowed"


def attend(attack: Attack) -> tuple[list[Result], str]:
    """Make the call; returns its results and the path that it took."""
    q, k, v, alpha, mask = tensors(attack)
    options = options_of(attack, alpha, mask)
    if attack.form == "decode":
        return _decode(attack, q, k, v, alpha), "decode"
    if attack.form == "varlen":
        return _varlen(attack, q, k, v, alpha), "varlen"
    call = exact_call(attack, q, k, v, alpha, mask)
    if attack.form == "packed":
        packed = laid_out(torch.cat([q, k, v], dim=1), attack.layouts[4])
        angles = rotary_angles(torch.arange(q.shape[2]), q.shape[3])
        del options["enable_gqa"]
        heads = attack.heads, attack.kv_heads
        found = las_attention_packed(packed, *heads, angles=angles, **options)
        q, k, v = packed.split([heads[0], heads[1], heads[1]], dim=1)
        return [Result(found, rotate(q, *angles), rotate(k, *angles), v, call)], "packed"
    plan = explain(q, k, v, **options)
    return [Result(las_attention(q, k, v, **options), q, k, v, call)], plan.route


def _decode(attack: Attack, q, k, v, alpha) -> list[Result]:
    """A prompt padded on the left and three steps; rows are compared one by one, unpadded."""
    prompt = max(0, attack.keys - 3)
    cuts = [0] * attack.batch
    mask = None
    if attack.mask_kind != "none":
        cuts = [random.Random(attack.number + b).randint(0, prompt) for b in range(attack.batch)]
        mask = torch.arange(prompt) >= torch.tensor(cuts)[:, None]
    names = ("window", "smoothing", "edge", "chunk")
    reading = {n: attack.options[n] for n in names}
    cache = LaSCache(k[:, :, :prompt], v[:, :, :prompt], key_mask=mask, **reading)
    results = []
    for t in range(prompt, attack.keys):
        cache.append(k[:, :, t : t + 1], v[:, :, t : t + 1])
        found = cache.attend(q[:, :, t : t + 1], alpha=alpha, scale=attack.options["scale"])
        for b, cut in enumerate(cuts):
            row = (q[b : b + 1, :, t : t + 1], *(x[b : b + 1, :, cut : t + 1] for x in (k, v)))
            call = exact_call(attack, *row, alpha, None)
            results.append(Result(found[b : b + 1], *row, call))
    return results


def _varlen(attack: Attack, q, k, v, alpha) -> list[Result]:
    """As many sequences as the batch has, of different lengths, some of them empty."""
    rng = random.Random(attack.number)
    lengths = [rng.randint(0, attack.keys) for _ in range(attack.batch)]
    bounds = torch.tensor([sum(lengths[:n]) for n in range(attack.batch + 1)])
    rows = [
        torch.cat([x[b, :, :n].transpose(0, 1) for b, n in enumerate(lengths)]) for x in (q, k, v)
    ]
    if sum(lengths):
        rows = [laid_out(x[None], kind)[0] for x, kind in zip(rows, attack.layouts, strict=False)]
    options = options_of(attack, alpha, None)
    del options["key_mask"], options["query_offset"]
    if attack.number % 2:
        bounds = laid_out(bounds[:, None].expand(-1, 2), "dense")[:, 0].int()
    found = las_attention_varlen(*rows, bounds, max(lengths) + attack.number % 4, **options)
    assert found.shape == (sum(lengths), attack.heads, attack.value_width)
    results = []
    for start, n in zip(bounds.tolist(), lengths, strict=False):
        if n:
            own, *parts = (x[start : start + n].transpose(0, 1)[None] for x in (found, *rows))
            results.append(Result(own, *parts, exact_call(attack, *parts, alpha, None)))
    return results


def has_gradients(attack: Attack) -> bool:
    """Whether gradients are wanted too: docs/reliability.md promises them up to some scores."""
    if attack.form != "attention" or attack.number % 3:  # of a third, to save time
        return False
    q, k, *_ = tensors(attack)
    scale = attack.options["scale"] or attack.width**-0.5
    q, k = (t.double().norm(dim=-1).max() for t in (q, k))
    return float(q * k * scale) <= LARGEST_SCORE[attack.dtype]


def is_ordinary(attack: Attack) -> bool:
    """Whether budgets for gradients exist: inputs of unit size.

    The plain formula, which the budgets come from, overflows in float16 sooner than we do.
    """
    plain = attack.options["scale"] is None or attack.dtype == torch.float64
    return attack.query_size == attack.key_size == attack.value_size == 1 and plain


def wrong_gradients(attack: Attack) -> list[str]:
    """What exceeds its budget among the gradients of q, k, v and α, in words.

    The budget is twice the error of the plain formula in the same dtype, or 8 ulp of the terms that
    add up to the gradient, whichever is more; in float64 an error of 1e-9 of those terms. For
    inputs that are not of unit size gradients must not be NaN, no more.
    """
    q, k, v, alpha, mask = tensors(attack)
    g = torch.Generator().manual_seed(attack.number)
    shape = (*q.shape[:3], v.shape[3])
    upstream = (
        torch.randn(shape, generator=g, device="cpu").to(q.device).double() / attack.value_size
    )  # no true overflow
    upstream = laid_out(upstream.to(attack.dtype), attack.layouts[4])

    def gradients(impl, dtype):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        options = options_of(attack, alpha, mask) | dict(impl=impl)
        if alpha is not None:
            options["alpha"] = alpha.detach().double() if dtype == torch.float64 else alpha.detach()
            inputs.append(options["alpha"].requires_grad_())
        out = las_attention(*inputs[:3], **options)
        return torch.autograd.grad(
            out, inputs, upstream.to(dtype), allow_unused=True, materialize_grads=True
        )

    found = gradients(attack.impl, attack.dtype)
    if not is_ordinary(attack):
        return ["gradient: not a number"] if any(g.isnan().any() for g in found) else []
    true = gradients("reference", torch.float64)
    low = attack.dtype != torch.float64
    plain = gradients("reference", attack.dtype) if low else true
    exact = [t.double().contiguous() for t in (q, k, v, upstream)]
    sizes = gradient_terms(*exact, exact_call(attack, q, k, v, alpha, mask))
    wrong = []
    for name, size, right, slow, quick in zip("qkvα", sizes, true, plain, found, strict=False):
        near, off = ((t.double() - right).abs().max() for t in (slow, quick))
        floor = 8 * torch.finfo(attack.dtype).eps * size if low else 1e-9 * max(1.0, size)
        limit = max(2 * float(near), floor)
        if not off <= limit:
            wrong.append(f"gradient of {name}: off by {float(off):.3g}, allowed {limit:.3g}")
    return wrong


def main() -> None:
    """Repeat single attacks by their numbers."""
    for number in map(int, sys.argv[1:]):
        attack = draw_attack(number)
        results, path = attend(attack)
        print(attack, path, *[r.wrong(attack) or "right" for r in results], sep="\n")


if __name__ == "__main__":
    main()
