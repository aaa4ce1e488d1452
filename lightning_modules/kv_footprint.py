"""What solvers hold in memory beside their matrix, for plans and for placing it.

Measured on a CPU at p = 2,880 and r = 864: the peaks were those of a matrix and 9.6 blocks
``[p, r]``, and of 4.7 matrices.
"""

BLOCKS = 10
"""Blocks of the basis's size that a subspace iteration holds beside its matrix."""
EXACT_MATRICES = 5
"""Matrices that the eigensolver holds, its own among them."""
