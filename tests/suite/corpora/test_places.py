from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.corpora.places import find_folder
from suite.errors import InputError


def test_a_folder_is_found_from_the_base_and_anything_else_is_not(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "file").write_text("x")
    assert find_folder("model", base=tmp_path) == tmp_path / "model"
    for other in ("absent", "file", "org/model", "a\0b", "x" * 5_000, "package:json.decoder"):
        assert find_folder(other, base=tmp_path) is None


def test_a_package_is_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "with_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_folder("package:with_weights", base=Path()) == package
    assert "with_weights" not in sys.modules


@pytest.mark.parametrize("name", ["not_there", "sys"])
def test_a_package_that_is_none_is_refused_with_the_cure(name: str) -> None:
    with pytest.raises(InputError, match="is not installed; install it with `pip install"):
        find_folder(f"package:{name}", base=Path())
