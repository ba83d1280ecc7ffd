"""Keys of the configuration that name files, as those who read the files declare them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOWS = ("copy", "keep", "hash")
Given = dict[str, Any]  # key → what its file gave: its path, or what was read


@dataclass(frozen=True)
class FileKey:
    """A key whose value is the path of a file, or null.

    Attributes:
        key: with dots, such as `algo.labels`.
        how: a training keeps it. `copy`: the run has a copy. `keep`: the run has what was read,
            written by its own `write(path)`. `hash`: the run has only a hash, and `resume=` refuses
            another content.
        name: path of the copy in the run; `place` has the default.
        read: of a learner of the user's own, path → what it is given. `keep` needs it.
    """

    key: str
    how: str
    name: str = ""
    read: Callable[[Path], Any] | None = None

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            choices = ", ".join(HOWS)
            raise ValueError(f"file key {self.key}: {self.how!r}: choose one of {choices}")
        if (name := Path(self.name)).is_absolute() or ".." in name.parts:
            raise ValueError(f"file key {self.key}: name={self.name!r} lies outside of the run")

    @property
    def is_model(self) -> bool:
        """Whether it is a robot model, which names files in turn."""
        return self.key.endswith(".mjcf")

    def place(self, value: str) -> str:
        """The path in the run of the copy of a file, whose suffix it has."""
        return self.name or f"model/{self.key}{Path(value).suffix}"
