"""The finding on an outgoing port, by what was tried."""

import pytest

from appliance.doctor import FindingLevel
from appliance.doctor.names import MailServerProbe, judge_port

UNKNOWN = MailServerProbe("gmail.com", None, "no answer from 192.0.2.53", dialled=False)
SILENT = MailServerProbe("mx.example", None, "no answer from 192.0.2.1 within 5 s")
UNWILLING = MailServerProbe("mx.example", "554 no")
WILLING = MailServerProbe("mx.example", "220 mx.example ESMTP")


@pytest.mark.parametrize(
    ("probes", "level", "advice"),
    [
        ([UNKNOWN, UNKNOWN], FindingLevel.WARNING, "dns.resolvers"),  # DNS is in the way: nothing is known of the port
        ([UNKNOWN, SILENT], FindingLevel.FAULT, "open outgoing port 25"),
        ([SILENT, UNWILLING], FindingLevel.FAULT, "reputation"),
        ([SILENT, WILLING], FindingLevel.OK, ""),
    ],
)
def test_the_advice_fits_what_was_tried(probes: list[MailServerProbe], level: FindingLevel, advice: str) -> None:
    """One server that answers is enough; else it is told apart what keeps mail from leaving."""
    (finding,) = judge_port(probes, 25)
    assert finding.level is level
    assert advice in finding.advice
