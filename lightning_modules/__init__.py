"""Lightning modules: the work of a study.

In: a cell of a study and its token streams. Out: metrics, at steps counted in tokens.
"""
