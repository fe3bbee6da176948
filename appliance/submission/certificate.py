"""In charge of the certificate that submission begins with."""

from appliance.config.load import Config
from appliance.config.settings import ConfigError
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import smtp_files


def of_settings(config: Config) -> Certificate:
    """The certificate to begin with."""
    chain, key = smtp_files(config)
    try:
        return Certificate(chain, key)
    except OSError as error:
        wanted = "expected a PEM chain and its PEM key, not encrypted"
        raise ConfigError("smtp.tls_cert", f"{chain} and {key} cannot be used ({error}); {wanted}") from error
