"""Photographs from files to batches of crops: processor time an image, and images a second.

    python benchmarks/feed/jpeg.py [--save] [--quick] [--only feed,grain] [--seconds 0]

Some 2,000 JPEG files of 500 x 375 pixels at quality 90 (about 80 KB each, made here out of noise that falls with
frequency as it does in photographs) are read, decoded, cropped to 224 x 224 at a place that the number of the sample
fixes, and put together 64 at a time as uint8 in height, width, channel. Every loader runs the same read, the same
decoder (simplejpeg, else Pillow) and the same crop; its first batch is compared. All settings of all loaders take turns
in five rounds, each in a process of its own; medians. Processor time is that of the process and all below it.

"whole" settings let one call make a whole batch, which costs some peers least. Feed's sample function writes the
crop into the batch (`out=`); for the others it returns a copy, since views keep the pictures of a whole batch alive,
with which each of them was slower.
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _peers
import numpy as np
from _contest import Contest, Outcome, Report, feed_arguments, other_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

HEIGHT, WIDTH, CROP, CHANNELS = 375, 500, 224, 3
FIELD = 1024
FIELDS = 6
STEEPNESS = 1.2
QUALITY = 90
BATCH = 64


@cache
def decoder() -> tuple[str, Callable[[bytes], npt.NDArray[np.uint8]]]:
    """Return name and function of the decoder that is there."""
    try:
        import simplejpeg  # noqa: PLC0415 - may be missing
    except ImportError:
        from PIL import Image  # noqa: PLC0415 - imported where it is used

        return "Pillow", lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    return "simplejpeg", simplejpeg.decode_jpeg


@dataclass(frozen=True)
class Crops:
    """Crops of files, by number."""

    paths: tuple[str, ...]
    batch: int = BATCH

    def view(self, index: int) -> npt.NDArray[np.uint8]:
        """Return a crop as a view of its decoded picture."""
        with open(self.paths[index % len(self.paths)], "rb", buffering=0) as file:  # noqa: PTH123 - Path.open is slower
            picture = decoder()[1](file.readall())
        top, left = index * 7919 % (HEIGHT - CROP), index * 104729 % (WIDTH - CROP)
        return picture[top : top + CROP, left : left + CROP]

    def sample(self, index: int) -> npt.NDArray[np.uint8]:
        """As in `Task`."""
        return np.ascontiguousarray(self.view(index))

    def fill(self, index: int, out: npt.NDArray[Any]) -> None:
        """As in `Task`."""
        out[:] = self.view(index)


def spectrum(chance: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return fields of noise whose amplitude falls with frequency, as in photographs."""
    across, down = np.fft.rfftfreq(FIELD)[None, :], np.fft.fftfreq(FIELD)[:, None]
    radius = np.hypot(across, down)
    radius[0, 0] = 1
    fields = []
    for _ in range(FIELDS):
        wave = (chance.standard_normal(radius.shape) + 1j * chance.standard_normal(radius.shape)) / radius**STEEPNESS
        field = np.fft.irfft2(wave, s=(FIELD, FIELD))
        fields.append((field - field.mean()) / field.std())
    return np.stack(fields).astype(np.float32)


def encode(picture: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture as JPEG, by whichever encoder is there."""
    if decoder()[0] == "simplejpeg":
        import simplejpeg  # noqa: PLC0415 - may be missing

        return bytes(simplejpeg.encode_jpeg(picture, quality=QUALITY, colorsubsampling="420"))
    from PIL import Image  # noqa: PLC0415 - imported where it is used

    target = io.BytesIO()
    Image.fromarray(picture).save(target, "JPEG", quality=QUALITY)
    return target.getvalue()


def photographs(folder: Path, number: int) -> tuple[str, ...]:
    """Write that many files; return their paths."""
    chance = np.random.default_rng(0)
    fields = spectrum(chance)
    paths = []
    for name in range(number):
        top, left = chance.integers(FIELD - HEIGHT), chance.integers(FIELD - WIDTH)
        light, red, blue = fields[chance.permutation(FIELDS)[:3], top : top + HEIGHT, left : left + WIDTH]
        grain = chance.integers(-2, 3, (HEIGHT, WIDTH), dtype=np.int8)
        base = 128 + 42 * light + grain
        picture = np.stack([base + 14 * red, base - 7 * red + 7 * blue, base - 14 * blue], axis=-1)
        path = folder / f"{name:05}.jpg"
        path.write_bytes(encode(np.clip(picture, 0, 255).astype(np.uint8)))
        paths.append(str(path))
    return tuple(paths)


def makers(task: Crops) -> dict[str, dict[str, partial[Any]]]:
    """Return the loaders and their settings."""
    made = partial(partial, task=task)
    return {
        "DataLoader": {
            "0 workers": made(_peers.dataloader, workers=0),
            "1 worker": made(_peers.dataloader, workers=1, ahead=2),
            "2 workers": made(_peers.dataloader, workers=2, ahead=2),
        },
        "SPDL, threads": {
            f"{threads} threads{', whole' if whole else ''}": made(_peers.spdl, threads=threads, whole=whole)
            for threads, whole in ((2, False), (2, True), (3, True))
        },
        "Grain, threads": {
            f"{threads} threads{', whole' if whole else ''}": made(_peers.grain_threads, threads=threads, whole=whole)
            for threads, whole in ((0, True), (2, False), (2, True), (3, True))
        },
        "Grain, processes": {"2 workers": made(_peers.grain_processes, workers=2, ahead=2)},
        "torchdata nodes, threads": {
            f"2 threads{', whole' if whole else ''}": made(_peers.nodes, workers=2, whole=whole)
            for whole in (False, True)
        },
        "Feed, inline": {
            "": made(_peers.feed, workers=0, depth=1),
            "returned": made(_peers.feed, workers=0, depth=1, out=False),
        },
        "Feed, threads": {
            f"{threads} threads{'' if out else ', returned'}": made(_peers.feed, workers=threads, depth=2, out=out)
            for threads, out in ((1, True), (2, True), (3, True), (2, False))
        },
        "Feed, processes": {"2 workers": made(_peers.feed, workers="processes:2", depth=2)},
    }


def images_per_s(outcome: Outcome) -> float:
    return BATCH / outcome.median_s


def used_ms(outcome: Outcome) -> float:
    return float(outcome.extra["used_s"] / BATCH * 1e3)


def report_of(contest: Contest) -> Report:
    report = Report("feed-jpeg", "JPEG files to batches", ("loader", "images/s", "CPU ms an image", "note"))
    for name, found in contest.outcomes.items():
        note = other_settings(found, lambda one: f"{images_per_s(one):.0f}/s {used_ms(one):.2f} ms")
        best = found[0]
        figures = (f"{images_per_s(best):.0f}", f"{used_ms(best):.3f}") if best.seconds else ("", "")
        report.rows.append((name, *figures, note))
    contest.keep(report)
    return report


def goals(contest: Contest, report: Report) -> None:
    """Compare our fastest setting with the fastest of all peers' settings, and with the one that spends least."""
    ours, peers = contest.all(ours=True), contest.all(ours=False)
    if not ours or not peers:
        return
    fastest, rival, frugal = max(ours, key=images_per_s), max(peers, key=images_per_s), min(peers, key=used_ms)
    ratio = images_per_s(fastest) / images_per_s(rival)
    report.goal(f"images/s, {fastest.name} / {rival.name}", ratio, 1, at_most=False)
    ratio = used_ms(fastest) / used_ms(frugal)
    report.goal(f"CPU an image, {fastest.name} / {frugal.name}", ratio, 1, at_most=True)


def main() -> None:
    given = feed_arguments(__doc__, files=(2048, "JPEG files"), steps=(48, "batches of one window"))
    if given.quick:
        given.files, given.steps = 128, 10
    with tempfile.TemporaryDirectory(prefix="interlock-jpeg-") as folder:
        paths = photographs(Path(folder), given.files)
        mean_bytes = sum(Path(path).stat().st_size for path in paths) / len(paths)
        contest = Contest(makers(Crops(paths)))
        contest.hold(given, count=1 if given.quick else 5, steps=given.steps, warm=16)
    report = report_of(contest)
    report.figures.update(decoder=decoder()[0], mean_file_bytes=mean_bytes, files=given.files)
    report.lines.append(f"{given.files} files of {mean_bytes / 1e3:.0f} KB on average, decoded by {decoder()[0]}")
    goals(contest, report)
    report.show(save=given.save)


if __name__ == "__main__":
    main()
