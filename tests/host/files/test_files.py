"""Folders of the user's own, and files that are whole: what others could exchange is not used, and
nothing waits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracea_onnx.support import files
from tracea_onnx.support.artifact_cache import Cache, default_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes")
_ROOT = Path(__file__).resolve().parents[3]


def test_a_parent_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "project"
    cache = Cache(shared / "sub" / "cache")
    assert cache.put("k", b"x")
    for mode in (0o777, 0o757):
        shared.chmod(mode)
        assert f"{shared} can be written by other users" in cache.fault()
        assert (
            cache.get("k") is None
            and not cache.put("k", b"y")
            and cache.entries() == []
            and cache.clear() == 0
        )
    shared.chmod(0o1777)  # others cannot rename what is not theirs, as in /tmp
    assert cache.fault() == "" and cache.get("k") == b"x"


def test_a_group_of_others_may_not_write_a_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p").chmod(0o770)
    for trusted in (True, False):
        monkeypatch.setattr(files, "_own_group", lambda gid, trusted=trusted: trusted)
        assert Cache(tmp_path / "p" / "c").put("k", b"x") is trusted


def test_a_folder_exchanged_after_it_was_checked_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Cache(path).put("k", b"ours")
    with files.private(path) as folder:
        path.rename(tmp_path / "moved")
        path.mkdir(mode=0o700)
        (path / "name").write_bytes(b"theirs")
        assert folder.read("name") is None
        with folder.new("name") as f:
            f.write(b"ours")
            f.place()
    assert (path / "name").read_bytes() == b"theirs" and (
        tmp_path / "moved" / "name"
    ).read_bytes() == b"ours"


def test_links_and_pipes_in_the_place_of_an_entry_are_no_entries(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put("k", b"x")
    entry = tmp_path / "c" / (cache.entries()[0].name + ".entry")
    entry.rename(tmp_path / "outside")
    entry.symlink_to(tmp_path / "outside")
    assert cache.get("k") is None
    entry.unlink()
    os.mkfifo(entry)
    assert cache.get("k") is None  # and does not wait for a writer
    assert cache.put("k", b"y") and cache.get("k") == b"y"
    assert (tmp_path / "outside").read_bytes().endswith(b"x")


@pytest.mark.parametrize(
    "code",
    [
        (
            "import tracea_onnx.support.artifact_cache as c; "
            "print(c.default_folder(), c.Cache().fault())"
        ),
        "from tracea_onnx.cli.main import main; main(['cache', 'size'])",
    ],
)
def test_a_user_without_a_home_has_no_cache(tmp_path: Path, code: str) -> None:
    """As in a container whose user has no entry in /etc/passwd: a process with a user id of nobody
    in particular.
    """
    env = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    }
    drop = "import os, pwd\ndef none(uid): raise KeyError(uid)\npwd.getpwuid = none\n"
    done = subprocess.run(
        [sys.executable, "-c", drop + code], env=env, cwd=_ROOT, capture_output=True, text=True
    )
    assert (
        done.returncode == 0
        and "no home folder" in done.stdout + done.stderr
        and "Traceback" not in done.stderr
    ), done.stderr


def test_without_a_home_the_version_is_shown(tmp_path: Path) -> None:
    env = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    }
    code = (
        "import pwd, sys\ndef none(uid): raise KeyError(uid)\npwd.getpwuid = none\n"
        "from tracea_onnx.cli.main import main\nmain(['--version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("tracea-onnx "), done.stderr


def test_relative_folders_of_the_environment_do_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says so
    found = default_folder()
    assert found is not None and found.is_absolute()


def test_nothing_waits_for_a_process_that_stopped(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    cache.put("k", b"x")
    with files.private(tmp_path / "c") as folder, folder.locked(0) as ours:
        assert ours
        began = time.monotonic()
        assert cache.put("other", b"y") and cache.get("other") == b"y"
        with files.private(tmp_path / "c") as again, again.locked(0.05) as second:
            assert not second
        assert time.monotonic() - began < 10


def test_what_killed_writers_left_goes_and_what_living_ones_write_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with files.folder(tmp_path) as folder:
        (tmp_path / ".a.1.2.tmp").write_bytes(b"left")
        (tmp_path / ".b.1.2.tmp").write_bytes(b"another target's")
        with folder.new("a") as f:
            f.write(b"alive")
            folder.clean("a")
            assert sorted(p.name[:3] for p in tmp_path.iterdir()) == [".a.", ".b."]
            assert not (tmp_path / ".a.1.2.tmp").exists()
            f.place()
    assert (
        sorted(p.name for p in tmp_path.iterdir()) == [".b.1.2.tmp", "a"]
        and (tmp_path / "a").read_bytes() == b"alive"
    )


def test_a_full_cache_is_counted_again_by_each_process(tmp_path: Path) -> None:
    code = (
        "import sys; from tracea_onnx.support.artifact_cache import Cache; "
        "from pathlib import Path; Cache(Path(sys.argv[1]), 3000).put(sys.argv[2], bytes(900))"
    )
    for k in range(6):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "c"), str(k)], cwd=_ROOT, check=True
        )
    assert 900 < Cache(tmp_path / "c").size() <= 3000
