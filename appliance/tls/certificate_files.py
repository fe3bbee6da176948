"""Which certificate files each listener uses: the operator's, those of ACME, or generated ones."""

from pathlib import Path

from appliance.config.settings import Config
from appliance.tls import self_signed
from appliance.tls.certificate import tls_context

CERTIFICATE, KEY = "smtp-certificate.pem", "smtp-key.pem"  # of the generated one
ACME_DIRECTORY, ACME_FILE = "acme", "certificate.pem"  # with its key in one file, so that both are replaced together

Files = tuple[Path, Path]  # chain and key


def acme_directory(config: Config) -> Path:
    return config.server.data_dir / ACME_DIRECTORY


def by_acme(config: Config, section: str) -> bool:
    """Whether a listener (`http` or `smtp`) uses the certificate by ACME: its own files, if named, come first."""
    if not config.acme.enabled:
        return False
    return config.smtp.tls_cert is None if section == "smtp" else config.http.tls_cert is None and config.acme.http


def http_files(config: Config) -> Files | None:
    """The files of HTTPS, generated if need be; None for plain HTTP."""
    if config.http.tls_cert is not None and config.http.tls_key is not None:
        return config.http.tls_cert, config.http.tls_key
    return _acme_files(config) if by_acme(config, "http") else None


def smtp_files(config: Config) -> Files:
    """The files of SMTP submission, generated if need be."""
    if config.smtp.tls_cert is not None and config.smtp.tls_key is not None:
        return config.smtp.tls_cert, config.smtp.tls_key
    if by_acme(config, "smtp"):
        return _acme_files(config)
    chain, key = config.server.data_dir / CERTIFICATE, config.server.data_dir / KEY
    if not self_signed.is_usable(chain, key, config.server.hostname):
        self_signed.generate(chain, key, config.server.hostname)
    return chain, key


def inbound_files(config: Config) -> Files:
    """The files of the listener for feedback: its own, or else those of SMTP submission."""
    if config.inbound.tls_cert is not None and config.inbound.tls_key is not None:
        return config.inbound.tls_cert, config.inbound.tls_key
    return smtp_files(config)


def _acme_files(config: Config) -> Files:
    """The file that ACME writes; until then a self-signed one, so that no start waits for an authority."""
    file = acme_directory(config) / ACME_FILE
    try:
        tls_context(file, file)
    except OSError:  # missing or damaged; an expired one is still better than a self-signed one
        acme_directory(config).mkdir(mode=0o700, parents=True, exist_ok=True)
        self_signed.generate(file, file, config.acme.names[0])
    return file, file
