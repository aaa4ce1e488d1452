from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_modules.kv.files import save_tensors
from lightning_modules.kv.stored_rows import RowsWriter
from suite.doctor.inventory import size_text, take_inventory
from suite.stages.moments import _readable
from suite.tracking.home import Home


@pytest.fixture
def cached(home: Home) -> dict[str, Path]:
    """One file of each kind that is cached, whole."""
    files = {
        "moments": home.cache / "moments" / "0f" / "tokens-64.safetensors",
        "rows": home.cache / "moments" / "0f" / "tokens-64.key-rows.safetensors",
        "tokens": home.cache / "tokens" / "0f.npy",
        "ends": home.cache / "tokens" / "0f.ends.npy",
        "tokenizers": home.cache / "tokenizers" / "0f.json",
    }
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(files["moments"], {"sum": torch.ones(16, 16)})
    with files["rows"].open("wb") as file:
        writer = RowsWriter(file, count=5, documents=np.array([2, 3]))
        writer.append(torch.ones(5, 4))
        writer.close()
    np.save(files["tokens"], np.arange(1_000, dtype=np.uint16))
    np.save(files["ends"], np.array([1_000]))
    files["tokenizers"].write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    return files


def test_a_whole_cache_is_left_as_it_is(
    home: Home, cached: dict[str, Path], examine: Callable[..., Any]
) -> None:
    assert examine(home, fix=True).good("cache") == ["5 cached files can be read"]
    assert all(file.exists() for file in cached.values())


@pytest.mark.parametrize("kept", [0, 3, 0.5, -1])
@pytest.mark.parametrize("name", ["moments", "rows", "tokens", "ends", "tokenizers"])
def test_a_file_that_was_cut_is_removed_and_no_other(
    home: Home,
    cached: dict[str, Path],
    examine: Callable[..., Any],
    name: str,
    kept: float,
) -> None:
    content = cached[name].read_bytes()
    length = int(kept * len(content)) if 0 < kept < 1 else int(kept)
    cached[name].write_bytes(content[:length])
    finding = examine(home).only("cache").finding
    assert (finding.what, finding.where) == (
        "1 of 5 cached files are damaged",
        (str(cached[name]),),
    )
    assert examine(home, fix=True).left == []
    assert {key for key, file in cached.items() if file.exists()} == cached.keys() - {name}


@pytest.mark.parametrize("length", [0, 4, 7, 8, 60, 500, -8, -1, None])
def test_moments_are_judged_as_the_stage_judges_them(
    home: Home, cached: dict[str, Path], examine: Callable[..., Any], length: int | None
) -> None:
    file = cached["moments"]
    file.write_bytes(file.read_bytes()[:length])
    told = examine(home).left
    if length is None:
        assert _readable(file)
        assert told == []
    else:
        with pytest.warns(UserWarning, match="is damaged"):
            assert not _readable(file)
        assert told == ["1 of 5 cached files are damaged"]


def test_half_made_files_are_left_while_somebody_may_be_making_them(
    home: Home, age: Callable[[Path], Path], examine: Callable[..., Any]
) -> None:
    new, old = home.root / ".mlflow.db.0f.part", home.cache / ".a.npy.1e.part"
    old.parent.mkdir()
    for path in (new, old):
        path.write_text("half")
    age(old)
    found = examine(home, fix=True)
    told = {o.finding.severity: o for o in found["half-made files"]}
    assert told["note"].finding.where == (f"{new}, 4 bytes",)
    assert told["warning"].finding.where == (f"{old}, 4 bytes",)
    assert (new.exists(), old.exists()) == (True, False)
    age(new)
    assert examine(home, fix=True).left == []
    assert not new.exists()


def test_a_folder_counts_as_recent_for_what_changed_in_it(
    home: Home, age: Callable[[Path], Path], examine: Callable[..., Any]
) -> None:
    staging = home.reports / ".demo-abc.part"
    staging.mkdir(parents=True)
    (staging / "index.html").write_text("half")
    age(staging)
    assert examine(home, fix=True).left == []
    assert staging.exists()
    age(staging / "index.html")
    age(staging)
    examine(home, fix=True)
    assert not staging.exists()


@pytest.mark.parametrize(
    ("name", "unfinished"),
    [
        ("spool/r.1.spool", False),
        ("spool/r.1.offset", False),
        ("spool/r.1.lock", False),
        ("spool/gone.1.offset", True),
        ("spool/gone.1.files", True),
        ("spool/gone.1.damaged", False),
        ("spool/refused/gone.1.spool", False),
        ("reports/demo/index.html", False),
        ("checkpoints/r/tokens-000000000000064.ckpt", False),
        ("checkpoints/r/tokens-000000000000064.part", True),
        ("trash/2026-01-01/checkpoints/r/x.part", False),
        ("backups/.mlflow.db.part", False),
        ("notes/of mine.part", False),
    ],
)
def test_which_names_are_those_of_half_made_files(home: Home, name: str, unfinished: bool) -> None:
    (home.root / "spool").mkdir()
    (home.root / "spool" / "r.1.spool").touch()
    path = home.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert take_inventory(home).unfinished == ([path] if unfinished else [])


def test_what_a_home_takes(home: Home) -> None:
    database = home.database.stat().st_size
    for name, size in (("artifacts/a/b", 1_000), ("artifacts/c", 234), ("cache/d", 5), ("e", 7)):
        (home.root / name).parent.mkdir(parents=True, exist_ok=True)
        (home.root / name).write_bytes(b"x" * size)
    (home.artifacts / "link").symlink_to(home.database)
    sizes = take_inventory(home).sizes
    link = len(str(home.database))
    assert sizes == {"database": database, "artifacts": 1_234 + link, "cache": 5}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (7_639_040, "7.6 MB"),
        (153_200_000, "153 MB"),
        (2e9, "2.0 GB"),
        (3.25e15, "3250 TB"),
    ],
)
def test_sizes_for_a_person(size: float, text: str) -> None:
    assert size_text(size) == text
