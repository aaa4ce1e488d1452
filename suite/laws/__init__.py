"""Scaling laws: declared forms, fits that converge, intervals over runs, held-out error.

In: arrays of parameters, tokens, recurrence and loss. Out: fits, predictions and how good
they are. Functions of arrays and tables only: no store, no files, no clock.
"""

from __future__ import annotations
