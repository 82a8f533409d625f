"""Twenty thousand calls of LaS attention, each against the reference in float64."""

import os
import warnings
from collections import Counter
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch

from .attacks import SEED, draw_attack
from .counts import record
from .operators import attend, has_gradients, is_ordinary, wrong_gradients

ATTACKS = 21_000
SHARE = 250  # attacks that a process takes at a time
PROCESSES = int(os.environ.get("ADVERSARIAL_PROCESSES", os.cpu_count() or 1))


def attacked(numbers):
    """Counts, and what went wrong in words."""
    counts, failures = Counter(), []
    for number in numbers:
        attack = draw_attack(number)
        path = attack.form
        try:
            results, path = attend(attack)
            words = [word for result in results if (word := result.wrong(attack))]
            if has_gradients(attack):
                counts["with gradients"] += 1
                words += wrong_gradients(attack)
        except Exception as caught:
            words = [f"raised {caught!r}"]
        counts["configurations"] += 1
        counts[f"by {path}"] += 1
        counts["wrong"] += any("not" not in word for word in words)
        counts["NaN or infinite"] += any("not" in word for word in words)
        if words:
            failures.append(f"attack {number}, {path}: {'; '.join(words)}")
    return counts, failures


def prepare_process():
    torch.set_num_threads(1)
    warnings.simplefilter("error")


@pytest.mark.adversarial
def test_twenty_thousand_calls():
    shares = [range(first, first + SHARE) for first in range(0, ATTACKS, SHARE)]
    counts, failures = Counter(), []
    with get_context("spawn").Pool(PROCESSES, prepare_process) as pool:
        for done, found in pool.imap_unordered(attacked, shares):
            counts += done
            failures += found
    numbers = {name: counts[name] for name in ("configurations", "wrong", "NaN or infinite")}
    numbers |= {name: counts[name] for name in sorted(counts) if name not in numbers}
    record("operators", seed=SEED, **{name.replace(" ", "_"): n for name, n in numbers.items()})
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])


def test_a_hundred_calls():
    """The same in a second, so that the attacks themselves do not rot."""
    counts, failures = attacked(range(100))
    assert not failures and counts["configurations"] == 100 and counts["with gradients"] > 10


@pytest.mark.gpu
def test_calls_on_a_gpu():
    """Ordinary numbers; what does not fit into the kernels takes other routes."""
    wrong = []
    with torch.device("cuda"):
        for number in range(1000):
            attack = replace(draw_attack(number), impl="auto")  # "sdpa" refuses what has no kernel
            if is_ordinary(attack):
                results, path = attend(attack)
                wrong += [(number, path, word) for r in results if (word := r.wrong(attack))]
    assert not wrong


def test_what_is_wrong_is_found():
    """A thousandth more than the right output is wrong in float32."""
    found = 0
    for number in range(60):
        attack = draw_attack(number)
        if attack.dtype == torch.float32 and attack.key_size == 1 and attack.form == "attention":
            (result,), _ = attend(attack)
            result.found = result.found * 1.001
            found += result.wrong(attack) != ""
    assert found >= 5
