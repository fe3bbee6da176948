"""Decides which sessions with slow servers end so that other mail gets their slots. No I/O and no tasks.

Mail to a pool that is not slow replaces a session that waits for a slow server (`replaced`). This uses up no attempt:
the message of that session waits for a session again. A session without any progress ends for other mail with a
deferral (`stalled`). No session ends after the final dot: only the server's reply tells whether it has the message.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.deliver.attempt import ActiveAttempt, Holder
from appliance.deliver.in_flight import PROMPT, SLOW, InFlight, Lack
from appliance.deliver.pending import PoolQueue
from appliance.deliver.preparing import Ready

SLOW_CHECK = 0.1  # seconds between two searches for slow sessions
STALLED_CHECK = 1.0  # seconds between two searches for stalled sessions
STALLED = 15.0  # seconds without progress after which a session ends for another account's mail
STALLED_LONG = 60.0  # the same for mail of its own account
STEPS_PER_SLICE = 500  # heads and sessions looked at between two checkpoints: about a millisecond


@dataclass(slots=True)
class SlowSessions:
    in_flight: InFlight
    _slow: list[ActiveAttempt] = field(default_factory=list)  # the next to end comes last
    _slow_at: float = -inf  # the time of that search
    _in_vain: set[tuple[Holder, bool]] = field(default_factory=set)  # holders that none of them makes room for
    _promised: set[str] = field(default_factory=set)  # pools whose mail replaces a session that is ending
    _stalled_at: float = -inf  # the time of the last search for stalled sessions

    # ---- sessions replaced by mail to other pools

    def replaced(self, ready: Ready) -> ActiveAttempt | None:
        """The session to end for an envelope that has found no slot, if there is one."""
        if ready.routed.limiter.pool in self._promised:
            return None
        self._search(trio.current_time())
        holder, _ = self.in_flight.claim(ready.routed)
        needs_large = ready.routed.large and self.in_flight.slots.has_room(holder)
        if (holder, needs_large) in self._in_vain:  # one search serves all pools of an account
            return None
        for index in range(len(self._slow) - 1, -1, -1):
            active = self._slow[index]
            if not self._may_end(active):
                del self._slow[index]
            elif self._makes_room(active, holder, needs_large=needs_large):
                del self._slow[index]
                active.successor = ready.routed.limiter.pool
                self._promised.add(active.successor)
                return active
        self._in_vain.add((holder, needs_large))
        return None

    def ended(self, successor: str) -> None:
        """Note that a session ended for mail of this pool."""
        self._promised.discard(successor)

    def _may_end(self, active: ActiveAttempt) -> bool:
        return active in self.in_flight.active and not active.gives_way and not active.progress.handed_over

    def _makes_room(self, active: ActiveAttempt, holder: Holder, *, needs_large: bool) -> bool:
        slots, large_slots = self.in_flight.slots, self.in_flight.large_slots
        if needs_large:
            is_large, account = active.ready.routed.large, active.holder.account
            return is_large and (account == holder.account or large_slots.of(account) > large_slots.of(holder.account))
        return active.holder == holder or slots.of(active.holder) > slots.of(holder)

    def _search(self, now: float) -> None:
        """Order the slow sessions: further ones with the same pool end first, then those idle for longest."""
        if now < self._slow_at + SLOW_CHECK:
            return
        self._slow_at = now
        self._in_vain.clear()
        sessions = self.in_flight.active
        for active in sessions:
            if not active.slow and now >= active.progress.moved_at + (PROMPT if active.holder.answers else SLOW):
                self.in_flight.mark_slow(active)
        slow = [active for active in sessions if active.slow and now >= active.progress.moved_at + SLOW]
        self._slow = [active for active in slow if not active.progress.handed_over]
        self._slow.sort(key=lambda active: (active.slot.limiter.in_use == 1, active.progress.moved_at), reverse=True)

    # ---- sessions without progress

    def stalled(self, queues: Iterable[PoolQueue]) -> Iterator[ActiveAttempt | None]:
        """Sessions without progress to end for waiting mail, the longest idle first; None: let other tasks run."""
        now = trio.current_time()
        if now < self._stalled_at + STALLED_CHECK:
            return
        self._stalled_at = now
        idle = [active for active in self.in_flight.active if now >= active.progress.moved_at + STALLED]
        idle.sort(key=lambda active: active.progress.moved_at)
        by_pool: dict[str, list[ActiveAttempt]] = {}
        for active in idle:
            by_pool.setdefault(active.slot.limiter.pool, []).append(active)
        in_vain: set[tuple[str, Lack, str]] = set()  # accounts and lacks that none of these sessions can help
        steps = 0
        for queue in queues if idle else ():
            for ready in queue.heads():
                if steps >= STEPS_PER_SLICE:
                    steps = 0
                    yield None
                    if not any(head is ready for head in queue.heads()):  # started in the meantime
                        continue
                steps += 1
                account, lack = ready.routed.envelope.account_id, self.in_flight.lack(ready)
                if lack is None or now < ready.routed.since + STALLED_CHECK:
                    continue
                pool = queue.limiter.pool if lack is Lack.POOL_SLOT else ""
                if (account, lack, pool) in in_vain:
                    continue
                sessions = by_pool.get(pool, []) if pool else idle
                steps += len(sessions)
                ending = next((active for active in sessions if self._gives_way(active, ready, lack, now)), None)
                if ending is None:
                    in_vain.add((account, lack, pool))
                else:
                    yield ending

    def _gives_way(self, active: ActiveAttempt, ready: Ready, lack: Lack, now: float) -> bool:
        routed, account = ready.routed, ready.routed.envelope.account_id
        is_own = active.slot.account == account
        # A server may have answered since the search began: it lets other tasks run.
        if not self._may_end(active) or now < active.progress.moved_at + STALLED:
            return False
        if lack is Lack.POOL_SLOT:
            # A message for the same server would fare no better.
            is_same = any(active.progress.address in host.dialled for host in routed.route.hosts)
            return active.slot.limiter is routed.limiter and not is_own and not is_same
        if lack is Lack.LARGE_SLOT and not active.ready.routed.large:
            return False
        if is_own:
            return now >= active.progress.moved_at + STALLED_LONG
        if lack is Lack.LARGE_SLOT:
            return self.in_flight.large_slots.of(active.slot.account) > self.in_flight.large_slots.of(account)
        return self.in_flight.slots.of(active.holder) > self.in_flight.slots.of(self.in_flight.claim(routed)[0])
