"""The published intervals of the Chinchilla law, and how far resamples may be from them.

Besiroglu et al. (arXiv 2404.10102) give the percentiles 2.5 and 97.5 of 4,000 resamples of the
240 points, each fitted with a Huber threshold of 1e-3. Of other resamples, an end of theirs
should have these shares below it. That share is an estimate from ``resamples`` draws, and the end
itself one from 4,000, so under the same distribution it differs from the nominal share p with the
variance p (1 - p) (1 / resamples + 1 / 4,000), whatever the distribution is; and the end is
rounded, so that any share between those at the two limits of rounding will do.
"""

from __future__ import annotations

import numpy as np

INTERVALS = {
    "A": (285, 744),
    "B": (1042, 5810),
    "E": (1.769, 1.871),
    "alpha": (0.317, 0.373),
    "beta": (0.331, 0.415),
}
_HALF_A_DIGIT = {"A": 0.5, "B": 0.5, "E": 5e-4, "alpha": 5e-4, "beta": 5e-4}
_LEVELS = (0.025, 0.975)
_RESAMPLES = 4_000
MOST_ERRORS = 3.3
"""Standard errors that an end may be off: one of a thousand is, and there are ten."""


def errors_of_ends(values: np.ndarray, symbol: str) -> list[float]:
    """How far each published end is from its percentile, in standard errors of its share.

    Args:
        values: the parameter in each resample [resamples].
        symbol: the parameter.
    """
    found = []
    for end, level in zip(INTERVALS[symbol], _LEVELS, strict=True):
        limits = [end - _HALF_A_DIGIT[symbol], end + _HALF_A_DIGIT[symbol]]
        low, high = ((values < limit).mean() for limit in limits)
        error = np.sqrt(level * (1 - level) * (1 / len(values) + 1 / _RESAMPLES))
        found.append(float(max(low - level, level - high, 0.0) / error))
    return found
