"""Experiment tracking for looped-language-model scaling laws and KV-cache calibration.

In: a study, one YAML file. Out: MLflow runs in a home folder, and a report built from
those runs alone. Importing this package loads neither torch nor mlflow.
"""

from __future__ import annotations

__version__ = "0.1.0"
