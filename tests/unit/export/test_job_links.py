"""Jobs in sentences: each name that no word of ours reads like is a link to its receipt."""

import pytest
from markupsafe import Markup, escape

from gpuledger_collector.export.job_links import link_jobs


def path_of(name):
    return f"/jobs/{name}"


@pytest.mark.parametrize(
    ("sentence", "names", "marked"),
    [
        (
            "new: train-7b, 3 runs",
            ["train-7b"],
            'new: <a href="/jobs/train-7b">train-7b</a>, 3 runs',
        ),
        # The longest name wins, and a part of a longer word is no name.
        (
            "train-7b-v2 beside train-7b, not train-7bs",
            ["train-7b", "train-7b-v2"],
            '<a href="/jobs/train-7b-v2">train-7b-v2</a> beside'
            ' <a href="/jobs/train-7b">train-7b</a>, not train-7bs',
        ),
        ("one run of run held 8 GPUs", ["run"], "one run of run held 8 GPUs"),
        ("a <b-1> & more", ["<b-1>"], 'a <a href="/jobs/&lt;b-1&gt;">&lt;b-1&gt;</a> &amp; more'),
        ("a .* b", [".*"], 'a <a href="/jobs/.*">.*</a> b'),
        ("nothing", [], "nothing"),
    ],
)
def test_names_are_links(sentence, names, marked):
    """Whatever users call their jobs; all else is escaped."""
    assert link_jobs(sentence, names, path_of, escape) == Markup(marked)
