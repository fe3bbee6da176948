"""Mail that comes back, as servers write it."""


def bounce(address: str, *, status: str = "5.1.1", action: str = "failed", code: str = "550") -> bytes:
    """A delivery status about one recipient (RFC 3464)."""
    said = f"{code} {status} <{address}>: Recipient address rejected: User unknown"
    text = f"""From: MAILER-DAEMON@mx.example.net
To: return-path
Subject: Undelivered Mail Returned to Sender
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="b"

--b
Content-Type: text/plain

<{address}>: host mx.example.net said: {said}

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.net

Final-Recipient: rfc822; {address}
Action: {action}
Status: {status}
Diagnostic-Code: smtp; {said}

--b--
"""
    return text.replace("\n", "\r\n").encode()


def vacation() -> bytes:
    text = "From: ada@example.net\nSubject: On vacation\nAuto-Submitted: auto-replied\n\nI am away.\n"
    return text.replace("\n", "\r\n").encode()


def complaint(inside: str, *, kind: str = "abuse", recipient: str = "") -> bytes:
    """A feedback report (RFC 5965) about a message with this header."""
    told = f"Original-Rcpt-To: {recipient}\n" if recipient else ""
    text = f"""From: feedback@provider.example
Subject: FW: complaint
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary="b"

--b
Content-Type: text/plain

This is an email abuse report.

--b
Content-Type: message/feedback-report

Feedback-Type: {kind}
User-Agent: Provider-FBL/1.0
Version: 1
{told}
--b
Content-Type: message/rfc822

{inside}
From: shop@example.com
Subject: On its way

Hello.

--b--
"""
    return text.replace("\n", "\r\n").encode()
