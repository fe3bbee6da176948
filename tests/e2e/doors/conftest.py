"""The appliance and the receiver of the tests of webhooks: a door's mail is told in its provider's format."""

from tests.e2e.webhooks.conftest import client, customer, directory, new_customer, receiver, running

__all__ = ["client", "customer", "directory", "new_customer", "receiver", "running"]
