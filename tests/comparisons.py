"""A comparison with made-up results, for tests that need no training, and one that is run."""

import json

import numpy as np

from discorl.comparison import configure_comparison, load, runner
from discorl.comparison.results import final_cells, sweep_cells

QUALITY = {"actor_critic": 0.7, "ppo": 0.9, "policy_gradient": 0.4}
ENVIRONMENTS = [
    "catch",
    {"env": "catch:rows=5", "label": "<small> & odd", "random": -1, "optimal": 1},
]
COMMAND = "discorl compare --rules actor_critic ppo policy_gradient"
# A comparison that takes moments; the last of its environments cannot be made.
TINY = """
rules = [
    "actor_critic",
    { rule = "policy_gradient", learning_rates = [0.02] },
]
environments = [
    { env = "catch:rows=3,columns=3", label = "catch" },
    { env = "catch:rows=1", label = "broken" },
]
learning_rates = [0.01, 0.02]
steps = 96
seeds = 2
sweep_seeds = 2

[settings]
hidden = [4]
num_envs = 2
batch = 2
unroll = 4
replay_fraction = 0.0
"""


def record(cell, scale, random, steps):
    """What a cell of that quality would have recorded."""
    quality = QUALITY[cell.rule.label] + random.normal(0, 0.08, cell.seeds)
    grid = np.linspace(0, steps, 51)[1:]
    curves = quality[:, None] * (1 - np.exp(-5 * grid / steps))

    def as_return(scores):
        return (scale.random + scores * (scale.optimal - scale.random)).tolist()

    returns = as_return(curves)
    returns[0][0] = None  # no episode has ended yet
    return {
        "status": "finished",
        "message": "",
        "seeds": list(range(cell.seed, cell.seed + cell.seeds)),
        "returns": as_return(quality),
        "learning_rate": cell.learning_rate,
        "updates": 100,
        "steps": steps,
        "seconds": 10.0,
        "flops_per_update": 2e9 if cell.kind == "final" else None,
        "curve": {"steps": [int(x) for x in grid], "returns": returns},
    }


def write(path, cell, content):
    folder = path / cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(content))


def fabricate(path, **settings):
    """Makes the directory of a comparison of three rules in two environments; returns it read."""
    values = {
        "rules": list(QUALITY),
        "environments": ENVIRONMENTS,
        "seeds": 5,
        "steps": 20_000,
        "learning_rates": [0.001, 0.01],
    }
    config = configure_comparison(**values | settings)
    runner.create(path, config).close()
    scales = load(path).scales
    versions = json.loads((path / "versions.json").read_text())
    (path / "versions.json").write_text(json.dumps(versions | {"command": COMMAND}))
    random = np.random.default_rng(0)
    for cell in sweep_cells(config):
        write(path, cell, record(cell, scales[cell.environment.label], random, config.steps))
    for cell in final_cells(config, load(path).chosen):
        write(path, cell, record(cell, scales[cell.environment.label], random, config.steps))
    return load(path)
