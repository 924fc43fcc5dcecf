"""Writes numbers.json: scores, and what rliable makes of them.

pip install rliable==1.2.0 "pandas<3"
python tests/rliable/make_numbers.py
"""

import importlib.metadata
import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

THRESHOLDS = [-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0]


def aggregates(scores):
    return {
        "iqm": metrics.aggregate_iqm(scores),
        "median": metrics.aggregate_median(scores),
        "mean": metrics.aggregate_mean(scores),
        "optimality_gap": metrics.aggregate_optimality_gap(scores),
    }


def generator():
    return np.random.RandomState(1)


def main():
    random = np.random.default_rng(7)
    cases = []
    for runs, tasks in ((5, 7), (3, 2), (10, 1), (1, 6), (6, 3)):
        x = random.normal(0.6, 0.5, (runs, tasks))
        # Rounded, so that there are ties.
        y = np.round(random.normal(0.5, 0.4, (runs + 1, tasks)), 1)
        x[0] = np.round(x[0], 1)
        profiles, intervals = library.create_performance_profile(
            {"x": x}, np.array(THRESHOLDS), reps=2000
        )
        bootstrap = library.StratifiedBootstrap(x, random_state=generator())
        iqm_interval = bootstrap.conf_int(
            lambda scores: np.array([metrics.aggregate_iqm(scores)]),
            reps=20_000,
            size=0.95,
            method="percentile",
        )
        independent = library.StratifiedIndependentBootstrap(x, y, random_state=generator())
        improvement_interval = independent.conf_int(
            lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
            reps=5_000,
            size=0.95,
            method="percentile",
        )
        cases.append(
            {
                "x": x.tolist(),
                "y": y.tolist(),
                "aggregates": aggregates(x),
                "aggregates_y": aggregates(y),
                "improvement": metrics.probability_of_improvement(x, y),
                "profile": profiles["x"].tolist(),
                "iqm_interval": np.ravel(iqm_interval).tolist(),
                "improvement_interval": np.ravel(improvement_interval).tolist(),
                "profile_interval": intervals["x"].tolist(),
            }
        )
    content = {
        "rliable": importlib.metadata.version("rliable"),
        "thresholds": THRESHOLDS,
        "cases": cases,
    }
    path = Path(__file__).with_name("numbers.json")
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
