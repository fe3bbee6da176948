"""Connection tables: how many connections there may be, by what they are counted, and which give way."""

import ipaddress
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.net.connection_server import KNOWN_FOR, NETWORKS_KNOWN, ConnectionTable, KnownNetworks


@dataclass(eq=False)
class Connection:
    evicted: bool = False

    def evict(self) -> None:
        self.evicted = True


Table = ConnectionTable[Connection]


@contextmanager
def filled(table: Table, *addresses: str) -> Iterator[list[Connection]]:
    with ExitStack() as stack:
        made = []
        for address in addresses:
            assert table.admits(address)
            made.append(Connection())
            stack.enter_context(table.tracking(made[-1], address))
        yield made


def is_empty(table: Table) -> bool:
    counts = (table.by_address, table.by_credential, table.by_account)
    left = (table.open, *counts, table._from_unknown, table._messages, table._queued, table._queues)
    return not any(left) and not any(table._waiting)


# ---- counting


def test_one_address_has_its_own_limit() -> None:
    table: Table = ConnectionTable(limit=10, limit_per_address=2)
    with filled(table, "192.0.2.1", "192.0.2.1") as (first, _):
        assert not table.admits("192.0.2.1")
        assert table.admits("192.0.2.2")
        table.remove(first)
        assert table.admits("192.0.2.1")
        assert table.by_address == {"192.0.2.1": 1}
        table.remove(first)
        assert table.by_address == {"192.0.2.1": 1}
    assert is_empty(table)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2a01:4f8:1:2::1", "2a01:4f8:1:2:ffff::9", True),
        ("2a01:4f8:1:2::1", "2a01:4f8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("fd00::1", "fd00::2", False),
    ],
)
def test_a_network_is_one_client(one: str, other: str, same: bool) -> None:
    table: Table = ConnectionTable(limit=10, limit_per_address=1)
    with filled(table, one):
        assert table.admits(other) is not same


def test_a_trusted_proxy_brings_many() -> None:
    table: Table = ConnectionTable(2, 1, (ipaddress.ip_network("10.0.0.0/8"),))
    with filled(table, "10.0.0.1", "10.0.0.1") as connections:
        for connection in connections:
            table.mark_busy(connection)
        assert not table.admits("10.0.0.1")


def test_a_login_counts_for_its_credential_instead() -> None:
    table: Table = ConnectionTable(limit=10, limit_per_address=2)
    with filled(table, "192.0.2.1", "192.0.2.1") as (first, second):
        assert table.log_in(first, "acc_1", "smtp_1", 1)
        assert table.log_in(first, "acc_1", "smtp_1", 1)
        assert not table.log_in(second, "acc_1", "smtp_1", 1)
        assert (table.by_address, table.by_credential) == ({"192.0.2.1": 1}, {"smtp_1": 1})
        assert table.admits("192.0.2.1")
        assert table.log_in(first, "acc_1", "smtp_2", 1)
        assert table.log_in(second, "acc_1", "smtp_1", 1)
    assert is_empty(table)


# ---- giving way


def test_in_a_full_table_the_one_that_waits_longest_gives_way() -> None:
    table: Table = ConnectionTable(limit=3, limit_per_address=9)
    with filled(table, "192.0.2.1", "192.0.2.2", "192.0.2.3") as (first, second, third):
        table.mark_busy(first)
        table.mark_idle(first)
        table.mark_idle(second)  # still waits: that does not make it a newcomer
        assert table.admits("192.0.2.9")
        assert (first.evicted, second.evicted, third.evicted) == (False, True, False)
        assert len(table.open) == 2
    assert is_empty(table)


def test_what_is_in_the_middle_of_something_does_not_give_way() -> None:
    known = KnownNetworks()
    known.note("192.0.2.9")
    table: Table = ConnectionTable(limit=2, limit_per_address=9, known=known)
    with filled(table, "192.0.2.9", "192.0.2.9") as (request, session):
        table.mark_busy(request)
        table.log_in(session, "acc_1", "smtp_1", 1)
        table.mark_session(session, busy=True, has_message=True)
        assert not table.admits("192.0.2.9")
        assert not table.admits("192.0.2.1")
        assert not request.evicted
        assert not session.evicted


def test_a_message_of_a_client_that_does_not_log_in_does_not_give_way() -> None:
    table: Table = ConnectionTable(limit=3, limit_per_address=9)
    with filled(table, "192.0.2.1", "192.0.2.2", "192.0.2.3") as (server, starts_tls, idle):
        table.mark_session(server, busy=True, has_message=True)
        table.mark_session(starts_tls, busy=True, has_message=False)
        with filled(table, "192.0.2.4", "192.0.2.5"):
            assert (server.evicted, starts_tls.evicted, idle.evicted) == (False, True, True)
            table.mark_session(server, busy=False, has_message=False)
            with filled(table, "192.0.2.6", "192.0.2.7", "192.0.2.8"):
                assert server.evicted
    assert is_empty(table)


def test_messages_of_clients_that_do_not_log_in_keep_half_of_the_table() -> None:
    table: Table = ConnectionTable(limit=4, limit_per_address=9)
    with filled(table, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4") as (first, second, third, fourth):
        for connection in (first, second, third):
            table.mark_session(connection, busy=True, has_message=True)
        table.mark_session(first, busy=False, has_message=False)
        table.mark_session(fourth, busy=True, has_message=True)
        with filled(table, "192.0.2.5", "192.0.2.6", "192.0.2.7"):
            assert [each.evicted for each in (first, second, third, fourth)] == [True, False, True, False]
    assert is_empty(table)


def test_known_networks_have_a_part_of_the_table() -> None:
    """Others cannot take it even while it is empty, and push out only each other."""
    known = KnownNetworks()
    known.note("192.0.2.9")
    table: Table = ConnectionTable(limit=4, limit_per_address=9, known=known)
    with filled(table, "192.0.2.1", "192.0.2.2", "192.0.2.3") as (first, *others):
        table.mark_busy(first)
        for connection in others:
            table.mark_busy(connection)
        assert not table.admits("192.0.2.4")
        assert table.admits("192.0.2.9")
        table.mark_idle(first)
        assert table.admits("192.0.2.4")
        assert first.evicted


def test_an_authenticated_connection_between_requests_gives_way_last_and_to_known_networks_only() -> None:
    known = KnownNetworks()
    known.note("192.0.2.9")
    table: Table = ConnectionTable(limit=2, limit_per_address=9, known=known)
    with filled(table, "192.0.2.9", "192.0.2.9") as (first, second):
        table.mark_idle(first, authenticated=True)
        assert table.admits("192.0.2.1")
        assert (first.evicted, second.evicted) == (False, True)
        with filled(table, "192.0.2.9") as (third,):
            table.mark_idle(third, authenticated=True)
            assert not table.admits("192.0.2.1")
            assert table.admits("192.0.2.9")
            assert first.evicted


def test_the_counts_hold_whatever_happens() -> None:
    chance, known = random.Random(20_261_115), KnownNetworks()
    table: Table = ConnectionTable(limit=8, limit_per_address=4, known=known)
    inside: list[tuple[Connection, ExitStack]] = []
    for _ in range(20_000):
        address = f"192.0.2.{chance.randrange(4)}"
        match chance.randrange(7):
            case 0 | 1 if table.admits(address):
                connection, stack = Connection(), ExitStack()
                stack.enter_context(table.tracking(connection, address))
                inside.append((connection, stack))
            case 2 if inside:
                inside.pop(chance.randrange(len(inside)))[1].close()
            case 3 if inside:
                table.mark_idle(chance.choice(inside)[0], authenticated=chance.random() < 0.3)
            case 4 if inside:
                table.mark_busy(chance.choice(inside)[0])
            case 5 if inside and chance.random() < 0.1:
                known.note(address)
                table.log_in(chance.choice(inside)[0], "acc_1", f"smtp_{chance.randrange(3)}", 2)
            case 6 if inside:
                table.mark_session(
                    chance.choice(inside)[0], busy=chance.random() < 0.7, has_message=chance.random() < 0.7
                )
        assert len(table.open) <= 8
        assert len(table._messages) <= 4
        assert table._messages <= table.open.keys()
        assert sum(table.by_address.values()) + sum(table.by_credential.values()) == len(table.open)
        assert all(count <= 4 for count in table.by_address.values())
        assert all(not connection.evicted for connection in table.open)
        for connection, stack in inside:
            if connection.evicted:
                stack.close()
        inside = [each for each in inside if not each[0].evicted]
    for _, stack in inside:
        stack.close()
    assert is_empty(table)


def test_a_logged_in_session_without_a_message_gives_way_to_known_networks_only() -> None:
    known = KnownNetworks()
    known.note("192.0.2.9")
    table: Table = ConnectionTable(limit=2, limit_per_address=9, known=known)
    with filled(table, "192.0.2.1", "192.0.2.2") as (idle, sending):
        assert table.log_in(idle, "acc_1", "smtp_1", 1)
        assert table.log_in(sending, "acc_2", "smtp_2", 1)
        table.mark_session(sending, busy=True, has_message=True)
        assert not table.admits("192.0.2.5")
        assert table.admits("192.0.2.9")
        assert (idle.evicted, sending.evicted) == (True, False)
    assert is_empty(table)


def test_an_account_has_half_of_the_table() -> None:
    table: Table = ConnectionTable(limit=4, limit_per_address=9)
    with filled(table, *["192.0.2.1"] * 4) as connections:
        logins = [table.log_in(each, "acc_1", f"smtp_{number}", 9) for number, each in enumerate(connections)]
        assert logins == [True, True, False, False]
        assert table.log_in(connections[0], "acc_1", "smtp_9", 9)  # the same place, by another credential
        assert table.log_in(connections[2], "acc_2", "smtp_8", 9)
    assert is_empty(table)


# ---- waiting for a place


async def test_a_connection_beyond_its_addresss_limit_comes_in_when_another_logs_in(autojump_clock: MockClock) -> None:
    table: Table = ConnectionTable(limit=16, limit_per_address=1)
    came: list[bool] = []

    async def wait(patience: float) -> None:
        came.append(await table.queue("192.0.2.1", patience))

    with filled(table, "192.0.2.1") as (first,):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 5)
            await wait_all_tasks_blocked()
            assert table.log_in(first, "acc_1", "smtp_1", 9)
        assert came == [True]
        with filled(table, "192.0.2.1"):
            await wait(5)
        assert came == [True, False]
        assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert is_empty(table)


async def test_not_many_wait_for_a_place(autojump_clock: MockClock) -> None:
    table: Table = ConnectionTable(limit=16, limit_per_address=1)
    with filled(table, *(f"192.0.2.{number}" for number in range(9))):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                for _ in range(2):
                    nursery.start_soon(table.queue, f"192.0.2.{number}", 5)
                    await wait_all_tasks_blocked()
                if number < 3:
                    assert not await table.queue(f"192.0.2.{number}", 5)
            assert trio.current_time() == 0
            assert not await table.queue("192.0.2.8", 5)
            assert trio.current_time() == 0
    assert is_empty(table)


# ---- known networks


def test_a_network_is_known_for_a_day_and_few_are_remembered() -> None:
    now = 0.0
    known = KnownNetworks(lambda: now)
    assert not len(known.seen)
    assert known  # an empty one is shared between services, too: `known or KnownNetworks()` must keep it
    known.note("2a01:4f8:1:2::1")
    assert "2a01:4f8:1:2::/64" in known.seen
    now = KNOWN_FOR
    assert "2a01:4f8:1:2::/64" not in known.seen
    known.note("2a01:4f8:1:2::2")
    known.note("192.0.2.1")
    known.note("2a01:4f8:1:2::3")
    for number in range(NETWORKS_KNOWN - 1):
        known.note(f"10.1.{number // 256}.{number % 256}")
    assert "2a01:4f8:1:2::/64" in known.seen
    assert "192.0.2.1" not in known.seen
