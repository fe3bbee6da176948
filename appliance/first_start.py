"""The first start without a settings file: creates a trial account, and prints its secrets.

The account is created when the server already listens, and printed at once, so a failed start (a port in use) loses no
secrets. With a settings file, the operator creates the accounts.
"""

import json
import secrets
import shlex

import trio

from appliance.config.settings import Config
from appliance.keys.secrets import hash_password
from appliance.store import Store
from appliance.store.accounts import FirstAccount

ACCOUNT = "default"
EMAIL = "owner@example.com"
DOMAIN = "example.com"  # RFC 2606 reserves it for examples
PASSWORD_BYTES = 12  # 96 random bits behind Argon2id, in 16 characters that can be typed

CREATE_ACCOUNT = "account create NAME EMAIL --password-stdin"


async def greeting(config: Config, store: Store, url: str, program: str = "appliance") -> str:
    """Return the text to print when the server answers at `url`, with secrets at the first start; "" for nothing."""
    name = await store.first_start.any_account()
    if not config.embedded:
        option = f" --config {shlex.quote(str(config.source))}" if config.source else ""
        text = f"There is no account yet. Set everything up: {program} setup{option}"
        return "" if name else f"{text}; or create one: {program} {CREATE_ACCOUNT}{option}\n"
    if name is None:
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        hashed = await trio.to_thread.run_sync(hash_password, password)
        made = await store.first_start.create(name=ACCOUNT, email=EMAIL, password_hash=hashed, domain=DOMAIN)
        if made is not None:
            return welcome(config, url, made, password)
    return welcome_back(config, url, name or ACCOUNT, program)


def welcome(config: Config, url: str, made: FirstAccount, password: str) -> str:
    bearer = shlex.quote(f"Authorization: Bearer {made.key}")
    message = {"from": f"hello@{made.domain}", "to": "someone@example.net"}
    message |= {"subject": "It works", "text": "Sent through the mail appliance."}
    send = (
        f"curl -sS {url}/emails -H {bearer} -H 'Content-Type: application/json' "
        f'-H "Idempotency-Key: first-$(date +%s%N)" -d {shlex.quote(json.dumps(message))}'
    )
    return f"""
The mail appliance is running with built-in settings: only this machine can reach
it, no mail leaves it, and all data is in {config.server.data_dir}
The secrets below are shown only once.

  URL              {url}
  Account          {made.account.name}
  Login            {made.account.email}
  Password         {password}
  SMTP server      {smtp_server(config)}
  SMTP username    {made.username}
  SMTP password    {made.smtp_password}
  API key          {made.key}
  From domain      {made.domain}

Open the URL in a browser and log in to see your mail. Send a first message:

{send}

See its status (replace ID with the "id" in the response):

curl -sS {url}/emails/ID -H {bearer}
"""


def smtp_server(config: Config) -> str:
    return f"{config.smtp.bind[0]} (STARTTLS)" if config.smtp.bind else "none"


def welcome_back(config: Config, url: str, name: str, program: str) -> str:
    return f"""
The mail appliance is running with built-in settings. Open the URL in a browser for
the dashboard.

  URL              {url}
  SMTP server      {smtp_server(config)}
  Data             {config.server.data_dir}

For another API key, another SMTP credential or a new password, in {config.server.data_dir.parent}:

{program} key create --account {name} --scope full
{program} credential create --account {name}
{program} account password {name} --password-stdin
"""
