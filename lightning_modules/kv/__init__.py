"""Principal-component bases of key and value caches, from running moments.

In: a causal language model and batches of tokens. Out: a ``Basis`` of its keys and one of its
values, and how well each reconstructs another corpus at every rank. The way there is
``KVCapture`` (rows) -> ``Moments`` (sums) -> ``compute_basis`` -> ``reconstruction_errors``;
no row is kept. Source of the method: KV Cache Transform Coding (arXiv 2511.01815).
"""

from __future__ import annotations

from lightning_modules.kv.basis import Basis, compute_basis, exact_basis, subspace_basis
from lightning_modules.kv.capture import CapturedKV, KVCapture, NonFiniteActivationError
from lightning_modules.kv.errors import DEFINITIONS, ReconstructionErrors, reconstruction_errors
from lightning_modules.kv.layout import KVEntry, KVLayout
from lightning_modules.kv.moments import CentredMoments, Moments

__all__ = [
    "DEFINITIONS",
    "Basis",
    "CapturedKV",
    "CentredMoments",
    "KVCapture",
    "KVEntry",
    "KVLayout",
    "Moments",
    "NonFiniteActivationError",
    "ReconstructionErrors",
    "compute_basis",
    "exact_basis",
    "reconstruction_errors",
    "subspace_basis",
]
