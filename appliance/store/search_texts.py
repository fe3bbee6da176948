"""The texts of a message that a search looks at, and the terms of the index that they make."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from appliance.message.search_words import folded, holds, terms
from appliance.store.engine import Tx, rows
from appliance.telemetry.log import get_logger

log = get_logger("store")

REPLY_LENGTH: Final = 200  # characters of a reply that are searched
SEARCHED_LENGTH: Final = 8_000  # characters of a message: what strangers write must not make an index of any size

OUTCOME = "coalesce(r.failure, r.status)"  # a RecipientOutcome; the index `recipients_problems` is by it
_TEXTS = f"""SELECT json_group_array(json_object('id', m.id, 'status', m.status, 'source', m.source, 'texts',
        m.sender || ' ' || m.subject || ' ' || m.request_id || ' ' || coalesce(m.template_alias, ''),
        'tags', json(m.tags), 'recipients', json((
            SELECT json_group_array(json_object('outcome', {OUTCOME}, 'address', r.address || ' ' || r.domain,
                'replies', coalesce(CAST(r.last_smtp_code AS TEXT), '') || ' '
                || substr(coalesce(r.last_smtp_response, ''), 1, {REPLY_LENGTH}) || ' '
                || substr(coalesce(json_extract(r.late_bounce, '$.response'), ''), 1, {REPLY_LENGTH})))
            FROM recipients r WHERE r.message_id = m.id))))
    FROM json_each(:ids) wanted CROSS JOIN messages m ON m.account_id = :account_id AND m.id = wanted.value
    WHERE {{condition}}"""


class _RecipientTexts(msgspec.Struct, frozen=True, gc=False):
    outcome: str
    address: str
    replies: str


_tags = msgspec.json.Decoder(tuple[str, ...])


def readable_tags(text: str | msgspec.Raw) -> Iterable[str]:
    """The tags of a message; none if another version stored them in a form that this one cannot parse."""
    try:
        return dict.fromkeys(_tags.decode(text))
    except msgspec.DecodeError as fault:
        log.warning("unreadable tags skipped", reason=str(fault))
        return ()


class MessageTexts(msgspec.Struct, frozen=True):
    id: str
    status: str
    source: str
    texts: str
    tags: msgspec.Raw
    recipients: tuple[_RecipientTexts, ...] | None  # none are left while it is being deleted

    def whole(self) -> str:
        """Addresses before replies, each reply once: of what remote servers say, only so much is looked at."""
        recipients = self.recipients or ()
        texts = [
            *(recipient.address for recipient in recipients),
            *dict.fromkeys(recipient.replies for recipient in recipients),
        ]
        return folded(" ".join([self.texts, *readable_tags(self.tags), *texts])[:SEARCHED_LENGTH])

    def has(self, words: Iterable[str]) -> bool:
        text = self.whole()
        return all(holds(text, word) for word in words)

    def terms(self) -> set[str]:
        """Its words, and what filters ask for: these begin with a sign, which no word does."""
        results = set(terms(self.whole()))
        results.add(status_term(self.status))
        results.add(source_term(self.source))
        results.update(outcome_term(recipient.outcome) for recipient in self.recipients or ())
        return results


def status_term(status: str) -> str:
    return f"~{status}"


def source_term(source: str) -> str:
    return f"^{source}"


def outcome_term(outcome: str) -> str:
    return f"={outcome}"


_messages = msgspec.json.Decoder(list[MessageTexts])


def read_texts(
    tx: Tx, account_id: str, ids: Sequence[str], condition: str = "TRUE", bindings: dict[str, object] | None = None
) -> list[MessageTexts]:
    query_values = {**(bindings or {}), "account_id": account_id, "ids": msgspec.json.encode(ids).decode()}
    ((selected,),) = rows(tx, _TEXTS.format(condition=condition), query_values)
    return _messages.decode(selected or "[]")
