"""Every client's settings in docs/smtp.md, run with their own program: a message arrives in the store."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.tls.certificate import CERTIFICATE
from tests.e2e.submission.client import endpoint, messages
from tests.e2e.submission.test_real_clients_submit import NODE_PATH
from tests.programs import find, needs
from tests.running_appliance import Running, appliance

DOCUMENT = (Path(__file__).parents[3] / "docs" / "smtp.md").read_text()
PHPMAILER = find("phpmailer")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("settings")) as started:
        yield started


def settings(running: Running, client: str) -> str:
    """A client's block, with this server and credential in their places."""
    match = re.search(rf"^### {client}\n.*?^```\w*\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert match, client
    text = match[1].replace("mail.example.com", "localhost").replace("587", str(endpoint(running)[1]))
    text = re.sub(r"\bUSERNAME\b", running.account.username, text)
    return re.sub(r"\bPASSWORD\b", running.account.password, text)


def run(running: Running, *command: str, given: str = "") -> None:
    """Run a client that trusts the certificate; it must succeed, and one more message be there."""
    before = messages(running)
    certificate = str(running.data_dir / CERTIFICATE)
    trust = {"SSL_CERT_FILE": certificate, "NODE_EXTRA_CA_CERTS": certificate, "NODE_PATH": NODE_PATH}
    trust["NODE_OPTIONS"] = "--dns-result-order=ipv4first"  # the server here has no IPv6 address; localhost may
    ran = subprocess.run(
        command, input=given, text=True, capture_output=True, timeout=60, env={**os.environ, **trust}, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert messages(running) == before + 1


@needs("swaks")
def test_swaks(running: Running) -> None:
    run(running, "sh", "-c", settings(running, "swaks"))


@needs("msmtp")
def test_msmtp(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "msmtprc"
    file.write_text(settings(running, "msmtp") + f"tls_trust_file {running.data_dir / CERTIFICATE}\n")
    file.chmod(0o600)
    message = "From: hello@example.com\nTo: you@example.net\nSubject: Hello\n\nIt works.\n"
    run(running, "msmtp", f"--file={file}", "you@example.net", given=message)


@needs("django")
def test_django(running: Running) -> None:
    script = (
        "import types, sys\nfrom django.conf import settings\nfrom django.core.mail import send_mail\n"
        f"module = types.ModuleType('site_settings')\nexec({settings(running, 'Django')!r}, module.__dict__)\n"
        "settings.configure(**{k: v for k, v in vars(module).items() if k.isupper()})\n"
        "send_mail('Hello', 'It works.', None, ['you@example.net'])\n"
    )
    run(running, "/usr/bin/python3", "-c", script)  # Debian's, for which Debian's package is


@needs("ruby")
@needs("rails")
def test_rails(running: Running) -> None:
    script = f"""
require "logger"
require "ostruct"
require "action_mailer"
config = OpenStruct.new(action_mailer: OpenStruct.new)
{settings(running, "Rails")}
config.action_mailer.each_pair {{ |name, value| ActionMailer::Base.public_send("#{{name}}=", value) }}
class Hello < ActionMailer::Base
  def hello
    mail(from: "hello@example.com", to: "you@example.net", subject: "Hello", body: "It works.")
  end
end
Hello.hello.deliver_now
"""
    run(running, "ruby", "-e", script)


@needs("php")
@needs("phpmailer")
def test_wordpress(running: Running, tmp_path: Path) -> None:
    plugin, script = tmp_path / "plugin.php", tmp_path / "send.php"
    plugin.write_text(settings(running, "WordPress"))
    script.write_text(f"""<?php
require "{PHPMAILER}";
$mailer = new PHPMailer\\PHPMailer\\PHPMailer(true);
function add_action($name, $set_up) {{ global $mailer; $set_up($mailer); }}
require "{plugin}";
$mailer->addAddress("you@example.net");
$mailer->Subject = "Hello";
$mailer->Body = "It works.";
$mailer->send();
""")
    run(running, "php", str(script))


@needs("node")
@needs("nodemailer")
def test_nodemailer(running: Running) -> None:
    script = (
        'const nodemailer = require("nodemailer");\n'
        + settings(running, "nodemailer")
        + 'const message = { from: "hello@example.com", to: "you@example.net", subject: "Hello", text: "It works." };\n'
        + "transport.sendMail(message).catch((e) => { console.error(e); process.exit(1); });\n"
    )
    run(running, "node", "-e", script)
