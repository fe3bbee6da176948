"""In charge of how long the SMTP client waits for a server."""

from dataclasses import dataclass

from appliance.deliver.smtp.results import Stage


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each reply has its own time, from when it is waited for until it is whole (RFC 5321 4.5.3.2)."""

    greeting: float = 300
    ehlo: float = 300
    starttls: float = 300
    handshake: float = 60  # ours: a TLS handshake is two round trips, not a decision
    auth: float = 300
    reset: float = 300
    mail: float = 300
    rcpt: float = 300
    data: float = 120
    block: float = 180
    end_of_data: float = 600
    quit: float = 5  # nothing depends on the answer
    whole: float = (
        3_600  # ours: opening or one transaction, against a server that answers each of 50 RCPTs just in time
    )

    def of(self, stage: Stage) -> float:
        """How long a reply may take."""
        seconds: float = getattr(self, stage)
        return seconds
