"""A customer with an account and a webhook, who uses only the interface."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.contract.service import Caller, eventually
from tests.fakes.webhook_server import Hooks, Post


@dataclass(frozen=True)
class Customer:
    """An account: who sends for it, who manages its webhook, and where that is."""

    sender: Caller
    manager: Caller
    receiver: Hooks
    path: str

    @property
    def url(self) -> str:
        return self.receiver.url(self.path)

    def request(self, method: str, path: str = "", **options: Any) -> httpx.Response:
        """One request below /v1/webhook with the customer's token."""
        return self.manager.request(method, f"/v1/webhook{path}", **options)

    def save(self, **changes: Any) -> httpx.Response:
        fields = {"url": self.url} | changes
        return self.request("PUT", json={name: value for name, value in fields.items() if value is not ...})

    def saved(self, **changes: Any) -> str:
        """The same, which must make the webhook; its secret."""
        response = self.save(**changes)
        assert response.status_code == 200, response.text
        return str(response.json()["secret"])

    def webhook(self) -> Any:
        response = self.request("GET")
        assert response.status_code == 200, response.text
        return response.json()["webhook"]

    def deliveries(self, **query: Any) -> list[Any]:
        response = self.request("GET", "/deliveries", params=query)
        assert response.status_code == 200, response.text
        return list(response.json()["deliveries"])

    def settled(self, count: int) -> list[Any]:
        """The history once there are so many deliveries in it, none of them pending; the newest first."""

        def enough(found: list[Any]) -> bool:
            return len(found) == count and all(each["status"] != "pending" for each in found)

        return eventually(self.deliveries, enough)

    def posts(self, count: int) -> list[Post]:
        return eventually(lambda: self.receiver.at(self.path), lambda found: len(found) >= count)
