"""The cache: what was stored comes back or nothing does, and nobody else can put anything in."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tracea_onnx.support.artifact_cache import Cache, default_folder


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "c")


def test_round_trip_size_and_clear(cache: Cache) -> None:
    assert cache.get("k") is None and cache.entries() == [] and cache.size() == 0
    assert (
        cache.put("k", b"one")
        and cache.put("other", b"")
        and cache.get("k") == b"one"
        and cache.get("other") == b""
    )
    assert cache.put("k", b"two") and cache.get("k") == b"two"
    assert len(cache.entries()) == 2 and cache.size() == sum(e.size for e in cache.entries())
    assert cache.clear() == 2 and cache.get("k") is None


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_the_folder_is_private(cache: Cache) -> None:
    cache.put("k", b"x")
    assert cache.folder is not None
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    cache.folder.chmod(0o755)
    assert "open to other users" in cache.fault()
    assert cache.get("k") is None and not cache.put("k", b"y") and cache.entries() == []


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_link_or_a_file_in_its_place_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        cache = Cache(tmp_path / name)
        assert cache.fault() and not cache.put("k", b"x") and cache.get("k") is None


def test_damaged_and_swapped_entries_are_misses(cache: Cache) -> None:
    cache.put("a", b"payload of a")
    cache.put("b", b"payload of b")
    assert cache.folder is not None
    a, b = (
        cache.folder / (e.name + ".entry")
        for e in sorted(cache.entries(), key=lambda e: cache.get("a") is None)
    )
    data = a.read_bytes()
    for cut in (0, 8, 40, len(data) - 1):
        a.write_bytes(data[:cut])
        assert {cache.get("a"), cache.get("b")} & {None}
        a.write_bytes(data)
    flipped = bytearray(data)
    flipped[-1] ^= 1
    a.write_bytes(bytes(flipped))
    assert (cache.get("a") is None) != (cache.get("b") is None)
    b.write_bytes(data)  # a whole entry under another key's name
    assert cache.get("a") is None and cache.get("b") is None
    assert not a.exists() and not b.exists()


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c", limit=3500)
    for k in range(4):
        assert cache.put(str(k), bytes(1000))
        for age, e in enumerate(cache.entries()):
            os.utime(tmp_path / "c" / (e.name + ".entry"), (1000 - age, 1000 - age))
    assert cache.get("0") is None and cache.get("3") is not None and cache.size() <= 3500
    assert not cache.put("huge", bytes(4000)) and cache.get("3") is not None


def test_writers_in_parallel_leave_whole_entries(cache: Cache) -> None:
    def work(k: int) -> None:
        for i in range(10):
            cache.put("shared", bytes([k]) * (100 + i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    got = cache.get("shared")
    assert (
        got is not None
        and len(set(got)) == 1
        and cache.folder is not None
        and list(cache.folder.glob("*.tmp")) == []
    )


def test_the_environment_names_another_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEA_CACHE_DIR", str(tmp_path / "mine"))
    assert Cache().put("key", b"data") and (tmp_path / "mine").is_dir()
    assert Cache().get("key") == b"data"
    monkeypatch.setenv("TRACEA_CACHE_DIR", "")
    assert Cache().get("key") is None


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = default_folder()
    assert found is not None and found.name in ("tracea-onnx", "cache")
    if os.name == "posix":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert "tracea-onnx" in str(default_folder())
