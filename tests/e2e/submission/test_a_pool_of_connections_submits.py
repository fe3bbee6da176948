"""Mail libraries keep pools of connections: all of a pool's sends succeed, from one address, up to the limit."""

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.tls.certificate import CERTIFICATE
from tests.e2e.submission.client import MESSAGE, endpoint, smtp
from tests.programs import needs, require
from tests.running_appliance import Running, appliance

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
