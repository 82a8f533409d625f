"""Far-field tasks: what a model with a bounded receptive field provably cannot learn.

The proofs are about exact arithmetic and about the models that are described here, no others.

Most "long-range" tasks can be solved, or nearly, by features of a few neighbouring tokens that are
averaged afterwards. These cannot, and each carries the proof with it. Two kinds of proof occur.

**Bag** (``far-order``, ``far-match``, ``far-injection``). Write ⊢ and ⊣ for the edges and let
``bag_r(x)`` be the multiset of all windows of width r of ⊢…⊢ x ⊣…⊣. A model whose feature at a
position is a function of a window of width r (a stack of convolutions, zero padding included, of
receptive field r; sliding local attention; any norm and perceptron that acts on single positions)
and which ends in a symmetric pooling of all features (mean, sum, maximum, softmax-weighted) or in
the feature of the first or last position, is a function of ``bag_r(x)``, whatever its weights. The
examples fall into *orbits*: the same background with the same segments in another order. Within an
orbit all bags of width r ≤ D are equal, and every label is equally likely. So the label is
independent of the bag, and no such model is better than chance, on any number of examples.

In floating point this is true as far as sums do not depend on the order of their terms. Those of
trained networks nearly do not; a float32 mean of features of size 1e8 does, and tells the order.

Not covered, because it cannot be: features that know their absolute position (learned or
sinusoidal codes, blocks at fixed places as in the ``-chunk`` mixers, strides, dilation with gaps
that count towards the width only in part). The bag of windows *with their positions* is the whole
sequence, so pooling them and a large enough perceptron can do anything.

**Read-out** (``far-xor``, ``far-pointer``, ``far-listops``). Everything that depends on the label
is D or more positions before the last one, and the model is read out at the last position alone
(``pooling="last"``; the task insists on it). A model whose last feature reaches back fewer than D
positions sees nothing that depends on the label, also if it knows positions, has strides or works
in blocks. A causal receptive field r reaches back r - 1 positions, a centred one about r / 2. With
mean pooling these tasks are no far-field tasks at all (two bits are counted by features of width
one), which is why the read-out is part of the task. Here rounding plays no part if the last feature
is computed from those positions alone; a convolution by FFT lets the roundings of all others in.

:func:`certificate` checks the claim on the generator that runs. See ``docs/farfield.md``.
"""

from longlens.tasks.farfield.certificate import Certificate, certificate

__all__ = ["Certificate", "certificate"]
