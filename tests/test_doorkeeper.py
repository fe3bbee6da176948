"""The doorkeeper: how many may be inside, in all and from one address."""

import ipaddress

from appliance.doorkeeper import Doorkeeper


def test_both_limits_hold() -> None:
    """One address has its own limit, all together have another, and whoever leaves makes room."""
    door: Doorkeeper[str] = Doorkeeper(most=3, most_per_address=2)
    with door.inside("a", "192.0.2.1"), door.inside("b", "192.0.2.1"):
        assert not door.admits("192.0.2.1")
        assert door.admits("192.0.2.2")
        with door.inside("c", "192.0.2.2"):
            assert not door.admits("192.0.2.3")
        assert door.admits("192.0.2.3")
    assert (door.open, door.by_address) == ({}, {})


def test_leaving_early_counts_once() -> None:
    """A connection that has said its last word is not counted, nor counted off again at its end."""
    door: Doorkeeper[str] = Doorkeeper(most=3, most_per_address=2)
    with door.inside("a", "192.0.2.1"), door.inside("b", "192.0.2.1"):
        door.leave("a")
        assert door.admits("192.0.2.1")
        assert door.by_address == {"192.0.2.1": 1}
        with door.inside("c", "192.0.2.1"):
            door.leave("a")
            assert not door.admits("192.0.2.1")
    assert (door.open, door.by_address) == ({}, {})


def test_a_trusted_proxy_brings_many() -> None:
    """Its connections count in all only."""
    door: Doorkeeper[str] = Doorkeeper(2, 1, (ipaddress.ip_network("10.0.0.0/8"),))
    with door.inside("a", "10.0.0.1"):
        assert door.admits("10.0.0.1")
        with door.inside("b", "10.0.0.1"):
            assert not door.admits("10.0.0.1")
