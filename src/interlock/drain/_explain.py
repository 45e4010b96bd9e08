"""What limits a drain, in words; `_attribution` finds it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._processors import one_thread_at_a_time, processors
from interlock._core._words import capital, counted, duration, megabytes, percent
from interlock.drain._attribution import FULL, UNNOTICED, Findings, Setting, find
from interlock.drain._call import CallStore
from interlock.drain._null import NullStore

if TYPE_CHECKING:
    from interlock.drain._statistics import DrainStatistics
    from interlock.drain._store import Store

_SHOWN = 0.005
"""Smaller parts are left out of a sentence."""
_SMALLER = "make outputs smaller before they leave their device, as with outputs={'logits': Cast('float16')}"


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """What limits a drain. As text it is a few plain sentences.

    Attributes:
        elapsed_s: Seconds since the first put.
        start_s: Seconds before it.
        done: What was done in that time.
        findings: What can be told: what limits the drain, where the producer waits, what the writers do, how many of
            them would do.
        setting: What else it was told from.
    """

    elapsed_s: float
    start_s: float
    done: DrainStatistics
    findings: Findings
    setting: Setting

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, and the text, for JSON."""
        fields = asdict(self)
        found = fields["findings"]
        found["waits"], found["writers"] = dict(self.findings.waits), dict(self.findings.writers)
        return {**fields, "text": str(self)}

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the text consists of."""
        if self.findings.limit == "unknown":
            put = counted(self.done.rows_put, "row was", "rows were")
            return (f"{put} put so far: too few to tell what limits the drain.",)
        return (self._waiting(), self.verdict, self._writers())

    @property
    def verdict(self) -> str:
        """What limits it, how that shows, and what would help."""
        return _VERDICTS[self.findings.limit](self) if self.findings.limit in _VERDICTS else self.sentences[0]

    def _waiting(self) -> str:
        found, elapsed = self.findings, duration(self.elapsed_s)
        if found.wait < UNNOTICED:
            waited = f"{100 * found.wait:.1f} ms of each 100"
            return f"The drain keeps up: in {elapsed} it kept the {self.setting.producer} for {waited}."
        waited = f"{100 * found.wait:.0f} ms of each 100"
        return f"In {elapsed} the drain kept the {self.setting.producer} for {waited}: {listed(found.waits)}."

    def _writers(self) -> str:
        return f"{capital(self._who())} spent: {listed(self.findings.writers)}."

    def _who(self) -> str:
        return "the writer" if self.done.writers == 1 else f"the {self.done.writers} writers"

    def _their(self) -> str:
        return "the writer's" if self.done.writers == 1 else "the writers'"

    def _rate(self) -> str:
        """Return how many bytes came to the storage in a second; of rows, as long as no shard is there."""
        done = self.done.bytes_written or self.done.bytes_put
        return f"{megabytes(done / self.elapsed_s)}/s"

    def _producer(self) -> str:
        waited = percent(self.findings.busy("idle", "land"))
        gain = "nothing" if self.findings.wait < UNNOTICED else "little"
        return (
            f"The {self.setting.producer} is the limit: {self._who()} waited {waited} of the time for rows. There is "
            f"{gain} to gain here."
        )

    def _put(self) -> str:
        done = self.done
        rows = f"{done.rows_put / max(1, done.puts):,.0f} rows"
        syncs = f"; the host waited for a device {done.host_syncs:,} times" if done.host_syncs else ""
        return (
            f"Taking rows is the limit: a put of {rows} takes {duration(done.put_s / max(1, done.puts))} besides "
            f"copying and waiting{syncs}. Put more rows at once."
        )

    def _copy(self) -> str:
        done = self.done
        return (
            f"Copying is the limit: put copies {megabytes(done.bytes_put / done.copy_s)}/s on the thread that calls "
            f"it. Put arrays that you leave alone until they are written, with borrow=True, or {_SMALLER}."
        )

    def _device(self) -> str:
        rate = f"{megabytes(self.done.bytes_put / self.elapsed_s)}/s"
        return (
            f"The device is the limit: {self._who()} waited {percent(self.findings.busy('land'))} of the time for "
            f"values to be computed and to come over the link, {rate}. If it is the link, {_SMALLER}."
        )

    def _budget(self) -> str:
        done = self.done
        each = done.bytes_put / max(1, done.puts)
        return (
            f"The budget is the limit: {self._who()} had nothing to do {percent(self.findings.busy('idle'))} of the "
            f"time, and put waited for room. It is {megabytes(done.budget_bytes)}, and a put is {megabytes(each)}: "
            f"raise budget_bytes, or put fewer rows at once."
        )

    def _flush(self) -> str:
        done = self.done
        return (
            f"Flushing is the limit: {done.flushes:,} flushes took {duration(done.flush_s / done.flushes)} each, and "
            f"meanwhile nothing is put. Flush less often: commit_interval_s bounds what a crash can cost."
        )

    def _check(self) -> str:
        share = percent(self.findings.busy("check"))
        return (
            f"Looking at rows is the limit, {share} of {self._their()} time{self._more()}. nan='keep' and verify=False "
            f"look at none."
        )

    def _encoder(self) -> str:
        share = percent(self.findings.busy("encode"))
        return f"The encoder is the limit, {share} of {self._their()} time{self._more()}. Else {_SMALLER}."

    def _more(self) -> str:
        """Return ": 2 writers, 3 would do (...)"."""
        found, done = self.findings, self.done
        have = counted(done.writers, "writer", "writers")
        if found.wanted is None:
            return f": {have}"
        would = "would do" if found.keeps_up else "would be faster"
        return f": {have}, {found.wanted} {would} (writers={found.wanted}; this machine has {self._processors()})"

    def _function(self) -> str:
        share, each = percent(self.findings.busy("encode")), duration(self.done.encode_s / max(1, self.done.puts))
        return (
            f"The function that is the sink is the limit, {share} of {self._their()} time: {each} for each put. Make "
            f"it quicker, or let it hand the rows on."
        )

    def _interpreter(self) -> str:
        share = percent(self.findings.busy("encode"))
        return (
            f"The encoder is the limit, {share} of {self._their()} time. Shards of {self.setting.scheme}: are made row "
            f"by row, by one thread at a time: more ranks help, and so does another sink (arrow:, npy:)."
        )

    def _machine(self) -> str:
        share, busy = percent(self.findings.busy("encode", "check", "hash")), self.findings.processors_busy
        used = f", {busy:.1f} in use" if busy >= FULL * self.setting.processors else ""
        return (
            f"The processors are the limit: {self._who()} computed {share} of the time, and this machine has "
            f"{self._processors()}{used}. More writers do not help: use a sink that costs less (arrow:, npy:), or "
            f"{_SMALLER}."
        )

    def _storage(self) -> str:
        share = percent(self.findings.busy("write", "fsync", "commit"))
        return (
            f"The storage is the limit: {self._rate()} in write and fsync, {share} of {self._their()} time. Write to a "
            f"faster one, or {_SMALLER}."
        )

    def _hash(self) -> str:
        share = percent(self.findings.busy("hash"))
        return f"Hashing is the limit, {share} of {self._their()} time{self._more()}. Else {_SMALLER}."

    def _commits(self) -> str:
        done = self.done
        size = megabytes(done.bytes_written / done.shards)
        took = duration((done.fsync_s + done.commit_s) / done.shards)
        return (
            f"Committing is the limit: {done.shards:,} shards of {size} took {took} each to sync and record. Make them "
            f"larger: shard_bytes, commit_interval_s, fewer flushes."
        )

    def _processors(self) -> str:
        number = self.setting.processors
        return "1 processor" if number == 1 else f"{number:g} processors"


_VERDICTS = {
    "producer": Explanation._producer,  # noqa: SLF001 - a table of the methods above
    "put": Explanation._put,  # noqa: SLF001 - as above
    "copy": Explanation._copy,  # noqa: SLF001 - as above
    "device": Explanation._device,  # noqa: SLF001 - as above
    "budget": Explanation._budget,  # noqa: SLF001 - as above
    "flush": Explanation._flush,  # noqa: SLF001 - as above
    "check": Explanation._check,  # noqa: SLF001 - as above
    "encoder": Explanation._encoder,  # noqa: SLF001 - as above
    "function": Explanation._function,  # noqa: SLF001 - as above
    "interpreter": Explanation._interpreter,  # noqa: SLF001 - as above
    "processors": Explanation._machine,  # noqa: SLF001 - as above
    "storage": Explanation._storage,  # noqa: SLF001 - as above
    "hash": Explanation._hash,  # noqa: SLF001 - as above
    "commits": Explanation._commits,  # noqa: SLF001 - as above
}


def setting_of(store: Store | NullStore, shard_bytes: int) -> Setting:
    """Return what the numbers of a drain do not say.

    Args:
        store: Where its rows go.
        shard_bytes: Size at which a shard is committed.
    """
    if isinstance(store, NullStore):
        scheme = "function" if isinstance(store, CallStore) else "null"
        return Setting(scheme, shard_bytes, processors(), several=False)
    in_python = bool(getattr(store.sink, "in_python", False))
    return Setting(store.sink.scheme, shard_bytes, processors(), in_python and one_thread_at_a_time())


def explain(statistics: DrainStatistics, setting: Setting) -> Explanation:
    """Explain what limits a drain.

    Args:
        statistics: Of the drain, or of some time of it.
        setting: What the statistics do not say.
    """
    return Explanation(
        elapsed_s=statistics.elapsed_s,
        start_s=statistics.start_s,
        done=statistics,
        findings=find(statistics, setting),
        setting=setting,
    )


def listed(parts: tuple[tuple[str, float], ...]) -> str:
    """Return parts of 1 in per cent, the largest first."""
    shown = sorted((one for one in parts if one[1] >= _SHOWN), key=lambda one: -one[1])
    return ", ".join(f"{name} {percent(share)}" for name, share in shown)
