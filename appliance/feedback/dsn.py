"""Reads mail that a server or person sent to the return path of one recipient: a bounce, a delay, a delivery, or an
automatic reply. No I/O, nothing raises.

The token of the address identifies the recipient; the mail only says what happened. The first rule that matches
decides:

1. A delivery status (RFC 3464, RFC 6533), as a part or as lines in the text: the group of fields for our address;
   otherwise the first group, if all groups agree.
2. A disposition (RFC 8098): refused by the recipient's own filter, or displayed.
3. A challenge: the sender must confirm. No person will.
4. An automatic reply (RFC 3834): not a bounce, whatever its words. Mail servers mark bounces in the same way, so mail
   that a mail server wrote is not an automatic reply.
5. A bounce without a delivery status, as qmail, Exim, Exchange, Domino and others write it: by its phrases, and by the
   SMTP reply or status in it.
6. Unknown.

A failure blames the address only if the rule for its code, status and words (`reply_rules.toml`) suppresses it. If the
mail reports several recipients and none is ours, that must hold for all of them.
"""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from appliance.feedback.mime import ReceivedMail, field_groups, open_mail
from appliance.feedback.reply_rules import judge_reply
from appliance.message.decoding import one_line
from appliance.message.reader import ContentPart
from appliance.model.mail import BounceClass

WORDS_CHARACTERS: Final = 500  # of the reason that are kept
_CANDIDATES: Final = 50  # SMTP replies compared in a text
_SUBJECT: Final = 500  # characters of a subject that are searched
_LINES: Final = 200  # of a text that are searched
_GROUPS: Final = 100  # recipients compared in one report

_Reason = tuple[int | None, str | None, str]  # SMTP code, status, words


class NoticeKind(StrEnum):
    FAILED = "failed"
    DELAYED = "delayed"  # the server retries
    DELIVERED = "delivered"  # arrived, relayed, or read
    AUTO_REPLY = "auto_reply"
    CHALLENGE = "challenge"
    UNKNOWN = "unknown"


class Notice(Struct, frozen=True, kw_only=True):
    kind: NoticeKind
    code: int | None = None  # SMTP
    status: str | None = None  # enhanced, as in `5.1.1`
    words: str = ""
    bounce_class: BounceClass | None = None  # if the delivery failed or is delayed
    recipient_fault: bool = False


def read_notice(mime: bytes, address: str | None = None) -> Notice:
    """Read a mail; `address` is that of the token's recipient, if known."""
    mail = open_mail(mime)
    for read in (_delivery_status, _disposition, _challenge, _auto_reply, _bounce_text):
        if (notice := read(mail, (address or "").lower())) is not None:
            return notice
    return Notice(kind=NoticeKind.UNKNOWN, words=_cut(mail.header("subject")))


# ---- 1. delivery status

_ACTIONS: Final = {
    "failed": NoticeKind.FAILED,
    "delayed": NoticeKind.DELAYED,
    "delivered": NoticeKind.DELIVERED,
    "relayed": NoticeKind.DELIVERED,
    "expanded": NoticeKind.DELIVERED,
}
_CLASSES: Final = {"2": NoticeKind.DELIVERED, "4": NoticeKind.DELAYED, "5": NoticeKind.FAILED}
_STATUS: Final = re.compile(r"(?<![0-9.])([245]\.[0-7]\.[0-9]{1,3})(?![0-9]|\.[0-9])")
_REPLY: Final = re.compile(
    r"""(?:^|(?<=[\s(\[<:;"'>|\#]))([245][0-9]{2})(?:[ \t]|-(?=[^\s0-9]|[0-9]\.))[ \t]?
    (?:\(?\#?([245]\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9]|\.[0-9]))?""",
    re.VERBOSE,
)
_FIELDS_IN_TEXT: Final = re.compile(r"^(?:Final|Original)-Recipient:", re.IGNORECASE | re.MULTILINE)


def _delivery_status(mail: ReceivedMail, address: str) -> Notice | None:
    part = mail.part("/delivery-status", "/global-delivery-status")
    if part is not None:
        block: ContentPart | str = part
    elif (start := _FIELDS_IN_TEXT.search(mail.text)) is not None:
        block = mail.text[start.start() :]
    else:
        return None
    groups = [group for group in field_groups(block) if group.keys() & {"action", "status", "diagnostic-code"}]
    ours = [group for group in groups if address and address in _addresses(group)]
    # The reason in the text applies to a recipient only if there is no other.
    reason = _reason(mail.text) if len(groups) == 1 else (None, None, "")
    chosen = (ours or groups)[:_GROUPS]
    notices = [notice for group in chosen if (notice := _reported(group, reason, mail.header("subject"))) is not None]
    if not notices:
        return None
    first = notices[0]
    if any(notice.kind is not first.kind for notice in notices):
        return Notice(kind=NoticeKind.UNKNOWN, words="the report differs by recipient and does not name ours")
    return first if all(notice.recipient_fault for notice in notices) else replace(first, recipient_fault=False)


def _addresses(group: dict[str, str]) -> list[str]:
    values = (group.get(name, "") for name in ("final-recipient", "original-recipient", "x-actual-recipient"))
    return [value.rpartition(";")[2].strip(" <>").lower() for value in values]


def _reported(group: dict[str, str], reason: _Reason, subject: str) -> Notice | None:
    """Read a group; `reason`, from the text, is for a group without a reply."""
    action = group.get("action", "").lower().partition(" ")[0].rstrip(";,")
    field = _STATUS.search(group.get("status", ""))
    status = field[1] if field else None
    words = _without_type(group.get("diagnostic-code", ""))
    code, in_reply = _reply_in(words)
    kind = _ACTIONS.get(action) or _CLASSES.get((status or in_reply or str(code or ""))[:1])
    if kind is None:
        return None
    if not words and kind in (NoticeKind.FAILED, NoticeKind.DELAYED):
        code, in_reply, words = reason
    words = words or subject
    # The status in the reply is the most precise; the field of many servers is 5.0.0.
    if in_reply is not None and (status is None or not in_reply.endswith(".0.0")):
        status = in_reply
    return _notice(kind, code, status, words)


def _without_type(value: str) -> str:
    """Remove the type of a value such as `smtp; 550 no`."""
    kind, semicolon, rest = value.partition(";")
    return rest.strip() if semicolon and len(kind) <= 30 and " " not in kind.strip() else value.strip()


def _notice(kind: NoticeKind, code: int | None, status: str | None, words: str) -> Notice:
    wrong = kind in (NoticeKind.FAILED, NoticeKind.DELAYED)
    rule = judge_reply(code, status, words)
    bounce_class = rule.bounce_class if wrong else None
    if kind is NoticeKind.DELAYED and bounce_class is not BounceClass.MAILBOX_FULL:
        bounce_class = BounceClass.TEMPORARY
    return Notice(
        kind=kind,
        code=code,
        status=status,
        words=_cut(words),
        bounce_class=bounce_class,
        recipient_fault=kind is NoticeKind.FAILED and rule.suppress,
    )


def _cut(words: str) -> str:
    return one_line(" ".join(words.split()))[:WORDS_CHARACTERS]


def _reply_in(line: str) -> tuple[int | None, str | None]:
    """Return the code and status of the most specific SMTP reply in a line, or a status alone."""
    best: tuple[int, int | None, str | None] = (-1, None, None)
    for number, match in enumerate(_REPLY.finditer(line)):
        if number == _CANDIDATES:
            break
        code, status = int(match[1]), match[2]
        fits = status is not None and status[0] == match[1][0]
        weight = 2 * fits + (code // 10 in (45, 55, 42)) + (code // 100 == 5)
        if weight > best[0] and (fits or code // 100 in (4, 5)):
            best = (weight, code, status if fits else None)
    _, best_code, best_status = best
    if best_status is None and (alone := _STATUS.search(line)) is not None:
        same_class = best_code is None or alone[1][0] == str(best_code)[0]
        best_status = alone[1] if same_class else None
    return best_code, best_status


# ---- 2. dispositions

_REFUSED: Final = re.compile(
    r"automatically (?:rejected|refused)|was (?:rejected|refused) by|\brejected:", re.IGNORECASE
)
_SEEN: Final = frozenset(("displayed", "dispatched", "processed", "deleted"))


def _disposition(mail: ReceivedMail, _address: str) -> Notice | None:
    part = mail.part("/disposition-notification", "/global-disposition-notification")
    if part is None:
        return None
    fields = {name: value for group in field_groups(part) for name, value in group.items()}
    disposition = fields.get("disposition", "").lower().rpartition(";")[2].strip()
    subject = mail.header("subject")
    refused = _REFUSED.search(mail.text) or "reject" in subject.lower()
    if refused and not disposition.startswith("displayed"):  # Sieve, RFC 5429 2.2.1
        notice = _notice(NoticeKind.FAILED, None, None, mail.text or subject)
        return replace(notice, bounce_class=BounceClass.POLICY, recipient_fault=False)
    seen = disposition.partition("/")[0] in _SEEN
    return Notice(kind=NoticeKind.DELIVERED if seen else NoticeKind.UNKNOWN, words=_cut(subject))


# ---- 3. challenges, 4. automatic replies

_CHALLENGE_HEADERS: Final = frozenset(
    ("x-tmda-fingerprint", "x-boxbe", "x-spamarrest-verify", "x-challenge", "x-mailinblack", "x-bluebottle-request")
)
_CHALLENGE: Final = re.compile(
    r"""\bplease\ (?:confirm|verify)\ (?:your|that\ you|this|you\ are)
    | \bconfirm\ (?:your\ |the\ )?(?:delivery|message|e-?mail|identity|request)
    | \bclick\ (?:on\ )?the\ (?:following\ |below\ )?link\b.{0,80}?\b(?:deliver|approve|verify|confirm|authenticate)
    | \b(?:awaiting|pending)\ (?:your\ )?(?:verification|confirmation|approval|authentication)
    | \bto\ (?:have|get)\ your\ (?:e-?mail|message)\ delivered\b | \bguest\ list\b | \bchallenge[-/ ]response\b
    | \bspam\ ?arrest\b | \bboxbe\b | \bmailinblack\b | \btmda\b | \bconfirmez\ (?:votre|l') | \bbestätigen\ sie\b""",
    re.IGNORECASE | re.VERBOSE,
)
_AUTO_HEADERS: Final = frozenset(
    ("x-autoreply", "x-auto-reply", "x-autorespond", "x-autoresponder", "x-auto-respond", "x-vacation",
     "x-autoreply-from", "x-mail-autoreply", "x-autogenerated")
)  # fmt: skip
_AUTO_PRECEDENCE: Final = frozenset(("auto_reply", "auto-reply", "autoreply"))
_AUTO_SUBJECT: Final = re.compile(
    r"""^(?:re:\ |aw:\ )?\W{0,3}(?:auto(?:matic|matisch\w*|matique|matica|m[aá]tic[ao]|mated)?[\s:-]{0,3}
        (?:repl(?:y|ies)|respon[sd]\w*|antwo\w+|svar|risposta|respuesta|resposta|odpowied\w*|vastaus|odpov\w+)
    | (?:out\ of|away\ from)\ (?:the\ |my\ )?off?ice | ooo\b | vacation\b | on\ (?:vacation|leave|holiday)
    | away\b | i\ am\ (?:away|out) | abwesen\w* | automatische | automatisk | autosvar
    | réponse\ automatique | absence | absent | respuesta\ autom | fuera\ de | risposta\ autom | fuori\ (?:sede|uff)
    | afwezig\w* | resposta\ autom | ausência | ausente | frånvar | fravær | poissa | nieobecn | automatyczna
    | odpowied\w{1,3}\ autom     | automatická | nepřítomn | автоответ | автоматический | нет\ на\ месте
    | 自動(?:返信|応答) | 不在 | 自动(?:回复|答复) | 休假 | yanıt | otomatik | αυτόματη)""",
    re.IGNORECASE | re.VERBOSE,
)
_DAEMON: Final = re.compile(
    r"""\b(?:mailer[-_. ]?daemon|mail[-_. ]?daemon|postmaster|mail\ delivery\ (?:system|subsystem)|mdaemon
    | mail\ (?:system|subsystem)|maildelivery|microsoftexchange\w*|delivery\ subsystem|mailadmin|system\ administrator
    | systemadministrator|undeliverable|bounce|daemon|listserv)\b""",
    re.IGNORECASE | re.VERBOSE,
)


def _by_daemon(mail: ReceivedMail) -> bool:
    named = mail.header("x-failed-recipients") or _DAEMON.search(mail.header("from"))
    return bool(named or _BOUNCED.search(mail.header("subject")[:_SUBJECT]))


def _challenge(mail: ReceivedMail, _address: str) -> Notice | None:
    names = {name.lower() for name, _ in mail.headers}
    marked = names & _CHALLENGE_HEADERS or "challenge" in mail.header("auto-submitted").lower()
    subject = mail.header("subject")
    if marked or (not _by_daemon(mail) and _CHALLENGE.search(f"{subject}\n{mail.text[:4_000]}")):
        return Notice(kind=NoticeKind.CHALLENGE, words=_cut(subject))
    return None


def _auto_reply(mail: ReceivedMail, _address: str) -> Notice | None:
    subject = mail.header("subject")
    names = {name.lower() for name, _ in mail.headers}
    submitted = mail.header("auto-submitted").lower().lstrip()
    automatic = bool(
        submitted.startswith(("auto-replied", "auto-generated", "auto-notified"))
        or names & _AUTO_HEADERS
        or mail.header("precedence").lower().strip() in _AUTO_PRECEDENCE
    )
    vacation = _AUTO_SUBJECT.match(subject) is not None
    if vacation or (automatic and not _by_daemon(mail)):
        return Notice(kind=NoticeKind.AUTO_REPLY, words=_cut(subject))
    return None


# ---- 5. bounces without a delivery status

_BOUNCED: Final = re.compile(
    r"""\bundeliver(?:able|ed)\b | \bnon-?\ ?deliver(?:y|able) | \bunable\ to\ (?:deliver|be\ delivered)
    | \b(?:could|can|was|were|has|have)\ ?not\ (?:yet\ )?(?:be\ |been\ )?(?:delivered|reached|sent|deliver)\b
    | \bdelivery\ (?:\w{1,30}\ ){0,8}?(?:failed|failure|error|problem) | \bfail(?:ed|ure)\b.{0,40}?\bdeliver
    | \bdelivery\ (?:has\ )?failed | \bdelivery\ status\ notification\ \(failure\)
    | \bfailed\ permanently\b | \bpermanent\ (?:fatal\ )?error
    | \breturned\ (?:mail|to\ sender|message) | \bfailure\ notice\b | \bmail\ system\ error | \bmessage\ rejected
    | \bwasn'?t\ (?:able\ to\ be\ )?delivered | \bcouldn'?t\ (?:be\ )?deliver | \bdidn'?t\ reach
    | \bdid\ not\ reach | \bfollowing\ (?:address\(?e?s?\)?|recipient\(?s?\)?)\ (?:had|has|have|failed|could)
    | \bmail\ delivery\ (?:failed|failure|report|status) | \bunzustellbar | \bnicht\ zugestellt | \bunbekannt
    | \bnon\ remis | \béchec\ de\ (?:la\ )?remise | \bnon\ recapitabile | \bno\ se\ (?:puede|pudo|ha\ podido)\ entregar
    | \bnão\ (?:foi\ )?(?:possível|entreg) | \bkon\ niet\ worden | \bonbestelbaar | \bnie\ dostarczono
    | \bне\ (?:было\ )?доставлен | 配信不能 | 送信できません | エラー | 退信 | 无法投递""",
    re.IGNORECASE | re.VERBOSE,
)
_DELAYED: Final = re.compile(
    r"""\bwarning\ message\ only\b | \bdo\ not\ need\ to\ resend | \bnot\ yet\ been\ delivered
    | \bwill\ (?:be\ )?(?:re-?tr|keep\ trying|continue\ (?:to\ try|trying|attempting))
    | \bdelivery\ (?:status\ notification\ )?\(?(?:is\ |has\ been\ )?delay | \bdelayed\ (?:mail|delivery|message)\b
    | \bcould\ not\ (?:be\ )?(?:send|sent|delivered)\ (?:\w{1,30}\ ){0,3}?for\ (?:the\ )?(?:past|last)
    | \bstill\ being\ retried | \bstill\ trying\b | \bdelivery\ will\ (?:continue|be\ attempted)
    | \bdelivery\ incomplete\b | \btemporary\ problem\ delivering""",
    re.IGNORECASE | re.VERBOSE,
)
_ARRIVED: Final = re.compile(
    r"""\bsuccessful(?:ly)?\ (?:mail\ )?deliver(?:y|ed) | \b(?:was|been)\ successfully\ (?:delivered|relayed)
    | \bdelivery\ status\ notification\ \((?:success|relay)\) | ^relayed: | ^delivered: | ^read:""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
# The start of the returned message in a text.
_ORIGINAL: Final = re.compile(
    r"""^[\s>*=_-]*(?:(?:below\ this\ line\ is|this\ is)\ a\ copy\ of\ (?:the|your)\ message
    | (?:the\ )?(?:text|header|headers|contents|body)\ of\ (?:the|your)\ (?:original\ )?message
    | (?:original|returned|undelivered|unsent)\ (?:message|mail)\b | message\ (?:contents|headers?|text)\ follow
    | (?:original\ )?message\ headers?: | returned\ message | body\ of\ message\ generated | received:\ from\b
    | copy\ of\ (?:the\ )?(?:original\ )?message)""",
    re.IGNORECASE | re.VERBOSE,
)
_TELLING: Final = re.compile(
    r"""\b(?:user|mailbox|recipient|account|address|host|domain|quota|directory|relay\w*|spam|policy|blocked|refused
    | reject\w*|timed\ out|timeout|expired|size|virus|unknown|unrouteable|unreachable|full|exist|disabled|listed)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_BOILERPLATE: Final = re.compile(
    r"""\bthis\ (?:message\ was\ created|is\ the\ (?:mail|qmail)|report|mailbox\ is) | \bi'?m\ (?:afraid|sorry) | ^hi\.
    | \ba\ message\ that\ you\ (?:sent|have) | \bfollowing\ (?:address|recipient|message|destination|e-?mail|user)
    | \byour\ (?:message|mail|e-?mail)\b.{0,60}?(?:\b(?:not|following|to)\b|:?$) | \bpostmaster\b
    | \bfurther\ assistance | \bfor\ (?:more|further)
    | ^(?:to|from|subject|date|sent|cc|message-id|recipient|reason\ code)\s*:
    | ^<?[^\s@<>]{1,64}@[^\s@<>]{1,255}>?[:;,]?$ | \bone\ or\ more\ of\ (?:its|the) | \bautomatically\ generated
    | \bcould\ not\ be\ (?:delivered|reached)\b | \bsent\ to\ you\ by | \bthe\ original\ message\ was\ received""",
    re.IGNORECASE | re.VERBOSE,
)


def _bounce_text(mail: ReceivedMail, _address: str) -> Notice | None:
    subject = mail.header("subject")[:_SUBJECT]
    text = _ours(mail.text)
    heading = f"{subject}\n{text[:4_000]}"
    if _by_daemon(mail) and _ARRIVED.search(heading):
        return Notice(kind=NoticeKind.DELIVERED, words=_cut(subject))
    code, status, words = _reason(text)
    if not _by_daemon(mail) or not (code or status or _BOUNCED.search(heading)):
        return None
    kind = NoticeKind.DELAYED if _DELAYED.search(heading) else NoticeKind.FAILED
    return _notice(kind, code, status, words or subject)


def _ours(text: str) -> str:
    kept: list[str] = []
    for line in text.splitlines()[:_LINES]:
        if kept and _ORIGINAL.match(line[:200]):
            break
        kept.append(line)
    return "\n".join(kept)


def _reason(text: str) -> _Reason:
    """Return the SMTP code, the status and the words of the lines that give the reason."""
    lines = _ours(text).splitlines()
    best = (-1, 0)
    for number, line in enumerate(lines):
        code, status = _reply_in(line[:1_000])
        start = line.strip()[:300]
        telling = _TELLING.search(start) is not None
        weight = 4 * (code is not None) + 4 * (status is not None) + telling
        if weight < 4 and (not telling or _BOILERPLATE.search(start)):
            continue
        if weight > best[0]:
            best = (weight, number)
    if best[0] < 0:
        return None, None, " ".join(line.strip() for line in lines if line.strip())[:WORDS_CHARACTERS]
    words = [lines[best[1]].strip()]
    for line in lines[best[1] + 1 : best[1] + 8]:
        if not line.strip():
            break
        words.append(line.strip())
    said = " ".join(words)[: 2 * WORDS_CHARACTERS]
    code, status = _reply_in(lines[best[1]][:1_000])
    if status is None and code is None:
        code, status = _reply_in(said)
    return code, status, said
