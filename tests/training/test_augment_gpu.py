"""Augmentation on a CUDA device: the same results as on a CPU, and the host never waits."""

import numpy as np
import pytest
import torch

from longlens.tasks.listops import ListOpsOptions, make_block
from longlens.training.augment import build
from longlens.training.examples import mask_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]


def inputs_of(task):
    if task != "listops":
        return torch.randint(256, (50, 1024))
    block = make_block(ListOpsOptions(), "train", 0, 50)
    rows = torch.zeros(50, 2048, dtype=torch.long)
    pieces = np.split(block["flat"], np.cumsum(block["lengths"])[:-1])
    for row, piece in zip(rows, pieces, strict=True):
        row[: len(piece)] = torch.from_numpy(piece.astype(np.int64))
    return rows


@pytest.mark.parametrize(
    ("task", "compiled"),
    [("listops", False), *((task, c) for task in ("image", "pathfinder") for c in (False, True))],
)
def test_as_on_a_cpu_and_without_waiting(task, compiled):
    inputs = inputs_of(task)
    here = build(task, (32, 32))
    there = build(task, (32, 32), "cuda", compile=compiled)
    noise = here.noise(inputs, torch.Generator().manual_seed(0))
    moved, its_noise = inputs.cuda(), noise.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    there(moved, None, generator)  # compilation may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        there(moved, None, generator)
        got = there.transform(moved, None, its_noise)
        mask_tokens(moved, moved > 0, generator, 0.3, 256)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    want = here.transform(inputs, None, noise)
    # at the border between two pixels either may be the nearest, depending on rounding
    off = (got.cpu() != want).double().mean()
    assert off == 0 if task == "listops" else off < 0.01
