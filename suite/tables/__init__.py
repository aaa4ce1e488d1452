"""``suite fit``: a law fitted to anybody's numbers.

In: a table of runs (CSV, Parquet, JSON lines) or the runs of an MLflow experiment, and which
column is what. Out: a printed summary and, in a folder, the result as JSON, every point with
its prediction, and figures. Nothing here writes to the tracking store.
"""

from __future__ import annotations
