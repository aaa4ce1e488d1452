"""The one place that makes MLflow's client, quiet and without patience of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient


def make_client(uri: str) -> MlflowClient:
    """MLflow's client for a tracking URI.

    Patience is ours (``patience.py``): MLflow's own retries would start a second run when an
    answer is lost, and its two minutes for one request would hold up the end of a cell. What the
    user has set in the environment stands.

    Args:
        uri: a database's or a server's.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)
