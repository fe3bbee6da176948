"""Rules for account names, login addresses, From domains, passwords and test mail, for the CLI and the API. No I/O."""

import re
from urllib.parse import urlencode

from appliance.config.settings import DeliverySettings
from appliance.errors import Code, Refused, invalid
from appliance.keys import secrets
from appliance.message import addresses
from appliance.message.limits import RETURN_PATH_LENGTH
from appliance.model.accounts import Caller
from appliance.model.streams import configured_streams

# Defaults of a test message.
TEST_SUBJECT = "A test message"
TEST_TEXT = "This is a test message. If you can read it, mail from this domain arrives."

# Safe in a path, a URL, a log line and a shell command; never looks like an option.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def account_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise invalid("name", "1 to 64 letters, digits, dots, underscores and hyphens, starting with a letter or digit")
    return text


def login_email(text: str) -> str:
    address = addresses.parse(text, "email")
    if address.spelling != address.text:
        raise invalid("email", "expected an address without a name")
    return address.spelling


def source_names(delivery: DeliverySettings, stream: str, text: str) -> list[str]:
    """Return the sources that an account's stream is to have, from names separated by commas; none: the stream's."""
    configured_streams(delivery.streams).get(stream)
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if name not in delivery.sources:
            known = f"expected {' or '.join(delivery.sources)}" if delivery.sources else "the settings have none"
            raise invalid("sources", f"there is no source {name!r}; {known}")
    if len(set(names)) < len(names):
        raise invalid("sources", "names a source twice")
    return names


def password_link(base_url: str, email: str, token: str) -> str:
    """Return the link for setting a password. Browsers do not send the fragment, so no log has the token."""
    return f"{base_url}/dashboard/invitation#{urlencode({'token': token, 'email': email})}"


def domain_name(text: str) -> str:
    bare = f"a@{text.removesuffix('.')}"
    try:
        # The address parser decides, so that a sender can use every registered domain.
        address = addresses.parse(bare, "domain")
    except Refused as cause:
        raise _not_a_domain(text) from cause
    if address.spelling != bare:  # `<a@b.c>` parses as a name and an address
        raise _not_a_domain(text)
    return address.domain


def receiving_address(text: str) -> str:
    """Normalize an address that receives mail, or a domain: lower case, A-labels."""
    if "@" not in text:
        try:
            return domain_name(text)
        except Refused as cause:
            raise invalid("address", f"{text!r} is neither an address nor a domain name") from cause
    address = addresses.parse(text, "address")
    if address.spelling != address.text:
        raise invalid("address", "expected an address without a name")
    return address.key


def searched_sender(text: str) -> str:
    """Normalize a sender for search: only ASCII letters in lower case, as in the store."""
    return text.encode("utf-8", "replace").lower().decode()


def searched_recipient(text: str) -> str:
    """Normalize a recipient or a domain for search: the domain in A-labels."""
    local, at, domain = text.rpartition("@")
    try:
        domain = domain_name(domain)
    except Refused:
        domain = searched_sender(domain)
    return searched_sender(local) + at + domain


def return_path(text: str, domain: str) -> str:
    """Check the host name that receives a domain's bounces.

    It must be below the domain, so that SPF of the envelope sender aligns with From for DMARC (RFC 7489 3.1.2).
    """
    try:
        name = domain_name(text)
    except Refused as cause:
        raise invalid("return_path", f"{text!r} is not a host name such as bounces.{domain}") from cause
    if not name.endswith(f".{domain}"):
        raise invalid("return_path", f"{text!r} is not below {domain}: choose a name such as bounces.{domain}")
    if len(name) > RETURN_PATH_LENGTH:
        raise invalid("return_path", f"a return path has at most {RETURN_PATH_LENGTH} characters")
    return name


def _not_a_domain(text: str) -> Refused:
    return invalid("domain", f"{text!r} is not a domain name such as example.com")


def password(data: bytes) -> str:
    data = data.removesuffix(b"\n").removesuffix(b"\r")
    if not data:
        raise invalid("password", "must not be empty")
    try:
        return secrets.check_new(data.decode())
    except UnicodeDecodeError as cause:
        raise invalid("password", "must be UTF-8 text") from cause


def test_sender(caller: Caller) -> str:
    if not caller.domains:
        raise Refused(Code.FORBIDDEN, "from: this account has no verified domain yet. Add one first.")
    only = caller.key.domain if caller.key else None
    return f"test@{only or min(caller.domains)}"
