"""The live table of a training, in a terminal."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from math import inf, isfinite
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.spinner import Spinner
from rich.text import Text

from gpusim_rl.core.errors import printable
from gpusim_rl.core.metrics import Metric, tracks
from gpusim_rl.core.waiting import clock, waiting
from gpusim_rl.training.bottleneck import cluster_verdict, pages_read, verdict

FIRST = "the first iteration, which compiles what is new"
BARS = " ▁▂▃▄▅▆▇█"
LINES = 20  # that were said last, and are said anew when the terminal has another size
WIDEST_CURVE = 100  # characters of a curve, and of the bar
GAPS = (2, 8)  # least and largest number of spaces between two groups
MEASURES = 5  # in the table, at most
SHORTEST_NAME = 4  # characters of a name, in a narrow terminal
Row = dict[str, float]


class Dashboard:
    """The live table of a training, or plain lines where there is no terminal.

    Args:
        done: of the iterations, before this process.
        metrics: names in the table, and formats. Those of the learner come last.
        bounds: measures that a drive has bounds for.
    """

    def __init__(
        self,
        title: str,
        iterations: int,
        done: int = 0,
        *,
        metrics: Iterable[Metric] = (),
        bounds: Iterable[str] = (),
        quiet: bool = False,
    ):
        self.title, self.iterations, self.done = title, iterations, done
        self.metrics = [x for x in metrics if x.table]
        self.bounds = {*bounds}
        self.console = Console(stderr=False, quiet=quiet)
        self.lines: deque[str] = deque(maxlen=LINES)  # that were said
        live = self.console.is_terminal and not quiet
        self.live = Picture(self.console, self.lines) if live else None
        self.success: dict[str, float] = {}  # of the last evaluation
        self.evaluated = 0  # the iteration of that evaluation
        self.unsaid = ""  # the last plain line, if it was left out
        # mean rewards, and what each evaluation found, since this process began
        self.curves: dict[str, list[float]] = {"reward": [], "success": []}
        self.quiet_until = 0.0  # s of training before the next plain line
        self.pages, self.bound = pages_read(), ""
        self.first = ExitStack()  # ends with the first row

    def __enter__(self) -> "Dashboard":
        if self.live:
            self.live.update(Group(Text(self.title, "bold"), Spinner("dots", FIRST)))
            self.live.start()
        elif not self.console.quiet:
            self.first.enter_context(waiting(FIRST, self.say))
        return self

    def __exit__(self, *_: object) -> None:
        self.first.close()
        if self.live:
            self.live.stop()
        for line in filter(None, (self.unsaid, "" if self.live else self.bound)):
            self.say(line)

    def say(self, message: str, copied: bool = False) -> None:
        """Print a line above the table. A terminal breaks it between words, unless it is copied."""
        whole = copied or not self.console.is_terminal
        self.console.print(printable(message), highlight=False, markup=False, soft_wrap=whole)
        self.lines.append(printable(message))

    def show(self, row: Row, trained_s: float) -> None:
        """Show a row of metrics after `trained_s` seconds of training in this process."""
        self.first.close()
        i = int(row["iteration"])
        for key, curve in self.curves.items():
            if isfinite(row.get(key, inf)):
                curve.append(row[key])
        if "success" in row:
            self.success, self.evaluated = (
                {"success": row["success"]},
                int(row.get("success_of", i)),
            )
        row = self.success | row
        left = trained_s / max(i - self.done, 1) * (self.iterations - i)
        shares = {key[6:]: value for key, value in row.items() if key.startswith("share/")}
        pages = (pages_read() - self.pages) / max(trained_s, 1.0)
        here = verdict(shares, cores=row.get("cores"), pages=pages)
        there = cluster_verdict(row).line if "cluster/idle" in row else ""
        self.bound = there if "actors" in shares else here.line
        if self.live:
            self.live.update(Table(self, row, left))
            return
        success = f"  success {row['success']:.3f}" if "success" in row else ""
        success += f" (iteration {self.evaluated})" if success and self.evaluated < i else ""
        env_steps, speed = row["env_steps"] / 1e6, row["steps_per_s"]
        self.unsaid = (
            f"iteration {i}/{self.iterations}  {env_steps:.2f} M steps  {speed:,.0f} steps/s"
            f"  reward {row['reward']:.2f}/s{success}"
            f"  time {clock(row['time_s'])}  left {clock(left)}"
        )
        if trained_s >= self.quiet_until:
            self.quiet_until = trained_s + 5.0
            self.say(self.unsaid)
            self.unsaid = ""


class Picture(Live):
    """A live picture, drawn anew from the top when the terminal has another size.

    A terminal may have broken the lines of the last picture then: it cannot be erased line by line.
    The lines that stood above are printed again.
    """

    def __init__(self, console: Console, lines: Iterable[str]):
        super().__init__(console=console, refresh_per_second=4)
        self.lines, self.size = lines, console.size

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """What is to be drawn; its first part puts the cursor where the last picture began."""
        parts, size = super().process_renderables(renderables), self.console.size
        if size == self.size:
            return parts
        self.size = size
        empty = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_DOWN, 1)] * size.height
        clear = Control(ControlType.HOME, *empty, ControlType.HOME)
        return [clear, *map(Text, self.lines), *parts[1:]]


class Column(NamedTuple):
    """A group of the table: names with their numbers."""

    heading: str
    style: str  # of the numbers
    cells: list[tuple[str, str]]
    most: int | None = None  # cells that are shown


class Table:
    """A row of metrics on one screen, with so many seconds left, in lines that are no longer than
    the terminal is wide."""

    def __init__(self, board: Dashboard, row: Row, left: float):
        self.board, self.row, self.left = board, row, left
        self.measures = {k[8:]: v for k, v in row.items() if k.startswith("measure/")}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        above, below = self.head(width), self.foot(width)
        # a blank line stands above and below the groups
        rows = max(2, options.size.height - len(above) - len(below) - 2)
        for line in (*above, Text(), *side_by_side(self.groups(), width, rows), Text(), *below):
            line.truncate(width, overflow="ellipsis")
            yield line

    def head(self, width: int) -> list[Text]:
        """What is trained, and how far it is."""
        i, last = int(self.row["iteration"]), self.board.iterations
        begin = f"iteration {i:,} / {last:,} "
        end = f" {clock(self.row['time_s'])}, {clock(self.left)} left"
        bar = max(0, min(WIDEST_CURVE, width - len(begin) - len(end)))
        full = round(bar * min(i / max(last, 1), 1.0))
        done, rest = ("━" * full, "green"), ("─" * (bar - full), "dim")
        return [Text(self.board.title, "bold"), Text.assemble(begin, done, rest, end)]

    def groups(self) -> list[Column]:
        """Numbers of the training, reward terms and measures."""
        row, curves = self.row, self.board.curves
        steps, speed = f"{row['env_steps'] / 1e6:.2f}", f"{row['steps_per_s']:,.0f}"
        numbers = [
            (x.table, format(row[x.key], x.format))
            for x in self.board.metrics
            if x.key in row and x.key not in curves
        ]
        terms = [(k[7:], f"{v:+.3f}") for k, v in row.items() if k.startswith("reward/")]
        # what tells how well a command is followed comes first, then what has a bound
        names = sorted(
            (name for name in self.measures if "/" not in name),
            key=lambda name: (not tracks(name), name not in self.board.bounds),
        )
        means = [(name, f"{self.measures[name]:.3f}") for name in names]
        return [
            Column("Training", "bold", [("steps [M]", steps), ("steps/s", speed), *numbers]),
            Column("Reward terms [1/s]", "cyan", terms),
            Column("Measures", "green", means, MEASURES),
        ]

    def foot(self, width: int) -> list[Text]:
        """Curves, measures in groups, numbers that change, and what takes the time."""
        row, curves, bound = self.row, self.board.curves, self.board.bound
        success = f"{row['success']:.3f}" if "success" in row else "at the end"
        plan = [f"{k[9:]} {v:.4g}" for k, v in row.items() if k.startswith("schedule/")]
        parts = {k[6:]: v for k, v in row.items() if k.startswith("share/")}
        if len(bound) > width:  # its last part tells how many cores are busy
            bound = bound.rpartition(",")[0]
        space = max(0, min(WIDEST_CURVE, width - 20))
        return [
            Text.assemble(
                f"{'reward/s':9}{row['reward']:10.2f} ", (curve(curves["reward"], space), "cyan")
            ),
            Text.assemble(
                f"{'success':9}{success:>10} ", (curve(curves["success"], space, (0, 1)), "green")
            ),
            *(Text(line, "green") for line in groups(self.measures)),
            *(Text(line, "yellow") for line in plan),
            Text("time: " + ", ".join(f"{key} {share:.0%}" for key, share in parts.items())),
            Text(bound, "dim"),
        ]


def side_by_side(columns: Sequence[Column], width: int, rows: int) -> list[Text]:
    """Columns beside each other, each in at most `rows` lines, its heading among them.

    Names are cut where all are wider than `width`.
    """
    columns = [fewer_cells(column, rows - 1) for column in columns if column.cells]
    numbers = [aligned([number for _, number in column.cells]) for column in columns]
    right = [2 + max(map(len, texts)) for texts in numbers]  # width of the numbers
    left = [
        max(len(column.heading) - size, *(len(name) for name, _ in column.cells))
        for column, size in zip(columns, right, strict=True)
    ]
    between = max(1, len(columns) - 1)
    while sum(left) + sum(right) + GAPS[0] * between > width and max(left) > SHORTEST_NAME:
        left[left.index(max(left))] -= 1
    gap = " " * max(GAPS[0], min(GAPS[1], (width - sum(left) - sum(right)) // between))
    lines = [Text() for _ in range(1 + max(len(column.cells) for column in columns))]
    for column, texts, name_size, size in zip(columns, numbers, left, right, strict=True):
        lines[0].append(fitted(column.heading, name_size + size), "bold")
        for line, (name, _), number in zip(lines[1:], column.cells, texts, strict=False):
            line.append(fitted(name, name_size), "dim")
            line.append(f"{number:>{size}}", column.style)
        for line in lines[1 + len(texts) :]:
            line.append(" " * (name_size + size))
        for line in lines:
            line.append(gap)
    for line in lines:
        line.rstrip()
    return lines


def fewer_cells(column: Column, rows: int) -> Column:
    """The column, whose last row tells how many are missing if there are more than `rows`, or than
    it shows.
    """
    count, most = len(column.cells), column.most or rows
    if count <= min(rows, most):
        return column
    cells = column.cells[: min(rows - 1, most)]
    return column._replace(cells=[*cells, (f"… {count - len(cells)} in metrics.jsonl", "")])


def fitted(text: str, size: int) -> str:
    """A text in so many characters: with spaces behind it, or cut."""
    return text.ljust(size) if len(text) <= size else f"{text[: size - 1]}…"


def aligned(numbers: Sequence[str]) -> list[str]:
    """Texts of numbers with spaces behind them, so that decimal points stand below each other.

    They are to be set flush right.
    """
    parts = [number.partition(".") for number in numbers]
    digits = max((len(point + rest) for _, point, rest in parts), default=0)
    return [whole + (point + rest).ljust(digits) for whole, point, rest in parts]


def curve(values: Sequence[float], size: int, ends: tuple[float, float] | None = None) -> str:
    """A curve in at most `size` characters, of means where there are more values.

    ends: what the lowest and the highest bar stand for; the extremes unless given.
    """
    count = min(size, len(values))
    if not count:
        return ""
    cuts = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = ends or (min(means), max(means))
    span = max(high - low, 1e-9)
    shares = (min(max((x - low) / span, 0.0), 1.0) for x in means)
    return "".join(BARS[1 + round(share * (len(BARS) - 2))] for share in shares)


def groups(measures: Row) -> list[str]:
    """A line for the measures that share a name before a slash: level/0, level/1, level/slope …

    Numbered ones are shares of the worlds, and become a histogram.
    """
    lines = []
    for name in dict.fromkeys(key.partition("/")[0] for key in measures if "/" in key):
        group = {k.partition("/")[2]: v for k, v in measures.items() if k.startswith(f"{name}/")}
        shares = [value for key, value in group.items() if key.isdigit()]
        if shares:
            height = max(*shares, 1e-9)
            bars = "".join(BARS[round(share / height * (len(BARS) - 1))] for share in shares)
            lines.append(f"{name} 0 {bars} {len(shares) - 1}")
        others = [f"{key} {value:.2f}" for key, value in group.items() if not key.isdigit()]
        lines += [f"{name}: {', '.join(others)}"] if others else []
    return lines
