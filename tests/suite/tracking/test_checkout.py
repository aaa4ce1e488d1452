from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from suite.tracking._checkout import Checkout, read_checkout

GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None, reason="there is no git here")
NAMES = ("plain.py", "a name with spaces.py", "ünïcode 移動.py", "new\nline.py", "-dash.py")


@pytest.fixture(autouse=True)
def _own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test configures counts."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for key, value in {
        "user.name": "n", "user.email": "e", "init.defaultBranch": "main",
        "protocol.file.allow": "always",
    }.items():  # fmt: skip
        git(tmp_path, "config", "--global", key, value)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of the three packages, committed and clean."""
    tree = tmp_path / "checkout"
    for package in ("suite", "lightning_modules", "tuning"):
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").write_text("one\ntwo\nthree\n")
    (tree / "README.md").write_text("read me\n")
    (tree / "data.bin").write_bytes(bytes(range(256)) * 4)
    (tree / ".gitignore").write_text("ignored.py\n")
    git(tree, "init")
    commit_all(tree)
    return tree


def commit_all(tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-m", "one")


def read(tree: Path, **options: object) -> Checkout:
    return read_checkout(tree / "suite", **options)  # type: ignore[arg-type]


def patch_of(found: Checkout) -> bytes:
    """The patch without the words before it."""
    assert found.diff is not None
    content = found.diff.content
    return content[content.index(b"diff --git ") :]


def files_of(tree: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(tree)): file.read_bytes()
        for file in tree.rglob("*")
        if file.is_file() and ".git" not in file.relative_to(tree).parts
    }


def script(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_clean_checkout_has_commit_and_branch_and_no_diff(tree: Path) -> None:
    git(tree, "checkout", "-b", "feature/größer")
    assert read(tree) == Checkout(
        commit=git(tree, "rev-parse", "HEAD"), branch="feature/größer", dirty=False
    )


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    found = read(tmp_path)
    assert (found.commit, found.branch, found.dirty, found.diff) == (None, None, None, None)
    assert found.note is not None
    assert "not a git repository" in found.note


def test_a_checkout_that_does_not_track_the_package_is_not_its_source(tree: Path) -> None:
    """The package is installed into an environment that lies in a project of somebody else."""
    installed = tree / "env" / "suite"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    found = read_checkout(installed)
    assert found.commit is None
    assert "__init__.py" in (found.note or "")


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    (tmp_path / "new" / "suite").mkdir(parents=True)
    (tmp_path / "new" / "suite" / "__init__.py").write_text("")
    git(tmp_path / "new", "init")
    git(tmp_path / "new", "add", "-A")
    found = read(tmp_path / "new")
    assert found == Checkout(branch="main", note="the repository has no commit yet")


def test_a_detached_head_has_no_branch(tree: Path) -> None:
    git(tree, "checkout", "--detach")
    found = read(tree)
    assert (found.branch, found.dirty) == (None, False)
    assert found.commit == git(tree, "rev-parse", "HEAD")


def test_a_worktree_is_a_checkout(tree: Path, tmp_path: Path) -> None:
    git(tree, "worktree", "add", "-b", "other", str(tmp_path / "beside"))
    (tmp_path / "beside" / "suite" / "__init__.py").write_text("changed\n")
    found = read(tmp_path / "beside")
    assert (found.branch, found.dirty) == ("other", True)
    assert read(tree).dirty is False


def test_the_diff_turns_a_clean_clone_into_the_tree(tree: Path, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        (tree / "suite" / f"tracked {name}").write_text(f"{number}\n" * 30)
    (tree / "suite" / "gone.py").write_text("gone\n")
    commit_all(tree)
    git(tree, "clone", "-q", str(tree), str(tmp_path / "clone"))
    for name in NAMES:
        (tree / "suite" / f"tracked {name}").write_text("changed, no end of line")
        (tree / "tuning" / name).write_bytes(f"new {name}\r\n\xff".encode("latin-1", "replace"))
    (tree / "tuning" / "empty.py").write_text("")
    (tree / "suite" / "gone.py").unlink()
    (tree / "suite" / "__init__.py").chmod(0o755)
    (tree / "data.bin").write_bytes(bytes(range(255, -1, -1)) * 4)
    (tree / "README.md").write_text("staged\n")
    git(tree, "add", "README.md")
    found = read(tree)
    assert found.diff is not None
    (tmp_path / "diff.patch").write_bytes(found.diff.content)
    git(tmp_path / "clone", "apply", "--whitespace=nowarn", str(tmp_path / "diff.patch"))
    assert files_of(tmp_path / "clone") == files_of(tree)
    assert (tmp_path / "clone" / "suite" / "__init__.py").stat().st_mode & stat.S_IXUSR
    assert found.diff.content.startswith(b"Changes against commit " + (found.commit or "").encode())
    assert found.diff.digest == hashlib.sha256(patch_of(found)).hexdigest()
    assert found.diff.size == len(patch_of(found))


@pytest.mark.parametrize(
    ("path", "dirty"),
    [
        ("suite/new.py", True),
        ("tuning/deep/new.yaml", True),
        ("suite/ignored.py", False),
        ("suite/.env", False),
        ("suite/notes.txt", False),
        ("scratch.py", False),
    ],
)
def test_only_source_files_of_the_packages_count_when_untracked(
    tree: Path, path: str, dirty: bool
) -> None:
    (tree / path).parent.mkdir(exist_ok=True)
    (tree / path).write_text("new\n")
    found = read(tree)
    assert found.dirty is dirty
    assert (found.diff is not None) is dirty


def test_what_was_staged_and_taken_back_is_no_change(tree: Path) -> None:
    (tree / "README.md").write_text("staged\n")
    git(tree, "add", "README.md")
    (tree / "README.md").write_text("read me\n")
    assert read(tree).dirty is False


def test_packages_below_the_top_of_the_repository(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    git(tmp_path / "large", "init")
    shutil.rmtree(tree / ".git")
    shutil.move(tree, tmp_path / "large" / "vendor [x]")
    commit_all(tmp_path / "large")
    inside = tmp_path / "large" / "vendor [x]"
    git(tmp_path, "clone", "-q", str(tmp_path / "large"), str(tmp_path / "clone"))
    (inside / "suite" / "new.py").write_text("new\n")
    (inside / "tuning" / "__init__.py").write_text("changed\n")
    (tmp_path / "diff.patch").write_bytes(read(inside).diff.content)  # type: ignore[union-attr]
    git(tmp_path / "clone", "apply", "--whitespace=nowarn", str(tmp_path / "diff.patch"))
    assert files_of(tmp_path / "clone") == files_of(tmp_path / "large")


def test_a_changed_submodule_makes_the_tree_dirty(tree: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    git(part, "init")
    (part / "file").write_text("1\n")
    commit_all(part)
    git(tree, "submodule", "add", "-q", str(part), "part")
    git(tree, "commit", "-m", "part")
    assert read(tree).dirty is False
    (tree / "part" / "file").write_text("2\n")
    was = git(tree, "rev-parse", "HEAD:part")
    found = read(tree)
    assert found.dirty is True
    assert f"-Subproject commit {was}\n+Subproject commit {was}-dirty\n".encode() in patch_of(found)


def test_nothing_that_is_configured_runs_or_changes_the_diff(tree: Path, tmp_path: Path) -> None:
    (tree / "suite" / "__init__.py").write_text("one\n2\nthree\n")
    (tree / "suite" / "new.py").write_text("new\n")
    plain = read(tree)
    ran = tmp_path / "ran"
    program = script(tmp_path / "programs", "trap", f'echo "$0 $@" >> "{ran}"\ncat "$1"')
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        shutil.copy(program, tree / ".git" / "hooks" / hook)
    for key, value in {
        "core.fsmonitor": str(program),
        "core.pager": str(program),
        "diff.external": str(program),
        "diff.trap.textconv": str(program),
        "diff.trap.command": str(program),
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "diff.context": "0",
        "color.ui": "always",
        "core.quotePath": "false",
    }.items():
        git(tree, "config", key, value)
    (tree / ".git" / "info").mkdir(exist_ok=True)
    (tree / ".git" / "info" / "attributes").write_text("*.py diff=trap\n")
    index = (tree / ".git" / "index").read_bytes()
    os.utime(tree / "README.md", (1, 1))  # git would like to refresh its index now
    assert read(tree) == plain
    assert not ran.exists()
    assert (tree / ".git" / "index").read_bytes() == index


def test_variables_of_a_surrounding_git_are_left_aside(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "README.md").write_text("changed\n")
    expected = read(tree)
    trap = script(tmp_path / "programs", "trap", f'touch "{tmp_path / "ran"}"')
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    monkeypatch.setenv("GIT_PAGER", str(trap))
    assert read(tree) == expected
    assert not (tmp_path / "ran").exists()


def test_a_machine_without_git(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = read(tree)
    assert found.commit is None
    assert "git cannot be run" in (found.note or "")


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a script before git on the path; it may call the real one as $GIT."""
    script(tmp_path / "bin", "git", f'GIT="{GIT}"\n{text}')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def test_a_git_that_hangs_is_given_up_with_all_that_it_started(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, f'sleep 60 &\necho $! > "{tmp_path}/child"\nwait')
    begun = time.monotonic()
    found = read(tree, patience=0.5)
    assert time.monotonic() - begun < 5
    assert found == Checkout(note="git did not answer within 0.5 s")
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(child)


def running(pid: int) -> bool:
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.strip()[:1] not in ("", "Z")


def test_a_diff_that_hangs_leaves_the_commit_and_says_that_the_rest_is_unknown(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    stand_in(tmp_path, monkeypatch, 'case " $* " in *" diff "*) sleep 60;; esac\nexec "$GIT" "$@"')
    assert read(tree, patience=1.5) == Checkout(
        commit=commit, branch="main", note="git did not answer within 1.5 s"
    )


def test_a_checkout_of_another_owner_says_why_it_was_not_read(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 'GIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec "$GIT" "$@"')
    found = read(tree)
    assert found.commit is None
    assert "dubious ownership" in (found.note or "")


def test_a_long_diff_is_cut_and_says_so_with_the_digest_of_the_whole(tree: Path) -> None:
    (tree / "data.txt").write_text("".join(f"line {n}\n" for n in range(5_000)))
    commit_all(tree)
    (tree / "data.txt").write_text("".join(f"LINE {n}\n" for n in range(5_000)))
    (tree / "tuning" / "__init__.py").write_text("the code comes first\n")
    whole = read(tree)
    assert whole.diff is not None
    assert not whole.diff.cut
    part = read(tree, limit=10_000)
    assert part.diff is not None
    assert part.diff.cut
    assert (part.diff.size, part.diff.digest) == (whole.diff.size, whole.diff.digest)
    assert b"+the code comes first\n" in part.diff.content
    kept = patch_of(part).split(b"\nCut: ")[0]
    assert patch_of(whole).startswith(kept)
    assert 9_900 < len(kept) <= 10_000
    words = (
        f"Cut: this file holds the first {len(kept)} of {whole.diff.size} bytes; the SHA-256 of "
        f"the whole is {whole.diff.digest}."
    ).encode()
    assert part.diff.content.count(words) == 2


def test_secrets_are_masked_in_the_diff(tree: Path) -> None:
    (tree / "suite" / "new.py").write_text(
        'URI = "postgresql://me:hunter2@host/runs"\nOTHER = "correct horse battery"\nPLAIN = 1\n'
    )
    found = read(tree, secrets=["correct horse battery"])
    assert found.diff is not None
    assert b"hunter2" not in found.diff.content
    assert b"battery" not in found.diff.content
    assert b'+URI = "postgresql://me:***@host/runs"\n+OTHER = "***"\n+PLAIN = 1\n' in patch_of(
        found
    )
    assert b"Lines in which a secret is masked, and so differ: 2." in found.diff.content
