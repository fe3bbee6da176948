"""Runs scenarios: each with a proxy and a driver; compares answers, calls and stored messages with what is expected."""

import base64
import hashlib
import hmac
import json
import random
import re
import ssl
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trustme

from clients.conformance.drivers import LANGUAGES, CannotRun, Driver, DriverFailed, Drivers, Language
from clients.conformance.matching import differences, differences_of_all, filled
from clients.conformance.proxy import Call, FaultProxy
from clients.conformance.scenarios import Scenario, Step
from clients.conformance.server import Server

EARLY = 0.05  # seconds by which timers of some languages may fire too early
AT_ONCE = 8  # scenarios; they mostly wait
LARGE = 1024 * 1024  # bytes of a file; the appliance may answer 503 to several such messages at once
VERSION = (Path(__file__).parents[1] / "VERSION").read_text().strip()
MESSAGE = {"from": "$FROM", "to": "ada@example.net", "subject": "Hello", "text": "It works."}
SIGNATURE = re.compile(r"\$HMAC\(([^,)]*)(?:,([0-9]+))?\)")


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended: it passed when nothing is wrong."""

    language: str
    scenario: str
    problems: tuple[str, ...]
    seconds: float


class Materials:
    """Files and certificates for scenarios, made when one first needs them."""

    def __init__(self, directory: Path) -> None:
        """`directory` is empty, and theirs alone."""
        self.directory = directory
        self.for_large = threading.Lock()  # held by a scenario with a large file
        self._lock = threading.Lock()
        self._files: dict[tuple[str, int], dict[str, Any]] = {}
        self._tls: ssl.SSLContext | None = None

    def file(self, name: str, size: int) -> dict[str, Any]:
        """A file of random bytes that are the same in every run: its path, hash and base64."""
        with self._lock:
            if (name, size) not in self._files:
                content = random.Random(f"{name} {size}").randbytes(size)
                path = self.directory / f"{size}-bytes" / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
                self._files[name, size] = {
                    "path": str(path),
                    "size": size,
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "base64": base64.b64encode(content).decode(),
                }
            return self._files[name, size]

    def tls(self) -> ssl.SSLContext:
        """A server certificate for 127.0.0.1, from an authority that no program trusts by default."""
        with self._lock:
            if self._tls is None:
                authority = trustme.CA()
                authority.cert_pem.write_to_path(str(self.directory / "ca.pem"))
                (self.directory / "php").mkdir()
                (self.directory / "php" / "ca.ini").write_text(f"curl.cainfo={self.directory / 'ca.pem'}\n")
                self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                authority.issue_cert("127.0.0.1").configure_cert(self._tls)
            return self._tls

    def trust(self) -> dict[str, str]:
        """The environment variables that make each language's program trust that authority."""
        file = str(self.directory / "ca.pem")
        return {"SSL_CERT_FILE": file, "NODE_EXTRA_CA_CERTS": file, "PHP_INI_SCAN_DIR": f":{self.directory / 'php'}"}


@dataclass(frozen=True)
class Bench:
    """What the scenarios of one language share."""

    server: Server
    language: Language
    drivers: Drivers
    materials: Materials

    def run(self, scenario: Scenario) -> Outcome:
        """Run one scenario, whatever comes of it."""
        large = any(item["size"] > LARGE for item in scenario.files.values())
        begin = time.monotonic()
        try:
            with self.materials.for_large if large else nullcontext():
                problems = self._problems(scenario)
        except DriverFailed as failed:
            problems = [str(failed)]
        except Exception as fault:  # one scenario's, which must not hide the outcomes of the others
            problems = traceback.format_exception(fault)[-3:]
        return Outcome(self.language.name, scenario.name, tuple(problems), time.monotonic() - begin)

    def _problems(self, scenario: Scenario) -> list[str]:
        sender = f"s{uuid.uuid4().hex[:12]}@{self.server.known['DOMAIN']}"
        known = {
            **self.server.known,
            "FROM": sender,
            "SENDER": sender.partition("@")[0],
            "LANGUAGE": self.language.runtime,
            "VERSION": VERSION,
            "RANDOM": uuid.uuid4().hex,
            "SOON": _hours_ahead(1),
            "LATER": _hours_ahead(2),
            "X": {str(length): "x" * length for length in (223, 256, 501)},
            "FILE": {name: self.materials.file(**item) for name, item in scenario.files.items()},
        }
        proxy = FaultProxy(self.server.url, filled(list(scenario.faults), known), scenario.prefix)
        tls = self.materials.tls() if scenario.listener in ("untrusted", "trusted") else None
        variables = {**scenario.env, **(self.materials.trust() if scenario.listener == "trusted" else {})}
        with proxy.listening(scenario.listener, tls):
            known["URL"] = proxy.url
            with self.drivers.one(filled(variables, known)) as driver:
                problems = self._take_steps(scenario, driver, known)
        calls = [_described(call, proxy.calls) for call in proxy.calls]
        problems += differences_of_all(filled(scenario.calls, known), calls, "calls")
        if scenario.connections is not None:
            problems += differences(scenario.connections, proxy.connections, "connections")
        stored = self.server.stored(sender, with_content=not isinstance(scenario.stored, int))
        problems += differences_of_all(filled(scenario.stored, known), stored, "stored messages")
        return [*problems, f"the calls were: {_summary(proxy.calls)}"] if problems and proxy.calls else problems

    def _take_steps(self, scenario: Scenario, driver: Driver, known: dict[str, Any]) -> list[str]:
        """The first step that fails is the last: what follows depends on it."""
        if scenario.client is not None:
            arguments = filled(_client(scenario.client), known)
            made = driver.ask({"command": "client", **arguments})
            if made != {"ok": True}:
                return [f"client: expected {{'ok': True}}, came {made}"]
        for number, step in enumerate(scenario.steps, 1):
            time.sleep(step.pause)
            begin = time.monotonic()
            answer = driver.ask({"command": step.command, **_arguments(step, known)})
            took = time.monotonic() - begin
            known[str(number)] = answer.get("result") or answer.get("error") or {}
            problems = _step_problems(filled(step.expected, known), answer, f"step {number} ({step.command})")
            if step.seconds is not None and not step.seconds[0] - EARLY <= took <= step.seconds[1]:
                problems.append(f"step {number}: expected between {step.seconds} seconds, took {took:.2f}")
            if problems:
                return problems
        return []


def _step_problems(expected: Mapping[str, Any], answer: Mapping[str, Any], at: str) -> list[str]:
    ((kind, wanted),) = expected.items()
    if kind not in answer:
        return [f"{at}: expected {kind} {wanted}, came {json.dumps(answer, ensure_ascii=False)[:1000]}"]
    if kind == "results":
        return differences_of_all(wanted, answer[kind], f"{at}: results")
    return differences(wanted, answer[kind], f"{at}: {kind}")


def _client(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the client that a scenario uses without a step for it: those it names, else Basic."""
    basic = {} if "token" in arguments else {"username": "$USERNAME", "password": "$PASSWORD"}
    return {"url": "$URL", **basic, **arguments}


def _arguments(step: Step, known: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(step.arguments)
    if step.command in ("send", "parallel"):
        arguments["message"] = _message(arguments.get("message", {}))
    if step.command == "send_batch":
        arguments["messages"] = [_message(item) for item in arguments["messages"]]
    if step.command == "verify":
        return _signed(arguments)
    return dict(filled(arguments, known))


def _message(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**MESSAGE, **changes}.items() if value is not None}


def _hours_ahead(hours: int) -> dict[str, Any]:
    """A time to schedule for: as text, its part before the time zone, and in Unix seconds."""
    unix = int(time.time()) + 3600 * hours
    stem = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {"text": f"{stem}Z", "stem": stem, "unix": unix}


def _signed(arguments: dict[str, Any]) -> dict[str, Any]:
    """A webhook with its signatures; `$HMAC(secret)` is over the header's first `t`, `$HMAC(secret,t)` over another.

    `altered` is the body that arrives when it is not the one that was signed, `body_base64` one that is not text.
    """
    body = base64.b64decode(arguments["body_base64"]) if "body_base64" in arguments else arguments.pop("body").encode()
    stamp = re.search(r"(?<![^,])t=([0-9]+)", arguments["header"])

    def sign(match: re.Match[str]) -> str:
        at = match[2] or (stamp[1] if stamp else "")
        return hmac.digest(match[1].encode(), at.encode() + b"." + body, "sha256").hex()

    arguments["header"] = SIGNATURE.sub(sign, arguments["header"])
    arguments["body_base64"] = base64.b64encode(arguments.pop("altered", "").encode() or body).decode()
    return arguments


def _summary(calls: list[Call]) -> str:
    """One line per request that reached the proxy, with its result."""
    lines = [f"{item.method} {item.path} on {item.connection} → {item.status} {dict(item.fault)}" for item in calls]
    return ", ".join(lines)


def _described(call: Call, calls: list[Call]) -> dict[str, Any]:
    """A call as expectations name its parts. `waited` is the time since the answer before it was sent."""
    before = calls[call.number - 2].answered if call.number > 1 else None
    try:
        decoded = json.loads(call.body)
    except ValueError:
        decoded = None
    return {
        "connection": call.connection,
        "method": call.method,
        "path": call.path,
        "headers": call.headers,
        "body": call.body.decode("latin-1"),
        "json": decoded,
        "status": call.status,
        "waited": None if before is None else call.arrived - before,
    }


class Report:
    """Progress of the scenarios; the command line overrides it."""

    def begins(self, language: str, count: int) -> None:
        """A language's scenarios begin."""

    def ended(self, outcome: Outcome) -> None:
        """A scenario has ended."""

    def cannot_run(self, language: str, reason: str) -> None:
        """A language cannot be tried."""


@contextmanager
def bench(server: Server, language: str, clients: Path, materials: Materials) -> Iterator[Bench]:
    """A language that is ready to be tried; its drivers end with the block, and have to end well."""
    drivers = Drivers(LANGUAGES[language].prepare(clients, materials.directory))
    try:
        yield Bench(server, LANGUAGES[language], drivers, materials)
    finally:
        drivers.close()


def run(server: Server, names: list[str], scenarios: list[Scenario], clients: Path, report: Report) -> list[Outcome]:
    """Every scenario with every language, a language at a time; a language that cannot be tried is one failure."""
    outcomes = []
    with TemporaryDirectory(prefix="conformance-") as directory:
        materials = Materials(Path(directory))
        for name in names:
            try:
                with bench(server, name, clients, materials) as ready, ThreadPoolExecutor(AT_ONCE) as pool:
                    report.begins(name, len(scenarios))
                    for done in as_completed([pool.submit(ready.run, item) for item in scenarios]):
                        report.ended(done.result())
                        outcomes.append(done.result())
            except (CannotRun, DriverFailed) as reason:
                report.cannot_run(name, str(reason))
                outcomes.append(Outcome(name, "the driver", (str(reason),), 0.0))
    return outcomes
