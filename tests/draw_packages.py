"""Draws docs/packages.svg, the packages and who imports whom: `python -m tests.draw_packages`.

The arrows are the imports in the source, and each row is a floor of `tests/packages.py`. A dark
arrow is an import which follows from no other arrows; a pale line is one between packages that dark
arrows connect already.
"""

from itertools import pairwise
from pathlib import Path

from tests.packages import FLOORS, ROOT, module_counts, package_imports

PICTURE = ROOT / "docs" / "packages.svg"

WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 840, 92, 128, 48  # px
GAP, LANE = 44, 26  # px: between neighbors in a row; the room for an arrow that passes a row
SWEEPS = 40  # of the ordering of rows and the placing in them: more change nothing
COLORS = ["#dbe7f3", "#d8ecea", "#dfeeda", "#eef0d3", "#f7ecd0", "#f8e2cf", "#f6d9d5", "#efd8e6"]
COLORS += ["#e2dcf0", "#d9dff2"]

Node = tuple[str, ...]  # a package is (name,); the arrow's lane in a row is (from, to, row)


def without_implied(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from a path of others: the transitive reduction."""

    def reaches(start: str) -> set[str]:
        return {start}.union(*(reaches(other) for other in arrows.get(start, ())))

    return {
        name: {o for o in others if not any(o in reaches(p) for p in others - {o})}
        for name, others in arrows.items()
    }


def paths(arrows: dict[str, set[str]], level: dict[str, int]) -> list[list[Node]]:
    """For each arrow its nodes from top to bottom, with a lane in each row that it passes."""
    return [
        [(a,), *((a, b, str(row)) for row in range(level[a] - 1, level[b], -1)), (b,)]
        for a in sorted(arrows)
        for b in sorted(arrows[a])
    ]


def row_of(node: Node, level: dict[str, int]) -> int:
    """The row of a package or of a lane, counted from the bottom."""
    return level[node[0]] if len(node) == 1 else int(node[2])


def place(lines: list[list[Node]], level: dict[str, int]) -> dict[Node, float]:
    """The x of the middle of each node: near its neighbors in the rows above and below."""
    nodes: list[list[Node]] = [[] for _ in range(max(level.values()) + 1)]
    near: dict[Node, list[Node]] = {(name,): [] for name in level}
    for line in lines:
        for a, b in pairwise(line):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    for node in near:
        nodes[row_of(node, level)].append(node)
    x = {node: WIDTH / 2 for node in near}
    for row in nodes:
        row.sort()
        spread(row, x, {node: WIDTH * (i + 1) / (len(row) + 1) for i, node in enumerate(row)})
    for sweep in range(SWEEPS):
        for row in nodes if sweep % 2 else reversed(nodes):
            want = {node: middle(node, near[node], x) for node in row}
            row.sort(key=lambda node, want=want: (want[node], node))
            spread(row, x, want)
    left = min(x[name,] for name in level)
    shift = (WIDTH - left - max(x[name,] for name in level)) / 2
    return {node: at + shift for node, at in x.items()}


def middle(node: Node, near: list[Node], x: dict[Node, float]) -> float:
    """The mean x of a node's neighbors; lanes hold together, so that long arrows run straight."""
    weights = [6 if len(node) == len(other) == 3 else 1 for other in near]
    total = sum(weight * x[other] for weight, other in zip(weights, near, strict=True))
    return total / sum(weights) if near else x[node]


def spread(row: list[Node], x: dict[Node, float], want: dict[Node, float]) -> None:
    """Write into x places as near to the wanted ones as the widths and the order of a row allow."""
    half = {node: (BOX_WIDTH if len(node) == 1 else LANE) / 2 for node in row}
    groups: list[list[Node]] = []

    def offsets(group: list[Node]) -> list[float]:
        at, out = 0.0, []
        for a, b in zip([group[0], *group], group, strict=False):
            at += half[a] + half[b] + (GAP if len(a) == len(b) == 1 else 10) if a != b else 0
            out.append(at)
        return out

    def start(group: list[Node]) -> float:
        wish = [want[node] - at for node, at in zip(group, offsets(group), strict=True)]
        first = sum(wish) / len(wish)
        last = WIDTH - 16 - half[group[-1]] - offsets(group)[-1]
        return max(16 + half[group[0]], min(first, last))

    for node in row:
        groups.append([node])
        while len(groups) > 1:
            a, b = groups[-2:]
            free = start(b) - start(a) - offsets(a)[-1] - half[a[-1]] - half[b[0]]
            if free >= (GAP if len(a[-1]) == len(b[0]) == 1 else 10):
                break
            groups[-2:] = [a + b]
    for group in groups:
        for node, at in zip(group, offsets(group), strict=True):
            x[node] = start(group) + at


def curve(points: list[tuple[float, float]]) -> str:
    """The data of an SVG path that leaves and reaches each point vertically."""
    (x, y), *rest = points
    words = [f"M{x:.0f} {y:.0f}"]
    for to_x, to_y in rest:
        bend = (to_y - y) / 2
        words.append(f"C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}")
        x, y = to_x, to_y
    return " ".join(words)


def draw(root: Path) -> str:
    """The text of the SVG file for the sources under root."""
    arrows, counts = package_imports(root), module_counts(root)
    level = {name: FLOORS[name] - 1 for name in arrows}
    top = max(level.values())
    lines = paths(without_implied(arrows), level)
    x = place(lines, level)
    height = top * ROW + BOX_HEIGHT + 24

    def y(node: Node) -> float:
        return (top - row_of(node, level)) * ROW + 12

    direct = {(line[0], line[-1]) for line in lines}
    pale = [((a,), (b,)) for a in sorted(arrows) for b in sorted(arrows[a])]
    out = [HEAD.format(width=WIDTH, height=height)]
    for a, b in pale:
        if (a, b) not in direct:
            ends = [(x[a], y(a) + BOX_HEIGHT), (x[b], y(b))]
            out.append(f'<path class="implied" d="{curve(ends)}"/>')
    for line in lines:
        points = [(x[line[0]], y(line[0]) + BOX_HEIGHT)]
        for lane in line[1:-1]:
            points += [(x[lane], y(lane)), (x[lane], y(lane) + BOX_HEIGHT)]
        points.append((x[line[-1]], y(line[-1]) - 3))
        out.append(f'<path class="direct" marker-end="url(#head)" d="{curve(points)}"/>')
    out += [box(name, x[name,], y((name,)), level[name], counts[name]) for name in sorted(level)]
    return "\n".join([*out, "</svg>", ""])


def box(name: str, x: float, y: float, row: int, modules: int) -> str:
    """A package: its name and its number of modules."""
    color = COLORS[row % len(COLORS)]
    size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="9"'
    count = f"{modules} module{'s' if modules > 1 else ''}"
    return (
        f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" {size} fill="{color}"/>\n'
        f'<text class="name" x="{x:.0f}" y="{y + 21:.0f}">{name}</text>\n'
        f'<text class="count" x="{x:.0f}" y="{y + 38:.0f}">{count}</text>'
    )


HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>The packages of gpusim_rl and who imports whom</title>
<style>
text {{ font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; text-anchor: middle }}
.name {{ font-size: 15px; font-weight: 600; fill: #1f2933 }}
.count {{ font-size: 11.5px; fill: #52606d }}
rect {{ stroke: #7b8794; stroke-width: 1 }}
.direct {{ fill: none; stroke: #3e4c59; stroke-width: 1.5 }}
.implied {{ fill: none; stroke: #dde2e7; stroke-width: 1 }}
</style>
<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" orient="auto"
 markerWidth="7" markerHeight="7">
<path d="M0 0.5 L7.5 4 L0 7.5 z" fill="#3e4c59"/>
</marker>
<rect width="{width}" height="{height}" fill="#ffffff" style="stroke: none"/>"""

if __name__ == "__main__":
    PICTURE.write_text(draw(ROOT))
    print(f"wrote {PICTURE.relative_to(ROOT)}")
