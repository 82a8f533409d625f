"""The family of LaS: other decays, data-dependent ones, other smoothers, a gate, a sink.

- `fox`: Lin, Nikishin, He & Courville 2025 (ICLR, arXiv 2503.02130), "Forgetting Transformer".
- `wall`: Pai, Averbuch, Zhang, Keigwin & Dewulf 2026 (Tilde Research), "Wall Attention".
- `mta-key`: Golovneva et al. 2025 (arXiv 2504.00927), "Multi-Token Attention"; of its convolutions
  the one along the keys after the softmax.
- the output's gate: Qiu et al. 2025 (NeurIPS, arXiv 2505.06708), "Gated Attention".

Chosen here: whatever is learned starts at LaS. Gates depend on nothing but the head at first, at
the rates of `decay_rates` (a rate of 0 at a hundredth of the bound); Wall's are bounded by
`rate_max`, as learned rates of LaS are; learned taps start as the average, those of `mta-key` as
the identity. The two gates of decay look back only, so `fox` and `wall` are causal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longlens.layers.alibi import alibi_slopes
from longlens.layers.attention import SoftmaxAttention
from longlens.layers.base import Aspects, State, zero_padding
from longlens.layers.decay import WIDEST_LEARNED_RATE, DecayRates
from longlens.ops.family import decay_attention, decay_weights, smoothing_taps
from longlens.ops.las import decay_rates
from longlens.ops.las.checks import check_options

DECAYS = ("none", "las", "alibi", "power", "fox", "wall")
SMOOTHERS = ("none", "box", "triangular", "gaussian", "identity")
GATES = ("none", "head", "channel")


class DecayAttention(SoftmaxAttention):
    """Multi-head attention with a decay and a smoother of the family, (B, L, dim) -> (B, L, dim).

    >>> layer = DecayAttention(64, 4, decay="las", smoother="gaussian", window=5)
    >>> layer(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    taps: Tensor | None
    slopes: Tensor | None
    las: DecayRates | None
    to_gates: nn.Linear | None

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        decay: str = "las",
        learned_decay: bool = False,
        bound: float = 1e-3,
        rate_max: float = WIDEST_LEARNED_RATE,
        smoother: str = "box",
        learned_taps: bool = False,
        window: int = 5,
        smoothing: str | None = None,
        edge: str = "zero",
        gate: str = "none",
        sink: bool = False,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: bool = False,
        bias: bool = True,
        impl: str = "auto",
    ) -> None:
        """Make the layer.

        Args:
            dim: width of the input and output.
            num_heads: number of query heads.
            decay: "none", "las", "alibi", "power" (weights fall as (1 + distance)^-slope), "fox"
                (a forget gate per head) or "wall" (a gate per channel).
            learned_decay: make the rates of "las", "alibi" or "power" parameters.
            bound: the bound B of the rates at the start.
            rate_max: the largest rate that learning may reach in "las" and "wall".
            smoother: "none", "box", "triangular", "gaussian", or "identity" for taps to learn from.
            learned_taps: make the filter of each head a parameter.
            window: width P of the smoothing.
            smoothing: "causal", "centered", "masked"; None: causal if `causal` else centered.
            edge: "zero" or "renormalize".
            gate: "none", or a sigmoid of the input that multiplies each "head" or "channel" of the
                result before the last projection.
            sink: a learned logit per head that takes part in the softmax and gives nothing.
            num_kv_heads: number of key and value heads; None: as many.
            head_dim: width of a head; None: dim / num_heads.
            causal: whether a position sees only itself and what comes before.
            rotary: rotate queries and keys by their positions.
            bias: whether the projections have biases.
            impl: the implementation of `decay_attention`.
        """
        super().__init__(
            dim, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, causal=causal,
            rotary=rotary, bias=bias, impl=impl,
        )  # fmt: skip
        for name, value, known in (
            ("decay", decay, DECAYS),
            ("smoother", smoother, SMOOTHERS),
            ("gate", gate, GATES),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
        if decay in ("fox", "wall") and not causal:
            raise ValueError(f"decay={decay!r} needs causal=True: its gates look back only")
        if not 0 <= bound <= rate_max:
            raise ValueError(f"bound must be between 0 and rate_max={rate_max}, got {bound}")
        self.window = window if smoother != "none" else 1
        self.edge, self.decay_name, self.rate_max = edge, decay, rate_max
        self.smoothing = check_options(self.window, smoothing, edge, causal)
        taps = None
        if smoother != "none":
            one_sided = self.smoothing == "causal"
            shape = "box" if smoother == "identity" else smoother
            taps = smoothing_taps(num_heads, window, shape, one_sided)
            if smoother == "identity":
                taps.zero_()[:, 0 if one_sided else window // 2] = 1
        self._keep("taps", taps, learned_taps)
        self._add_decay(decay, bound, learned_decay)
        width = {"none": 0, "head": num_heads, "channel": num_heads * self.head_dim}[gate]
        self.gate = nn.Linear(dim, width) if width else None
        self.sink = nn.Parameter(torch.zeros(num_heads)) if sink else None
        self.aspects = Aspects(
            regularized=self.window > 1, special_init=decay != "none", stable=True,
            gating=self.gate is not None or decay in ("fox", "wall"),
        )  # fmt: skip

    def rates(self) -> tuple[Tensor | None, float | None]:
        """The rates of LaS's decay and a bound on them; (None, None) with another one, or none."""
        if self.las is None:
            return None, None
        found: tuple[Tensor | None, float | None] = self.las()
        return found

    def _keep(self, name: str, value: Tensor | None, learned: bool) -> None:
        """A parameter or a buffer."""
        if learned and value is not None:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def _add_decay(self, decay: str, bound: float, learned: bool) -> None:
        slopes = alibi_slopes(self.num_heads) if decay in ("alibi", "power") else None
        self._keep("slopes", slopes, learned)
        self.las = None
        if decay == "las":
            options: dict[str, Any] = dict(learned_alpha=learned, alpha_max=self.rate_max)
            self.las = DecayRates(self.num_heads, bound, **(options if learned else {}))
        self.to_gates = None
        if decay in ("fox", "wall"):
            start = decay_rates(self.num_heads, bound).clamp(min=max(bound, 1e-4) / 100)
            if decay == "wall":
                share = (start / self.rate_max).clamp(max=0.99)  # the logit of 1 is infinite
                bias = torch.logit(share.repeat_interleave(self.head_dim))
            else:
                bias = -torch.log(torch.expm1(start))  # whose logsigmoid is -start
            self.to_gates = nn.Linear(self.dim, len(bias))
            nn.init.zeros_(self.to_gates.weight)
            with torch.no_grad():
                self.to_gates.bias.copy_(bias)

    def _decay(self, x: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """What `decay_attention` takes of the decay: x (B, L, dim)."""
        if self.las is not None:
            alpha, rate_max = self.las()
            return dict(alpha=alpha, rate_max=rate_max)
        if self.slopes is not None:
            return {"slopes" if self.decay_name == "alibi" else "power": self.slopes}
        if self.to_gates is None:
            return {}
        gates = self.to_gates(x).float() if x.dtype != torch.float64 else self.to_gates(x)
        if self.decay_name == "fox":
            log_gate = F.logsigmoid(gates)
        else:
            log_gate = -self.rate_max * torch.sigmoid(gates)
        log_gate = zero_padding(log_gate, mask)  # time stands still where there is no token
        if self.decay_name == "fox":
            return dict(log_forget=log_gate.transpose(1, 2))
        split = log_gate.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return dict(log_gate=split, rate_max=self.rate_max)

    def _options(self, mask: Tensor | None) -> dict[str, Any]:
        return dict(
            taps=self.taps, sink=self.sink, smoothing=self.smoothing, edge=self.edge,
            is_causal=self.causal, key_mask=mask, enable_gqa=True, impl=self.impl,
        )  # fmt: skip

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        """The gate and the last projection: x (B, L, dim), y (B, Hq, L, D) -> (B, L, dim)."""
        y = y.transpose(1, 2)
        if self.gate is not None:
            gate = torch.sigmoid(self.gate(x)).unflatten(-1, (self.num_heads, -1))
            y = y * gate
        out: Tensor = self.out(y.flatten(2))
        return out

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix along the sequence: x (B, L, dim), mask (B, L) bool with True for a real token."""
        self._check_input(x)
        if self.sequence_group is not None:
            raise ValueError("sequence_group: this attention does not split sequences across ranks")
        x = zero_padding(x, mask)
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device))
        y = decay_attention(q, k, v, **self._decay(x, mask), **self._options(mask))
        return self._finish(x, y)

    def weights(self, x: Tensor) -> Tensor:
        """The smoothed attention matrices of x (B, L, dim), for small lengths: (B, Hq, L, L)."""
        q, k, _ = self._project(x, torch.arange(x.shape[1], device=x.device))
        options = {n: v for n, v in self._options(None).items() if n != "impl"}
        return decay_weights(q, k, **self._decay(x, None), **options)

    def prefill(self, x: Tensor, mask: Tensor | None = None) -> Any:
        """`forward`, and the state from which `step` goes on; for batches without padding."""
        self._check_decodes()
        if mask is not None and not bool(mask.all()):
            raise ValueError("prompts of different lengths: decode them one at a time")
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device))
        decay = self._decay(x, None)
        y = decay_attention(q, k, v, **decay, **self._options(None))
        return self._finish(x, y), (k, v, *_along(decay))

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        """One token: x (B, dim) -> (B, dim). The state holds keys, values and gates so far."""
        self._check_decodes()
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"x must have shape (batch, {self.dim}), got {tuple(x.shape)}")
        x = x[:, None]
        place = 0 if state is None else state[0].shape[2]
        q, k, v = self._project(x, torch.full((1,), place, device=x.device))
        decay = self._decay(x, None)
        new = (k, v, *_along(decay))
        if state is not None:
            new = tuple(
                torch.cat([a.to(b.dtype), b], dim=2) for a, b in zip(state, new, strict=True)
            )
        names = [name for name in decay if name.startswith("log_")]
        decay.update(zip(names, new[2:], strict=True))
        y = decay_attention(q, new[0], new[1], **decay, **self._options(None))
        return self._finish(x, y)[:, 0], new

    def extra_repr(self) -> str:
        """The options that matter, for `print(model)`."""
        return f"{super().extra_repr()}, decay={self.decay_name!r}, window={self.window}"


def _along(decay: dict[str, Any]) -> list[Tensor]:
    """The part of a decay that has a value per token."""
    return [tensor for name, tensor in decay.items() if name.startswith("log_")]


class ForgettingAttention(DecayAttention):
    """Softmax attention with a forget gate per head.

    >>> ForgettingAttention(64, 4)(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self, dim: int, num_heads: int = 8, *, bound: float = 1e-3, rotary: bool = False,
        smoother: str = "none", window: int = 5, gate: str = "none", sink: bool = False,
    ) -> None:  # fmt: skip
        """See `DecayAttention`."""
        super().__init__(
            dim, num_heads, decay="fox", bound=bound, rotary=rotary, smoother=smoother,
            window=window, gate=gate, sink=sink,
        )  # fmt: skip


class WallAttention(DecayAttention):
    """Attention whose products decay channel by channel, by gates.

    >>> WallAttention(64, 4)(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self, dim: int, num_heads: int = 8, *, bound: float = 1e-3,
        rate_max: float = WIDEST_LEARNED_RATE, rotary: bool = False, smoother: str = "none",
        window: int = 5, gate: str = "none", sink: bool = False,
    ) -> None:  # fmt: skip
        """See `DecayAttention`."""
        super().__init__(
            dim, num_heads, decay="wall", bound=bound, rate_max=rate_max, rotary=rotary,
            smoother=smoother, window=window, gate=gate, sink=sink,
        )  # fmt: skip
