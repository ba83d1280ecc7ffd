"""`play.py mode=gate` and mode=ab, and `gate=true` of train.py: judge or compare files."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

from gpusim_rl.core import errors
from gpusim_rl.core.files import read_whole, write_whole
from gpusim_rl.core.waiting import Say, print_now
from gpusim_rl.deploy import exported
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.runs.run import find_run

MAX_LINES = 3  # failures that are printed; out= holds all
REMEDY = "train with recipe=robot; if it was, with more of what fails (docs/gate.md)"


def gate_policy(cfg: Json) -> None:
    """mode=gate: print what the policy does, write the verdict into its file.

    judged= names another file for the policy with its verdict, and the variants lie beside that.
    out= holds all of it as JSON, and beside it lies a badge. Exits with 1 if the policy fails, or a
    variant is refused.
    """
    with errors.one_line_errors():
        path = policy_file(cfg)
        judged = Path(cfg["judged"] or path)
        report, data = evaluate_file(path, cfg["gate"], cfg["seed"], judged)
        print(text(report))
        if cfg["variants"]:
            from gpusim_rl.gate import variants

            rows = variants.make(judged, data, cfg["variants"], report, cfg["gate"], cfg["seed"])
            report["variants"] = rows
            print(variants.table(rows))
        if cfg["out"]:
            write_whole(out := Path(cfg["out"]), f"{json.dumps(report, indent=2)}\n".encode())
            write_whole(out.with_suffix(".svg"), badge(report).encode())
    if line := failure(judged, report):
        errors.exit_with_error(line, 1)


def gate_trained(path: Path) -> str:
    """gate=true of train.py: mode=gate with its defaults, for the file of a training.

    Returns why it fails, in a line; empty if it passes.
    """
    from gpusim_rl.config.compose import compose_plain

    cfg = compose_plain("play", ["mode=gate"])
    try:
        report, _ = evaluate_file(path, cfg["gate"], cfg["seed"])
    except (ValueError, OSError) as error:
        return str(error)
    print(text(report))
    return failure(path, report)


def say_verdict(path: Path) -> None:
    """Print the verdict in a file in one line, if it has one; warn if the file was edited since."""
    from gpusim_rl.deploy.onboard.verdict import difference

    try:
        if verdict := verdict_of(path):
            figures = [f"success {verdict['success']:.2f}", verdict["date"][:10]]
            figures += filter(None, [difference(verdict)])
            line = f"verdict of the release gate: {verdict['verdict']}, {', '.join(figures)}"
            print(errors.printable(line), flush=True)
    # a stranger's verdict may be anything
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        errors.warn(f"warning: the verdict of the release gate is not valid: {error}")


def verdict_of(path: Path) -> Json | None:
    """The verdict in a file; ValueError, which names the file, if that was edited."""
    from gpusim_rl.deploy.onboard.verdict import read_verdict
    from gpusim_rl.deploy.runtime import MAX_BYTES

    try:
        return read_verdict(read_whole(path, MAX_BYTES))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def compare_policies(cfg: Json) -> None:
    """mode=ab: drive the same robots with both files of onnx=, and print who fails alone.

    out= holds all of it as JSON. Exits with 1 unless what ab.prove= says is proved.
    """
    with errors.one_line_errors():
        from gpusim_rl.gate.settings import check_compared, check_keys

        check_keys(cfg)
        check_compared(cfg)
        report = compare_files([*map(Path, cfg["onnx"])], cfg, cfg["onnx"], print_now)
        print(report["text"])
        if cfg["out"]:
            write_whole(Path(cfg["out"]), f"{json.dumps(report, indent=2)}\n".encode())
    raise SystemExit(0 if report["proved"] else 1)


def compare_files(
    paths: list[Path], cfg: Json, titles: list[str], say: Callable[[str], None]
) -> Json:
    """The report of a comparison of two files: see `compare.compare`.

    cfg: sections `gate` and `ab`, and the seed.
    """
    policies = [exported.open_onnx(path)[0] for path in paths]
    from gpusim_rl.gate.compare import compare

    with exported.file_errors(paths[1]):
        return compare(policies, cfg["gate"], cfg["ab"], cfg["seed"], titles, say)


def policy_file(cfg: Json) -> Path:
    """The file that is judged: onnx=, or that of a run."""
    from gpusim_rl.config.validate import writable
    from gpusim_rl.gate.settings import check_keys

    check_keys(cfg)
    writable("judged", cfg["judged"], (".onnx",))
    path = Path(cfg["onnx"]) if cfg["onnx"] else find_run(cfg).path / "policy.onnx"
    if not path.is_file() and not cfg["onnx"]:
        raise ValueError(f"there is no {path}: write it with mode=export")
    writable("onnx", None if cfg["judged"] else str(path))
    return path


def evaluate_file(
    path: Path, settings: Json, seed: int, out: Path | None = None
) -> tuple[Json, bytes]:
    """The report of a file, whose verdict is written into it or `out`, and what was judged.

    ValueError if it cannot be judged, or is changed meanwhile.
    """
    from gpusim_rl.deploy.runtime import MAX_BYTES

    data = read_whole(path, MAX_BYTES)
    report = report_of(path, settings, seed)
    from gpusim_rl.gate.judge import write_verdict

    write_verdict(path, report, settings, data, out)
    return report, data


def report_of(
    path: Path, settings: Json, seed: int, title: str | None = None, say: Say = print_now
) -> Json:
    """The report of a file, into which nothing is written; ValueError if it cannot be judged."""
    policy, _ = exported.open_onnx(path)
    from gpusim_rl.gate.judge import evaluate_policy

    with exported.file_errors(path):
        return evaluate_policy(policy, settings, seed, title or str(path), say)


def text(report: Json) -> str:
    """A report for people."""
    from gpusim_rl.gate.judge import table

    lines = [table(report["rows"])]
    if report["changed"]:
        parts = ", ".join(f"gate.{key}={value}" for key, value in report["changed"].items())
        lines.append(f"other than the defaults: {parts}")
    if report["skipped"]:
        parts = ", ".join(f"{name} ({why})" for name, why in report["skipped"].items())
        lines.append(f"not tried, since the robot lacks it: {parts}")
    if report["follows"] == "nothing":
        lines.append("no command is followed: falls and limits alone are judged")
    if report["rotation"]:
        lines.append("of the command the position alone is judged, and not the rotation")
    parts = ", ".join(
        f"{x['joint']} {x['rms']:.4f} {x['unit']} {x['hz']:.1f} Hz ({x['scenario']})"
        for x in sorted(report["chatter"], key=lambda x: -x["rms"])
    )
    each = errors.printable(f"chatter at most: {parts}")
    lines.append(textwrap.fill(each, 100, subsequent_indent="  "))
    if about := report["adopted"]:
        lines += adoption_lines(about, report["rows"])
    won = report["success"]
    low, high = won["interval"]
    lines.append(f"success {won['value']:.3f} ({low:.3f} to {high:.3f}) of {won['of']} robots")
    return "\n".join(lines)


def adoption_lines(about: Json, rows: list[Json]) -> list[str]:
    """What to know of a policy that others trained."""
    lines = [f"adopted: {about['source']}, {about['licence']}, card {about['card'][:12]}"]
    if unmeasured := about["reads_unmeasured"]:
        lines.append(f"it reads what no robot measures: {', '.join(unmeasured)}")
    limits = "the limits are gpusim_rl's for small walkers, not its makers'"
    lines.append(f"{limits}; tracking is reported, not judged")
    if rows[0]["falls"]["value"] > 0.5:
        lines.append("most robots fall in normal: is the card right?")
    return [errors.printable(line) for line in lines]


COLORS = {"pass": "#2e7d32", "fail": "#b3261e", "other": "#595959"}
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img">
<title>{left}: {right}</title>
<clipPath id="round"><rect width="{width}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)"><path fill="#333" d="M0 0h{split}v20H0z"/>
<path fill="{color}" d="M{split} 0h{rest}v20h-{rest}z"/></g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14" textLength="{first}">{left}</text>
<text x="{start}" y="14" textLength="{second}">{right}</text></g></svg>
"""


def badge(report: Json) -> str:
    """A result as a small picture (SVG), red if the gate exits with 1.

    Grey if the settings were not the usual ones, or the tracking is not judged.
    """
    from gpusim_rl.deploy.onboard.verdict import difference

    left, verdict, usual = "gpusim gate", report["verdict"], not difference(report)
    right = {"pass": "passes", "fail": "fails"}[verdict]
    if verdict == "pass" and refused(report):
        right, verdict = "a variant fails", "fail"
    right += f", success {report['success']['value']:.3f}"
    if not usual:
        right += ", other settings" if report["changed"] else ", tracking not judged"
    first, second = (round(6.1 * len(x)) for x in (left, right))  # px, which the text is set to
    color = COLORS[verdict if usual else "other"]
    sizes = dict(first=first, second=second, split=first + 12, rest=second + 12, start=first + 18)
    return BADGE.format(left=left, right=right, color=color, width=first + second + 24, **sizes)


def failure(path: Path, report: Json) -> str:
    """Why a policy or its variants fail, in a line; empty if they pass. A pass is printed."""
    if report["verdict"] != "pass":
        lines = report["complaints"]
        more = f"; and {len(lines) - MAX_LINES} more" if len(lines) > MAX_LINES else ""
        after = "" if report["adopted"] else f"; next: {REMEDY}"
        return f"{path} fails the gate: {'; '.join(lines[:MAX_LINES])}{more}{after}"
    print(f"{path} passes the gate; the verdict is written into the file")
    return f"{path}: refused variants: {', '.join(refused(report))}" if refused(report) else ""


def refused(report: Json) -> list[str]:
    """The variants that are not as good as their file."""
    return [x["variant"] for x in report.get("variants", []) if x["refused"]]
