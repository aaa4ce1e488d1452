from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.tracking._redaction import (
    known_secrets,
    mask,
    mask_arguments,
    mask_line,
    mask_value,
    recorded_environment,
)

SECRETS = st.text(
    st.characters(codec="utf-8", exclude_characters="*@/?#"), min_size=8, max_size=40
).filter(lambda text: text.strip() == text)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:pw@host:5432/runs", "postgresql://me:***@host:5432/runs"),
        ("postgresql+psycopg2://:p@w/x@host/runs", "postgresql+psycopg2://:***@host/runs"),
        ("https://ghost@host/x.git", "https://***@host/x.git"),
        ("git clone ssh://git@host/x", "git clone ssh://git@host/x"),
        ("http://localhost:5000", "http://localhost:5000"),
        ("https://host/file?size=3&token=abc&x=1", "https://host/file?size=3&token=***&x=1"),
        ("s3://bucket/key?X-Amz-Signature=0a1b", "s3://bucket/key?X-Amz-Signature=***"),
        ("hf_" + "a1B2" * 8, "***"),
        ("x=ghp_" + "a1B2" * 9 + ";", "x=***;"),
        ("sqlite:////home/me/runs.db", "sqlite:////home/me/runs.db"),
        ("task-the-weekly-long-running-one", "task-the-weekly-long-running-one"),
        ("price: 3 @ shop", "price: 3 @ shop"),
    ],
)
def test_masks_secrets_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask_value(text) == masked


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("+  password: hunter2hunter2\n", "+  password: ***\n"),
        ("+DB_PASSWORD=hunter2hunter2\n", "+DB_PASSWORD=***\n"),
        ('+api_key = "0123456789ab"\n', "+api_key = ***\n"),
        ('-    "hf_token": "not-of-a-known-shape",\n', '-    "hf_token": ***,\n'),
        ("+Authorization: Bearer abcdefgh12345\n", "+Authorization: ***\n"),
        ("+next_token = logits.argmax(-1)\n", "+next_token = logits.argmax(-1)\n"),
        ("+tokens: 1_000_000_000\n", "+tokens: 1_000_000_000\n"),
        ("+def check(password: str) -> bool:\n", "+def check(password: str) -> bool:\n"),
        ("+if secret == something_long:\n", "+if secret == something_long:\n"),
    ],
)
def test_what_a_line_of_a_file_assigns_to_a_secret_name_is_masked(line: str, masked: str) -> None:
    assert mask_line(line) == masked


@pytest.mark.parametrize(
    ("arguments", "masked"),
    [
        (["suite", "run", "demo"], ["suite", "run", "demo"]),
        (["--set", "pretraining.tokens=2000"], ["--set", "pretraining.tokens=2000"]),
        (["--set", "pretraining.tokenizer=byte"], ["--set", "pretraining.tokenizer=byte"]),
        (["--set", "corpora.x.token=abc"], ["--set", "corpora.x.token=***"]),
        (["--set=corpora.x.api_key=a=b="], ["--set=corpora.x.api_key=***"]),
        (["--set=corpora.x.apiKey=a"], ["--set=corpora.x.apiKey=***"]),
        (["--password", "pw", "demo"], ["--password", "***", "demo"]),
        (["--hf-token", "pw"], ["--hf-token", "***"]),
        (["--keyfile", "pw"], ["--keyfile", "pw"]),
        (["--no-password", "--home", "x"], ["--no-password", "--home", "x"]),
        (["corpora={x: {token: abc, n: 1}}"], ["corpora={x: {token: ***, n: 1}}"]),
        (['{"password": "a", "tokens": 5}'], ['{"password": "***", "tokens": 5}']),
        (["keys/secret.yaml"], ["keys/secret.yaml"]),
        (["--uri", "http://a:b c'd@e"], ["--uri", "http://a:***@e"]),
    ],
)
def test_masks_secret_arguments_however_they_are_given(
    arguments: list[str], masked: list[str]
) -> None:
    assert mask_arguments(arguments) == masked


def test_only_variables_that_matter_are_recorded_and_secret_ones_masked(tmp_path: Path) -> None:
    environment = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "SUITE_HOME": "runs",
        "HF_TOKEN": "hf_short",
        "MLFLOW_TRACKING_PASSWORD": "pw",
        "SLURM_JWT": "j",
        "SUITE_API_KEY": "k",
        "MLFLOW_TRACKING_URI": "postgresql://me:pw@host/runs",
        "NCCL_NOTE": "with my-own-secret inside",
        "MY_SECRET": "my-own-secret",
        "HOME": "/home/me",
        "PATH": "/bin",
    }
    assert recorded_environment(environment) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HF_TOKEN": "***",
        "MLFLOW_TRACKING_PASSWORD": "***",
        "MLFLOW_TRACKING_URI": "postgresql://me:***@host/runs",
        "NCCL_NOTE": "with *** inside",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "SLURM_JWT": "***",
        "SUITE_API_KEY": "***",
        "SUITE_HOME": "runs",
        "TOKENIZERS_PARALLELISM": "false",
    }


def test_known_secrets_are_long_values_that_are_no_paths(tmp_path: Path) -> None:
    environment = {
        "A_TOKEN": "a-long-secret",
        "A_PASSWORD": "a-long-secret-that-is-longer",
        "B_KEY": "short",
        "C_KEY": str(tmp_path),
        "PLAIN": "not a secret at all",
    }
    assert known_secrets(environment) == ("a-long-secret-that-is-longer", "a-long-secret")


@given(secret=SECRETS, before=st.text(max_size=5), after=st.text(max_size=5))
def test_no_secret_survives_wherever_it_is_put(secret: str, before: str, after: str) -> None:
    environment = {
        "X_TOKEN": secret,
        "SUITE_TEXT": f"{before}{secret}{after}",
        "SUITE_URI": f"postgresql://me:{secret}@host/db",
        "SUITE_PASSWORD": secret,
    }
    recorded = recorded_environment(environment)
    arguments = [f"--token={secret}", "--password", f"{secret}", f"http://a:{secret}@b", secret]
    masked = mask_arguments(arguments, known_secrets(environment))
    for text in (*recorded.values(), *masked):
        assert secret not in text
