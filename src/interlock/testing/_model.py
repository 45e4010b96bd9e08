"""The ring under test: a Hypothesis state machine that plays producers, consumers and everything that is late.

Each slot has real content, an integer. A producer scribbles into a slot as soon as it has it, and writes its stamp when
the fence that it published is reached; a consumer looks at what it was lent at every step until the fence that it gave
back is reached. So a slot that changes hands too early is seen twice: by the rules, and by the bytes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from interlock._core._fence import Fence, HostTimeline
from interlock._core._ring import Ring
from interlock.errors import LeaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from interlock._core._lease import Lease, SlotIndex
    from interlock._core._ring import RingStatistics

T = TypeVar("T")


class RingLike(Protocol):
    """What `RingMachine` plays with: the verbs of `Ring`."""

    def claim_nowait(self) -> Lease | None:
        """As in `Ring`."""
        ...

    def publish(self, lease: Lease, fence: Fence = ...) -> None:
        """As in `Ring`."""
        ...

    def cancel(self, lease: Lease, fence: Fence = ...) -> None:
        """As in `Ring`."""
        ...

    def lend_nowait(self) -> Lease | None:
        """As in `Ring`."""
        ...

    def retire(self, lease: Lease, fence: Fence = ...) -> None:
        """As in `Ring`."""
        ...

    def collect(self) -> int:
        """As in `Ring`."""
        ...

    def close(self) -> None:
        """As in `Ring`."""
        ...

    def statistics(self) -> RingStatistics:
        """As in `Ring`."""
        ...


class _Proof(enum.Enum):
    """What kind of fence a party hands over."""

    NONE = "the empty fence"
    REACHED = "reached already"
    PENDING = "reached or failed later"
    JOINED = "on two streams, reached or failed later"
    FAILED = "failed already"


class _Role(enum.Enum):
    PRODUCER = "producer"
    CONSUMER = "consumer"
    CANCELLER = "canceller"


@dataclass(eq=False)
class _Party:
    """Somebody who may touch a slot until it has given it back and the points of its proof are past.

    Attributes:
        source: For a consumer, the producer of what it reads.
    """

    role: _Role
    lease: Lease
    source: _Party | None = None
    points: list[tuple[HostTimeline, int]] = field(default_factory=list)
    given_back: bool = False

    def __repr__(self) -> str:
        return f"the {self.role.value} of lease #{self.lease.sequence}"

    @property
    def failed(self) -> bool:
        """Whether the proof failed."""
        return any(timeline.failure(tick) is not None for timeline, tick in self.points)

    @property
    def settled(self) -> bool:
        """Whether the proof is past, by success or failure."""
        return self.given_back and all(timeline.reached(tick) for timeline, tick in self.points)

    @property
    def landed(self) -> bool:
        """Whether the proof succeeded."""
        return self.settled and not self.failed


_PROOFS = st.sampled_from(_Proof)
_CHOICE = st.integers(min_value=0, max_value=63)
_LEASES_BEFORE_CLOSE = 5
_TORN = -1
"""What a slot holds while its producer is at work. After that it holds the sequence number of the lease."""


class RingMachine(RuleBasedStateMachine):
    """Plays with a ring and checks what it promises. Override `make_ring` to test another one.

    It checks that no slot reaches a producer while anybody may still use it, that consumers get leases in the order of
    the claims, that what they read is what was published until they are done, that no slot is lost, that a lease used
    out of turn is refused and changes nothing, and that when everybody is done every slot that is not quarantined can
    be claimed again.

    Example:
        ``TestMyRing = MyRingMachine.TestCase`` runs it under pytest and unittest.
    """

    def make_ring(self, limit: int) -> RingLike:
        """Return a fresh ring of at most `limit` slots."""
        return Ring(limit)

    @initialize(limit=st.integers(min_value=1, max_value=4))
    def start(self, limit: int) -> None:
        """Make the ring, and two streams whose ticks are reached by rules."""
        self.limit = limit
        self.ring = self.make_ring(limit)
        self.closed = False
        self.broken = False
        self.content: dict[SlotIndex, int] = {}
        self.leases: list[Lease] = []
        self.filling: list[_Party] = []
        self.queue: list[_Party] = []  # producers whose lease is not lent yet, in the order of their claims
        self.lent: list[_Party] = []
        self.returned: list[Lease] = []
        self.users: list[_Party] = []  # everybody who may still touch a slot
        self.streams = [HostTimeline("stream:0"), HostTimeline("stream:1")]

    # ------------------------------------------------------------ rules

    @precondition(lambda self: not self.closed)
    @rule()
    def claim(self) -> None:
        """A producer takes a slot and scribbles into it at once."""
        lease = self.ring.claim_nowait()
        if lease is None:
            waiting = [party for party in self.users if not party.settled]
            in_use = {party.lease.slot for party in (*self.queue, *self.lent, *waiting)}
            self._expect(
                len(in_use) + self.ring.statistics().quarantined >= self.limit, "claim refused with slots to spare"
            )
            return
        holders = [party for party in self.users if party.lease.slot == lease.slot]
        self._expect(not holders, f"{lease} was given to a producer while {holders} may still use its slot")
        party = _Party(_Role.PRODUCER, lease)
        self.leases.append(lease)
        self.filling.append(party)
        self.queue.append(party)
        self.users.append(party)
        self.content[lease.slot] = _TORN

    @precondition(lambda self: bool(self.filling))
    @rule(which=_CHOICE, proof=_PROOFS)
    def publish(self, which: int, proof: _Proof) -> None:
        """A producer publishes, in any order; its write lands when its fence is reached."""
        party = _pick(self.filling, which)
        self.filling.remove(party)
        self.ring.publish(party.lease, self._promise(party, proof))
        if self.closed:
            self._skip(party)
        self._settle()

    @rule()
    def lend(self) -> None:
        """A consumer asks for the next lease."""
        lease = self.ring.lend_nowait()
        if lease is None:
            self._expect(not self.queue or self.queue[0] in self.filling, "the lease in turn was not lent")
            return
        self._expect(self.queue, f"{lease} was lent and nothing is published")
        producer = self.queue.pop(0)
        self._expect(lease is producer.lease, f"{lease} was lent before {producer.lease}")
        consumer = _Party(_Role.CONSUMER, lease, source=producer)
        self.lent.append(consumer)
        self.users.append(consumer)

    @precondition(lambda self: not self.closed)
    @rule(count=st.integers(min_value=1, max_value=4), proof=_PROOFS)
    def pass_on(self, count: int, proof: _Proof) -> None:
        """Batches go the usual way, as far as the ring lets them; so that long stories are likely."""
        for _ in range(count):
            self.claim()
            if self.filling:
                self.publish(0, proof)
            self.lend()

    @precondition(lambda self: bool(self.lent))
    @rule(which=_CHOICE, proof=_PROOFS)
    def retire(self, which: int, proof: _Proof) -> None:
        """A consumer is done with a batch, or will be once its fence is reached; it keeps the others."""
        party = _pick(self.lent, which)
        self.lent.remove(party)
        self.returned.append(party.lease)
        self.ring.retire(party.lease, self._promise(party, proof))
        self._settle()

    @precondition(lambda self: bool(self.queue))
    @rule(which=_CHOICE, proof=_PROOFS)
    def cancel(self, which: int, proof: _Proof) -> None:
        """A slot goes back that nobody will read. What was published before may still land."""
        producer = _pick(self.queue, which)
        canceller = _Party(_Role.CANCELLER, producer.lease)
        self.users.append(canceller)
        self.ring.cancel(producer.lease, self._promise(canceller, proof))
        self._skip(producer)
        if producer in self.filling:
            self.filling.remove(producer)
            producer.given_back = True
        self._settle()

    @rule(stream=st.integers(min_value=0, max_value=1), count=st.integers(min_value=1, max_value=3))
    def reach(self, stream: int, count: int) -> None:
        """A stream makes some steps of progress."""
        timeline = self.streams[stream]
        ticks = {tick for party in self.users for one, tick in party.points if one is timeline}
        for tick in sorted(tick for tick in ticks if not timeline.reached(tick))[:count]:
            timeline.reach(tick)
            self._settle()

    @rule(stream=st.integers(min_value=0, max_value=1))
    def fail(self, stream: int) -> None:
        """A stream dies, and a new one takes its place."""
        self.streams[stream].fail(OSError("the stream died"))
        self.streams[stream] = HostTimeline(f"stream:{stream}")
        self._settle()

    @rule()
    def collect(self) -> None:
        """The owner looks for slots that came back: each whose proof is complete must be out of retirement now."""
        self.ring.collect()
        pending = {party.lease for party in self.users if party.lease in self.returned and not party.settled}
        self._expect(
            self.ring.statistics().retiring <= len(pending), "a proof is complete and its slot did not come back"
        )

    @precondition(lambda self: len(self.leases) >= _LEASES_BEFORE_CLOSE)
    @rule()
    def close(self) -> None:
        """No more claims and no more lending; what was ready goes back."""
        self.ring.close()
        self.closed = True
        for party in [party for party in self.queue if party not in self.filling]:
            self._skip(party)
        self._expect(self.ring.lend_nowait() is None, "a closed ring lent a slot")
        self._refused(self.ring.claim_nowait)

    @precondition(lambda self: bool(self.leases))
    @rule(which=_CHOICE, verb=st.sampled_from(("publish", "cancel", "retire")))
    def misuse(self, which: int, verb: str) -> None:
        """Somebody uses a lease out of turn."""
        lease = _pick(self.leases, which)
        allowed = {"publish": self.filling, "cancel": self.queue, "retire": self.lent}[verb]
        if not any(party.lease is lease for party in allowed):
            self._refused(lambda: getattr(self.ring, verb)(lease))

    # ------------------------------------------------------------ invariants

    @invariant()
    def no_slot_is_lost(self) -> None:
        """Each slot is in exactly one state."""
        count = self.ring.statistics()
        states = (count.free, count.filling, count.ready, count.lent, count.retiring, count.quarantined)
        self._expect(sum(states) == count.slots, f"slots were lost: {count}")
        self._expect(count.slots - count.quarantined <= self.limit, f"too many slots: {count}")
        self._expect(count.filling == len(self.filling), f"{len(self.filling)} producers are at work: {count}")
        self._expect(count.ready == len(self.queue) - len(self.filling), f"miscounted what is ready: {count}")

    @invariant()
    def consumers_read_what_was_published(self) -> None:
        """Whoever was lent a slot finds its stamp there until it is done."""
        for party in self.users:
            if party.source is not None and party.source.landed:
                found = self.content[party.lease.slot]
                self._expect(
                    found == party.lease.sequence, f"{party} finds the stamp {found}: its slot may still be in use"
                )

    def teardown(self) -> None:
        """When everybody is done, every slot that is not quarantined can be claimed again."""
        if not hasattr(self, "ring") or self.broken:
            return  # what is already known must not be hidden by what follows from it
        self._finish()
        self.ring.collect()
        count = self.ring.statistics()
        self._expect(count.free == count.slots - count.quarantined, f"slots did not come back: {count}")
        if not self.closed:
            claimed = [self.ring.claim_nowait() for _ in range(self.limit - count.quarantined)]
            self._expect(None not in claimed, "claim refused although nobody uses a slot")

    def _finish(self) -> None:
        while self.filling:
            self.publish(0, _Proof.NONE)
        while self.queue:
            self.lend()
        while self.lent:
            self.retire(0, _Proof.NONE)
        for stream in range(len(self.streams)):
            self.reach(stream, len(self.users) + 1)

    # ------------------------------------------------------------ the model

    def _skip(self, producer: _Party) -> None:
        self.queue.remove(producer)
        self.returned.append(producer.lease)

    def _promise(self, party: _Party, proof: _Proof) -> Fence:
        """Return a fence of the kind asked for; from now on it stands for what `party` still does."""
        party.given_back = True
        if proof is _Proof.NONE:
            return Fence.EMPTY
        if proof is _Proof.FAILED:
            streams = [HostTimeline("dead")]
        elif proof is _Proof.JOINED:
            streams = self.streams
        else:
            streams = [self.streams[party.lease.sequence % len(self.streams)]]
        party.points = [(stream, stream.next_tick()) for stream in streams]
        for stream, tick in party.points:
            if proof is _Proof.FAILED:
                stream.fail(OSError("failed before it began"))
            elif proof is _Proof.REACHED:
                stream.reach(tick)
        return Fence(party.points)

    def _settle(self) -> None:
        """Let writes land whose fence is past, and let go of those who are done; who cannot prove it never is."""
        for party in [party for party in self.users if party.settled]:
            if party.role is _Role.PRODUCER and not party.failed:
                self.content[party.lease.slot] = party.lease.sequence
            if party.role is _Role.PRODUCER or not party.failed:
                self.users.remove(party)

    def _refused(self, call: Callable[[], object]) -> None:
        before = self.ring.statistics()
        try:
            call()
        except LeaseError:
            self._expect(self.ring.statistics() == before, "a refused call changed the ring")
        else:
            self._expect(condition=False, message="a call out of turn was accepted")

    def _expect(self, condition: object, message: str) -> None:
        self.broken = self.broken or not condition
        assert condition, message


def _pick(among: Sequence[T], which: int) -> T:
    return among[which % len(among)]
