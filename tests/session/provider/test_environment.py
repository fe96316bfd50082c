"""Environment variables stand in for provider options that the application does not set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.provider.provider_plans import chain_model
from tracea_onnx import provider


def test_tracea_log_is_the_log_level(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = {"claim": "all", "cache_dir": str(tmp_path)}
    provider.create_session(chain_model(), options)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("TRACEA_LOG", "info")
    provider.create_session(chain_model(), options)
    assert "tracea-onnx: info: graph" in capfd.readouterr().err
    provider.create_session(chain_model(), {**options, "log_level": "off"})
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("TRACEA_LOG", "loud")
    with pytest.raises(Exception, match=r"log_level='loud' \(provider option, or TRACEA_LOG\)"):
        provider.create_session(chain_model(), options)


def test_the_cache_folder_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEA_CACHE_DIR", str(tmp_path / "a"))
    provider.create_session(chain_model(), {"claim": "all"})
    assert list((tmp_path / "a").glob("*.entry"))
    provider.create_session(chain_model(), {"claim": "all", "cache_dir": str(tmp_path / "b")})
    assert list((tmp_path / "b").glob("*.entry"))
