"""A discovery whose agents cost nothing to compile: what is left is the machinery.

As a script it is `discorl` with such agents, or with real ones if TOY_AGENTS in the environment is
"real". TOY_PAUSE is how long each meta-step sleeps; TOY_SIGNAL is a process, the step in which it
gets a signal, and the signal.
"""

import dataclasses
import functools
import os
import shlex
import time
import types

import jax
import jax.numpy as jnp

from discorl import cli
from discorl.discovery import loop, methods
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.population import Population
from discorl.discovery.scoring import Score
from discorl.runs import processes
from discorl.runs.metrics import EPISODES, LENGTH, RETURN

COMMAND = shlex.split(
    "discover --rule lean --start scratch --envs bandit chain --agents 3 --block-size 1 "
    "--evaluate-on bandit:seed=1 chain:seed=2 --meta-steps 10 --evaluate-every 4 "
    "--checkpoint-every 3"
)


class MortalPopulation(Population):
    """Takes its time, and ends its process when it is told to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._steps = 0

    def meta_step(self, state):
        self._steps += 1
        time.sleep(float(os.environ.get("TOY_PAUSE", 0)))
        process, step, number = os.environ.get("TOY_SIGNAL", "-1 0 0").split()
        if processes.index() == int(process) and self._steps == int(step):
            os.kill(os.getpid(), int(number))
        return super().meta_step(state)


class Toys(Agents):
    """Agents that have no use for a rule: their lives are random numbers."""

    def __init__(self, group, config, rule):
        self._slope = len(group.env)  # groups differ

    def begin(self, key, lives):
        return AgentState(training=(), meta_value=(), key=key, budget=jnp.int32(0), lives=lives)

    def meta_step(self, eta, state):
        key, own = jax.random.split(state.key)
        noise = jax.random.normal(own, (3,))
        gradient = jax.tree.map(lambda x: self._slope * jnp.sin(x + noise[0]), eta)
        metrics = {
            "life/steps": state.budget + 1,
            "life/budget": jnp.int32(3) + (noise[1] > 0),
            "life/number": state.lives,
            "life/finite": jnp.array(True),
            RETURN: noise[2],
            LENGTH: jnp.float32(1),
            EPISODES: jnp.float32(1),
        }
        return gradient, dataclasses.replace(state, key=key, budget=state.budget + 1), metrics


class ToyScoring:
    """The sum of the parameters in place of a score."""

    def __init__(self, config, rule, key):
        self._names = list(config.tasks())

    def __call__(self, eta):
        processes.together(lambda: None)  # as others do
        total = float(sum(jnp.sum(x) for x in jax.tree.leaves(eta)))
        return Score(dict.fromkeys(self._names, total), dict.fromkeys(self._names, total))


def install(*, real_agents=False):
    """Every discovery of this process is mortal, and has toys for agents unless told otherwise."""
    methods.Population = MortalPopulation
    if not real_agents:
        methods.Population = functools.partial(MortalPopulation, agents=Toys)
        loop.Scoring = ToyScoring
    loop.curves = types.SimpleNamespace(discovery_curve=lambda *_, **__: None)


if __name__ == "__main__":
    install(real_agents=os.environ.get("TOY_AGENTS") == "real")
    cli.main()
