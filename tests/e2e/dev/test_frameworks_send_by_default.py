"""Mail libraries send to `appliance dev` with their defaults: only the port is set."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.programs import needs
from tests.running_dev import Dev, running_dev

pytestmark = pytest.mark.slow

SMTPLIB = """
import smtplib, sys
from email.message import EmailMessage
message = EmailMessage()
message["From"], message["To"], message["Subject"] = "app@my.test", "ada@example.net", "smtplib"
message.set_content("Hello")
with smtplib.SMTP("localhost", int(sys.argv[1])) as client:
    client.send_message(message)
"""
# From: webmaster@localhost, Django's default.
DJANGO = """
import sys
sys.path.append("/usr/lib/python3/dist-packages")
from django.conf import settings
settings.configure(EMAIL_PORT=int(sys.argv[1]))
from django.core.mail import send_mail
send_mail("Django", "Hello", None, ["ada@example.net"], html_message="<p>Hello</p>")
"""
FLASK_MAILMAN = """
import sys
from flask import Flask
from flask_mailman import EmailMessage, Mail
app = Flask("app")
app.config["MAIL_PORT"] = int(sys.argv[1])
Mail(app)
with app.app_context():
    EmailMessage("Flask-Mailman", "Hello", "app@my.test", ["ada@example.net"]).send()
"""
NODEMAILER = """
const transport = require("nodemailer").createTransport({ host: "localhost", port: Number(process.argv[1]) });
const mail = { from: "App <app@my.test>", to: "ada@example.net", subject: "nodemailer", text: "Hello" };
transport.sendMail(mail).catch((error) => { console.error(error); process.exit(1); });
"""
PHPMAILER = """
require "/usr/share/php/libphp-phpmailer/autoload.php";
$mail = new PHPMailer\\PHPMailer\\PHPMailer(true);
$mail->isSMTP();
$mail->Port = (int) $argv[1];
$mail->setFrom("app@my.test", "App");
$mail->addAddress("ada@example.net");
$mail->Subject = "PHPMailer";
$mail->Body = "Hello";
$mail->send();
"""
# `enable_starttls_auto` is Rails' default.
ACTION_MAILER = """
require "action_mailer"
ActionMailer::Base.smtp_settings = { address: "localhost", port: ARGV[0].to_i }
class Welcome < ActionMailer::Base
  def hello
    mail(from: "from@example.com", to: "ada@example.net", subject: "ActionMailer", body: "Hello")
  end
end
Welcome.hello.deliver_now
"""
GO = """package main

import (
	"net/smtp"
	"os"
)

func main() {
	mail := []byte("From: app@my.test\\r\\nTo: ada@example.net\\r\\nSubject: net/smtp\\r\\n\\r\\nHello\\r\\n")
	auth := smtp.PlainAuth("", "anyone", "anything", "localhost")
	err := smtp.SendMail("localhost:"+os.Args[1], auth, "app@my.test", []string{"ada@example.net"}, mail)
	if err != nil {
		panic(err)
	}
}
"""


def run(*command: str, **environment: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def go(directory: Path, port: str) -> None:
    (directory / "main.go").write_text(GO)
    run("go", "run", str(directory / "main.go"), port, GOFLAGS="-mod=mod", GOCACHE=str(directory / "cache"))


Sender = Callable[[Path, str], None]
SENDERS: dict[str, Sender] = {
    "smtplib": lambda _, port: run(sys.executable, "-c", SMTPLIB, port),
    "Django": lambda _, port: run("python3", "-c", DJANGO, port),
    "Flask-Mailman": lambda _, port: run(sys.executable, "-c", FLASK_MAILMAN, port),
    "nodemailer": lambda _, port: run("node", "-e", NODEMAILER, port, NODE_PATH="/usr/share/nodejs"),
    "PHPMailer": lambda _, port: run("php", "-r", PHPMAILER, port),
    "ActionMailer": lambda _, port: run("ruby", "-e", ACTION_MAILER, port),
    "net/smtp": go,
}
PROGRAMS = {
    "Django": ("django",),
    "nodemailer": ("node", "nodemailer"),
    "PHPMailer": ("php", "phpmailer"),
    "ActionMailer": ("ruby", "rails"),
    "net/smtp": ("go",),
}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("frameworks")) as server:
        yield server


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[needs(program) for program in PROGRAMS.get(name, ())]) for name in SENDERS],
)
def test_a_library_sends_as_it_comes(dev: Dev, tmp_path: Path, name: str) -> None:
    SENDERS[name](tmp_path, str(dev.smtp_port))
    message = dev.waited(to="ada@example.net", subject=name)
    assert message["source"] == "smtp"
