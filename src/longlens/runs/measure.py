"""What a run cost: arithmetic, speed, share of the device's peak."""

from __future__ import annotations

import re

import torch
from torch import nn

from longlens.models.count import flop_count
from longlens.training.distributed import Ranks
from longlens.training.job import Job, State
from longlens.training.rehearse import batch_of_each_length

# Dense bfloat16 and float32 operations a second, from the makers' data sheets.
PEAKS = {
    "H200": (989e12, 67e12), "H100 PCIe": (756e12, 51e12), "H100": (989e12, 67e12),
    "B200": (2250e12, 80e12), "A100": (312e12, 19.5e12), "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12), "A10": (125e12, 31.2e12), "4090": (165e12, 82.6e12),
    "3090": (71e12, 35.6e12), "V100": (125e12, 15.7e12), "T4": (65e12, 8.1e12),
}  # fmt: skip
OTHERS = "NVL|Laptop|Max-Q|D"  # what follows the name of a device with other peaks


def peak_flops(hardware: str, low_precision: bool) -> float | None:
    """Operations a second that a device is sold with; None where that is not known (a CPU's).

    >>> peak_flops("NVIDIA H200", low_precision=True)
    989000000000000.0
    >>> peak_flops("NVIDIA RTX A1000", low_precision=True)  # no A100
    """
    for name, (low, full) in PEAKS.items():
        if re.search(rf"\b{name}\b(?! ({OTHERS})\b)", hardware):
            return low if low_precision else full
    return None


def flops_per_token(model: nn.Module, job: Job) -> float:
    """Operations of training per padded token: three times the forward pass of single rows.

    Averaged over the padded lengths of the training batches. Matrix products, FFTs and attention
    count as in ``longlens.models.count``.
    """
    total, positions = 0.0, 0
    training = model.training
    heads = {"tokens": True} if job.prepare.denoises else {}  # both, as a step computes
    model.eval()
    for batch, count in batch_of_each_length(job.train).values():
        generator = torch.Generator(batch.inputs.device).manual_seed(0)
        row = next(job.prepare(batch, generator, training=False).split(1))
        with torch.no_grad():
            cost = flop_count(lambda row=row: model(row.inputs, row.mask, **heads))  # type: ignore[misc]
        total += count * cost
        inputs = row.inputs
        positions += count * (inputs[..., 0] if inputs.is_floating_point() else inputs).numel()
    model.train(training)
    return 3 * total / positions


def speed(
    state: State, flops: float, ranks: Ranks, hardware: str, low: bool
) -> dict[str, float | None]:
    """Rates over the steps that nothing interrupted; None where there were none."""
    spent = state.timed_seconds or float("nan")
    arithmetic = flops * state.timed_padded / spent
    peak = peak_flops(hardware, low)
    return {
        "steps_per_second": state.timed_steps / spent,
        "tokens_per_second": state.timed_tokens / spent,
        "padded_tokens_per_second": state.timed_padded / spent,
        "flops_per_second": arithmetic,
        "share_of_peak": None if peak is None else arithmetic / (peak * ranks.world_size),
    }
