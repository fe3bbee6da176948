"""Queues of receivers for the tests of receiver and slots."""

from appliance.model.webhooks import DuePost, Lane, Trigger
from appliance.webhook.receivers import ReceiverQueue


def queue(name: str, posts: int = 0, *, failures: int = 0, proven: bool = True) -> ReceiverQueue:
    """A queue with so many posts in it."""
    lane = Lane(name, Trigger.EVENT)
    made = ReceiverQueue(lane, proven=proven, failures=failures)
    made.load([DuePost(lane, f"{name}{number}", 0, b"") for number in range(posts)])
    return made
