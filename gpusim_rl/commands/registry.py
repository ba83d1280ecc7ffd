"""The versions of policies: `gpusim registry`.

    gpusim registry add FILE.onnx [name=NAME] [run=RUN] [labels=FILE] [parent=VERSION] [note=TEXT]
    gpusim registry promote NAME VERSION ALIAS [why=TEXT] [better_than=VERSION]
                    [not_worse_than=VERSION] [seed=0] [gate.KEY=…] [ab.KEY=…]
    gpusim registry rollback NAME ALIAS [why=TEXT]
    gpusim registry history NAME [ALIAS]
    gpusim registry list [NAME]
    gpusim registry compare NAME VERSION VERSION [seed=0] [gate.KEY=…] [ab.KEY=…]
    gpusim registry export NAME VERSION FILE.zip
    gpusim registry import FILE.zip
    gpusim registry retain NAME COUNT
    gpusim registry page [port=8090]

NAME is the task's, unless name= says another. VERSION is a number, an alias, or the beginning of a
digest. The alias `released` needs that the gate passes the file, and the command runs the gate.
For any other alias gate.quick=true runs a short one.
better_than= needs an A/B comparison that proves it, such as with better_than=released.
registry=DIR is the directory, by default `registry`. format=json prints JSON.
Exits with 0, with 1 if a policy is refused by the gate or a comparison, with 2 for a mistake.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpusim_rl.core import errors
from gpusim_rl.core.arguments import show_usage
from gpusim_rl.core.files import digest
from gpusim_rl.serve.registry import RELEASED, SHORT, Registry, Row, Verb, read_exported

Folder = Path | str
Version = int | str
Config = dict[str, Any]  # sections `gate` and `ab`, and the seed
Arguments = dict[str, Any]  # of a verb, by their names
MAX_PACKED = 1 << 28  # bytes of the file of a version
EVIDENCE = {"better_than": "better", "not_worse_than": "not_worse"}  # key → what is to be proved


class RefusedError(ValueError):
    """A gate or a comparison speaks against a policy."""


# -- the commands as functions ---------------------------------------------------------------------


def add(
    folder: Folder,
    file: Folder,
    *,
    name: str | None = None,
    run: Folder | None = None,
    labels: Folder | None = None,
    parent: Version | None = None,
    note: str = "",
) -> Row:
    """Record an exported file as a version of a registry, which is made if need be; its row.

    Args:
        name: by default the task's.
        run: that exported it; by default the one whose directory holds the file.
        labels: a file that it was trained with, whose hash is recorded.
        parent: the version of this name that it was trained from.
    ValueError if the file is damaged, edited, or another program's; OSError if it cannot be read.
    """
    from gpusim_rl.deploy import exported
    from gpusim_rl.gate.command import verdict_of

    path = Path(file)
    policy, _ = exported.open_onnx(path, views=True)
    verdict_of(path)  # its ValueError names the file
    registry, name = Registry(folder, create=True), name or str(policy.description["task"])
    lineage = dict(policy.description.get("lineage", {})) | lineage_of(path, run)
    if labels is not None:
        lineage["labels"] = digest(Path(labels))["sha256"]
    if parent is not None:
        lineage["parent"] = registry.version(name, parent)["digest"]
    row = registry.add(policy, name, lineage, note)
    if note and row["note"] != note:
        errors.warn(f"{name} version {row['version']} is there already: its note stays")
    return row


def promote(
    folder: Folder,
    name: str,
    version: Version,
    alias: str,
    *,
    why: str = "",
    better_than: Version | None = None,
    not_worse_than: Version | None = None,
    words: tuple[str, ...] = (),
    say: Callable[[str], None] = errors.warn,
) -> Row:
    """Point an alias at a version; its row.

    For `released` the gate judges the file, unless it did so here with the same settings. With
    gate.quick=true it does so for another alias, by few robots.
    RefusedError if the gate or a comparison speaks against it, ValueError if there is no such
    version, or it may not be released.

    Args:
        better_than, not_worse_than: a version that an A/B comparison has to prove it against.
        words: settings, such as "gate.robots=64" and "ab.margin=0.01".
        say: takes a line on what is done.
    """
    registry, evidence = Registry(folder), {}
    row, path = registry.version(name, version), registry.path(name, version)
    cfg = configuration(words)
    quick = cfg["gate"]["quick"]
    if quick and alias == RELEASED:
        raise ValueError(f"{RELEASED} needs the whole gate: gate.quick=true is for other aliases")
    for key, other in (("better_than", better_than), ("not_worse_than", not_worse_than)):
        if other is not None:
            proof = cfg | {"ab": cfg["ab"] | {"prove": EVIDENCE[key]}}
            report = compared(registry, registry.version(name, other), row, proof, say)
            if not report["proved"]:
                raise RefusedError(report["line"])
            evidence[key] = report["line"]
    if quick or alias == RELEASED:
        judge(registry, row, path, cfg, say)
    return registry.promote(name, row["version"], alias, why, evidence)


def rollback(folder: Folder, name: str, alias: str, *, why: str = "") -> Row:
    """Point an alias at the version that it was before; its row. ValueError if there is none."""
    return Registry(folder).rollback(name, alias, why)


def history(folder: Folder, name: str, alias: str | None = None) -> list[Row]:
    """The events of a name or of one alias: action, version, who (`by`), when (`at`), and why."""
    return Registry(folder).history(name, alias)


def list_versions(folder: Folder, name: str | None = None) -> list[Row]:
    """All versions or those of a name, each with its aliases and its last verdict."""
    registry = Registry(folder)
    if name is not None:
        registry.versions(name)  # which are there
    return registry.list(name)


def compare(
    folder: Folder,
    name: str,
    a: Version,
    b: Version,
    *,
    words: tuple[str, ...] = (),
    say: Callable[[str], None] = errors.warn,
) -> Row:
    """The report of an A/B comparison of two versions, which is recorded."""
    from gpusim_rl.gate.settings import check_compared

    registry, cfg = Registry(folder), configuration(words)
    check_compared(cfg)
    first, second = registry.version(name, a), registry.version(name, b)
    return compared(registry, first, second, cfg, say)


def export(folder: Folder, name: str, version: Version, out: Folder) -> None:
    """Write a version with its lineage and its verdict as one file.

    ValueError or OSError if it would replace a file of a run or of the registry.
    """
    from gpusim_rl.config import validate

    registry = Registry(folder)
    files = [registry.folder / "registry.db", registry.path(name, version)]
    validate.writable("file", str(out), inputs=map(str, files))
    registry.export(name, version, Path(out))


def import_version(folder: Folder, file: Folder) -> Row:
    """Record the version in a file that `export` wrote; its row.

    Its verdict is not taken over: `released` needs a gate that ran here.
    """
    import tempfile

    from gpusim_rl.deploy import exported

    data, metadata = read_exported(Path(file), MAX_PACKED)
    with tempfile.TemporaryDirectory() as draft:
        path = Path(draft) / "policy.onnx"
        path.write_bytes(data)
        policy, _ = exported.open_onnx(path, views=True)
    registry = Registry(folder, create=True)
    return registry.add(policy, metadata["name"], metadata["lineage"], metadata["note"])


def retain(folder: Folder, name: str, count: int | str) -> list[int]:
    """Remove the files of all but the newest versions; the versions that were removed.

    What an alias is, or can be rolled back to, stays.
    """
    if not str(count).isdecimal():
        raise ValueError(f"retain {count}: expected how many versions stay")
    return Registry(folder).retain(name, int(count))


def page(folder: Folder, *, port: str = "8090") -> None:
    """Show the registry's page until Ctrl-C; ValueError or OSError unless the port is free."""
    from gpusim_rl.serve import registry_page

    registry_page.serve(Path(folder), port, VERBS)


# -- what they need --------------------------------------------------------------------------------


def configuration(words: tuple[str, ...]) -> Config:
    """The sections `gate` and `ab`, and the seed; ValueError for a wrong word."""
    from gpusim_rl.config.compose import compose_plain
    from gpusim_rl.core import ranges
    from gpusim_rl.gate.settings import check_settings

    cfg = compose_plain("play", [*words])
    ranges.check(cfg, table=ranges.PLAY)
    check_settings(cfg)
    return {key: cfg[key] for key in ("gate", "ab", "seed")}


def judge(
    registry: Registry, row: Row, path: Path, cfg: Config, say: Callable[[str], None]
) -> None:
    """Let the gate judge a version, and record its verdict; RefusedError if it fails.

    A verdict with the same settings and seed that was recorded last is not computed again.
    """
    settings, last = key_of(cfg, "gate"), registry.judgement(row["digest"])
    which = f"version {row['version']} of {row['name']}"
    if last and last["settings"] == settings:
        verdict = last["report"]
    else:
        from gpusim_rl.gate.command import report_of, text
        from gpusim_rl.gate.judge import make_verdict

        report = report_of(path, cfg["gate"], cfg["seed"], which, say)
        for line in text(report).splitlines():
            say(line)
        verdict = make_verdict(report, cfg["gate"])
        registry.record_judgement(row["digest"], verdict, settings)
    if verdict["verdict"] != "pass":
        lines = verdict["complaints"]
        raise RefusedError(f"{which} fails the gate: {'; '.join(map(str, lines[:3]))}")


def compared(registry: Registry, a: Row, b: Row, cfg: Config, say: Callable[[str], None]) -> Row:
    """The report of the comparison of two versions with these settings, computed if it is new."""
    cfg = cfg | {"gate": cfg["gate"] | {"reported": []}}  # all scenarios are compared
    settings = key_of(cfg, "gate", "ab")
    if last := registry.comparison(a["digest"], b["digest"], settings):
        return last["report"]
    from gpusim_rl.gate.command import compare_files

    files = [registry.path(x["name"], x["version"]) for x in (a, b)]
    titles = [f"version {x['version']}" for x in (a, b)]
    report = compare_files(files, cfg, titles, say)
    registry.record_comparison(a["digest"], b["digest"], report, settings)
    return report


def key_of(cfg: Config, *sections: str) -> str:
    """A hash of the seed and of sections of a configuration."""
    from gpusim_rl.gate.judge import settings_hash

    return settings_hash({key: cfg[key] for key in ("seed", *sections)})


def lineage_of(file: Path, run: Folder | None) -> Row:
    """The hashes of the configuration and of the last checkpoint of the run of a file."""
    folder = Path(run) if run is not None else file.resolve().parent
    if not (folder / "config.yaml").is_file():
        if run is not None:
            raise ValueError(f"run={run} is not a run directory: it has no config.yaml")
        return {}
    from gpusim_rl.runs.run import Run

    saved = Run(folder).checkpoints.saved()
    files = {"config": folder / "config.yaml"} | ({"checkpoint": saved[-1]} if saved else {})
    return {name: digest(file)["sha256"] for name, file in files.items()}


# -- the command line ------------------------------------------------------------------------------

ADDED, PROMOTED = ("name", "parent", "note"), ("why", *EVIDENCE)
VERBS = {  # run= and labels= name files of this machine, so no form has them
    "add": Verb(add, ("file",), keys=(*ADDED, "run", "labels"), form=ADDED),
    "promote": Verb(
        promote, ("name", "version", "alias"), keys=PROMOTED, settings=True, form=PROMOTED
    ),
    "rollback": Verb(rollback, ("name", "alias"), keys=("why",), form=("why",)),
    "history": Verb(history, ("name", "alias"), optional=1),
    "list": Verb(list_versions, ("name",), optional=1),
    "compare": Verb(compare, ("name", "a", "b"), settings=True, form=()),
    "export": Verb(export, ("name", "version", "out")),
    "import": Verb(import_version, ("file",)),
    "retain": Verb(retain, ("name", "count")),
    "page": Verb(page, keys=("port",)),
}
SETTINGS = ("gate.", "ab.", "seed")  # beginnings of keys that the gate and comparisons have


def parse(words: list[str]) -> tuple[str, Arguments, str, str]:
    """The verb and its arguments, the registry and the format; ValueError for a wrong word."""
    name, *rest = words
    if name not in VERBS:
        raise ValueError(f"unknown command {name!r}: choose one of {', '.join(VERBS)}")
    verb, plain, settings = VERBS[name], [], []
    keys: Arguments = {}
    allowed = ("registry", "format", *verb.keys)
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals:
            plain.append(word)
        elif key.startswith(SETTINGS) and verb.settings:
            settings.append(word)
        elif key in allowed and key not in keys:
            keys[key] = value
        else:
            raise ValueError(f"{word}: {name} takes the keys {', '.join(allowed)}, each once")
    most = len(verb.words)
    if not (least := most - verb.optional) <= len(plain) <= most:
        raise ValueError(f"{name} takes {least} to {most} words, not {len(plain)}: see --help")
    folder, form = keys.pop("registry", "registry"), keys.pop("format", "text")
    if form not in ("text", "json"):
        raise ValueError(f"format={form}: choose one of text, json")
    arguments = dict(zip(verb.words, plain, strict=False)) | keys
    return name, arguments | ({"words": tuple(settings)} if verb.settings else {}), folder, form


def as_text(verb: str, arguments: Arguments, result: Any) -> str:
    """The result of a verb for people."""
    if verb == "list":
        return version_table(result)
    if verb == "history":
        return "\n".join(map(event_line, result))
    if verb == "compare":
        return result["text"]
    if verb == "retain":
        return f"removed the files of {len(result)} versions of {arguments['name']}"
    if verb == "export":
        return f"wrote {arguments['out']}"
    line = f"{result['name']} version {result['version']}, {result['digest'][:SHORT]}"
    return f"{arguments['alias']}: {line}" if "alias" in arguments else line


def version_table(rows: list[Row]) -> str:
    """Versions in columns, of which those that are empty are left out."""
    lines = [("name", "version", "aliases", "success", "verdict", "date", "note")]
    for row in rows:
        success = "" if row["success"] is None else f"{row['success']:.3f}"
        verdict = row["verdict"] or "unjudged"
        verdict += ",changed" * row["changed"]  # other limits or scenarios than usual
        note = " ".join([*row["note"].split(), *["(file removed)"] * bool(row["removed"])])
        name, aliases = (row["name"], str(row["version"])), ",".join(row["aliases"])
        lines.append((*name, aliases, success, verdict, row["at"][:10], note))
    columns = [x for x in zip(*lines, strict=True) if any(x[1:]) or not rows]
    sizes = [max(map(len, x)) + 2 for x in columns]
    return "\n".join(
        "".join(map(str.ljust, line, sizes)).rstrip() for line in zip(*columns, strict=True)
    )


def event_line(row: Row) -> str:
    """An event in a line: when, who, what and why."""
    evidence = "".join(f"; {key.replace('_', ' ')}: {x}" for key, x in row["evidence"].items())
    what = f"{row['action']} {row['alias']} to version {row['version']}"
    why = f": {row['why']}" if row["why"] else ""
    return f"{row['at']} {row['by']}: {what}{why}{evidence}"


def main(words: list[str]) -> None:
    """Check the words, do what they say, and print it."""
    show_usage(words, __doc__)
    with errors.one_line_errors():
        verb, arguments, folder, form = parse(words)
        try:
            result = VERBS[verb].call(folder, **arguments)
        except RefusedError as error:
            errors.exit_with_error(str(error), 1)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    text = json.dumps(result, indent=2) if form == "json" else as_text(verb, arguments, result)
    for line in text.splitlines():
        print(errors.printable(line))
