"""The documentation site: built, complete, loading nothing from elsewhere, and searched from a disk."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs import site

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom")
TYPED = """<script>setTimeout(() => {
  document.querySelector(".md-search__button").click();
  setTimeout(() => document.execCommand("insertText", false, "commitment"), 1500);
  const links = root => [...root.querySelectorAll("*")].flatMap(
    element => [...(element.shadowRoot ? links(element.shadowRoot) : []), ...(element.href ? [element.href] : [])]);
  setTimeout(() => document.title = links(document).filter(link => link.includes("?h=")).join(" "), 6000);
}, 1000)</script></body>"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site as `./dev site` builds it; a broken link would have ended it with 1."""
    folder = tmp_path_factory.mktemp("site") / "site"
    answer = subprocess.run(
        [sys.executable, "-m", "docs.site", folder], cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    assert "every link checked" in answer.stdout
    return folder


@pytest.mark.slow
def test_every_page_of_the_documentation_is_in_it(built):
    """Guides, runbooks, decisions, reference: each has its page, and the navigation leads to it."""
    home = (built / "index.html").read_text()
    for source in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")]:
        place = str(source.relative_to(ROOT / "docs").with_suffix(".html")).replace("README", "index")
        assert (built / place).is_file(), place
        assert f'/{place}"' in home, place
    assert (built / "pictures/overview.png").is_file()
    assert "COMMIT" in (built / "source/collector/gpuledger_collector/ingest/batches/commit.py.txt").read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(built):
    """No page or style names the server of a font, a script or a picture."""
    for path in built.rglob("*.html"):
        assert not re.search(
            r"fonts\.g|unpkg|jsdelivr|cdnjs|<(script|img|iframe)[^>]*src=\"?(https?:)?//", path.read_text()
        ), path
    for path in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text()), path


@pytest.mark.slow
def test_it_is_searched_from_a_disk(built, tmp_path):
    """Opened as a file, without a server, the search finds the page by a word of its heading."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    page = built / "typed.html"
    page.write_text((built / "index.html").read_text().replace("</body>", TYPED))
    try:
        shown = subprocess.run(
            [BROWSER, *QUIET, f"--user-data-dir={tmp_path}", page.as_uri()],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
    finally:
        page.unlink()
    assert "what-a-gpu-hour-costs.html" in shown.partition("<title>")[2].partition("</title>")[0]


def test_faults_of_a_site_are_named(tmp_path):
    """A page that is not there, a heading that is not there, and a script of somebody else."""
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#far">b</a><a href="c.html">c</a><a href="#top">a</a>'
    )
    (tmp_path / "b.html").write_text(
        '<script src="https://cdn.example/x.js"></script><a href="https://example.org">out</a>'
    )
    (tmp_path / "s.css").write_text("@import url(https://fonts.example/f.css);")
    assert sorted(site.faults_of(tmp_path)) == [
        "a.html: b.html#far has no such heading",
        "a.html: c.html leads nowhere",
        "b.html loads https://cdn.example/x.js",
        "s.css loads https://fonts.example/f.css",
    ]


def test_links_follow_pages_and_code_stays(tmp_path):
    """A page, a source file, a folder without an index and a link within code; a file that is missing is a problem."""
    staging = site.Staging(tmp_path, {"docs/guides/a.md": "guides/a.html", "ARCHITECTURE.md": "ARCHITECTURE.md"})
    text = "[one](../../ARCHITECTURE.md#x) [`dev`](../../dev) [tests](../../tests) `[no](link.md)` [gone](gone.md)"
    assert staging.relink(text, "docs/guides/a.md") == (
        "[one](../ARCHITECTURE.md#x) [`dev`](../source/dev.txt) tests `[no](link.md)` gone"
    )
    assert staging.problems == ["docs/guides/a.md: gone.md is not there"]
    assert (tmp_path / "source/dev.txt").read_text() == (ROOT / "dev").read_text()


def test_markdown_of_a_repository_becomes_that_of_the_generator():
    """Blank lines before lists and tables, four spaces below an item, code as it is."""
    text = "Words:\n- one\n  - two\n```\n- code\n| code |\n```\n| a |\n|---|\n| b |\n"
    assert site.as_python_markdown(text) == (
        "Words:\n\n- one\n    - two\n\n```\n- code\n| code |\n```\n\n| a |\n|---|\n| b |\n"
    )
