"""In charge of what is said of an outgoing port, by what was tried."""

import pytest

from appliance.doctor.facts import Knock
from appliance.doctor.finding import Level
from appliance.doctor.names import judge_port

UNKNOWN = Knock("gmail.com", None, "no answer from 192.0.2.53", dialled=False)
SILENT = Knock("mx.example", None, "no answer from 192.0.2.1 within 5 s")
UNWILLING = Knock("mx.example", "554 no")
WILLING = Knock("mx.example", "220 mx.example ESMTP")


@pytest.mark.parametrize(
    ("knocks", "level", "advice"),
    [
        ([UNKNOWN, UNKNOWN], Level.WARNING, "dns.resolvers"),  # DNS is in the way: nothing is known of the port
        ([UNKNOWN, SILENT], Level.FAULT, "open outgoing port 25"),
        ([SILENT, UNWILLING], Level.FAULT, "reputation"),
        ([SILENT, WILLING], Level.OK, ""),
    ],
)
def test_the_advice_fits_what_was_tried(knocks: list[Knock], level: Level, advice: str) -> None:
    """One server that answers is enough; else it is told apart what keeps mail from leaving."""
    (finding,) = judge_port(knocks, 25)
    assert finding.level is level
    assert advice in finding.advice
