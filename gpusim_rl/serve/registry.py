"""A registry of policies in one directory: versions, where each comes from, and aliases.

A version is the digest of a controller, so a file before and after its verdict is one version. An
alias such as `released` is a row of events, so it has a history and can be rolled back. The file
registry.db is sqlite's, and policies/DIGEST.onnx are the controllers. Each alias is also a whole
file, NAME.ALIAS.json, which robots and servers poll without sqlite.

Several processes of one machine may use a registry. On a network file system sqlite's locks are not
safe.
"""

import getpass
import hashlib
import io
import json
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusim_rl.core.files import (
    LARGEST_TEXT_BYTES,
    read_map,
    read_text,
    read_whole,
    remove_parts,
    write_whole,
)
from gpusim_rl.deploy.onboard.verdict import cut, digest, read_verdict, with_verdict

if TYPE_CHECKING:  # it loads onnxruntime
    from gpusim_rl.deploy.runtime import Policy

CANDIDATE, RELEASED = "candidate", "released"  # the second needs a pass of the gate
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # of a policy or an alias
LIKE_A_VERSION = re.compile(r"\d+|[0-9a-f]{6,}")  # what no alias is called
SHORT = 12  # digits of a digest that people see
WAIT = 60.0  # s for another process that writes
POLICY, ABOUT = "policy.onnx", "version.json"  # in the file of one version
# Columns of the database that are numbers, digests and JSON; all others are text.
NUMBERS, DIGESTS = ("version", "id", "bytes", "n"), ("digest", "a", "b")
MAPS = ("lineage", "evidence", "report")
Entries = dict[str, type | UnionType]  # of a report
JUDGED: Entries = {"success": int | float, "changed": dict, "complaints": list}  # of a gate's
COMPARED: Entries = {"proved": bool, "line": str, "text": str}  # of a comparison's
Row = dict[str, Any]


class Verb(NamedTuple):
    """What the command line takes of a verb, and a form of the page."""

    call: Callable[..., Any]  # takes the registry's directory, then words and keys by their names
    words: tuple[str, ...] = ()  # in order
    optional: int = 0  # words that may be missing at the end
    keys: tuple[str, ...] = ()  # KEY=VALUE, each of which may be missing
    settings: bool = False  # whether it takes settings of the gate and comparisons, as `words`
    form: tuple[str, ...] | None = None  # keys that a form has, too; None: there is no form


SCHEMA = """
create table if not exists version (
  name text, version integer, digest text not null, bytes integer not null, at text not null,
  by text not null, interface text not null, lineage text not null, note text not null,
  removed text, primary key (name, version), unique (name, digest));
create table if not exists judgement (
  id integer primary key, digest text not null, verdict text not null, at text not null,
  by text not null, settings text not null, report text not null);
create index if not exists judgement_of on judgement (digest, id);
create table if not exists event (
  id integer primary key, name text not null, alias text not null, version integer not null,
  action text not null, at text not null, by text not null, why text not null,
  evidence text not null);
create index if not exists event_of on event (name, alias, id);
create table if not exists comparison (
  id integer primary key, a text not null, b text not null, at text not null, by text not null,
  settings text not null, report text not null);
create index if not exists comparison_of on comparison (a, b, id);
"""
NOW = """
select e.*, v.digest, v.interface from event e join version v using (name, version)
where e.id in (select max(id) from event group by name, alias) order by e.name, e.alias
"""


class Registry:
    """The registry of a directory.

    Args:
        create: make it if it is not there, which else is a FileNotFoundError.
        by: who uses it; by default the name of the user.

    Raises:
        ValueError: its database is damaged or lost, or another process has held it for a minute.
    """

    def __init__(self, folder: Path | str, *, create: bool = False, by: str | None = None):
        self.folder, self.by = Path(folder), by or user_name()
        file = self.folder / "registry.db"
        if not file.is_file() and not create:
            raise FileNotFoundError(f"there is no registry in {folder}: `add` makes one")
        policies = self.folder / "policies"
        policies.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, policies):
            remove_parts(folder)
        kept = [*policies.glob("*.onnx")]  # before the database is read: it has them first
        with self.one_line_errors():
            self.db = sqlite3.connect(file, timeout=WAIT, isolation_level=None)
            self.db.row_factory = sqlite3.Row
            tables = {x["name"] for x in self.rows("select name from sqlite_master")}
            if kept and "version" not in tables:
                raise ValueError(f"{file} is empty, but {policies} has files: restore it")
            if "comparison_of" not in tables:
                with self.transaction():
                    for statement in SCHEMA.split(";"):
                        self.db.execute(statement)
            self.write_aliases()  # a process may have been killed before it wrote

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Turn sqlite's errors into a ValueError that names the database."""
        try:
            yield
        except sqlite3.Error as error:
            raise ValueError(f"{self.folder / 'registry.db'}: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within is there as a whole or not at all; others wait meanwhile."""
        with self.one_line_errors(), self.db:
            self.db.execute("begin immediate")
            yield

    def rows(self, query: str, *values: str | int | None) -> list[Row]:
        """The rows of a query, see `checked`."""
        with self.one_line_errors():
            rows = [dict(row) for row in self.db.execute(query, values)]
        try:
            return [checked(row) for row in rows]
        except ValueError as error:
            raise ValueError(f"{self.folder / 'registry.db'} is damaged: {error}") from None

    def insert(self, table: str, **values: str | int) -> int:
        """Add a row with who and when, and return its number."""
        values |= {"at": now(), "by": self.by}
        marks = ", ".join("?" * len(values))
        line = f"insert into {table} ({', '.join(values)}) values ({marks})"
        return self.db.execute(line, [*values.values()]).lastrowid or 0

    # -- versions ----------------------------------------------------------------------------------

    def add(self, policy: "Policy", name: str, lineage: Row, note: str = "") -> Row:
        """Record a policy, whose file was checked, as the next version of a name.

        A controller that the name has stays the same. `lineage` is where it comes from, plain data.
        A verdict in the file is not recorded, since it is no signature. ValueError if the file was
        edited since it was judged, or the name cannot be used.
        """
        check_name("name", name)
        read_verdict(policy.data)
        data, key = cut(policy.data)[0], digest(policy.data)
        with self.transaction():
            if not self.rows("select version from version where name=? and digest=?", name, key):
                last = "select coalesce(max(version), 0) n from version where name=?"
                parts = json.dumps([*interface(policy).values()], sort_keys=True)
                metadata = {"digest": key, "bytes": len(data)}
                metadata |= {"interface": hashlib.sha256(parts.encode()).hexdigest()}
                metadata |= {"lineage": json.dumps(lineage), "note": note}
                number = self.rows(last, name)[0]["n"] + 1
                self.insert("version", name=name, version=number, **metadata)
            self.db.execute("update version set removed=null where digest=?", (key,))
            if not self.is_whole(key):
                write_whole(self.file(key), data)
        return self.version(name, key)

    def versions(self, name: str) -> list[Row]:
        """The rows of a policy's versions; ValueError if there is none of the name."""
        if rows := self.rows("select * from version where name=? order by version", name):
            return rows
        names = [x["name"] for x in self.rows("select distinct name from version")]
        raise ValueError(f"no policy is called {name}: there are {', '.join(names) or 'none'}")

    def version(self, name: str, which: int | str) -> Row:
        """The row of a version: its number, alias, or the beginning of its digest; ValueError."""
        mine = self.versions(name)
        aliases = {x["alias"]: x["version"] for x in self.rows(NOW) if x["name"] == name}
        word = str(which if isinstance(which, int) else aliases.get(which, which))
        fit = [x for x in mine if str(x["version"]) == word]
        fit = fit or [x for x in mine if len(word) > 5 and x["digest"].startswith(word)]
        if len(fit) != 1:
            words = f"1 to {mine[-1]['version']}" if len(mine) > 1 else "version 1"
            words += f" and the alias{'es' * (len(aliases) > 1)} " * bool(aliases)
            raise ValueError(f"{name} has no version {which}: it has {words}{', '.join(aliases)}")
        return fit[0]

    def file(self, key: str) -> Path:
        """The file of a digest."""
        return self.folder / "policies" / f"{key}.onnx"

    def is_whole(self, key: str) -> bool:
        """Whether the file of a digest is there, and holds the controller that was added."""
        return self.file(key).is_file() and digest(read_whole(self.file(key), 1 << 28)) == key

    def path(self, name: str, which: int | str) -> Path:
        """The file of a version; ValueError if it was removed or edited."""
        row = self.version(name, which)
        if row["removed"]:
            raise ValueError(f"the file of version {row['version']} of {name} was removed: add it")
        if not self.is_whole(row["digest"]):
            raise ValueError(
                f"{self.file(row['digest'])} was edited or removed since it was added: add it again"
            )
        return self.file(row["digest"])

    # -- what is known of versions -----------------------------------------------------------------

    def record_judgement(self, key: str, verdict: Row, settings: str) -> int:
        """Record the verdict of a gate that the caller ran itself with settings of a hash."""
        metadata = {"verdict": verdict["verdict"], "settings": settings}
        with self.transaction():
            return self.insert("judgement", digest=key, report=json.dumps(verdict), **metadata)

    def judgement(self, key: str) -> Row | None:
        """The last judgement of a digest; None if it was never judged here."""
        rows = self.rows("select * from judgement where digest=? order by id desc limit 1", key)
        return self.reported(rows, JUDGED)

    def record_comparison(self, a: str, b: str, report: Row, settings: str) -> int:
        """Record what an A/B comparison of two digests says."""
        with self.transaction():
            text = json.dumps(report)
            return self.insert("comparison", a=a, b=b, settings=settings, report=text)

    def comparison(self, a: str, b: str, settings: str) -> Row | None:
        """The last comparison of two digests with these settings; None if there is none."""
        line = "select * from comparison where a=? and b=? and settings=? order by id desc limit 1"
        return self.reported(self.rows(line, a, b, settings), COMPARED)

    def reported(self, rows: list[Row], entries: Entries) -> Row | None:
        """The one row, if there is any; ValueError if its report lacks an entry of such a type."""
        for name, kind in entries.items() if rows else ():
            if not isinstance(rows[0]["report"].get(name), kind):
                raise ValueError(f"{self.folder / 'registry.db'} is damaged: a report lacks {name}")
        return rows[0] if rows else None

    # -- aliases -----------------------------------------------------------------------------------

    # Why: docs/decisions/registry.md
    def promote(
        self, name: str, which: int | str, alias: str, why: str = "", evidence: Row | None = None
    ) -> Row:
        """Point an alias at a version, and return this; ValueError if it may not be.

        `released` needs that the last judgement, of a gate that ran here, is a pass. It also needs
        the interface of the version before. `evidence` is what else speaks for it.
        """
        check_name("alias", alias)
        if LIKE_A_VERSION.fullmatch(alias):
            raise ValueError(f"alias={alias}: it could be a version; choose a word")
        self.path(name, which)
        with self.transaction():
            row = self.version(name, which)
            before = {x["alias"]: x for x in self.rows(NOW) if x["name"] == name}.get(alias)
            if alias == RELEASED:
                verdict = self.check_releasable(row, before)
                evidence = (evidence or {}) | {"success": verdict["success"]}
            else:
                verdict = (self.judgement(row["digest"]) or {}).get("report", {})
            if verdict.get("changed"):
                evidence = (evidence or {}) | {"changed": verdict["changed"]}
            if before and before["version"] == row["version"]:
                raise ValueError(f"{alias} of {name} is version {row['version']} already")
            metadata = {"action": "promote", "why": why, "evidence": json.dumps(evidence or {})}
            self.insert("event", name=name, alias=alias, version=row["version"], **metadata)
        self.write_aliases()
        return row

    def check_releasable(self, row: Row, before: Row | None) -> Row:
        """The verdict of a version, written into its file; ValueError if it may not be released."""
        which = f"version {row['version']} of {row['name']}"
        if before and before["interface"] != row["interface"]:
            raise ValueError(
                f"{which} reads, drives or follows other things than version {before['version']}, "
                "which is released: add it under another name"
            )
        judged = self.judgement(row["digest"])
        if judged is None:
            raise ValueError(f"{which} is not judged: the gate has to pass it before its release")
        if judged["report"].get("changed", {}).get("quick"):
            raise ValueError(f"{which} was judged by a quick gate: a release needs the whole one")
        if judged["verdict"] != "pass":
            complaints = judged["report"].get("complaints") or [""]
            raise ValueError(f"{which} fails the gate: {complaints[0]}")
        path = self.file(row["digest"])
        write_whole(path, with_verdict(path.read_bytes(), judged["report"]))
        return judged["report"]

    def rollback(self, name: str, alias: str, why: str = "") -> Row:
        """Point an alias at the version before, as often as there is one; the version."""
        with self.transaction():
            trail = self.trail(name, alias)
            if len(trail) < 2:
                raise ValueError(f"{alias} of {name} had no version before")
            row = self.version(name, trail[-2])
            self.path(name, trail[-2])
            why = why or f"instead of version {trail[-1]}"
            metadata = {"action": "rollback", "why": why, "evidence": "{}"}
            self.insert("event", name=name, alias=alias, version=trail[-2], **metadata)
        self.write_aliases()
        return row

    def trail(self, name: str, alias: str) -> list[int]:
        """The versions that rolling back goes through; the last is the one of now."""
        line = "select version, action from event where name=? and alias=? order by id"
        trail: list[int] = []
        for event in self.rows(line, name, alias):
            if event["action"] != "rollback":
                trail.append(event["version"])
                continue
            trail = trail[:-1]
            if trail[-1:] != [event["version"]]:
                what = f"{alias} of {name} was rolled back to what it never was"
                raise ValueError(f"{self.folder / 'registry.db'} is damaged: {what}")
        return trail

    def history(self, name: str, alias: str | None = None) -> list[Row]:
        """The events of a name, or of one alias of it: what, who, when and why."""
        self.version(name, 1)
        line = "select * from event where name=? and alias=coalesce(?, alias) order by id"
        return self.rows(line, name, alias)

    def write_aliases(self) -> None:
        """Write the file of each alias that differs from the database."""
        if self.outdated():
            with self.transaction():  # so that no older state is written after a newer one
                for file, text in self.outdated().items():
                    write_whole(file, text.encode())

    def outdated(self) -> dict[Path, str]:
        """The file of each alias that differs from the database → what it has to hold."""
        files: dict[Path, str] = {}
        for x in self.rows(NOW):
            event = {key: x[key] for key in ("name", "alias", "version", "at", "by", "why")}
            event |= {"sha256": x["digest"], "file": f"policies/{x['digest']}.onnx"}
            event |= {"interface": x["interface"], "event": x["id"]}
            file, text = self.folder / f"{x['name']}.{x['alias']}.json", json.dumps(event, indent=1)
            if not file.is_file() or read_text(file) != text:
                files[file] = text
        return files

    # -- all of them -------------------------------------------------------------------------------

    def retain(self, name: str, count: int) -> list[int]:
        """Remove the files of all but the newest versions; those that were removed.

        A version that an alias is, or can be rolled back to, stays. Its row always stays.
        """
        self.version(name, 1)
        with self.transaction():
            line = "select distinct alias from event where name=?"
            aliases = [x["alias"] for x in self.rows(line, name)]
            used = {version for alias in aliases for version in self.trail(name, alias)}
            left = "select * from version where name=? and removed is null order by version desc"
            old = [x for x in self.rows(left, name)[count:] if x["version"] not in used]
            for row in old:
                line = "update version set removed=? where name=? and version=?"
                self.db.execute(line, (now(), name, row["version"]))
                same = "select version from version where digest=? and removed is null"
                if not self.rows(same, row["digest"]):
                    self.file(row["digest"]).unlink(missing_ok=True)
        return [row["version"] for row in old]

    def export(self, name: str, which: int | str, out: Path) -> None:
        """Write a version, and what is known of it, as one file (ZIP)."""
        path, row = self.path(name, which), self.version(name, which)
        metadata = {key: row[key] for key in ("name", "version", "digest", "at", "by", "note")}
        metadata |= {"lineage": row["lineage"], "judgement": self.judgement(row["digest"])}
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(POLICY, path.read_bytes())
            file.writestr(ABOUT, json.dumps(metadata, indent=1))
        write_whole(out, memory.getvalue())

    def list(self, name: str | None = None) -> list[Row]:
        """All versions, or those of a name, with their aliases, and the last judgement of each."""
        now_at: dict[tuple[str, int], list[str]] = {}
        for x in self.rows(NOW):
            now_at.setdefault((x["name"], x["version"]), []).append(x["alias"])
        line = "select * from version where name=coalesce(?, name) order by name, version"
        parts = ", ".join(f"json_extract(report, '$.{x}') as {x}" for x in ("changed", "success"))
        last = f"select digest, verdict, {parts} from judgement order by id"
        judged = {x["digest"]: x for x in self.rows(last)}
        none = {"verdict": None, "changed": None, "success": None}
        return [
            row
            # changed: by other limits or scenarios than usual
            | {"verdict": of["verdict"], "changed": (of["changed"] or "{}") != "{}"}
            | {"success": of["success"]}
            | {"aliases": now_at.get((row["name"], row["version"]), [])}
            for row in self.rows(line, name)
            for of in [judged.get(row["digest"], none)]
        ]


def read_exported(file: Path, largest: int) -> tuple[bytes, Row]:
    """The policy in the file of a version, and what is said of it; ValueError if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_whole(file, largest))) as whole:
            policy, metadata = whole.getinfo(POLICY), whole.getinfo(ABOUT)
            if policy.file_size > largest or metadata.file_size > LARGEST_TEXT_BYTES:
                raise ValueError("too large")
            data, text = whole.read(policy), read_map(whole.read(metadata))
        return data, {
            "name": str(text["name"]),
            "note": str(text["note"]),
            "lineage": dict(text["lineage"]) | {"imported": file.name},
        }
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{file} is not the file of a version: {error}") from None


def checked(row: Row) -> Row:
    """A row of the database with its maps; ValueError for what this program never writes."""
    # whoever edited the database may have put anything into any column, a path into a name
    for key, x in row.items():
        kind = int if key in NUMBERS else float if key == "success" else str
        right = isinstance(x, kind) or (key == "removed" and x is None)
        if not right or (key in DIGESTS and not re.fullmatch("[0-9a-f]{64}", str(x))):
            raise ValueError(f"{key} is {x!r}"[:200])
        if key in ("name", "alias"):
            check_name(key, str(x))
    return row | {key: read_map(row[key]) for key in MAPS if key in row}


def interface(policy: "Policy") -> Row:
    """What a policy reads, follows and drives, and how often, by name.

    Two policies of one interface can take each other's place.
    """
    command, targets = policy.command or {}, policy.outputs
    return {
        "robot": policy.description["robot"],
        "dt": policy.dt,
        "readings": policy.needs,
        "order of readings": policy.reads,
        "views": policy.views,
        "joints": policy.joints,
        "command": command.get("names"),
        "units of the command": command.get("units"),
        # a robot's computer, or a client of a server, applies the gains
        **{f"{key} of the targets": targets.get(key) for key in ("units", "kp", "kd")},
    }


def check_name(what: str, name: str) -> None:
    """ValueError unless a name can be that of a file, too."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{what}={name}: expected at most 64 letters, digits, - and _")


def now() -> str:
    """The time of now, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user_name() -> str:
    """The name of the user; `unknown` where the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
