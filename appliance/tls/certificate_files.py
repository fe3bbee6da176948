"""In charge of which certificate each listener shows: the operator's, the one that ACME keeps, or one made here."""

from pathlib import Path

from appliance.config.settings import Config
from appliance.tls import self_signed
from appliance.tls.certificate import tls_context

CERTIFICATE, KEY = "smtp-certificate.pem", "smtp-key.pem"  # of the generated one
ACME_DIRECTORY, ACME_FILE = "acme", "certificate.pem"

Files = tuple[Path, Path]  # chain and key


def acme_directory(config: Config) -> Path:
    """Where ACME keeps its account and its certificate."""
    return config.server.data_dir / ACME_DIRECTORY


def acme_certificate(config: Config) -> Path:
    """The certificate by ACME and its key. One file, so that no listener ever reads the one without the other."""
    return acme_directory(config) / ACME_FILE


def by_acme(config: Config, section: str) -> bool:
    """Whether a listener (`http` or `smtp`) shows the certificate by ACME: its own files, if named, come first."""
    if not config.acme.enabled:
        return False
    return config.smtp.tls_cert is None if section == "smtp" else config.http.tls_cert is None and config.acme.http


def http_files(config: Config) -> Files | None:
    """What HTTPS shows, made if need be; None where HTTP is plain."""
    if config.http.tls_cert is not None and config.http.tls_key is not None:
        return config.http.tls_cert, config.http.tls_key
    return _acme_files(config) if by_acme(config, "http") else None


def smtp_files(config: Config) -> Files:
    """What submission shows, made if need be."""
    if config.smtp.tls_cert is not None and config.smtp.tls_key is not None:
        return config.smtp.tls_cert, config.smtp.tls_key
    if by_acme(config, "smtp"):
        return _acme_files(config)
    chain, key = config.server.data_dir / CERTIFICATE, config.server.data_dir / KEY
    if not self_signed.is_usable(chain, key, config.server.hostname):
        self_signed.generate(chain, key, config.server.hostname)
    return chain, key


def _acme_files(config: Config) -> Files:
    """The file that ACME writes. Until it has, one that is made here lies there: no start waits for an authority."""
    file = acme_certificate(config)
    try:
        tls_context(file, file)
    except OSError:  # none yet, or damaged; one that has merely expired is still better than one nobody knows
        acme_directory(config).mkdir(mode=0o700, parents=True, exist_ok=True)
        self_signed.generate(file, file, config.acme.names[0])
    return file, file
