"""A comparison in the JSON that marl-eval reads, and that Stoix and Mava write.

The layout is environment, task, algorithm, run, step, with the metrics of a step in lists (Gorsane
et al. 2022, arXiv:2209.10485). Names of environments and tasks are in lower case, since marl-eval
looks them up so.
"""

import json
from typing import Any

import numpy as np

from discorl.comparison.results import Results

METRIC = "mean_episode_return"  # as Stoix calls it


def as_json(results: Results) -> bytes:
    """The agents in the environments that all rules have completed.

    marl-eval wants equally many runs and steps everywhere: seeds are those that all rules have,
    and steps those by which every agent has a return.
    `absolute_metrics` has the return that scores are made of, that of the last tenth of training.
    """
    curves = {
        (rule, task): results.curves(rule, task) for task in results.tasks for rule in results.rules
    }
    known = [np.isfinite(returns).all(axis=1) for _, returns in curves.values()]
    points = np.flatnonzero(np.all(known, axis=0)) if known else np.zeros(0, int)
    runs = min((returns.shape[1] for _, returns in curves.values()), default=0)
    tasks: dict[str, dict[str, Any]] = {}
    for (rule, task), (steps, returns) in curves.items():
        records = [record for _, record in results.complete[rule, task]]
        seeds = [seed for record in records for seed in record["seeds"]]
        final = [value for record in records for value in record["returns"]]
        tasks.setdefault(task.lower(), {})[rule] = {
            f"seed_{seeds[i]}": _run(steps[points], returns[points, i], final[i])
            for i in range(runs)
        }
    return json.dumps({results.config.name.lower(): tasks}, indent=1).encode()


def _run(steps: np.ndarray, returns: np.ndarray, final: float) -> dict[str, Any]:
    run: dict[str, Any] = {
        f"step_{i}": {"step_count": int(step), METRIC: [float(value)]}
        for i, (step, value) in enumerate(zip(steps, returns, strict=True))
    }
    # marl-eval takes the last entry for it.
    return run | {"absolute_metrics": {METRIC: [float(final)]}}
