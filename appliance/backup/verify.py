"""Checks whether a backup can be restored: its seal, its database, and the key to its secrets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.backup import archive
from appliance.keys.dkim_keys import open_signing_key
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import open_totp_secret, open_webhook_secret
from appliance.store import Contents, Damaged, NewerDatabase, examine_inside

READING = 0.5  # share of the work; the rest is the database's own check


@dataclass(frozen=True, slots=True)
class Verified:
    """A backup that can be restored."""

    manifest: archive.Manifest
    key: bytes
    size: int  # of the database
    contents: Contents


def verify(path: Path, on: archive.FractionDone) -> Verified:
    """Read every byte; raise archive.BrokenBackup unless the backup can be restored completely."""
    with path.open("rb") as file:
        opened = archive.read(file, archive.share(on, 0.0, READING, path.stat().st_size))
    try:
        contents = examine_inside(path, archive.BEGIN, opened.size)
    except (Damaged, NewerDatabase) as error:
        raise archive.BrokenBackup(str(error)) from error
    for dkim_key in contents.dkim_keys:
        with _naming(f"the signing keys of {dkim_key.domain}"):
            open_signing_key(opened.key, dkim_key.account_id, dkim_key.domain, dkim_key.selector, dkim_key.private_key)
    for secret in contents.webhook_secrets:
        with _naming(f"the webhook secret of {secret.account}"):
            open_webhook_secret(opened.key, secret.webhook_id, secret.sealed)
    for factor in contents.second_factors:
        with _naming(f"the second factor of {factor.email}"):
            open_totp_secret(opened.key, factor.user_id, factor.sealed)
    on(1.0)
    return Verified(opened.manifest, opened.key, opened.size, contents)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name what cannot be decrypted."""
    try:
        yield
    except UnsealError:
        text = f"the key in it does not open {what}: the key file was replaced before it was made"
        raise archive.BrokenBackup(text) from None
