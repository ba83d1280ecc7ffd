"""The version that an alias of a registry names, in a file that is polled."""

from pathlib import Path

from gpusim_rl.core.files import read_map, read_text
from gpusim_rl.serve.pool import Version

ENDING = ".json"


def alias_file(registry: str | None, alias: str) -> Path:
    """The file of an alias, which may not be there yet: `alias` itself without a registry.

    Else that of `released`, or of `quadruped.released` if there are several, or an error.
    """
    if registry is None:
        return Path(alias)
    folder = Path(registry)
    if not folder.is_dir():
        raise FileNotFoundError(f"registry={registry}: there is no such directory")
    if "." in alias:
        return folder / f"{alias}{ENDING}"
    files = sorted(folder.glob(f"*.{alias}{ENDING}"))
    if len(files) != 1:
        names = [file.name.removesuffix(ENDING) for file in files] or [f"NAME.{alias}"]
        raise ValueError(f"alias={alias} of which policy? say alias={' or '.join(names)}")
    return files[0]


class Alias:
    """An alias that is polled in its file: JSON with `file`, relative to it, and `sha256`."""

    def __init__(self, path: Path):
        self.path, self.text = path, ""

    def look(self) -> Version | None:
        """The version that it names; None if it is the one of the last look, or none yet."""
        try:
            text = read_text(self.path)
        except FileNotFoundError:
            return None
        if text == self.text:
            return None
        self.text = text  # what cannot be read is not looked at again until it changes
        try:
            description = read_map(text)
            name, key = str(description["file"]), str(description["sha256"])
        except (ValueError, LookupError):
            raise ValueError(f"{self.path} is not the file of an alias") from None
        folder = self.path.parent.resolve()
        if not (file := (folder / name).resolve()).is_relative_to(folder):
            raise ValueError(f"{self.path} names a file outside of the registry: {name}")
        version = Version(file)
        if version.digest != key:
            raise ValueError(f"{file} is not the version {key[:12]} that {self.path} names")
        return version
