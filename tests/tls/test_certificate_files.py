"""Which certificate a listener shows: its own files first, then ACME's, then one made here or none at all."""

from pathlib import Path

import pytest
from cryptography import x509

from appliance.config.load import parse
from appliance.config.settings import Config
from appliance.tls import certificate as self_signed
from appliance.tls.certificate import CERTIFICATE, KEY, Certificate, by_acme, http_files, smtp_files


def settings(directory: Path, *, acme: str | None = "", http: bool = False, smtp: bool = False) -> Config:
    """With ACME or without (None), and with files of the operator where wanted."""
    own = f'tls_cert = "{directory}/own.pem"\ntls_key = "{directory}/own.pem"'
    self_signed.generate(directory / "own.pem", directory / "own.pem", "own.example.com")
    text = f'[server]\nhostname = "mail.example.com"\ndata_dir = "{directory}"\n[acme]\n'
    text += "" if acme is None else f"enabled = true\n{acme}\n"
    text += f"[http]\n{own if http else ''}\n[smtp]\n{own if smtp else ''}\n"
    return parse(text, directory / "config.toml")


@pytest.mark.parametrize(
    ("options", "http", "smtp"),
    [
        ({"acme": None}, None, CERTIFICATE),
        ({"acme": None, "http": True, "smtp": True}, "own.pem", "own.pem"),
        ({}, "certificate.pem", "certificate.pem"),
        ({"acme": "http = false"}, None, "certificate.pem"),
        ({"http": True}, "own.pem", "certificate.pem"),
        ({"smtp": True}, "certificate.pem", "own.pem"),
    ],
)
def test_who_shows_what(tmp_path: Path, options: dict[str, bool], http: str | None, smtp: str) -> None:
    """The operator's files win for their listener, and the other one still has ACME's."""
    config = settings(tmp_path, **options)  # type: ignore[arg-type]  # a table of both kinds
    for section, files, wanted in (("http", http_files(config), http), ("smtp", smtp_files(config), smtp)):
        assert (files[0].name if files else None) == wanted
        assert by_acme(config, section) == (wanted == "certificate.pem")
        if files:
            Certificate(*files)  # can be used at once


def test_until_acme_has_one_it_is_made_here_in_one_file(tmp_path: Path) -> None:
    """For the name in question, readable by its owner only, and not made again while it can be used."""
    config = settings(tmp_path)
    chain, key = smtp_files(config)
    assert chain == key == tmp_path / "acme" / "certificate.pem"
    made = x509.load_pem_x509_certificate(chain.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "mail.example.com" in names.get_values_for_type(x509.DNSName)
    assert not any(file.stat().st_mode & 0o077 for file in (chain, chain.parent))
    content = chain.read_bytes()
    assert http_files(config) == (chain, key)
    assert chain.read_bytes() == content
    chain.write_bytes(content[:200])
    http_files(config)
    assert len(chain.read_bytes()) > 200
    assert not (tmp_path / KEY).exists()


def test_when_a_certificate_expires_is_known(tmp_path: Path) -> None:
    """It can be monitored; and a file that was reloaded counts."""
    file = tmp_path / "both.pem"
    self_signed.generate(file, file, "mail.example.com")
    shown = Certificate(file, file)
    end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    assert shown.expires == end.timestamp()
