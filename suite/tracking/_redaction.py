"""Keeps passwords, tokens and keys out of what is recorded.

Everything recorded is masked on suspicion: a harmless text that is lost costs little, and a
secret in a tracking store cannot be taken back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZER)|KEY|SECRET|PASS|CREDENTIAL|AUTH|JWT|COOKIE", re.IGNORECASE
)
_SECRET_WORDS = frozenset(
    "token key apikey secret password passwd pass pwd passphrase credential credentials auth jwt "
    "cookie".split()
)
_RECORDED = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "GLOO_", "GOMP_", "HF_", "KMP_", "LIGHTNING_",
    "MASTER_", "MKL_", "MLFLOW_", "NCCL_", "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_", "PL_",
    "PYTORCH_", "SLURM_", "SUITE_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_",
)  # fmt: skip
_RECORDED_WHOLE = frozenset(
    "GROUP_RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK PYTHONHASHSEED PYTHONPATH RANK "
    "WORLD_SIZE".split()
)
_SHORTEST_SECRET = 8  # shorter values are words that other texts hold too

_BEFORE_PASSWORD = r"([a-z][a-z0-9+.\-]*://[^\s/?#:@\"'<>]*:)"
_PASSWORD_IN_TEXT = re.compile(_BEFORE_PASSWORD + r"\S*@", re.IGNORECASE)
_PASSWORD_IN_VALUE = re.compile(_BEFORE_PASSWORD + r".*@", re.IGNORECASE | re.DOTALL)
_USER_IN_URI = re.compile(r"(https?://)[^\s/?#:@\"'<>]+@", re.IGNORECASE)
_QUERY = re.compile(
    r"([?&][^\s=&]*(?:token|secret|pass|pwd|key|sig|auth)[^\s=&]*=)[^\s&\"'<>]+", re.IGNORECASE
)
_INLINE = re.compile(
    r"((?:token|secret|password|passwd|key|credential)[\"']?\s*:\s*[\"']?)[^\s\"',}]+",
    re.IGNORECASE,
)
# a bare "token" is what language models read; only those that open something are secret here
_ASSIGNED = re.compile(
    r"(\w*(?:(?:access|api|auth|bearer|hf|refresh)_?token|secret|passw(?:or)?d|passphrase|api_?key"
    r"|credential|authorization)\w*[\"']?[ \t]*[:=][ \t]*)(?![=:])(?:bearer[ \t]+)?"
    r"[\"']?[^\s\"',;}()\[\]]{8,}[\"']?",
    re.IGNORECASE,
)
KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}"
    r"|sk-(?:[a-z]+-)?[A-Za-z0-9_]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16})"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is likely to hold a secret."""
    return _SECRET_NAME.search(name) is not None


def known_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose name says that they are secret, longest first.

    Short values and paths that exist are left out: they stand in other texts by chance.
    """
    found = {
        value
        for name, value in environment.items()
        if is_secret_name(name) and len(value) >= _SHORTEST_SECRET and not os.path.exists(value)
    }
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without passwords in URIs, tokens of well-known shapes, and known secrets."""
    return _mask(text, secrets, _PASSWORD_IN_TEXT)


def mask_line(line: str, secrets: Iterable[str] = ()) -> str:
    """``mask`` for a line of a file, and what it assigns to a name that says it is secret."""
    return _ASSIGNED.sub(rf"\g<1>{MASK}", mask(line, secrets))


def mask_value(value: str, secrets: Iterable[str] = ()) -> str:
    """The same for one value, in which a password may hold any character."""
    return _mask(value, secrets, _PASSWORD_IN_VALUE)


def _mask(text: str, secrets: Iterable[str], password: re.Pattern[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = password.sub(rf"\g<1>{MASK}@", text)
        text = _USER_IN_URI.sub(rf"\g<1>{MASK}@", text)
        text = _QUERY.sub(rf"\g<1>{MASK}", text)
    return _SHAPES.sub(MASK, text)


def mask_arguments(arguments: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line whose secrets are masked, as ``--token=x``, ``--token x`` or ``token: x``."""
    secrets = tuple(secrets)
    masked: list[str] = []
    follows = False
    for argument in arguments:
        if follows and not argument.startswith("-"):
            masked.append(MASK)
            follows = False
            continue
        parts = argument.split("=")
        named = next((i for i, part in enumerate(parts[:-1]) if _names_a_secret(part)), None)
        follows = len(parts) == 1 and argument.startswith("-") and _names_a_secret(argument)
        if named is None:
            masked.append(_INLINE.sub(rf"\g<1>{MASK}", mask_value(argument, secrets)))
        else:
            masked.append("=".join([*parts[: named + 1], MASK]))
    return masked


def _names_a_secret(name: str) -> bool:
    # by whole words: tokens and tokenizers are no secrets here
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return any(word.lower() in _SECRET_WORDS for word in words)


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that can change a result or its speed, by name, without secrets."""
    secrets = known_secrets(environment)
    return {
        name: MASK if is_secret_name(name) else mask_value(value, secrets)
        for name, value in sorted(environment.items())
        if name.startswith(_RECORDED) or name in _RECORDED_WHOLE
    }
