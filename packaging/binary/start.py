"""Starts the program that PyInstaller packs, with the same command line as everywhere else."""

import os
import ssl
from pathlib import Path

# The OpenSSL inside looks where the machine that built it keeps its certificates; other systems keep them elsewhere.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)


def trust_this_system() -> None:
    """Name this machine's certificates to OpenSSL, unless it finds them or the operator has named others."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())):
        return
    for bundle in BUNDLES:
        if os.path.isfile(bundle):
            os.environ["SSL_CERT_FILE"] = bundle
            return


if __name__ == "__main__":
    trust_this_system()

    from appliance.__main__ import start

    start(prog_name="appliance")
