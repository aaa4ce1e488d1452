"""Optuna searches over a study's settings, stored in the home and resumed by running again.

In flow a space of choices and a function from one combination to its objectives; out flow
exactly the trials that were asked for, no combination twice. Tracking is the caller's.
"""

from __future__ import annotations

from tuning.search import run_trials
from tuning.spaces import Combination, combinations

__all__ = ["Combination", "combinations", "run_trials"]
