"""How often resampled runs leave a parameter open that all runs together identify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from suite.laws._newton import RunWeights
from suite.laws._terms import Array, Term
from suite.laws.forms import Form

_SOME_LOST = 0.05
"""Share of the resamples above which the interval of a lost parameter is rough."""
MANY_LOST = 0.20
"""Share above which it says more of the starts than of the points, and is not given."""


def lost_shares(
    form: Form, terms: Sequence[Term], columns: Mapping[str, Array], weights: RunWeights
) -> dict[str, float]:
    """Share of the resamples in which a term has fewer levels than it spends parameters.

    A resample that happens to draw no run of some size has fewer sizes than the points have,
    and where they become fewer than the parameters that are spent on them, its fit is one of
    many equally good ones: a number, and no information.

    Args:
        form: the law.
        terms: its terms.
        columns: columns [points] by variable name.
        weights: how often each resample counts each run.

    Returns:
        Shares by symbol, the largest of its terms for the shared constant; without those of 0.
    """
    drawn = (weights.of_run > 0).astype(np.float64)
    shares: dict[str, float] = {}
    for term in terms:
        values = np.stack([columns[name] for name in term.variables])
        levels, of_point = np.unique(values, axis=1, return_inverse=True)
        spent = [symbol.name for symbol in term.symbols]
        if form.constant:
            spent.insert(0, form.constant.name)
        present = np.zeros((drawn.shape[1], levels.shape[1]))
        present[weights.run, of_point.reshape(-1)] = 1.0
        seen = ((drawn @ present) > 0).sum(axis=1)
        share = float((seen < len(spent)).mean())
        for name in spent if share else ():
            shares[name] = max(share, shares.get(name, 0.0))
    return shares


def lost_warnings(lost: Mapping[str, float]) -> list[str]:
    """What a reader should know of shares by symbol: one sentence for each share above 5 %."""
    by_share: dict[float, list[str]] = {}
    for name, share in lost.items():
        if share > _SOME_LOST:
            by_share.setdefault(share, []).append(name)
    sentences = []
    for share, names in by_share.items():
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        many = share > MANY_LOST
        sentences.append(
            f"in {share:.0%} of the resamples the drawn runs do not identify {listed}, though all "
            f"runs together do, so {'there are no intervals' if many else 'intervals are rough'}: "
            "more runs at the rarer levels help"
        )
    return sentences
