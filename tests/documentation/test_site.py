"""The documentation site: built, complete, loading nothing from elsewhere, and searched from a
disk.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from docs import site

from fakes.browser import CHROMIUM, browsing

ROOT = Path(__file__).parents[2]
ELEMENTS = """(root => {
  const all = root => [...root.querySelectorAll("*")].flatMap(
    element => [element, ...(element.shadowRoot ? all(element.shadowRoot) : [])]);
  return all(root);
})(document)"""
TYPED = f"{ELEMENTS}.find(element => element.matches('input[role=combobox]'))?.value"
FOUND = f"{ELEMENTS}.filter(element => element.href?.includes('?h=')).map(element => element.href)"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site as `./dev site` builds it; a broken link would have ended it with 1."""
    folder = tmp_path_factory.mktemp("site") / "site"
    answer = subprocess.run(
        [sys.executable, "-m", "docs.site", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert answer.returncode == 0, answer.stderr
    assert "every link checked" in answer.stdout
    return folder


@pytest.mark.slow
def test_every_page_of_the_documentation_is_in_it(built):
    """Guides, runbooks, decisions, reference: each has its page, and the navigation leads to it."""
    home = (built / "index.html").read_text()
    for source in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")]:
        place = str(source.relative_to(ROOT / "docs").with_suffix(".html")).replace(
            "README", "index"
        )
        assert (built / place).is_file(), place
        assert f'/{place}"' in home, place
    assert (built / "pictures/overview.png").is_file()
    assert (
        "COMMIT"
        in (built / "source/collector/gpuledger_collector/ingest/batches/commit.py.txt").read_text()
    )


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(built):
    """No page or style names the server of a font, a script or a picture."""
    for path in built.rglob("*.html"):
        assert not re.search(
            r"fonts\.g|unpkg|jsdelivr|cdnjs|<(script|img|iframe)[^>]*src=\"?(https?:)?//",
            path.read_text(),
        ), path
    for path in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", path.read_text()), path


@pytest.mark.slow
def test_it_is_searched_from_a_disk(built):
    """Opened as a file, without a server, and typed into key by key: the words stay, and their page
    is found.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with browsing() as browser:
        browser.look(1200)
        browser.open((built / "index.html").as_uri())
        browser.evaluate("document.querySelector('.md-search__button').click()")
        _wait_for(browser, TYPED, lambda value: value == "")
        for at, letter in enumerate("commitment", 1):
            browser.ask("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
            browser.ask("Input.dispatchKeyEvent", type="keyUp", key=letter)
            # Long enough for the search to have answered to the letter before.
            time.sleep(0.1)
            assert browser.evaluate(TYPED) == "commitment"[:at]
        links = _wait_for(
            browser, FOUND, lambda links: links and all("?h=commitment" in link for link in links)
        )
        assert browser.evaluate(TYPED) == "commitment"
    assert any("what-a-gpu-hour-costs.html" in link for link in links)


def _wait_for(browser, expression, is_met):
    """The value of an expression once it meets a condition."""
    deadline = time.monotonic() + 120
    while not is_met(value := browser.evaluate(expression)):
        assert time.monotonic() < deadline, value
        time.sleep(0.05)
    return value


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
    """A page, a source file, a folder without an index and a link within code; a file that is
    missing is a problem.
    """
    staging = site.Staging(
        tmp_path, {"docs/guides/a.md": "guides/a.html", "ARCHITECTURE.md": "ARCHITECTURE.md"}
    )
    text = (
        "[one](../../ARCHITECTURE.md#x) [`dev`](../../dev) [tests](../../tests) `[no](link.md)`"
        " [gone](gone.md)"
    )
    assert (
        staging.relink(text, "docs/guides/a.md")
        == "[one](../ARCHITECTURE.md#x) [`dev`](../source/dev.txt) tests `[no](link.md)` gone"
    )
    assert staging.problems == ["docs/guides/a.md: gone.md is not there"]
    assert (tmp_path / "source/dev.txt").read_text() == (ROOT / "dev").read_text()


def test_markdown_of_a_repository_becomes_that_of_the_generator():
    """Blank lines before lists and tables, four spaces below an item, code as it is."""
    text = "Words:\n- one\n  - two\n```\n- code\n| code |\n```\n| a |\n|---|\n| b |\n"
    assert (
        site.as_python_markdown(text)
        == "Words:\n\n- one\n    - two\n\n```\n- code\n| code |\n```\n\n| a |\n|---|\n| b |\n"
    )
