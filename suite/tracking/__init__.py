"""Runs out (home, store, recorder, spool, provenance) and back in (reader, curves).

In flow the settings and metrics of cells; out flow polars frames of live curves. What is logged
goes to a spool on disk, and from there to the store, by the companion process or at the end of
an attempt. Nothing loads mlflow before a store or a server is opened.
"""
