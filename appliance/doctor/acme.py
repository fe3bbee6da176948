"""In charge of judging the certificate that ACME keeps: is there one, and does its renewal go well. PURE."""

from datetime import UTC, datetime

from appliance.acme import schedule
from appliance.doctor.facts import AcmeFacts
from appliance.doctor.finding import Finding, fault, ok, warning

SUBJECT = "acme"

_LOOK = "Look for lines of appliance.acme in the log."


def judge_acme(facts: AcmeFacts, now: datetime) -> list[Finding]:
    """One line: none yet and why, how long it lasts, or that it should have been renewed."""
    advice = facts.advice or _LOOK
    if facts.trouble:
        return [fault("certificate", SUBJECT, f"{facts.file}: {facts.trouble}", "Run this as the server's user.")]
    if facts.not_after is None or facts.not_before is None:
        if not facts.failures:
            return [warning("certificate", SUBJECT, "none yet: nobody has asked for it", "Start the server.")]
        return [fault("certificate", SUBJECT, f"none yet: {_story(facts)}", advice)]
    until = f"{facts.not_after:%Y-%m-%d}"
    if now > facts.not_after:
        return [fault("certificate", SUBJECT, f"has expired on {until}: {_story(facts)}", advice)]
    if facts.failures:
        return [warning("certificate", SUBJECT, f"is not renewed, and lasts until {until}: {_story(facts)}", advice)]
    overdue = schedule.overdue(facts.not_before.timestamp(), facts.not_after.timestamp(), facts.renew_before)
    if now.timestamp() > overdue:
        text = f"should have been renewed by now, and lasts until {until}"
        return [warning("certificate", SUBJECT, text, "Start the server, and look at the clock.")]
    if missing := [name for name in facts.wanted if name not in facts.names]:
        text = f"is not for {', '.join(missing)} yet"
        return [warning("certificate", SUBJECT, text, "Restart the server: it was started with other settings.")]
    return [ok("certificate", SUBJECT, f"for {', '.join(facts.wanted)} until {until}, renewed by itself")]


def _story(facts: AcmeFacts) -> str:
    if not facts.failures:
        return "nobody has tried to renew it"
    again = datetime.fromtimestamp(facts.next_try, UTC)
    return f"{facts.error} (failed {facts.failures} times, next try at {again:%Y-%m-%d %H:%M} UTC)"
