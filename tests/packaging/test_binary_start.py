"""How the packed program finds the certificates of the system that it runs on."""

import os
import runpy
import ssl
from pathlib import Path
from typing import Any

import pytest

START = Path(__file__).parents[2] / "packaging" / "binary" / "start.py"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    names = runpy.run_path(str(START))
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    names["trust_this_system"].__globals__["BUNDLES"] = (str(tmp_path / "none.pem"), str(bundle))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths(None, None))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return names


def paths(cafile: str | None, capath: str | None) -> ssl.DefaultVerifyPaths:
    found: tuple[Any, Any] = (cafile, capath)  # typeshed does not know that each may be None
    return ssl.DefaultVerifyPaths(*found, "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")


def test_another_systems_certificates_are_found(
    start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for capath in (None, tmp_path / "empty"):
        if capath is not None:
            capath.mkdir()
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda at=capath: paths(None, at and str(at)))
        start["trust_this_system"]()
        assert os.environ.pop("SSL_CERT_FILE") == str(tmp_path / "bundle.pem")


def test_certificates_that_openssl_finds_stay(
    start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (paths("/etc/ssl/cert.pem", None), paths(None, str(tmp_path))):
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda found=found: found)
        start["trust_this_system"]()
        assert "SSL_CERT_FILE" not in os.environ
