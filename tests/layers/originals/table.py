"""Which mixer is compared with whose code, and what remains different."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.layers.originals import attention, convolutions, state_space

BOTH = ({"bidirectional": False}, {"bidirectional": True})
ROUNDING = 1e-12
"""What float64 leaves of sums this long; layers agree with their oracles up to it."""
FLOAT32 = 1e-6
"""The same where a constant is float32 whatever the layer's precision (rotary angles, slopes)."""


@dataclass(frozen=True)
class Comparison:
    """One row of the table: keys of the registry, the code, the oracle, what stays different."""

    keys: tuple[str, ...]
    code: str
    oracle: Callable[..., Any]
    remains: str
    options: tuple[dict[str, Any], ...] = BOTH
    length: int = 21
    within: float = ROUNDING


COMPARISONS = (
    Comparison(
        ("softmax",),
        "torch `scaled_dot_product_attention`",
        attention.softmax_attention,
        "nothing",
    ),
    Comparison(
        ("rope",),
        "ZhuiyiTechnology/roformer",
        attention.rotary,
        "pairs of channels are (n, n + d/2), theirs (2n, 2n + 1): an order of the projections' "
        "rows",
        within=FLOAT32,
    ),
    Comparison(
        ("alibi",),
        "ofirpress/attention_with_linear_biases",
        attention.alibi,
        "both directions (symmetric), chunks and smoothing are not in their code",
        tuple({**side, "num_heads": heads, "dim": 24} for side in BOTH for heads in (3, 4, 6, 12)),
        within=FLOAT32,
    ),
    Comparison(
        ("reformer",),
        "google/trax, `LSHSelfAttention`, one chunk a bucket",
        attention.reformer,
        "chunks start with their bucket (strictly causal, and padding changes nothing), theirs "
        "with the sorted sequence; their later code lets a chunk's other buckets in and counts a "
        "pair once a round (here 1/n, as in the paper); rotations are kept, not drawn at every "
        "call",
        tuple({**side, "rounds": n, "chunk": 32} for side in BOTH for n in (1, 2)),
    ),
    Comparison(
        ("linformer",),
        "facebookresearch/fairseq, examples/linformer",
        attention.linformer,
        "keys and values are projected to heads first and along the sequence then, so that their "
        "biases are projected too; E and F start as N(0, 1/k), as in the paper, theirs Xavier "
        "uniform",
        ({},),
    ),
    Comparison(
        ("bigbird",),
        "google-research/bigbird, the same random blocks given",
        attention.bigbird,
        "random blocks come from a hash of block, head and seed, among blocks with real tokens, "
        "one from each of r parts; theirs are drawn freely, but from the first blocks of a long "
        "sequence only; the last global block is the last with a real token",
        ({"block": 2},),
    ),
    Comparison(
        ("performer",),
        "google-research, performer/fast_attention",
        attention.performer,
        "no stabiliser of 1e-6 is added to the features; keys are not shifted by their maximum "
        "(that cancels, and leaks by rounding)",
    ),
    Comparison(
        ("luna",),
        "XuezheMax/fairseq-apollo, `luna_attention`, `tie_kv=False`",
        attention.luna,
        "keys and values are never tied (theirs are by default); every layer owns its p, which "
        "theirs passes on from layer to layer; torch's initial weights, theirs Xavier with gain "
        "1/√2",
    ),
    Comparison(
        ("linear",),
        "idiap/fast-transformers",
        attention.linear,
        "their denominator has 1e-6 more",
    ),
    Comparison(
        ("ss",),
        "state-spaces/s4, `lssl.py`",
        state_space.ss,
        "A, B and Δ are learned and A starts as HiPPO-LegS; theirs are fixed, with HiPPO-LegT",
    ),
    Comparison(
        ("s4-v1",),
        "state-spaces/s4, mode `dplr`",
        state_space.s4_linear,
        "as `s4`",
    ),
    Comparison(
        ("s4",),
        "state-spaces/s4, mode `dplr`, GLU",
        state_space.s4,
        "C̃ starts standard normal, theirs as C(I - Ā^L) of a standard normal C; no dropout of "
        "its own",
        tuple({**side, "ssms": n} for side in BOTH for n in (None, 2)),
    ),
    Comparison(
        ("dss",),
        "ag1988/dlr, `DSSKernel`, `exp` and `softmax`",
        state_space.dss,
        "one Δ a channel (their later code: one for each part of λ, equal at first); the softmax "
        "sums over `max_length` and needs Re λ < 0; theirs adds 1e-7 to a denominator",
        tuple({**side, "variant": v} for side in BOTH for v in ("exp", "softmax")),
    ),
    Comparison(
        ("s4d",),
        "state-spaces/s4, mode `diag`",
        state_space.s4d,
        "B is absorbed into C, theirs is trained beside it; its start is an option (`b_init`): "
        "ones, as `diag-legs` has it, or half of HiPPO's B, as the paper's theorem has it",
        tuple({**side, "discretization": d} for side in BOTH for d in ("zoh", "bilinear")),
    ),
    Comparison(
        ("s5",),
        "lindermanlab/S5, `half_glu1`",
        state_space.s5,
        "initial normal draws are not cut off at two standard deviations; Re λ < 0 always (an "
        "option there)",
    ),
    Comparison(
        ("lru",),
        "the paper's listing; NicolasZucchet/minimal-LRU",
        state_space.lru,
        "the ring starts at 0.9 to 0.999 (there 0 to 1, and what each task asks for); both "
        "directions are S5's",
    ),
    Comparison(
        ("dlr",),
        "ag1988/dlr, `DLRKernel`",
        state_space.dlr,
        "Re λ = -exp(a), theirs -a²; it starts between 5e-4 and 0.5, theirs between 5e-5 and "
        "0.05; w starts so that each kernel has energy 1, theirs with deviation 1/N",
    ),
    Comparison(
        ("gss",),
        "the paper's listing (no code of the authors is public)",
        state_space.gss,
        "64 modes for its 512; w's initial deviation 1/N is DLR's; both directions are ours",
    ),
    Comparison(
        ("h3",),
        "HazyResearch/H3",
        state_space.h3,
        "the shift's skip term is part of its first tap; channels of the output are ordered by "
        "head, theirs by place in the head (an order of the last projection's columns)",
        ({"head_dim": 1}, {"head_dim": 2}),
    ),
    Comparison(
        ("sgconv",),
        "ctlllll/SGConv",
        convolutions.sgconv,
        "the norm is over `max_length` taps, theirs over the next d·2ⁿ; decay 1/2 a scale for all"
        " channels (their default; an option there)",
    ),
    Comparison(
        ("longconv",),
        "HazyResearch/safari, `LongConv`",
        convolutions.longconv,
        "kernels start with energy 1 per channel, theirs with 0.02 times the envelope; no dropout"
        " on taps; the threshold is 0.003 (their default 0.1, and what each task asks for)",
    ),
    Comparison(
        ("hyena",),
        "HazyResearch/safari, `HyenaOperator`",
        convolutions.hyena,
        "features of positions are not trained; one head, no dropout",
        tuple({"order": order, "bands": bands} for order in (2, 3) for bands in (1, 4)),
    ),
    Comparison(
        ("ckconv",),
        "dwromero/ckconv, the kernel's network",
        convolutions.ckconv,
        "one kernel a channel and a projection, theirs D × D kernels; no weight norm; positions "
        "run over [0, 1), theirs over [-1, 1], so that initial frequencies are half of theirs; "
        "the last layer starts smaller by √max_length",
    ),
    Comparison(
        ("tnn",),
        "OpenNLPLab, `Gtu`, `Tno` and `Rpe`",
        convolutions.tnn,
        "one head; smaller sizes",
    ),
    Comparison(
        ("gmlp",),
        "the paper's listing (no code of the authors is public)",
        convolutions.gmlp,
        "the matrix is cut to the batch's length; its lower triangle where causal is ours",
    ),
    Comparison(
        ("mega", "mega-chunk"),
        "XuezheMax/fairseq-apollo, `MovingAverageGatedAttention`",
        convolutions.mega,
        "no dropout and no norm of its own (a block has both)",
        tuple(
            {**side, "attention": f, "chunk": c, "relative_bias": bias}
            for side in BOTH
            for f in ("softmax", "laplace")
            for c in (None, 5)
            for bias in ("rotary", "simple")
        ),
        within=FLOAT32,
    ),
    Comparison(
        ("fox",),
        "the paper's formula; zhixuan-lin/forgetting-transformer",
        attention.forgetting,
        "gates start at the rates of LaS, whatever the token; no norm of queries and keys, no "
        "shift of keys and values, no norm of the output (their stronger block has these)",
        ({},),
    ),
    Comparison(
        ("wall",),
        "the formula of fla's `parallel_wall_attn`",
        attention.wall,
        "gates are bounded by `rate_max` and start at the rates of LaS",
        ({},),
    ),
    Comparison(
        ("mta-key",),
        "the paper's formula, the convolution along keys after the softmax alone",
        attention.key_convolution,
        "no convolution along queries or heads, no norm of heads; the taps reach back from a key, "
        "theirs to both sides of it",
        ({},),
    ),
    Comparison(("lstm",), "torch `nn.LSTM`", convolutions.lstm, "nothing"),
    Comparison(("gru",), "torch `nn.GRU`", convolutions.gru, "nothing"),
)

NO_CODE = {
    **dict.fromkeys(("las", "las-chunk", "l", "l-chunk", "s", "s-chunk"), "none published"),
    **dict.fromkeys(
        ("softmax-chunk", "alibi-chunk", "s-alibi-chunk"), "the LaS paper's, unpublished"
    ),
    **dict.fromkeys(("las-taps", "las-gauss", "las-gated", "family"), "LaS with parts of others"),
    "local": "softmax attention in a band",
    "conv": "an ordinary depth-wise convolution",
    "gmlp-toeplitz": "a variant used in arXiv 2501.14850",
}
"""Keys without a row, and why."""
