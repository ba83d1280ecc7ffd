"""Command lines of programs without a configuration: plain words, and KEY=VALUE."""

import re
from collections.abc import Iterable


def show_usage(words: list[str], usage: str | None) -> None:
    """Print how a program is called and end it, if there is no word, or -h or --help is one."""
    if not words or {"-h", "--help"} & {*words}:
        print(usage)
        raise SystemExit(0 if words else 2)


def parse(
    words: list[str], keys: Iterable[str], expected: str, most: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """The plain words of a command line, 1 to `most`, and the values of its keys.

    ValueError in one line for a word that is neither, or none or too many.

    Args:
        keys: that it may have, each once. `gate.` allows all keys that begin so.
        expected: what a message says of the words.
    """
    known, plain, values = [*keys], list[str](), dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if not word.startswith("-") and not (equals and re.fullmatch(r"[A-Za-z_][\w.]*", key)):
            plain.append(word)  # a path may have a `=`
        elif key not in known and not any(key.startswith(x) for x in known if x.endswith(".")):
            raise ValueError(f"{word}: expected {expected}")
        elif key in values:
            raise ValueError(f"{word}: {key}= is given twice")
        else:
            values[key] = value
    if not plain or len(plain) > (most or len(plain)):
        raise ValueError(f"{' '.join(words)}: expected {expected}".removeprefix(": "))
    return plain, values


def whole_number(values: dict[str, str], key: str, least: int) -> int:
    """The whole number of a key, below 2³¹; ValueError if it is none, or is out of bounds."""
    if not values[key].isdecimal() or not least <= int(values[key]) < 2**31:
        raise ValueError(f"{key}={values[key]}: expected a whole number of at least {least}")
    return int(values[key])
