"""Every mixer against its authors' code: the mathematics of that code, written anew in numpy.

An oracle takes a layer's weights and one sequence (L, D) and computes, in float64 and without
anything of longlens, what the authors' code computes; shapes as there, loops where they are clearer
than indices. ``python -m tests.layers.originals`` measures how far each layer is from its oracle
and writes results/originals.json, from which docs/zoo.md has its table.
"""
