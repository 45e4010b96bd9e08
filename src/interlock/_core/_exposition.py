"""Numbers as Prometheus reads them: its text format, version 0.0.4, of which OpenMetrics is a stricter kind.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name.

    Attributes:
        name: In base units: seconds, bytes. A counter's ends in `_total`.
        kind: A counter only ever grows while its process lives.
        text: What it is, in a line.
        samples: Value by what the labels of the family say; a single one where it has none.
        label: Name of the label by which the samples differ.
    """

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    samples: Mapping[str, float]
    label: str = field(default="")


def exposition(families: Iterable[Family], labels: Mapping[str, str]) -> str:
    """Return families as text, which ends with a line feed. Texts of other families may be joined to it.

    Args:
        families: In this order.
        labels: What all samples are labelled with.
    """
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {_escaped(family.text)}", f"# TYPE {family.name} {family.kind}"]
        for value, number in family.samples.items():
            all_labels = {**labels, **({family.label: value} if family.label else {})}
            listed = ",".join(f'{name}="{_escaped(text, quote=True)}"' for name, text in all_labels.items())
            lines.append(f"{family.name}{{{listed}}} {number!r}" if listed else f"{family.name} {number!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
