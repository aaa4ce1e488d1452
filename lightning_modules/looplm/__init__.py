"""The looped language model of Ouro (arXiv 2510.25741): sizes, model, objective.

In: a size of a study and a recurrence. Out: exact parameter and FLOP counts (``sizes``, which
needs no torch), a transformers model (``modeling``) and its losses (``objective``).
"""
