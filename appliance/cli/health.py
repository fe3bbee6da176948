"""`appliance health`: checks that the server answers, for a container's health check and for scripts."""

import click

from appliance.cli import database
from appliance.cli.options import common
from appliance.cli.output import show

HEALTH_TIMEOUT = 5.0  # seconds between two bytes


@click.command()
@common
def health(as_json: bool) -> None:
    """Check that the server on this machine answers; if not, print one line and exit with 1.

    The request goes to the first address of http.bind, over HTTPS if the settings enable it. The certificate is not
    verified.

    \b
    Examples:
      appliance health
      appliance health --config /etc/appliance/config.toml
    """
    import http.client
    import ssl

    settings = database.load_settings()
    first = settings.http.bind[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first.host, first.host)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(host, first.port, timeout=HEALTH_TIMEOUT)
    if settings.http.tls_cert or (settings.acme.enabled and settings.acme.http):
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, first.port, timeout=HEALTH_TIMEOUT, context=unverified)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(f"the server does not answer at {first}: {error}") from None
    finally:
        connection.close()
    if status != http.client.OK:
        raise click.ClickException(f"the server at {first} is not ready: HTTP status {status}")
    show(as_json, {"address": str(first), "ok": True}, f"The server at {first} is up.")
