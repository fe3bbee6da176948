"""The class of a bounce, and whether the address is at fault: from SMTP code, enhanced status and words. No I/O.

It serves direct SMTP replies and late bounces alike. Whether an address is at fault is decided as `deliver/outcome.py`
decides it for a reply to RCPT, with the same tables; a late bounce without a code is read like a 550.

The rules of the class, from the top; the first that fits decides:

1. A full mailbox is `mailbox_full`, whether for now or for good.
2. Any other 4xx or 4.x.x is `temporary`, whatever its reason.
3. The address is at fault: `invalid_recipient`.
4. A status that names its cause, by the first table.
5. 5.7.x, and without a telling status the words of refusals by policy: `authentication`, `reputation`, `content` or
   `policy`, by the words.
6. The second table; then other words: a message that is too large or malformed, a full mailbox, a delivery that was
   given up for its age, an unknown user where no address is blamed.
7. `other`.

Hence: where `outcome.py` suppresses the address, the class is `invalid_recipient`; where it says that the sender is at
fault, the class is one of those in rule 5.
"""

import re
from typing import Final

from appliance.model.mail import BounceClass as BounceClass

CLASSIFIED_CHARACTERS: Final = 2_000  # of the words that are looked at

# RFC 3463 subject and detail -> class of a permanent refusal. Those in _AT_FAULT blame the address.
_AT_FAULT: Final = frozenset(("1.1", "1.2", "1.3", "1.6", "2.1"))
_BLAMELESS: Final = frozenset(("1.7", "1.8", "2.2", "2.3", "3.4", "4.6"))  # whatever the words are
_BY_STATUS: Final = {
    "1.7": BounceClass.POLICY,  # the sender's mailbox
    "1.8": BounceClass.POLICY,  # the sender's system
    "2.3": BounceClass.CONTENT,  # too long for this mailbox
    "3.4": BounceClass.CONTENT,  # too big for the system
    "4.6": BounceClass.OTHER,  # routing loop
}
# Those that count only where the words are not of a refusal by policy.
_BY_STATUS_AND_WORDS: Final = {
    "1.0": BounceClass.INVALID_RECIPIENT,  # other address status
    "1.4": BounceClass.INVALID_RECIPIENT,  # ambiguous
    "1.10": BounceClass.INVALID_RECIPIENT,  # null MX, RFC 7505; Exchange: recipient not found
    "4.7": BounceClass.TEMPORARY,  # delivery time expired, RFC 3463 3.5
    "4.14": BounceClass.OTHER,  # routing loop, Exchange
}
# RFC 7372, RFC 7505 4.2, RFC 7489; 7.509 and 7.515 are Exchange Online's.
_AUTHENTICATION_DETAILS: Final = frozenset(
    ("7.20", "7.21", "7.22", "7.23", "7.24", "7.25", "7.26", "7.27", "7.30", "7.31", "7.32", "7.509", "7.515")
)
_BANNED: Final = range(600, 700)  # details of 5.7.x by which Exchange Online refuses an IP address

_PERMANENT: Final = re.compile(r"5\.([0-9]{1,3}\.[0-9]{1,3})", re.ASCII)  # RFC 3463 2

# Gmail answers 5.2.1 also where a live mailbox receives too much at the moment.
BUSY_MAILBOX: Final = re.compile(r"receiving mail (?:at a rate|too quickly)", re.IGNORECASE)

# Words of refusals by policy or reputation. They are looked for before the next table: where a text has both, as in
# "user unknown or blocked by policy", no address is suppressed.
REFUSED_BY_POLICY: Final = re.compile(
    r"""\bspam | \bblack-?\s?list | \bblock-?\s?list | \bblocked\b | \bbanned\b | \b(?:dns)?[rd]?bls?\b | spamhaus
    | barracudacentral | \bpolicy | \breputation | \bdmarc\b | \bdkim\b | \bspf\b | unauthenticated | \bauthenticat
    | \bunsolicited | \bsuspicious | \bvirus | \bmalware | \bphish | access\ denied | not\ authori[sz]ed
    | not\ permitted | \babuse | \breverse\ dns | \bptr\b | \brdns\b | \brate\ limit | too\ many""",
    re.IGNORECASE | re.VERBOSE,
)

# Words in which servers say that there is no such user: Postfix, Exim, Exchange (which gives 5.1.10), Sendmail, qmail,
# Outlook (5.5.0), Dovecot, Cyrus, Yahoo, Deliverer. Left out on purpose: "mailbox unavailable" and "invalid recipient",
# RFC 5321 4.2.3's own words for every 550, and "recipient rejected", which is as often said of the sender.
NO_SUCH_USER: Final = re.compile(
    r"""\bunknown\ (?:user|recipient|local\ part|local-part|mailbox|account|address)\b
    | \b(?:user|recipient|mailbox|account|address|local-part)\ (?:is\ |was\ )?(?:unknown|not\ known|non-?existent)\b
    | \b(?:user|recipient|mailbox|account|address|addressee|person)\ (?:is\ |was\ |could\ )?not\ (?:be\ )?found\b
    | \brecipientnotfound\b
    | \bno\ such\ (?:user|recipient|mailbox|account|person|address|local\ user|email\ address)\b
    | \bno\ (?:mailbox|user|account)\ (?:here\ )?(?:by|with|under)\ that\ name\b
    | \b(?:user|recipient|mailbox|account|address|addressee)\b.{0,80}?\b(?:does\ not|doesn'?t|do\ not)\ exist\b
    | \b(?:this|the)\ user\ (?:does\ not|doesn'?t)\ have\ an?\ \S+\ account\b
    | \bno\ longer\ (?:a\ valid|in\ use|exists|works\ here|employed)\b
    | \b(?:unrouteable|undeliverable)\ address:\ unknown\b
    | \bnot\ a\ (?:valid|known)\ (?:user|mailbox|recipient|account)\b
    | \buser\ unknown\b""",
    re.IGNORECASE | re.VERBOSE,
)

# Words of a server that does not know the recipient's domain: the owner of a domain may name any server in its MX.
RELAYING_REFUSED: Final = re.compile(
    r"""\brelay(?:ing)?\b.{0,20}?\b(?:denied|prohibited|not\ (?:permitted|allowed)) | \b(?:unable\ to|not)\ relay\b
    | \btenantattribution\b""",
    re.IGNORECASE | re.VERBOSE,
)

# A server that checks the sender's address says the same words of it, in answer to RCPT (Exim's "sender verify").
ABOUT_THE_SENDER: Final = re.compile(
    r"\bsender\b|\bmail from\b|\bfrom address|\breturn[- ]path|\benvelope|\b[he][eh]lo\b|\byour (?:ip|domain|host)",
    re.IGNORECASE,
)

# The words of rule 5, in their order: what is more telling comes first.
_CAUSES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.VERBOSE), bounce_class)
    for pattern, bounce_class in (
        (
            r"""\bdmarc\b | \bdkim\b | \bspf\b | unauthenticated | \breverse\ dns | \bptr\b | \brdns\b
            | sender\ ?id\b | not\ authenticated | authentication\ (?:checks?|results?|fail|information)
            | (?:pass|fail\w*)\ authentication | forged""",
            BounceClass.AUTHENTICATION,
        ),
        (
            r"""\bblack-?\s?list | \bblock-?\s?list | \b(?:dns)?[rd]?bls?\b | spamhaus | barracudacentral
            | spamcop | sorbs | uceprotect | cloudmark | senderscore | invaluement | abuseat | \breputation
            | \bS3140\b | \bS3150\b | \bTSS[0-9]{2} | \bbanned\b | unusual\ rate | \brate\ limit | too\ many
            | \bsending\ ip | \b(?:your|the)\ ip\b | \bip\ address\ .{0,60}?\bblock | weren't\ sent""",
            BounceClass.REPUTATION,
        ),
        (
            r"""\bvirus | \bmalware | \bphish | \bunsolicited | \bspam | \bsuspicious | \bcontent\b | \battachment
            | \burls?\b | \bmessage\ (?:size|too|looks) | \bheaders?\b""",
            BounceClass.CONTENT,
        ),
        (r"\bpolic(?:y|ies)", BounceClass.POLICY),
        (r"\bblocked\b | \babuse", BounceClass.REPUTATION),
    )
)
_FULL: Final = re.compile(
    r"""\b(?:mailbox|in-?box|mail\ ?box|quota|storage|maildir)\b.{0,40}?\b(?:full|exceed\w*|exhausted)\b
    | \bover\ ?(?:its\ |the\ )?(?:disk\ )?quota\b | \bexceed\w*\ .{0,40}?\b(?:quota|storage)\b | \bquota\ exceeded
    | \bout\ of\ storage\b | \bfull\ mailbox\b | \binsufficient\ (?:disk|system)\ storage\b
    | \bnot\ enough\ (?:storage|space)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_NO_MAILBOX: Final = re.compile(
    r"""\b(?:mailbox|account|user|recipient|address)\b.{0,40}?
        \b(?:unavailable|disabled|inactive|suspended|invalid|deactivated|closed|expired|unrouteable)\b
    | \b(?:invalid|bad|unrouteable|undeliverable)\ (?:mailbox|recipient|address|user|account)\b
    | \bnot\ listed\ in\b | \bnot\ (?:a\ )?local\b | \baddress\ rejected\b | \bmailbox\ unavailable\b""",
    re.IGNORECASE | re.VERBOSE,
)
_UNFIT_MESSAGE: Final = re.compile(
    r"""\b(?:message|mail|size|attachment)\b.{0,40}?\b(?:too\ (?:large|big|long)|exceeds|maximum|malformed)\b
    | \btoo\ (?:large|big)\b | \b(?:8bit|line)\ too\ long\b | \bcontent\ reject | \bmalformed\b | \brfc\ ?[25]322\b
    | \bheaders?\b.{0,30}?\b(?:missing|invalid|duplicate)""",
    re.IGNORECASE | re.VERBOSE,
)
_EXPIRED: Final = re.compile(
    r"""\b(?:message|delivery\ time|queue|retry)\b.{0,30}?\bexpired\b | \bretry\ time(?:out)?\b.{0,30}?\bexceeded\b
    | \btoo\ long\ in\ (?:the\ )?queue\b | \bretry\ timeout\ exceeded\b | \bbeen\ in\ the\ queue\ too\ long\b
    | \bconnection\ (?:timed\ out|refused)\b | \btimed\ out\b""",
    re.IGNORECASE | re.VERBOSE,
)


def blames_recipient(code: int | None, status: str | None, words: str) -> bool:
    """Whether a permanent refusal says that there is no such mailbox, so that its address is suppressed."""
    words = words[:CLASSIFIED_CHARACTERS]
    if _is_temporary(code, status):
        return False
    detail = _detail(status)
    if detail in _AT_FAULT:
        return not (detail == "2.1" and BUSY_MAILBOX.search(words))
    if detail in _BLAMELESS or detail.startswith(("6.", "7.")) or REFUSED_BY_POLICY.search(words):
        return False
    unknown = NO_SUCH_USER.search(words) is not None and not ABOUT_THE_SENDER.search(words)
    return code in (None, 550) and unknown


def classify(code: int | None, status: str | None, words: str) -> BounceClass:
    """The class of a refusal: its SMTP code, its enhanced status (`5.1.1`) and its words, as far as there are any."""
    words = words[:CLASSIFIED_CHARACTERS]
    detail = _detail(status)
    if status in ("4.2.2", "5.2.2"):
        return BounceClass.MAILBOX_FULL
    if _is_temporary(code, status):
        return BounceClass.MAILBOX_FULL if _FULL.search(words) else BounceClass.TEMPORARY
    if blames_recipient(code, status, words):
        return BounceClass.INVALID_RECIPIENT
    if detail == "2.1":  # a mailbox that receives too much
        return BounceClass.POLICY
    if (known := _BY_STATUS.get(detail)) is not None:
        return known
    if detail.startswith("6."):
        return BounceClass.CONTENT
    if detail.startswith("7.") or REFUSED_BY_POLICY.search(words):
        return _unwanted(detail, words)
    return _BY_STATUS_AND_WORDS.get(detail) or _by_words(code, words)


def _is_temporary(code: int | None, status: str | None) -> bool:
    """By the code if there is one: a 550 is permanent, whatever its status says."""
    return code // 100 == 4 if code is not None else (status or "").startswith("4.")


def _detail(status: str | None) -> str:
    """Subject and detail of a permanent status; empty for others, and for what is none."""
    found = _PERMANENT.fullmatch(status or "")
    return found[1] if found else ""


def _unwanted(detail: str, words: str) -> BounceClass:
    if detail in _AUTHENTICATION_DETAILS:
        return BounceClass.AUTHENTICATION
    if detail.startswith("7.") and int(detail[2:]) in _BANNED:
        return BounceClass.REPUTATION
    return next((found for pattern, found in _CAUSES if pattern.search(words)), BounceClass.POLICY)


def _by_words(code: int | None, words: str) -> BounceClass:
    if _UNFIT_MESSAGE.search(words):
        return BounceClass.CONTENT
    if _FULL.search(words):
        return BounceClass.MAILBOX_FULL
    if _EXPIRED.search(words):
        return BounceClass.TEMPORARY
    if NO_SUCH_USER.search(words) or _NO_MAILBOX.search(words):
        about_us = ABOUT_THE_SENDER.search(words) is not None
        return BounceClass.POLICY if about_us else BounceClass.INVALID_RECIPIENT
    if code == 552:  # RFC 5321 4.2.3: exceeded storage allocation
        return BounceClass.MAILBOX_FULL
    return BounceClass.POLICY if ABOUT_THE_SENDER.search(words) else BounceClass.OTHER
