"""Builds the documentation site from the Markdown pages as they are: docs/, README, ARCHITECTURE
and their neighbors.

    python -m docs.site [FOLDER]     (build/site)

The pages are written for a repository, where a link may lead to any file. So they are copied first:
links between pages follow them, a linked source file becomes a text file of the site, and a link to
a folder leads to its index, or is plain text. Zensical then renders them, and every link, anchor
and picture of the result is checked. The site loads nothing from elsewhere and can be read from a
disk without a server. Needs the standard library and Zensical.
"""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
HOME = "README.md"
SECTIONS = {
    "Start": [
        "docs/guides/walk.md",
        "docs/guides/pages.md",
        "docs/what-it-does.md",
        "docs/guides/README.md",
        "docs/guides/coming-from.md",
        "docs/glossary.md",
    ],
    "Run a fleet": [
        f"docs/guides/{name}.md"
        for name in (
            "platform-engineer",
            "install-agent",
            "slurm",
            "kubernetes",
            "deploy",
            "no-agent",
            "exporters",
            "gateways",
            "doctor",
            "keeping",
        )
    ],
    "Answer for the bill": [
        f"docs/guides/{name}.md"
        for name in (
            "analyst",
            "import",
            "what-a-gpu-hour-costs",
            "unit-cost",
            "shared-inference",
            "disputes",
            "assistants",
        )
    ],
    "Lead a team": [
        f"docs/guides/{name}.md" for name in ("team-lead", "which-gpus-can-i-give-back", "mails")
    ],
    "Plan capacity": [
        "docs/forecasting.md",
        *(f"docs/guides/{name}.md" for name in ("autoscaling", "plan", "over-time")),
    ],
    "Reference": [
        f"docs/reference/{name}.md"
        for name in (
            "commands",
            "settings",
            "admission",
            "metrics",
            "profiles",
            "tables",
            "assistants",
        )
    ],
    "Runbooks": ["docs/runbooks/"],
    "Trust": [
        *(
            f"docs/{name}.md"
            for name in ("reliability", "security", "performance", "scale", "insight")
        ),
        "SECURITY.md",
    ],
    "Develop": [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "tests/README.md",
        "tests/scenarios/README.md",
    ],
    "Decisions": ["docs/decisions/"],
    "Changelog": ["CHANGELOG.md"],
}
"""The navigation; a folder stands for all of its pages behind a generated index.

Further guides go below Start.
"""
LOOSE = ("deploy/slurm/README.md", "deploy/helm/gpuledger/README.md")
"""Pages that are linked and not in the navigation."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*)\]\(([^()\s]+)\)")
LINK_OR_CODE = re.compile(f"{LINK.pattern}|`[^`\n]+`")
FENCE = re.compile(r"^( *)(```|~~~)")
ITEM = re.compile(r"^( *)([-*]|\d+\.) ")
BLOCK = re.compile(r"^( *([-*]|\d+\.) |\|| *```)")
CONFIGURATION = """\
[project]
site_name = "GPU Ledger"
site_description = "A second-exact ledger of who held, used and wasted every GPU of a fleet, and what it cost"
copyright = "Apache-2.0"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
extra_css = ["extra.css"]
nav = {nav}

[project.theme]
language = "en"
font = false
features = ["content.code.copy", "navigation.footer", "navigation.indexes", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"

[project.plugins.offline]

[project.markdown_extensions]
attr_list = {{}}
toc.permalink = true
pymdownx.betterem = {{}}
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
"""
SHIM = "https://unpkg.com/iframe-worker/shim"
WORKER = """\
// A page that was opened from a disk may start no worker: there the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      // Copies in both directions, as between threads: the search writes into the query that it gets.
      inner.postMessage = data => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        if (this.onmessage) this.onmessage(event);
      };
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => { this.loaded = true; this.waiting.splice(0).forEach(data => this.deliver(data)); };
      script.onerror = () => this.onerror && this.onerror(new Event("error"));
      inner.document.body.appendChild(script);
    }
    deliver(data) {
      const inner = this.frame.contentWindow;
      setTimeout(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded ? this.deliver(copy) : this.waiting.push(copy);
    }
    terminate() { this.frame.remove(); }
  };
}
"""
STYLE = """\
:root { --md-text-font: system-ui, sans-serif; --md-code-font: ui-monospace, "DejaVu Sans Mono", monospace; }
.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { display: block; width: fit-content; max-width: 100%; overflow-x: auto; }
.md-typeset table:not([class]) td:nth-child(n+6) { min-width: 14rem; }
.md-typeset tr:has(td:nth-child(6)) td:first-child code { white-space: nowrap; }
.md-typeset img { border-radius: 4px; }
.md-typeset p > img:only-child, .md-typeset p > a:only-child > img { box-shadow: 0 1px 6px rgb(0 0 0 / 25%); }
"""


ELSEWHERE, SCHEME = re.compile(r"(https?:)?//"), re.compile(r"([a-z]+:|//)")
STYLE_ADDRESS = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


class SiteError(Exception):
    """The site cannot be built; the message lists every reason."""


@dataclass
class Staging:
    """A folder of pages as Zensical reads them, filled from the repository."""

    folder: Path
    places: dict[str, str]
    """Where each page of the repository is in the site."""
    problems: list[str] = field(default_factory=list)

    def add(self, source: str) -> None:
        """Copy a page with its links rewritten."""
        text = as_python_markdown(self.relink((ROOT / source).read_text(encoding="utf-8"), source))
        # The tables of the metrics need the width of the contents beside them.
        head = "---\nhide: [toc]\n---\n" if source.endswith("reference/metrics.md") else ""
        self.write(self.places[source], head + text)

    def write(self, place: str, text: str) -> None:
        """Write a page of the site."""
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def relink(self, text: str, source: str) -> str:
        """The text with every link outside of code leading to a place of the site."""
        parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(
            part
            if at % 2
            else LINK_OR_CODE.sub(
                lambda found: self.link(found, source) if found[3] else found[0], part
            )
            for at, part in enumerate(parts)
        )

    def link(self, found: re.Match[str], source: str) -> str:
        """One link or picture."""
        mark, shown, address = found[1], found[2], found[3]
        shown = LINK.sub(lambda inner: self.link(inner, source), shown)
        if re.match(r"[a-z]+:", address) or address.startswith("#"):
            return f"{mark}[{shown}]({address})"
        path, _, anchor = address.partition("#")
        target = os.path.normpath(PurePosixPath(source).parent / urllib.parse.unquote(path))
        place = self.place_of(target)
        if place is None:
            if not (ROOT / target).exists():
                self.problems.append(f"{source}: {address} is not there")
            return shown
        here = PurePosixPath(self.places[source]).parent
        return f"{mark}[{shown}]({os.path.relpath(place, here)}{'#' + anchor if anchor else ''})"

    def place_of(self, target: str) -> str | None:
        """Where a file of the repository is in the site; a file that is no page is copied there."""
        for name in (target, f"{target}/", f"{target}/README.md"):
            if name in self.places:
                return self.places[name]
        path = ROOT / target
        if not path.is_file() or target.startswith(".."):
            return None
        inside = target.startswith("docs/")
        place = target.removeprefix("docs/") if inside else f"source/{target}.txt"
        copy = self.folder / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return place


def as_python_markdown(text: str) -> str:
    """Markdown of a repository as Python-Markdown reads it: blank lines before blocks, four spaces
    below an item.
    """
    lines: list[str] = []
    fence, extra = "", 0
    for line in text.splitlines():
        opening = FENCE.match(line)
        if fence:
            lines.append(" " * extra + line if line.strip() else "")
            fence = "" if opening and line.strip() == fence else fence
            continue
        before = lines[-1] if lines else ""
        indent = len(line) - len(line.lstrip(" "))
        extra = 4 - indent if 1 < indent < 4 and (opening or ITEM.match(line) or not before) else 0
        if BLOCK.match(line) and before.strip() and not starts_same_block(before, line):
            lines.append("")
        lines.append(" " * extra + line)
        fence = opening[2] if opening else ""
    return "\n".join(lines) + "\n"


def starts_same_block(before: str, line: str) -> bool:
    """Whether a line goes on with the list or table of the line before."""
    if line.lstrip().startswith("```"):
        return False
    if line.startswith("|"):
        return before.startswith("|")
    return bool(ITEM.match(before)) or before.startswith(" ")


def title_of(source: str) -> str:
    """A page's first heading, up to its colon: what the navigation shows."""
    heading = re.search(r"^# (.*)$", (ROOT / source).read_text(encoding="utf-8"), re.MULTILINE)
    words = (heading[1] if heading else source).replace("`", "")
    person, colon, rest = words.partition(": ")
    if re.match(r"\d+$", person):
        return words
    return f"{rest[0].upper()}{rest[1:]}" if colon and person.startswith("For ") else person


def pages_of(folder: str) -> list[str]:
    """The pages in a folder of the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md"))


def index_of(folder: str, title: str) -> str:
    """A page that lists the pages of a folder with the first sentence of each."""
    lines = [f"# {title}", "", "| page | in one sentence |", "|---|---|"]
    for source in pages_of(folder):
        text = re.sub(
            r"^#.*\n", "\n", (ROOT / source).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        paragraphs = [
            part
            for part in text.split("\n\n")
            if part.strip() and not part.strip().startswith(("<", "|", "```"))
        ]
        body = re.sub(
            r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split()) if paragraphs else ""
        )
        sentence = re.split(r"(?<=[.?:]) ", body.removeprefix("**Question.** "))[0].replace(
            "|", "\\|"
        )
        sentence = re.sub(r":$", ".", sentence)
        lines.append(f"| [{title_of(source)}]({PurePosixPath(source).name}) | {sentence} |")
    return "\n".join(lines) + "\n"


def places() -> dict[str, str]:
    """Every page of the repository that the site has, and its place; folders are named with a
    slash.
    """
    sources = [HOME, *LOOSE, *pages_of("docs"), *pages_of("docs/guides")]
    for entries in SECTIONS.values():
        for entry in entries:
            sources += pages_of(entry) if entry.endswith("/") else [entry]
    found = {
        source: source.removeprefix("docs/").replace("README.md", "index.md") for source in sources
    }
    # An index would stand for its whole section in the navigation, and some disks know no case.
    found |= {
        "tests/README.md": "tests/folders.md",
        "tests/scenarios/README.md": "tests/scenarios.md",
        "SECURITY.md": "security-policy.md",
    }
    folders = [entry for entries in SECTIONS.values() for entry in entries if entry.endswith("/")]
    return (
        found
        | {folder: f"{folder.removeprefix('docs/')}index.md" for folder in folders}
        | {"docs/reference/": "reference/commands.md"}
    )


def navigation(places: dict[str, str]) -> str:
    """The navigation as TOML, which reads this JSON but for its colons."""
    named = {entry for entries in SECTIONS.values() for entry in entries}
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for title, entries in SECTIONS.items():
        pages: list[tuple[str, str]] = []
        for entry in entries:
            if entry.endswith("/"):
                pages += [
                    (title, places[entry]),
                    *((title_of(source), places[source]) for source in pages_of(entry)),
                ]
            else:
                pages.append((title_of(entry), places[entry]))
        if title == "Start":
            pages += [
                (title_of(source), places[source])
                for source in pages_of("docs/guides")
                if source not in named
            ]
        sections.append((title, pages))
    parts = [f'{{"Home" = {json.dumps(places[HOME])}}}']
    for title, pages in sections:
        below = ", ".join(f"{{{json.dumps(name)} = {json.dumps(place)}}}" for name, place in pages)
        single = json.dumps(pages[0][1]) if len(pages) == 1 else f"[{below}]"
        parts.append(f"{{{json.dumps(title)} = {single}}}")
    return f"[{', '.join(parts)}]"


class References(html.parser.HTMLParser):
    """What a page of the built site refers to, what it loads, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's addresses and its id."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in {"img", "script", "iframe", "source", "video"} and "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in {
            "stylesheet",
            "icon",
            "preload",
            "preconnect",
            "prefetch",
        }:
            self.loads.append(given.get("href", ""))


def faults_of(site: Path) -> Iterator[str]:
    """Every broken link, missing anchor and request to elsewhere of a built site."""
    pages: dict[Path, References] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = References()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, references in pages.items():
        # Served in place of any page, it has addresses from the root of a server.
        if path.name == "404.html":
            continue
        name = path.relative_to(site)
        yield from (
            f"{name} loads {address}" for address in references.loads if ELSEWHERE.match(address)
        )
        for address in {*references.loads, *references.links}:
            fault = fault_of(address, path, pages)
            if fault:
                yield f"{name}: {address} {fault}"
    for path in sorted(site.rglob("*.css")):
        for address in STYLE_ADDRESS.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {address}"


def fault_of(address: str, path: Path, pages: Mapping[Path, References]) -> str:
    """Why an address on a page leads nowhere; empty when it leads somewhere in the site, or out of
    it.
    """
    if SCHEME.match(address) or address in {"", "."}:
        return ""
    file, _, anchor = urllib.parse.unquote(address).partition("#")
    target = Path(os.path.normpath(path.parent / file.partition("?")[0])) if file else path
    if not target.is_file():
        return "leads nowhere"
    return (
        "has no such heading"
        if anchor and target in pages and anchor not in pages[target].anchors
        else ""
    )


def serve_itself(site: Path) -> None:
    """Replace the one script that Zensical's offline pages would load from elsewhere by a file of
    the site.
    """
    (site / "assets/javascripts/worker.js").write_text(WORKER, encoding="utf-8")
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        own = os.path.relpath(site / "assets/javascripts/worker.js", path.parent)
        path.write_text(text.replace(SHIM, own), encoding="utf-8")


def build(target: Path) -> int:
    """Build the site into a folder that it replaces; returns the number of pages.

    Raises SiteError.
    """
    if target.exists() and any(target.iterdir()) and not (target / "search.json").exists():
        raise SiteError(f"{target} holds something else than a site: name another folder")
    with tempfile.TemporaryDirectory() as work:
        staging = Staging(Path(work) / "pages", places())
        for source in staging.places:
            if source.endswith("/"):
                if not staging.places[source].endswith("index.md"):
                    continue
                title = next(title for title, entries in SECTIONS.items() if source in entries)
                staging.write(staging.places[source], index_of(source, title))
            else:
                staging.add(source)
        if staging.problems:
            raise SiteError("\n".join(staging.problems))
        staging.write("extra.css", STYLE)
        configuration = Path(work) / "zensical.toml"
        configuration.write_text(
            CONFIGURATION.format(nav=navigation(staging.places)), encoding="utf-8"
        )
        command = [
            sys.executable,
            "-m",
            "zensical",
            "build",
            "--strict",
            "--clean",
            "--config-file",
            str(configuration),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
        site = Path(work) / "site"
        if done.returncode:
            raise SiteError(f"zensical: {done.stdout}{done.stderr}".strip())
        serve_itself(site)
        faults = list(faults_of(site))
        if faults:
            raise SiteError("\n".join(faults))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target)
    return sum(1 for _ in target.rglob("*.html"))


def main(arguments: list[str]) -> int:
    """Build the site; exit with 1 and every reason when a link is broken."""
    target = Path(arguments[0] if arguments else ROOT / "build" / "site")
    try:
        count = build(target)
    except SiteError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{target / 'index.html'}: {count} pages, every link checked\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
