"""Why a consumer waits, in words; `_attribution` finds it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from interlock._core._words import capital, counted, duration, megabytes, percent
from interlock.feed._attribution import Findings, Setting, StageLoad, find
from interlock.feed._stages import READ

if TYPE_CHECKING:
    from interlock.feed._statistics import FeedStatistics

_SHOWN = 0.005
"""Smaller parts of the waiting are left out of the sentence."""
_NAMED = 0.02
"""A stage that does less than that part of the work of the one that it shares workers with is not worth a word."""
_SOME = 0.05
"""Less of a processor is none."""
_LONG_START_S = 0.5
_LONG_START = 0.1


@final
@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the consumer of a feed waits. As text it is a few plain sentences.

    Attributes:
        elapsed_s: Seconds of iterating, without those before the first batch of each pass.
        start_s: Seconds until the first batch, summed over passes.
        passes: Passes that gave a batch.
        batches: Batches handed over.
        samples: Samples in them.
        nbytes: Bytes in them.
        slots_lent: Batches that the consumer holds now.
        findings: What can be told: what limits the feed, each stage's part in the waiting, how many workers would do.
        setting: What else it was told from.
    """

    elapsed_s: float
    start_s: float
    passes: int
    batches: int
    samples: int
    nbytes: int
    slots_lent: int
    findings: Findings
    setting: Setting

    def __str__(self) -> str:
        return " ".join(self.sentences)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, and the text, for JSON."""
        fields = asdict(self)
        found = fields["findings"]
        found["other"], found["workers"] = dict(self.findings.other), dict(self.findings.workers)
        return {**fields, "text": str(self)}

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the text consists of."""
        if self.findings.limit == "unknown":
            told = [f"{counted(self.batches, 'batch', 'batches')} so far: too few to tell what the consumer waits for."]
        else:
            told = [self._waiting(), _CHANGES[self.findings.limit](self), self._others(), self._doubt(), self._start()]
        if self.setting.chosen:
            told.append(f"workers='auto' chose {self.setting.chosen.rstrip('.')}.")
        return tuple(one for one in told if one)

    def _waiting(self) -> str:
        found, elapsed = self.findings, duration(self.elapsed_s)
        parts = [(stage.name, stage.share) for stage in found.stages] + list(found.other)
        parts = sorted((one for one in parts if one[1] >= _SHOWN), key=lambda one: -one[1])
        listed = ", ".join(f"{name} {percent(share)}" for name, share in parts)
        if found.limit == "none":
            return f"The feed keeps up: in {elapsed} the consumer waited {100 * found.wait:.1f} ms of each 100."
        if found.idle_consumer:
            rate = self.samples / (self.elapsed_s + self.start_s)
            return f"The consumer does nothing with its batches, and got {rate:,.0f} samples/s in {elapsed}: {listed}."
        return f"In {elapsed} the consumer waited {100 * found.wait:.0f} ms of each 100: {listed}."

    def _crew(self) -> list[StageLoad]:
        """Return the stages of the crew that sets the pace."""
        return [stage for stage in self.findings.stages if stage.crew == self.findings.stage]

    def _busy(self) -> str:
        """Return "Decode has 2 workers, busy 98 % of the time"."""
        crew = self._crew()
        names = [stage.name for stage in crew]
        busy = percent(min(1.0, sum(stage.busy for stage in crew)))
        workers = counted(crew[0].workers, "worker", "workers")
        if len(names) == 1 or sum(stage.work_s for stage in crew[1:]) < _NAMED * crew[0].work_s:
            return f"{capital(names[0])} has {workers}, busy {busy} of the time"
        return f"{capital(', '.join(names[:-1]))} and {names[-1]} share {workers}, busy {busy} of the time"

    def _keeps_up(self) -> str:
        pace = duration(self.findings.pace_s)
        return f"{self._busy()}. A step of less than {pace} would wait." if self.findings.stage else ""

    def _more_workers(self) -> str:
        found, wanted = self.findings, dict(self.findings.workers)
        count = wanted.get(found.stage)
        if count is None:  # others of the crews are short of workers, or it is slots that are
            return f"{self._busy()}. {self._with_depth('Use')}." if found.depth else f"{self._busy()}."
        how = _how(self._crew()[0], count)
        depth = f" and depth={found.depth}" if found.depth else ""
        machine = f"this machine has {_processors(self.setting)}"
        if found.keeps_up:
            return f"{self._busy()}: {count} would keep up ({how}{depth}; {machine}), or make its work smaller."
        if found.idle_consumer:
            return f"{self._busy()}: up to {count} make it faster ({how}{depth}; {machine}), and so does less work."
        return (
            f"{self._busy()}: {count} would be faster ({how}{depth}), but this machine's {_processors(self.setting)} "
            f"need {duration(found.machine_s)} for a batch, and a step is {duration(found.step_s)}: make its work "
            f"smaller."
        )

    def _inline(self) -> str:
        count = dict(self.findings.workers).get(self.findings.stage, 1)
        return (
            f"The consumer's own thread makes the batches, and does nothing else meanwhile: workers={count} would make "
            f"them while it computes."
        )

    def _source(self) -> str:
        return (
            f"{self._busy()}: the source is an iterable, so one thread reads it and more do not help. Give it "
            f"__len__ and __getitem__, or leave to it only what must be done in order and do the rest in stages."
        )

    def _interpreter(self) -> str:
        found, crew = self.findings, self._crew()[0]
        count = dict(found.workers).get(found.stage, 1)
        use = f"use workers='processes:{count}'"
        if crew.workers == 1 or crew.computing is None:
            return (
                f"{capital(crew.name)} holds the interpreter lock while it computes, so more threads would only wait "
                f"for each other: {use}."
            )
        return (
            f"The {crew.workers} workers of {crew.name} each compute {percent(crew.computing)} of the time, and "
            f"wait for each other: the interpreter lock lets one compute at a time. So {use}."
        )

    def _machine(self) -> str:
        found = self.findings
        used = "" if found.processors_busy is None else f" ({found.processors_busy:.1f} in use)"
        return (
            f"{self._busy()}, and this machine's {_processors(self.setting)} have no more to give{used}: more workers "
            f"do not help. Make the work smaller, or do it on another machine."
        )

    def _others_run(self) -> str:
        found = self.findings
        got = found.processors_busy or 0.0
        used = f", and this one got {got:.1f} of them" if got >= _SOME else ""
        return (
            f"{self._busy()}, but other programs run on this machine's {_processors(self.setting)}{used}: threads that "
            f"could run wait for a processor. What would help shows when they do not run."
        )

    def _hand_over(self) -> str:
        return (
            f"A batch comes every {duration(self.findings.pace_s)}, and no stage is busy for most of that: larger "
            f"batches spend less on being handed over."
        )

    def _deeper(self) -> str:
        crew = self._crew()
        busy = percent(min(1.0, sum(stage.busy for stage in crew)))
        return (
            f"No stage is busy all the time ({crew[0].name} {busy}): too few batches are on their way, or single "
            f"samples take much longer than others. {self._with_depth('Use')} in place of {self.setting.depth}."
        )

    def _with_depth(self, verb: str) -> str:
        return f"{verb} depth={self.findings.depth}"

    def _held(self) -> str:
        held = counted(self.slots_lent, "batch", "batches") if self.slots_lent else "its batches"
        size = f" of {megabytes(self.nbytes / self.batches)}" if self.batches else ""
        return (
            f"The consumer holds {held}{size}, and often no slot is free for the next one: let go of them earlier, "
            f"copy what you keep, or raise budget_bytes."
        )

    def _link(self) -> str:
        rate = self.nbytes / (self.elapsed_s + self.start_s) / 1e9
        return (
            f"The copies to {self.setting.device} take longer than the consumer's steps, and carry {rate:.2f} GB/s: "
            f"send fewer bytes (uint8 in place of float32, cropped before), or look for what else uses the link."
        )

    def _others(self) -> str:
        """Name crews that would set the pace once the slowest is faster."""
        if self.findings.limit in {"none", "inline"}:
            return ""
        now = {stage.crew: stage.workers for stage in self.findings.stages if stage.crew == stage.name}
        others = [(name, count) for name, count in self.findings.workers if name != self.findings.stage]
        if not others:
            return ""
        listed = ", ".join(f"{name} {count} in place of {now[name]}" for name, count in others)
        return f"It also takes more workers elsewhere: {listed}."

    def _doubt(self) -> str:
        if not self.findings.maybe_locked:
            return ""
        return (
            "If its work holds the interpreter lock, threads wait for each other and more of them are no faster: "
            "workers='processes' would show."
        )

    def _start(self) -> str:
        if self.start_s < max(_LONG_START_S, _LONG_START * self.elapsed_s):
            return ""
        took = duration(self.start_s)
        if self.passes == 1:
            return f"Before that, the first batch took {took}."
        return f"Apart from that, the first batches of {self.passes} passes took {took}."


_CHANGES = {
    "none": Explanation._keeps_up,  # noqa: SLF001 - a table of the methods above
    "stage": Explanation._more_workers,  # noqa: SLF001 - as above
    "inline": Explanation._inline,  # noqa: SLF001 - as above
    "source": Explanation._source,  # noqa: SLF001 - as above
    "interpreter": Explanation._interpreter,  # noqa: SLF001 - as above
    "processors": Explanation._machine,  # noqa: SLF001 - as above
    "others": Explanation._others_run,  # noqa: SLF001 - as above
    "hand-over": Explanation._hand_over,  # noqa: SLF001 - as above
    "depth": Explanation._deeper,  # noqa: SLF001 - as above
    "slots": Explanation._held,  # noqa: SLF001 - as above
    "link": Explanation._link,  # noqa: SLF001 - as above
}


def explain(statistics: FeedStatistics, setting: Setting) -> Explanation:
    """Explain what a feed did.

    Args:
        statistics: Of the feed, or of some time of it.
        setting: What the statistics do not say.
    """
    return Explanation(
        elapsed_s=max(0.0, statistics.elapsed_s - statistics.start_s),
        start_s=statistics.start_s,
        passes=statistics.passes,
        batches=statistics.batches,
        samples=statistics.samples,
        nbytes=statistics.nbytes,
        slots_lent=statistics.slots_lent,
        findings=find(statistics, setting),
        setting=setting,
    )


def _how(stage: StageLoad, workers: int) -> str:
    """Return what to write for so many workers."""
    if stage.name != READ:
        return f"Stage(..., workers={workers})"
    return f"workers='processes:{workers}'" if stage.kind == "processes" else f"workers={workers}"


def _processors(setting: Setting) -> str:
    number = setting.processors
    return "1 processor" if number == 1 else f"{number:g} processors"
