"""Everything random in a step is a pure function of (seed, step, rank): nothing to save."""

from __future__ import annotations

import hashlib

import torch


def key(*parts: int | str) -> int:
    """A 63-bit number that depends on ``parts`` alone.

    >>> key(0, 1) == key(0, 1) != key(0, 2)
    True
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_everything(value: int, device: torch.device) -> None:
    """Seed torch's own generators (dropout, initial weights): the CPU's and that of ``device``."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)
