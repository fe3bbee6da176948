"""In charge of whose certificates are believed: the system's authorities and those that the operator adds."""

import ssl
from pathlib import Path


def trusting_context(ca_file: Path | None) -> ssl.SSLContext:
    """A context that verifies certificates and their names, by the system's roots and those of the operator's file."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context
