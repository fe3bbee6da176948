"""The fence around aiosmtpd: its class is the base of a session, and none of its code runs."""

import asyncio
import gc
import sys
from pathlib import Path
from types import FrameType

import aiosmtpd
from aiosmtpd.smtp import SMTP

from appliance.submission.connection import SmtpSession
from tests.submission.test_server import served

CALLBACKS = {name for name in dir(asyncio.Protocol) if not name.startswith("_")}


def test_every_callback_of_asyncio_is_overridden() -> None:
    assert {*CALLBACKS} == {
        "connection_lost",
        "connection_made",
        "data_received",
        "eof_received",
        "pause_writing",
        "resume_writing",
    }
    assert set(vars(SmtpSession)) >= CALLBACKS
    assert not issubclass(SMTP, asyncio.BufferedProtocol)


async def test_no_name_of_a_session_means_something_to_aiosmtpd(tmp_path: Path) -> None:
    async with served(tmp_path) as made, made.connected():
        sessions = [each for each in gc.get_objects() if isinstance(each, SmtpSession)]  # of earlier tests, too
        assert sessions
        for session in sessions:
            ours = {name for name in (*vars(SmtpSession), *vars(session)) if not name.startswith("__")}
            assert ours & set(dir(SMTP)) == CALLBACKS
            SMTP.__del__(session)  # type: ignore[no-untyped-call]  # finds nothing of what its __init__ would set up


async def test_no_code_of_aiosmtpd_runs(tmp_path: Path) -> None:
    ran: set[str] = set()
    package = str(Path(aiosmtpd.__file__).parent)

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            ran.add(frame.f_code.co_name)

    async with served(tmp_path) as made:
        sys.setprofile(note)
        try:
            async with made.connected() as client:
                assert await client.transact() == b"250 2.0.0 queued as msg_1"
                assert (await client.say(b"QUIT")).startswith(b"221 ")
                assert await client.reply() == b""
        finally:
            sys.setprofile(None)
    assert ran <= {"__del__"}
