"""Lists of addresses are read as hosted services write them; what cannot be read costs its own line only."""

import pytest

from appliance.message.suppression_file import ROW_LENGTH, ListedAddress, SkippedLine, read_suppressions


def read(text: str) -> list[ListedAddress | SkippedLine]:
    return list(read_suppressions(text.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ada@x.example\n", "imported"),
        ("ada@x.example,asked to stop,x\n", "asked to stop"),
        ("email\nada@x.example\n", "imported"),
        ("\ufeffEmail\r\nada@x.example,gone\r\n", "gone"),
        ("status,reason,email,created,ip\n5.1.1,550 no such user,ada@x.example,1443651125,\n", "550 no such user"),
        ("address,code,error,created_at\nADA@x.example,550,No such mailbox,2024-01-01\n", "No such mailbox"),
        ('EmailAddress,Reason,LastUpdateTime\n"ada@x.example","BOUNCE","2024-01-01"\n', "BOUNCE"),
        ("Recipient,Type,Description\nada@x.example,HardBounce,unknown\n", "unknown"),
        ("EmailAddress,SuppressionReason,Origin\nada@x.example,SpamComplaint,Recipient\n", "SpamComplaint"),
        ("address,tags,created_at\nada@x.example,*,2024-01-01\n", "imported"),
        ("address,reason,origin,created_at\nada@x.example,a,manual,2024-01-01T00:00:00Z\n", "a"),
        ("created_at,email\n2024-01-01,ada@x.example\n", "imported"),
    ],
)
def test_an_address_and_its_reason_are_found(text: str, reason: str) -> None:
    (found,) = read(text)
    assert isinstance(found, ListedAddress)
    assert (found.address, found.reason) == ("ada@x.example", reason)


def test_a_line_that_cannot_be_read_is_told() -> None:
    long = "x" * (ROW_LENGTH + 1)
    found = read(f'a@x.example\nno address\n"open quotation,\n{long}\n,reason\n\nb@x.example,"a ""b"" c"\n')
    assert [(type(each), each.line) for each in found] == [
        (ListedAddress, 1),
        (SkippedLine, 2),
        (SkippedLine, 3),
        (SkippedLine, 4),
        (SkippedLine, 5),
        (ListedAddress, 7),
    ]
    assert all(each.error for each in found if isinstance(each, SkippedLine))


def test_a_reason_is_one_short_line() -> None:
    (found,) = read(f"a@x.example,\x1b[31m{'r' * 300}\n")
    assert isinstance(found, ListedAddress)
    assert found.reason.isprintable()
    assert len(found.reason) <= 200
