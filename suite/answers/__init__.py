"""Answers from a study's law: losses to expect, how to spend a budget, which cell to run next.

In: the study's newest finished law run and its cells, from the tracking store. Out: tables on
the terminal. Nothing is computed here that ``suite.laws`` does not.
"""

from __future__ import annotations
