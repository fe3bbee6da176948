"""Mail libraries keep pools of connections: all of a pool's sends succeed, from one address, up to the limit."""

import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.tls.certificate import CERTIFICATE
from tests.e2e.submission.client import MESSAGE, Raw, endpoint, plain, smtp
from tests.programs import needs, require
from tests.running_appliance import Running, add_account, appliance

CONNECTIONS = 40  # more than one address may have that have not logged in
SENDS = 200
NODE_MODULES = Path("/usr/share/nodejs")
POOL = """
const transport = require("nodemailer").createTransport({
  host: process.argv[2], port: Number(process.argv[3]), requireTLS: true, pool: true,
  maxConnections: Number(process.argv[4]), maxMessages: Infinity,
  auth: { user: process.argv[5], pass: process.argv[6] }, tls: { ca: require("fs").readFileSync(process.argv[7]) },
});
const message = { from: "shop@example.com", to: "ada@example.net", subject: "s", text: "t" };
Promise.allSettled(Array.from({ length: Number(process.argv[8]) }, () => transport.sendMail(message))).then((all) => {
  transport.close();
  for (const one of all) if (one.status === "rejected") console.error(String(one.reason));
});
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("running")) as started:
        yield started
        assert started.complaints() == []


def test_forty_connections_from_one_address_send_all_their_mail(running: Running) -> None:
    """All are opened at once and held at once, and each sends several messages."""
    together = threading.Barrier(CONNECTIONS)

    def send(_: int) -> None:
        client = smtp(running)
        together.wait(30)  # each is logged in, and none is gone
        for _ in range(SENDS // CONNECTIONS):
            assert client.sendmail("shop@example.com", ["ada@example.net"], MESSAGE) == {}
        together.wait(60)
        client.quit()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(send, range(CONNECTIONS)))


@needs("node")
@needs("nodemailer")
def test_a_pool_of_nodemailer_sends_all_its_mail(running: Running, tmp_path: Path) -> None:
    """Two hundred sends over forty connections, none of which fails."""
    (tmp_path / "pool.js").write_text(POOL)
    host, port = endpoint(running)
    account = running.account
    words = (host, str(port), str(CONNECTIONS), account.username, account.password)
    ran = subprocess.run(
        (require("node"), str(tmp_path / "pool.js"), *words, str(running.data_dir / CERTIFICATE), str(SENDS)),
        capture_output=True,
        timeout=120,
        check=False,
        env={"NODE_PATH": str(NODE_MODULES), "PATH": "/usr/bin:/bin"},
    )
    assert (ran.returncode, ran.stderr.decode()) == (0, "")


def test_a_credential_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """One login too many is told so and ends; others log in, and it may again when one of its own is gone."""
    smtp_settings = "allow_plaintext_auth = true\nmax_connections_per_credential = 3\nmax_connections_per_address = 2"
    with appliance(tmp_path, smtp=smtp_settings) as running, ExitStack() as stack:

        def log_in() -> tuple[Raw, bytes]:
            client = stack.enter_context(Raw(running))
            client.say(b"EHLO c")
            return client, client.say(b"AUTH PLAIN " + plain(running))

        held = [log_in() for _ in range(3)]
        assert all(reply.startswith(b"235 ") for _, reply in held)
        late, reply = log_in()
        assert reply.startswith(b"421 4.7.0 Too many connections with this credential")
        assert late.rest() == []
        held[0][0].say(b"QUIT")
        assert log_in()[1].startswith(b"235 ")


def test_an_account_that_stays_logged_in_keeps_no_other_client_out(tmp_path: Path) -> None:
    """It has half of the table at most; and where that is full, its idle sessions give way to a known client."""
    smtp_settings = "allow_plaintext_auth = true\nmax_connections = 8"
    with appliance(tmp_path, smtp=smtp_settings) as running, ExitStack() as stack:
        other = add_account(running.data_dir, "other")

        def log_in(credential: bytes) -> tuple[Raw, bytes]:
            client = stack.enter_context(Raw(running))
            client.say(b"EHLO c")
            return client, client.say(b"AUTH PLAIN " + credential)

        mine, theirs = plain(running), b64encode(f"\0{other.username}\0{other.password}".encode())
        assert [log_in(mine)[1][:3] for _ in range(5)] == [b"235"] * 4 + [b"421"]
        assert [log_in(theirs)[1][:3] for _ in range(4)] == [b"235"] * 4
        assert log_in(theirs)[1][:3] == b"421"  # one of the first four had to go for it, but four are four
        assert log_in(mine)[1][:3] == b"235"
