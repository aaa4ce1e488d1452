"""Runs out (home, store, recorder, Lightning logger, provenance) and back in (reader).

In flow the settings and metrics of cells; out flow polars frames of live curves. Only
``store`` and ``recorder`` load mlflow, and only reading happens without it.
"""
