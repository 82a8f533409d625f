"""Cosine and sine with the same bits on every processor.

NumPy has code of its own for each generation of processors, and their last digits differ. One
digit can decide whether a paddle fits, and with it all that follows in an image. (For the same
reason the generator does without ``np.interp`` and ``Generator.uniform``, which multiply and add in
one rounding or in two, as the compiler likes.)
"""

from __future__ import annotations

import math

import numpy as np

from longlens.tasks.arrays import Array

# Taylor's series up to x^15 and x^16: within 1e-16 for |x| <= π/4.
SINE = [(-1) ** i / math.factorial(2 * i + 1) for i in range(8)]
COSINE = [(-1) ** i / math.factorial(2 * i) for i in range(9)]


def direction(angle: Array) -> Array:
    """(cos, sin) of angles (…): (…, 2) of their dtype.

    Only sums, products and rounding, which every processor does alike.

    >>> direction(np.array([0.0, np.pi / 3])).round(15).tolist()
    [[1.0, 0.0], [0.5, 0.866025403784439]]
    """
    wide = angle.astype(np.float64)
    quarters = np.rint(wide * (2 / np.pi))
    rest = wide - quarters * (np.pi / 2)
    square = rest * rest
    sine, cosine = np.full_like(rest, SINE[-1]), np.full_like(rest, COSINE[-1])
    for coefficient in SINE[-2::-1]:
        sine = sine * square + coefficient
    for coefficient in COSINE[-2::-1]:
        cosine = cosine * square + coefficient
    sine *= rest
    turn = quarters.astype(np.int64) & 3  # by a quarter, cos becomes -sin and sin becomes cos
    x = np.choose(turn, [cosine, -sine, -cosine, sine])
    y = np.choose(turn, [sine, cosine, -sine, -cosine])
    return np.stack([x, y], axis=-1).astype(angle.dtype)
