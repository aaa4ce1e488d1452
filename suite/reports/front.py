"""Which points no other point beats: the non-dominated front of a minimisation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def non_dominated(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the points of the front; every objective is minimised.

    A point is dominated if another is no worse in all objectives and better in one. Equal
    points do not dominate each other. A point with a value that is not finite is never on the
    front and dominates nothing.

    Args:
        values: objective values, ``[points, objectives]``.

    Returns:
        Whether each point is on the front, ``[points]``.
    """
    front = np.asarray(np.isfinite(values).all(axis=1), dtype=np.bool_)
    finite = values[front]
    kept = [
        not ((finite <= point).all(axis=1) & (finite < point).any(axis=1)).any() for point in finite
    ]
    front[front] = np.array(kept, dtype=bool)
    return front
