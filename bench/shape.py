"""Measures of the code's shape: what a change must touch, and what a reader must look up.

Run it at two commits.

    python -m bench.shape [FOLDER]          a table of this checkout, or of another one

Everything is counted from source, with `ast` where a line would mislead.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

SURFACES = ("cli", "api", "mcp", "jobs")
EVERYWHERE = ("agent", "alembic", "bench", "collector", "common", "dashboards", "docs", "tests")
LONGEST_LINE = 100
FORMATTERS = {
    *(
        "format_minor",
        "format_exact",
        "to_minor_units",
        "money_text",
        "minor_amount",
        "minor_digits",
    ),
    *("decimal_text", "group_digits", "round_amounts"),
}
"""What writes an amount as text; who calls one of these is a formatter of its own."""
MONEY = {"accounting/money.py", "accounting/budgets.py"}
BARE = re.compile(
    r"^(as|at|before|after|between|by|for|from|in|into|of|on|over|since|to|until|with|within|without"
    r"|(?!feed$|need$|seed$|shed$|speed$)[a-z]+ed"
    r"|known|held|told|made|found|kept|shown|said|given|taken|written|drawn|lost|left|met)$"
)
"""A function that is called by a preposition or a participle alone.

`read`, `put`, `set` and `cut` are verbs as well, and a longer name says what is done to what.
"""

Tree = dict[str, ast.Module]


def parse(folder: Path) -> Tree:
    """The modules below a folder, by path."""
    return {
        str(path.relative_to(folder)): ast.parse(path.read_text())
        for path in sorted(folder.rglob("*.py"))
        if "node_modules" not in path.parts
    }


def imports_of(module: ast.Module) -> Iterator[str]:
    """Modules that a module imports, wherever it does."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                yield f"{node.module}.{name.name}"
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def calls_of(tree: Tree) -> Iterator[tuple[str, ast.Call]]:
    """Calls with the module that makes them."""
    for path, module in tree.items():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                yield path, node


def storage_imports(tree: Tree) -> str:
    """How often a surface imports storage, by surface."""
    counts = dict.fromkeys(SURFACES, 0)
    for path, module in tree.items():
        part = path.partition("/")[0]
        if part in counts:
            counts[part] += sum(
                name.startswith("gpuledger_collector.storage") for name in imports_of(module)
            )
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def column_lists(tree: Tree) -> int:
    """Names of columns that are assigned as a list: constants called COLUMNS, and texts that are
    split to names.
    """
    found = 0
    for path, module in tree.items():
        if path.startswith("storage/schema"):
            continue
        for node in ast.walk(module):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            found += any(
                isinstance(target, ast.Name) and re.search(r"COLUMNS?$|FIELDS$", target.id)
                for target in targets
            )
    return found


def formatters(tree: Tree) -> int:
    """Functions outside accounting/money that write an amount as text themselves."""
    found = 0
    for path, module in tree.items():
        if path in MONEY:
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                called = {
                    call.func.id
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                }
                found += bool(called & FORMATTERS)
    return found


def indexed_rows(tree: Tree) -> int:
    """Values that are taken out of a row by number."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "row"
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
        for module in tree.values()
        for node in ast.walk(module)
    )


def spread_rows(tree: Tree) -> int:
    """Types that are made of a row by the order of its columns."""
    return sum(
        isinstance(call.func, ast.Name)
        and call.func.id[:1].isupper()
        and any(
            isinstance(given, ast.Starred)
            and isinstance(given.value, ast.Name)
            and given.value.id == "row"
            for given in call.args
        )
        for _, call in calls_of(tree)
    )


def storage_cycles(tree: Tree) -> str:
    """Imports among the parts of storage that close a circle: the fewer ones of each pair that
    import each other.
    """
    edges: dict[tuple[str, str], int] = defaultdict(int)
    for path, module in tree.items():
        match = re.match(r"storage/(\w+)", path)
        if not match:
            continue
        for name in imports_of(module):
            other = re.match(r"gpuledger_collector\.storage\.(\w+)", name)
            if other and other[1] != match[1]:
                edges[match[1], other[1]] += 1
    pairs = {tuple(sorted(pair)) for pair in edges if pair[::-1] in edges}
    total = sum(min(edges[a, b], edges[b, a]) for a, b in pairs)
    return (
        f"{total} in {len(pairs)} pairs ({', '.join(f'{a}-{b}' for a, b in sorted(pairs))})"
        if pairs
        else "0"
    )


def statements(tree: Tree) -> int:
    """Statements, docstrings aside."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for module in tree.values()
        for node in ast.walk(module)
    )


def bare_names(folder: Path) -> str:
    """Functions that are called by a bare participle or preposition, by part of the repository."""
    counts = {
        part: sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and bool(BARE.match(node.name.lstrip("_")))
            for module in parse(folder / part).values()
            for node in ast.walk(module)
        )
        for part in EVERYWHERE
    }
    return ", ".join(f"{part} {count}" for part, count in counts.items() if count) or "0"


def long_lines(folder: Path) -> str:
    """Lines of the repository's Python above the longest that there should be."""
    lines = [
        line
        for part in EVERYWHERE
        for path in (folder / part).rglob("*.py")
        for line in path.read_text().splitlines()
    ]
    long = sum(len(line) > LONGEST_LINE for line in lines)
    return f"{long:,} of {len(lines):,} ({long / len(lines):.1%})"


MEASURES: tuple[tuple[str, Callable[[Tree], object]], ...] = (
    ("imports of storage", storage_imports),
    ("lists of columns", column_lists),
    ("functions that format money", formatters),
    ("row[n]", indexed_rows),
    ("Type(*row)", spread_rows),
    ("imports up in storage", storage_cycles),
    ("statements", statements),
)


def main(folder: Path) -> None:
    """Print the measures of a checkout."""
    tree = parse(folder / "collector" / "gpuledger_collector")
    for name, measure in MEASURES:
        value = measure(tree)
        print(f"{name:<28} {value:,}" if isinstance(value, int) else f"{name:<28} {value}")
    print(f"{'bare participles':<28} {bare_names(folder)}")
    print(f"{f'lines over {LONGEST_LINE}':<28} {long_lines(folder)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
