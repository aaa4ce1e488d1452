"""Principal-component bases of key and value caches, from running moments.

In: a causal language model and batches of tokens. Out: a ``Basis`` of its keys and one of its
values, and how well each reconstructs another corpus at every rank. The way there is
``KVCapture`` (rows) -> ``Moments`` (sums) -> ``compute_basis`` -> ``reconstruction_errors``;
no row is kept but those of evaluation corpora whose errors are to have intervals. Source
of the method: KV Cache Transform Coding (arXiv 2511.01815).
"""

from __future__ import annotations

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.capture import CapturedKV, KVCapture, NonFiniteActivationError
from lightning_modules.kv.components import (
    basis_of_rows,
    compute_basis,
    exact_basis,
    subspace_bases,
    subspace_basis,
)
from lightning_modules.kv.errors import (
    DEFINITIONS,
    HeadErrors,
    ReconstructionErrors,
    head_errors,
    reconstruction_errors,
)
from lightning_modules.kv.layout import KVEntry, KVLayout
from lightning_modules.kv.moments import CentredMoments, Moments

__all__ = [
    "DEFINITIONS",
    "Basis",
    "CapturedKV",
    "CentredMoments",
    "HeadErrors",
    "KVCapture",
    "KVEntry",
    "KVLayout",
    "Moments",
    "NonFiniteActivationError",
    "ReconstructionErrors",
    "basis_of_rows",
    "compute_basis",
    "exact_basis",
    "head_errors",
    "reconstruction_errors",
    "subspace_bases",
    "subspace_basis",
]
