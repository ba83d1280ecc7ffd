"""Names of metrics: whoever measures one names it once, for the table, reports and loggers."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from gpusim_rl.core.files import Plain


class Metric(NamedTuple):
    """A number of a row of metrics.jsonl.

    A key and a public name that end in `/*` stand for all keys that begin so.
    """

    key: str  # in metrics.jsonl
    public: str = ""  # in W&B and TensorBoard, such as "loss/policy"; the key unless given
    label: str = ""  # in reports; the key unless given
    format: str = ".4g"  # of its value
    table: str = ""  # its name in the live table; empty: it is not shown there


def public_name(key: str, metrics: Iterable[Metric]) -> str:
    """The name of a key in W&B and TensorBoard; its own if no metric has it."""
    names = {x.key: x.public or x.key for x in metrics}
    group = f"{key.partition('/')[0]}/"
    if key in names or f"{group}*" not in names:
        return names.get(key, key)
    return names[f"{group}*"].removesuffix("*") + key.removeprefix(group)


def tracks(measure: str) -> bool:
    """Whether a measure's name says that it tells how well a command is followed."""
    return any(word in measure for word in ("error", "distance", "angle"))


def described(metrics: Iterable[Metric]) -> dict[str, dict[str, str]]:
    """Key → public name, label and format, as metrics.json of a run has it."""
    return {
        x.key: {"name": x.public or x.key, "label": x.label or x.key, "format": x.format}
        for x in metrics
    }


def check_metrics(metrics: Iterable[Metric]) -> None:
    """ValueError for a key that is used twice, or a format that no number has."""
    keys: set[str] = set()
    for metric in metrics:
        if metric.key in keys:
            raise ValueError(f"two metrics are named {metric.key!r}: choose another name")
        keys.add(metric.key)
        try:
            format(0.0, metric.format)
        except ValueError:
            what = f"metric {metric.key!r}: {metric.format!r}"
            raise ValueError(f"{what} formats no number, such as .3f does") from None


def labels(descriptions: Mapping[str, object]) -> dict[str, str]:
    """Key → label of what `described` returned, which a stranger may have written."""
    maps = [(key, cast(Plain, x)) for key, x in descriptions.items() if isinstance(x, Mapping)]
    entries = [(key, x.get("label")) for key, x in maps]
    return {key: x for key, x in entries if isinstance(x, str) and x}
