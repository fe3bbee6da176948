"""Templates: each save is a new version, and old versions stay while the template is in use.

A deleted template leaves its alias and its last version number, so that a template saved again under that alias never
repeats a version that a message names. An account keeps the 1,000 newest of these rows; retention deletes old ones.
"""

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from appliance.errors import Code, Refused
from appliance.model.mail import StoredTemplate, TemplateVersion
from appliance.store.body_parts import TEMPLATE_VERSION, add, check_room, of_template
from appliance.store.engine import Cursor, StorePart, Tx, one, record, rows, run, transaction

Stored = TypeVar("Stored", StoredTemplate, TemplateVersion)

TEMPLATES = 1_000  # of one account
DELETED_TEMPLATES = 1_000  # rows of deleted templates that one account keeps
TRIMMED = 100  # surplus rows that one delete removes: a database of an older release may have many
VERSIONS = 100  # kept of one template
PAGE_CHARACTERS = 48 * 1024  # of text and HTML per page, which may end early

_SAVE = """INSERT INTO templates (account_id, alias, version, unsubscribe, stream, created_at, updated_at)
    VALUES (:account_id, :alias, 1, :unsubscribe, :stream, :now, :now)
    ON CONFLICT (account_id, alias) DO UPDATE SET version = templates.version + 1, deleted = 0,
        unsubscribe = excluded.unsubscribe, stream = excluded.stream, updated_at = excluded.updated_at,
        created_at = CASE WHEN templates.deleted = 1 THEN excluded.created_at ELSE templates.created_at END
    RETURNING version, created_at"""
_VERSION = "SELECT version FROM templates WHERE account_id = :account_id AND alias = :alias AND deleted = 0"
_SAVE_VERSION = """INSERT INTO template_versions (account_id, alias, version, subject, text_body, html_body, created_at)
    VALUES (:account_id, :alias, :version, :subject, :text, :html, :now)"""
_COUNT = """SELECT count(*), count(CASE WHEN alias = :alias THEN 1 END) FROM templates
    WHERE account_id = :account_id AND deleted = 0"""
_FORGET = """DELETE FROM template_versions WHERE account_id = :account_id AND alias = :alias AND version <= :oldest
    RETURNING subject, text_body, html_body"""
_TEMPLATES = """SELECT t.alias, t.version, v.subject, v.text_body, v.html_body, t.created_at, t.updated_at,
        t.unsubscribe, t.stream
    FROM templates t INDEXED BY templates_live JOIN template_versions v USING (account_id, alias, version)
    WHERE t.account_id = :account_id AND t.deleted = 0"""
_VERSIONS = """SELECT v.version, v.subject, v.text_body, v.html_body, v.created_at
    FROM template_versions v JOIN templates t USING (account_id, alias)
    WHERE v.account_id = :account_id AND v.alias = :alias AND t.deleted = 0 AND v.version < :before
    ORDER BY v.version DESC LIMIT :most"""
_DELETE = """UPDATE templates SET deleted = 1, updated_at = :now
    WHERE account_id = :account_id AND alias = :alias AND deleted = 0 RETURNING alias"""
# Versions keep their template: a release before 0.6 kept the versions of deleted templates.
_TRIM_DELETED = """DELETE FROM templates WHERE account_id = :account_id AND alias IN
        (SELECT t.alias FROM templates t WHERE t.account_id = :account_id AND t.deleted = 1
        ORDER BY t.updated_at DESC LIMIT :most OFFSET :kept)
    AND NOT EXISTS (SELECT 1 FROM template_versions v
        WHERE v.account_id = templates.account_id AND v.alias = templates.alias)"""
# As `of_template`, without reading megabytes.
_SIZE = f"""SELECT coalesce(sum({TEMPLATE_VERSION} + coalesce(octet_length(subject), 0)
        + coalesce(octet_length(text_body), 0) + coalesce(octet_length(html_body), 0)), 0)
    FROM template_versions WHERE account_id = :account_id AND alias = :alias"""
_DELETE_VERSIONS = "DELETE FROM template_versions WHERE account_id = :account_id AND alias = :alias"


class Templates(StorePart):
    @transaction
    def save(
        self,
        tx: Tx,
        account_id: str,
        alias: str,
        subject: str | None,
        text: str | None,
        html: str | None,
        *,
        unsubscribe: bool = False,
        stream: str | None = None,
        replaces: int | None = None,
        may_store: int | None = None,
    ) -> StoredTemplate:
        """Store a new version and make it the current one; `may_store`: bytes that the account may store afterwards.

        Refuse with a conflict if `replaces` is not the current version; 0: no template has this alias.
        """
        now, content = self.env.now(), {"subject": subject, "text": text, "html": html}
        row = {"account_id": account_id, "alias": alias, "unsubscribe": int(unsubscribe)}
        row |= {"stream": stream, **content, "now": now}
        if replaces is not None and (current := one(tx, int, _VERSION, row) or 0) != replaces:
            text = f"Version {current} was saved meanwhile, and you edited version {replaces}. Compare them, then save."
            raise Refused(Code.CONFLICT, text)
        ((count, is_known),) = rows(tx, _COUNT, row)
        if not is_known and count >= TEMPLATES:
            raise Refused(Code.CONFLICT, f"alias: an account may have {TEMPLATES} templates. Delete one first.")
        added = of_template(subject, text, html)
        check_room(tx, account_id, added, may_store)
        ((version, created_at),) = rows(tx, _SAVE, row)
        run(tx, _SAVE_VERSION, row | {"version": version})
        forgotten = rows(tx, _FORGET, row | {"oldest": version - VERSIONS})
        add(tx, account_id, added - sum(of_template(*parts) for parts in forgotten))
        return StoredTemplate(alias, version, subject, text, html, created_at, now, unsubscribe, stream)

    async def current(self, account_id: str, alias: str) -> StoredTemplate | None:
        bindings = {"account_id": account_id, "alias": alias}
        return await self.engine.one(_template, _TEMPLATES + " AND t.alias = :alias", bindings)

    async def page(self, account_id: str, after: str, most: int) -> tuple[list[StoredTemplate], bool]:
        """Templates by alias after `after`, and whether there are more."""
        bindings = {"account_id": account_id, "after": after, "most": most + 1}
        query = _TEMPLATES + " AND t.alias > :after ORDER BY t.alias LIMIT :most"
        return await self.engine.read(lambda tx: _page(tx.execute(query, bindings), _template, most))

    async def versions(self, account_id: str, alias: str, before: int, most: int) -> tuple[list[TemplateVersion], bool]:
        """Versions of a template before `before`, newest first, and whether there are more."""
        bindings = {"account_id": account_id, "alias": alias, "before": before, "most": most + 1}
        return await self.engine.read(lambda tx: _page(tx.execute(_VERSIONS, bindings), TemplateVersion, most))

    async def delete(self, account_id: str, alias: str) -> None:
        row = {"account_id": account_id, "alias": alias, "now": self.env.now()}

        def work(tx: Tx) -> None:
            if not rows(tx, _DELETE, row):
                raise Refused(Code.NOT_FOUND, "No template has this alias.")
            ((size,),) = rows(tx, _SIZE, row)
            run(tx, _DELETE_VERSIONS, row)
            run(tx, _TRIM_DELETED, row | {"kept": DELETED_TEMPLATES, "most": TRIMMED})
            add(tx, account_id, -size)

        await self.engine.write(work, large=True)


def _page(cursor: Cursor, kind: Callable[..., Stored], most: int) -> tuple[list[Stored], bool]:
    """Return the first rows, at most PAGE_CHARACTERS but at least one, and whether more follow."""
    page: list[Stored] = []
    characters = 0
    with closing(cursor):  # a half-read cursor keeps the log from being checkpointed
        for row in cursor:
            result = kind(*row)
            characters += len(result.text or "") + len(result.html or "")
            if len(page) >= most or (page and characters > PAGE_CHARACTERS):
                return page, True
            page.append(result)
    return page, False


_template = record(StoredTemplate)
