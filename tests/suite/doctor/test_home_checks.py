from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite.doctor.home_checks import file_system
from suite.tracking.home import Home

Mount = namedtuple("Mount", "device mountpoint fstype opts")


def mounted(*mounts: tuple[str, str]) -> Callable[..., list[Mount]]:
    return lambda all: [Mount("d", place, kind, "rw") for place, kind in mounts]


def test_the_file_system_is_the_one_that_the_machine_names() -> None:
    assert file_system(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ([("/", "ext4")], "ext4"),
        ([("/", "ext4"), ("{parent}", "nfs4")], "nfs4"),
        ([("{parent}", "nfs4"), ("/", "ext4")], "nfs4"),
        ([("/", "ext4"), ("{parent}", "nfs4"), ("{parent}", "tmpfs")], "tmpfs"),
        ([("/", "ext4"), ("{home}-2", "cifs")], "ext4"),
        ([], ""),
    ],
)
def test_the_deepest_mount_counts_and_of_two_the_later(
    home: Home, monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]], kind: str
) -> None:
    places = {"parent": home.root.parent, "home": home.root}
    found = [(place.format(**places), name) for place, name in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", mounted(*found))
    assert file_system(home.root) == kind


@pytest.mark.parametrize(("kind", "safe"), [("ext4", True), ("nfs4", False), ("cifs", False)])
@pytest.mark.parametrize("own", [True, False])
def test_a_database_on_a_network_is_warned_of(
    home: Home,
    make_home: Callable[[str], Home],
    examine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    safe: bool,
    own: bool,
) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", mounted(("/", kind)))
    other = Home(root=home.root, tracking_uri=make_home("other").tracking_uri)
    told = examine(home if own else other)["home"]
    warned = [o.finding.what for o in told if o.finding.severity == "warning"]
    assert bool(warned) == (own and not safe)
    assert all(f"lies on {kind}" in what for what in warned)


@pytest.mark.parametrize(
    ("total", "free", "enough"),
    [
        (100e9, 5.1e9, True),
        (100e9, 4.9e9, False),
        (10e9, 2.1e9, True),
        (10e9, 1.9e9, False),
        (100e12, 4e12, False),
    ],
)
def test_little_space_is_warned_of(
    home: Home,
    examine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    total: float,
    free: float,
    enough: bool,
) -> None:
    usage = shutil.disk_usage(home.root)._replace(total=int(total), free=int(free))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    first = examine(home)["disk"][0].finding
    assert first.severity == ("ok" if enough else "warning")
    assert f"{free / 1e9:.1f} GB free of" in first.what or "TB free of" in first.what


def test_what_cannot_be_written_is_named(
    home: Home, examine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.checkpoints.mkdir()
    closed = {home.checkpoints, home.database}
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) not in closed and access(path, mode)
    )
    finding = examine(home).only("home").finding
    assert finding.severity == "error"
    assert set(finding.where) == {str(path) for path in closed}


def test_links_out_of_the_home_are_noted_and_those_within_are_not(
    home: Home, tmp_path: Path, examine: Callable[..., Any]
) -> None:
    home.artifacts.mkdir()
    inside, outside = home.artifacts / "inside", home.artifacts / "outside"
    inside.symlink_to(home.database)
    outside.symlink_to(tmp_path / "elsewhere")
    finding = examine(home).only("home").finding
    assert (finding.severity, finding.where) == ("note", (f"{outside} -> {tmp_path}/elsewhere",))


@pytest.mark.parametrize("folder", ["reports/demo", "checkpoints/a", "artifacts/demo/a"])
def test_a_link_that_results_would_be_written_through_has_to_be_mended(
    home: Home, tmp_path: Path, examine: Callable[..., Any], folder: str
) -> None:
    link = home.root / folder
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    (finding,) = [o.finding for o in examine(home)["home"] if o.finding.severity != "ok"]
    assert finding.severity == "error"
    assert finding.where == (f"{link} -> {tmp_path}",)
    assert "`suite report`" in finding.what


def test_a_home_behind_a_link_is_a_home_like_any(
    home: Home, tmp_path: Path, examine: Callable[..., Any]
) -> None:
    home.artifacts.mkdir()
    (home.artifacts / "inside").symlink_to(home.database)
    (tmp_path / "link").symlink_to(home.root)
    linked = Home.at(tmp_path / "link")
    assert examine(linked, fix=True).left == []
    assert all(o.finding.severity == "ok" for o in examine(linked)["home"])
