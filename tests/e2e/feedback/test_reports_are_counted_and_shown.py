"""Reports by mail, bounces and complaints, as the account's owner sees them in /v1/feedback."""

import gzip
import json
from pathlib import Path

from appliance.environment import Environment
from appliance.times import DAY, SECOND, rfc3339
from tests.e2e.delivery.world import world
from tests.e2e.feedback.feedback import LISTENS, NAME, return_path
from tests.e2e.feedback.test_a_late_bounce_and_a_complaint import back, ids
from tests.fakes.mx import FakeMx
from tests.feedback.report_mail import alone, as_mail, zipped
from tests.inbound.bounces import bounce, complaint

DMARC = """<?xml version="1.0"?>
<feedback><report_metadata><org_name>provider.example</org_name><report_id>{id}</report_id>
<date_range><begin>{begin}</begin><end>{end}</end></date_range></report_metadata>
<policy_published><domain>{domain}</domain><p>none</p></policy_published>
<record><row><source_ip>192.0.2.1</source_ip><count>90</count>
<policy_evaluated><disposition>none</disposition><dkim>pass</dkim><spf>fail</spf></policy_evaluated></row>
<identifiers><header_from>{domain}</header_from></identifiers></record>
<record><row><source_ip>198.51.100.7</source_ip><count>10</count>
<policy_evaluated><disposition>none</disposition><dkim>fail</dkim><spf>fail</spf></policy_evaluated></row>
<identifiers><header_from>{domain}</header_from></identifiers></record></feedback>"""


def dmarc(day: int, domain: str = "example.com", report_id: str = "1") -> bytes:
    begin = day * DAY // SECOND
    document = DMARC.format(domain=domain, id=report_id, begin=begin, end=begin + 86_399)
    return alone(zipped(document.encode()), "application/zip")


def tls(day: int) -> bytes:
    start = rfc3339(day * DAY)
    failure = {
        "result-type": "certificate-expired",
        "receiving-mx-hostname": "mx.example.com",
        "failed-session-count": 2,
    }
    policy = {
        "policy": {"policy-type": "sts", "policy-domain": "example.com"},
        "summary": {"total-successful-session-count": 8, "total-failure-session-count": 2},
        "failure-details": [failure],
    }
    dates = {"start-datetime": start, "end-datetime": start}
    document = {"organization-name": "p", "report-id": "1", "date-range": dates, "policies": [policy]}
    return as_mail(gzip.compress(json.dumps(document).encode()), "application/tlsrpt+gzip", "report.json.gz")


async def test_what_comes_back_is_counted(tmp_path: Path) -> None:
    """Each report once, only about the domain of the address; a late bounce and a complaint beside deliveries."""
    async with world(tmp_path, LISTENS) as made:
        await made.domain("example.net", FakeMx())
        message = await made.send("ada@example.net", "bob@example.net")
        await made.final(message)
        paths = {address: return_path(made.running, each) for address, each in ids(made, message).items()}
        await back(made, bounce("ada@example.net"), paths["ada@example.net"])
        await back(made, complaint(f"Return-Path: <{paths['bob@example.net']}>"), f"fbl@{NAME}")
        today = Environment().now() // DAY
        for report in (dmarc(today), dmarc(today), dmarc(today - 1, report_id="2"), dmarc(today, "other.example")):
            await back(made, report, f"dmarc@{NAME}")
        await back(made, b"Subject: no report\r\n\r\nNothing here.\r\n", f"dmarc@{NAME}")
        for _ in range(2):
            await back(made, tls(today), f"tlsrpt@{NAME}")

        told = (await made.ask("GET", "/v1/feedback?days=7")).json()
        assert told["takes_reports"] is True
        (provider,) = told["providers"]
        assert [provider[kind] for kind in ("delivered", "late_bounced", "complained")] == [2, 1, 1]
        assert provider["complaint_rate"] == 0.5
        assert told["classes"]["invalid_recipient"] == 1
        (domain,) = told["domains"]
        seen = domain["dmarc"]
        assert (seen["reports"], seen["messages"], seen["pass_rate"]) == (2, 200, 0.9)
        assert [(each["passed"], each["failed"]) for each in seen["days"]] == [(90, 10), (90, 10)]
        assert [(each["address"], each["passed"]) for each in seen["sources"]] == [
            ("198.51.100.7", 0),
            ("192.0.2.1", 180),
        ]
        assert seen["next_step"]["state"] == "collect"
        assert (domain["tls"]["sessions"], domain["tls"]["failures"]) == (10, 2)
        assert domain["tls"]["by_mx"][0]["mx"] == "mx.example.com"
