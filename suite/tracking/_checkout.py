"""What git says of the source tree: commit, branch, and every change since the commit."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from suite.tracking._git import PATIENCE, Git, GitError
from suite.tracking._redaction import KEY_BEGINS, KEY_ENDS, MASK, mask_line

PACKAGES = ("suite", "lightning_modules", "tuning")
SOURCE_SUFFIXES = (".py", ".pyi", ".yaml", ".yml", ".j2")
MAX_DIFF_BYTES = 5_000_000
_DIFF = (
    "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--no-relative",
    "--binary", "--unified=3", "--submodule=short", "--ignore-submodules=untracked",
    "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Diff:
    """Changes since the commit, as a patch that ``git apply`` takes.

    Attributes:
        content: the patch with a few words before it, secrets masked, cut where it is too long.
        size: bytes of the whole patch.
        digest: SHA-256 of the whole patch.
        cut: whether ``content`` holds only its beginning.
    """

    content: bytes
    size: int
    digest: str
    cut: bool


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """State of the source tree.

    Attributes:
        commit: commit that is checked out; none outside a git checkout.
        branch: its branch; none where no branch is checked out.
        dirty: whether the tree differs from the commit; none where that is not known.
        diff: how it differs.
        note: why something is not known.
    """

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    diff: Diff | None = None
    note: str | None = None


def read_checkout(
    source: Path,
    *,
    secrets: Iterable[str] = (),
    limit: int = MAX_DIFF_BYTES,
    patience: float = PATIENCE,
) -> Checkout:
    """Ask git about the tree that a package was imported from.

    The tree is dirty if tracked files differ from the commit, staged or not, or if the packages
    hold source files that git neither tracks nor ignores.

    Args:
        source: folder of the package ``suite``.
        secrets: texts to mask in the diff.
        limit: bytes of the diff that are kept.
        patience: seconds after which git is given up.
    """
    git = Git(source, patience)
    try:
        # an installed copy may lie in somebody else's checkout, whose commit says nothing of it
        git.line("ls-files", "--error-unmatch", "--", "__init__.py")
        commit = git.line("rev-parse", "--verify", "--quiet", "HEAD^{commit}", fine=(0, 1))
        branch = git.line("symbolic-ref", "--quiet", "--short", "HEAD", fine=(0, 1)) or None
    except GitError as error:
        return Checkout(note=str(error))
    if not commit:
        return Checkout(branch=branch, note="the repository has no commit yet")
    try:
        diff = _read_diff(git, source, commit, tuple(secrets), limit)
    except (GitError, OSError) as error:
        return Checkout(commit=commit, branch=branch, note=str(error))
    return Checkout(commit=commit, branch=branch, dirty=diff is not None, diff=diff)


def _read_diff(
    git: Git, source: Path, commit: str, secrets: tuple[str, ...], limit: int
) -> Diff | None:
    prefix = git.at(source.parent).line("rev-parse", "--show-prefix")
    top = Path(git.line("rev-parse", "--show-toplevel"))
    index = Path(git.line("rev-parse", "--absolute-git-dir")) / "index"
    packages = [f"{prefix}{name}" for name in PACKAGES if (source.parent / name).is_dir()]
    inside = [f":(literal){name}" for name in packages]
    outside = [f":(exclude,literal){name}" for name in packages]
    patch = _Patch(secrets=secrets, limit=limit)
    with tempfile.TemporaryDirectory() as scratch:
        # git diff refreshes the index, and would lock out a person at work on the tree
        tree = git.at(top, index=_copied(index, Path(scratch)))
        # the packages first: whatever is cut, it is not the code that ran
        patch.take(tree.run(*_DIFF, commit, "--", *inside))
        with tree.run("ls-files", "-z", "--others", "--exclude-standard", "--", *inside) as listed:
            names = [os.fsdecode(name) for name in listed.read().split(b"\0")]
        for name in names:
            if name.endswith(SOURCE_SUFFIXES):
                patch.take(tree.run(*_DIFF, "--no-index", "--", os.devnull, name, fine=(0, 1)))
        patch.take(tree.run(*_DIFF, commit, "--", ":(top)", *outside))
    return patch.finish(commit) if patch.size else None


def _copied(index: Path, folder: Path) -> Path:
    try:
        # with its time: by it git knows which files may have changed since without a trace
        return Path(shutil.copy2(index, folder))
    except OSError as error:
        raise GitError(f"the index of git cannot be read: {error.strerror or error}") from error


@dataclass(kw_only=True)
class _Patch:
    """Collects a patch line by line: hashes all of it and keeps its beginning."""

    secrets: Sequence[str]
    limit: int
    size: int = 0
    masked: int = 0
    cut: bool = False
    _in_key: bool = False
    _kept: bytearray = field(default_factory=bytearray)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take(self, stream: IO[bytes]) -> None:
        """Take what git wrote, and close it."""
        with stream:
            for raw in stream:
                text = raw.decode(errors="surrogateescape")
                line = self._masked(text).encode(errors="surrogateescape")
                self.masked += line != raw
                self.size += len(line)
                self._hash.update(line)
                self.cut = self.cut or len(self._kept) + len(line) > self.limit
                if not self.cut:
                    self._kept += line

    def _masked(self, text: str) -> str:
        begins = KEY_BEGINS.search(text) is not None
        inside, self._in_key = self._in_key or begins, self._in_key or begins
        if not inside:
            return mask_line(text, self.secrets)
        if KEY_ENDS.search(text) or text.startswith("diff --git "):
            self._in_key = False
        return text if begins or not self._in_key else f"{text[:1]}{MASK}\n"

    def finish(self, commit: str) -> Diff:
        """The patch with a few words before it, and after it where it was cut."""
        digest = self._hash.hexdigest()
        words = [f"Changes against commit {commit} in the source tree that the run was made with."]
        if self.masked:
            words.append(f"Lines in which a secret is masked, and so differ: {self.masked}.")
        cut = (
            f"Cut: this file holds the first {len(self._kept)} of {self.size} bytes; the SHA-256 "
            f"of the whole is {digest}."
        )
        if self.cut:
            words.append(cut)
        content = "\n".join([*words, "", ""]).encode() + bytes(self._kept)
        if self.cut:
            content += f"\n{cut}\n".encode()
        return Diff(content=content, size=self.size, digest=digest, cut=self.cut)
