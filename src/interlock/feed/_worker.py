"""What runs in a worker process: samples are asked for and written into the slots of the feed that started it."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.reduction
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from interlock._core._memory import HostMemory
from interlock.feed import _wire
from interlock.feed._recipe import Recipe
from interlock.feed._samples import FunctionSamples, MapSamples
from interlock.feed._wire import Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    import numpy as np

    from interlock.feed._layout import Layout
    from interlock.feed._stages import Chain


@final
@dataclass(frozen=True, slots=True)
class PassTerms:
    """What a worker must know of one pass.

    Attributes:
        number: Its number.
        layout: How a slot is laid out.
        batch_size: For a function, as the other two: rows of a batch.
        epoch: Number of the epoch.
        first: Position at which it begins.
        length: Samples that the source had when the pass began; None for a function.
    """

    number: int
    layout: Layout
    batch_size: int = 1
    epoch: int = 0
    first: int = 0
    length: int | None = None


def serve(connection: Connection, given: tuple[Any, Chain | None] | None) -> None:
    """Do what the feed asks for until it hangs up. The main function of a worker process.

    Args:
        connection: To the feed.
        given: Its source and stages; None if they come as the first message.
    """
    _leave_signals_to_parent()
    _end_with_parent()
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more
        desk = _Desk(connection, *(given or connection.recv()))
        connection.send_bytes(_wire.HELLO)
        while True:
            desk.take(connection.recv_bytes())


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C: it goes to all processes of a terminal, and the parent ends its workers by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_parent() -> None:
    """End this process when its parent is gone, whatever it is doing then."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    gone = select.poll()
    gone.register(parent.sentinel, select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):  # a pipe may stay open in what the parent has forked
        gone.register(os.pidfd_open(parent.pid), select.POLLIN)

    def watch() -> None:
        gone.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="interlock-parent", daemon=True).start()


@final
class _Desk:
    """Where requests are worked on, one at a time."""

    def __init__(self, connection: Connection, source: Any, chain: Chain | None) -> None:
        self._connection = connection
        self._source = source
        self._chain = chain
        self._passes: dict[int, tuple[PassTerms, _Maker]] = {}
        self._memories: dict[int, HostMemory] = {}
        self._views: dict[tuple[int, int], list[Any]] = {}
        self._control = memoryview(bytearray(_wire.CONTROL_BYTES)).cast("q")
        self._calmed = False

    def take(self, message: bytes) -> None:
        """Do what one message asks for."""
        request = Request.unpacked(message)
        if request.what == _wire.ATTACH:
            self._attach(request)
        elif request.what == _wire.DETACH:
            del self._memories[request.key]
            self._views = {key: views for key, views in self._views.items() if key[1] != request.key}
        elif request.what == _wire.PASS:
            terms = self._connection.recv()
            self._passes[terms.number] = (terms, _Maker(self._source, self._chain, terms))
            while len(self._passes) > _wire.MOST_PASSES:
                oldest = next(iter(self._passes))  # the feed knows that it is forgotten
                del self._passes[oldest]
                self._views = {key: views for key, views in self._views.items() if key[0] != oldest}
        else:
            reply = self._fill(request)
            self._connection.send_bytes(reply.packed())
            self._calm()

    def _attach(self, request: Request) -> None:
        fd = multiprocessing.reduction.recv_handle(self._connection)
        try:
            memory = HostMemory.attach(fd, request.size_bytes, "the feed")
        finally:
            os.close(fd)
        if request.key:
            self._memories[request.key] = memory
        else:
            self._control = memory.view().cast("q")

    def _fill(self, request: Request) -> Reply:
        terms, maker = self._passes[request.number]
        key = request.number, request.key
        if key not in self._views:
            self._views[key] = terms.layout.views(self._memories[request.key])
        views, asked = self._views[key], request.asked
        if asked is None:
            return Reply(_wire.DONE, 0)
        began_s = time.process_time()
        try:
            how, error = _wire.DONE, ""
            if request.what == _wire.FILL_AT_ONCE:
                maker.fill_at_once(views, request.row, asked)
                self._control[_wire.MADE] = len(asked)
            else:
                maker.fill(views, request.row, asked.tolist(), self._control)
        except StopIteration:
            how = _wire.ENDED
        except Exception as failed:  # noqa: BLE001 - concerns this sample
            how, error = _wire.FAILED, _wire.told(failed)
        except BaseException as failed:  # noqa: BLE001 - SystemExit: it ends the pass, not this worker alone
            how, error = _wire.BROKEN, _wire.told(failed)
        made, stages = self._control[_wire.MADE], tuple(maker.stages)
        fetch_s, copy_s = max(0.0, maker.make_s - sum(stages)), maker.copy_s
        maker.begin()
        return Reply(how, made, fetch_s, copy_s, time.process_time() - began_s, stages, error)

    def _calm(self) -> None:
        """Let torch use one thread here, as its own loader does: the workers are many already."""
        if not self._calmed and (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
            self._calmed = True


@final
class _Maker:
    """Makes the samples of one pass, as `SampleReader` does in the feed's own process."""

    def __init__(self, source: Any, chain: Chain | None, terms: PassTerms) -> None:
        self._layout = terms.layout
        self._number = terms.number
        self._chain = chain
        self._fetch: Callable[[int], Any]
        self._into: Callable[[int, Any], Any] | None = None
        samples: MapSamples | FunctionSamples
        if terms.length is None:
            samples = FunctionSamples(source, terms.batch_size, terms.epoch, terms.first)
            self._fetch = samples.fetch
            if samples.takes_out and chain is None:
                self._into = samples.fetch_into
        else:
            samples = MapSamples(source, range(terms.length))
            samples.length = terms.length
            self._fetch = samples.fetch_index
        self._source = source
        self._recipe = Recipe(samples, chain, readers=0)
        self._steps = 0 if chain is None else len(chain.steps)
        self.begin()

    def begin(self) -> None:
        """Count time from zero."""
        self.make_s = self.copy_s = 0.0
        self.stages = [0.0] * self._steps

    def _made(self, number: int, out: Any = None) -> Any:
        if self._chain is not None:
            return self._chain(self._fetch(number), out, self.stages)
        return self._fetch(number) if self._into is None else self._into(number, out)

    def fill(self, views: list[Any], row: int, asked: list[int], control: memoryview) -> None:
        """Make rows one by one, saying after each how many there are.

        Raises:
            StopIteration: The epoch ended before the next row.
            Exception: What the source or a stage raised for it, or the sample is unlike the first one.
        """
        clock, recipe, layout = time.perf_counter, self._recipe, self._layout
        fetch = self._fetch if self._chain is None else self._made
        done = clock()
        for count, number in enumerate(asked, 1):
            if control[_wire.STOPPED] == self._number:
                break
            began = made = done
            try:
                if recipe.takes_out:
                    sample = recipe.made(layout, views, row, partial(self._made, number))
                else:
                    sample = fetch(number)
                made = clock()
                recipe.write(layout, views, row, sample)
            finally:
                done = clock()
                self.make_s += made - began
                self.copy_s += done - made
            row += 1
            control[_wire.MADE] = count

    def fill_at_once(self, views: list[Any], row: int, asked: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Let the source write rows by itself.

        Raises:
            Exception: What it raised.
        """
        began = time.perf_counter()
        last = row + len(asked)
        into = self._layout.structure.rebuild([view[row:last] for view in views])
        try:
            self._source.read_into(asked, into)
        except StopIteration as error:
            raise RuntimeError("read_into raised StopIteration") from error
        self.make_s += time.perf_counter() - began
