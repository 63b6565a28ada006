"""The detector of spending anomalies on the Numenta Anomaly Benchmark (NAB), scored by NAB's own
code.

`--nab=FOLDER` is a checkout of github.com/numenta/NAB (MIT license): 58 labeled series, 17 of them
realAWSCloudwatch; its scorer and the recorded scores of other detectors come from there, and
nothing of it is copied here. As published detectors have it: the first 15 % of a series (at most
750 instants) are not judged, one threshold is chosen on the whole corpus with the labels in sight,
standard profile; 100 is perfect, 0 finds nothing. A score over a category alone is normalized by
that category, with the same threshold.

What is adapted, the same for every series: instants are put on an even grid of the median step (the
mean where several fall together, unknown where none does); an instant without a score has 0; the
score becomes score / (1 + score), since NAB takes 0 to 1, which keeps the order. NAB punishes each
row of a false alarm, and our score stays high for days: *new highs* leaves only the scores above
all of the 12 hours before, *episodes* the first instant of each episode as the command prints them.
Nothing is tuned: all constants are those that ship.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.anomalies import detect, group_episodes
from gpuledger_collector.insight.anomalies.alarms import MERGE_HOURS
from gpuledger_collector.insight.series import Series

PUBLISHED = {
    "numenta": "Numenta HTM",
    "randomCutForest": "Random Cut Forest",
    "windowedGaussian": "Windowed Gaussian",
}
PROBATION = 0.15


def folder() -> Path:
    """The checkout of NAB; ends with 3 when it is not there."""
    given = [argument.partition("=")[2] for argument in sys.argv if argument.startswith("--nab=")]
    place = Path(given[0] if given else "NAB")
    if not (place / "labels/combined_windows.json").exists():
        print(
            f"bench: no NAB at {place}; name a checkout of github.com/numenta/NAB with --nab=DIR",
            file=sys.stderr,
        )
        sys.exit(3)
    return place


def judgments(frame):
    """Our judgments of the rows of a file from 0 to 1, by name."""
    at_ms = frame.timestamp.astype("datetime64[ms]").astype("int64").to_numpy()
    steps = np.diff(at_ms)
    step_ms = int(np.median(steps[steps > 0]))
    places = np.round((at_ms - at_ms[0]) / step_ms).astype(int)
    counts = np.bincount(places)
    sums = np.bincount(places, weights=frame.value)
    values = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    found = detect(Series("nab", int(at_ms[0]), step_ms, values))
    score = np.nan_to_num(found.score)
    score /= 1 + score
    reach = max(1, MERGE_HOURS * HOUR_MS // step_ms)
    before = sliding_window_view(np.concatenate([np.zeros(reach), score[:-1]]), reach).max(axis=1)
    first = np.zeros(len(score))
    first[[episode.first for episode in group_episodes(found)]] = 1
    by_name = {
        "every instant": score,
        "new highs": np.where(score > before, score, 0),
        "episodes": first,
    }
    return {f"gpuledger, {name}": each[places] for name, each in by_name.items()}


class Judge:
    """NAB's labels and scorer, with the cost matrix of the standard profile."""

    def __init__(self, place):
        sys.path.insert(0, str(place.resolve()))
        from nab.corpus import Corpus
        from nab.labeler import CorpusLabel
        from nab.sweeper import Sweeper

        class Windows(CorpusLabel):
            """The labels without a 0 or 1 for each row, which NAB writes in a way that pandas 3
            refuses.
            """

            def getLabels(self):  # noqa: N802 - NAB's name
                pass

        corpus = Corpus(str(place.resolve() / "data"))
        self.windows = Windows(str(place / "labels/combined_windows.json"), corpus).windows
        self.files = {name: corpus.dataFiles[name].data for name in self.windows}
        self.cost = json.loads((place / "config/profiles.json").read_text())["standard"][
            "CostMatrix"
        ]
        self.sweeper = Sweeper(PROBATION, self.cost)

    def best_threshold(self, scores):
        """NAB's optimizer: the threshold with the highest score over all files."""
        rows = []
        for name, score in scores.items():
            rows += self.sweeper.calcSweepScore(
                self.files[name].timestamp, score, self.windows[name], name
            )
        return max(self.sweeper.calcScoreByThreshold(rows), key=lambda each: each.score).threshold

    def normalize(self, scores, threshold, category=""):
        """NAB's score of the files of a category: 100 is perfect, 0 finds nothing."""
        names = [name for name in scores if name.startswith(category)]
        total = sum(
            self.sweeper.scoreDataSet(
                self.files[name].timestamp, scores[name], self.windows[name], name, threshold
            )[1].score
            for name in names
        )
        windows = sum(len(self.windows[name]) for name in names)
        perfect, nothing = self.cost["tpWeight"] * windows, -self.cost["fnWeight"] * windows
        return 100 * (total - nothing) / (perfect - nothing) if windows else float("nan")


def read_scores(place, judge, detector):
    """The recorded scores of a published detector by file."""
    results = place / "results" / detector
    paths = {
        name: results / Path(name).parent / f"{detector}_{Path(name).name}" for name in judge.files
    }
    return {
        name: pd.read_csv(path, usecols=["anomaly_score"]).anomaly_score
        for name, path in paths.items()
    }


def main() -> int:
    place = folder()
    judge = Judge(place)
    started = time.process_time()
    ours = {name: judgments(frame) for name, frame in judge.files.items()}
    seconds = time.process_time() - started
    methods = {
        each: {name: rows[each] for name, rows in ours.items()}
        for each in next(iter(ours.values()))
    }
    methods |= {label: read_scores(place, judge, name) for name, label in PUBLISHED.items()}
    categories = sorted({name.partition("/")[0] for name in judge.files if judge.windows[name]})
    print(
        f"{len(ours)} series, {seconds:.1f} s of CPU for ours; standard profile, threshold of the"
        " whole corpus\n"
    )
    print(
        f"| detector | threshold | all | {' | '.join(categories)}"
        f" |\n|{'---|' * (len(categories) + 3)}"
    )
    for label, scores in methods.items():
        threshold = judge.best_threshold(scores)
        cells = " | ".join(
            f"{judge.normalize(scores, threshold, category):.1f}" for category in ("", *categories)
        )
        print(f"| {label} | {threshold:.3f} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
