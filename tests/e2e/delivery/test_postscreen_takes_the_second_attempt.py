"""Postfix's postscreen puts off a client that has passed its tests, and takes the mail on its next connection."""

import os
from pathlib import Path

import pytest

from tests.e2e.delivery.postfix import postfix
from tests.e2e.delivery.world import delays, said, world
from tests.programs import needs

pytestmark = [needs("postfix"), pytest.mark.skipif(os.geteuid() != 0, reason="only root can start postfix")]


async def test_postscreen_takes_the_second_attempt(tmp_path: Path) -> None:
    """The connection on which all was put off is not used again, so the second attempt is taken."""
    async with world(tmp_path, delays("1s", "1s", "1s")) as made:
        address = await made.host("mx0.postfix.test", None)
        made.publish("postfix.test", MX=["10 mx0.postfix.test."])
        async with postfix("postfix.test", address, made.mx_port, screening=True) as mailbox:
            message = await made.send("ada@postfix.test")
            await made.final(message)
            assert said(made.attempts(message)) == [(450, "deferred"), (250, "delivered")], mailbox.log()
            await made.until(lambda: len(mailbox.files()) == 1)
            assert "PASS NEW" in mailbox.log()
