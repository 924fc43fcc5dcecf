"""Acting in environments on the host, as a share of what they do bare, with random actions.

    python benchmarks/host.py [--environments 32] [--rounds 20] [--network linear] [ENV ...]

Three things are measured in turns in one run, over the same number of steps: `package`, the suite's
own vector environment, or a loop over its environments where it has none; `adapter`, the vector
that discorl makes of it; `acting`, rollouts in that vector. What acting does is a share of both.
The package's own has other settings where discorl's adapter has (NetHack's keys of observations).
`linear` is a policy that costs next to nothing: what is left is what discorl adds to the
environments. `standard` is the network of the preset for small machines, which shares the processor
with the environments here.
Shares are of the time that passes and of this process's time on all cores; the latter is what to
look at on a machine that is busy otherwise, but leaves out environments in worker processes:

    python benchmarks/host.py crafter:reward,workers=0 crafter:reward,workers=4
"""

import argparse

import host_packages
import jax
import jax.numpy as jnp
import numpy as np
from measuring import clocks, report

from discorl import envs
from discorl.envs.host import HostEnvironment
from discorl.training import configure, make_trainer
from discorl.training.host.acting import HostActor
from discorl.training.host.programs import ActingPrograms
from discorl.training.presets import PRESETS
from discorl.types import UserError, specs

SUITES = (
    "gymnasium:CartPole-v1",
    "atari:Pong",
    "procgen:coinrun",
    "crafter:reward",
    "nethack:NetHackScore-v0",
)
LENGTH = 32  # steps of a rollout


def linear(environment: HostEnvironment):
    """Logits from the first numbers of an observation."""

    def policy(params, observation, recurrent_state, action_mask):
        leaf = jax.tree.leaves(observation)[0]
        return leaf.reshape(leaf.shape[0], -1)[:, :1] * params, recurrent_state

    return policy, np.zeros(environment.num_actions, np.float32)


def standard(environment: HostEnvironment):
    suite = environment.name.partition(":")[0]
    preset = f"{suite}_small" if f"{suite}_small" in PRESETS else suite
    config = configure(rule="actor_critic", env=environment.name, preset=preset, frame_stack=1)
    trainer = make_trainer(config, environment)
    return trainer.learner.policy, trainer.init().learner.params


def measure(name: str, network: str, count: int, rounds: int) -> dict:
    environment = envs.make(name)
    policy, params = (linear if network == "linear" else standard)(environment)
    params = jax.tree.map(jnp.asarray, params)
    actor = HostActor(ActingPrograms(environment, policy, count, LENGTH), 0)
    actor.start(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params))
    adapter = environment.start(count, 0)
    adapter.reset()
    package = host_packages.start(specs.parse(name), count)
    generator = np.random.default_rng(0)
    times: dict[str, list[np.ndarray]] = {"package": [], "adapter": [], "acting": []}
    for i in range(rounds + 1):
        actions = generator.integers(environment.num_actions, size=(LENGTH, count), dtype=np.int32)
        key = jax.block_until_ready(jax.random.key(i))
        moments = [clocks()]
        for step in (package.step, adapter.step):
            for action in actions:
                step(action)
            moments.append(clocks())
        jax.block_until_ready(actor.rollout(params, key).trajectory)
        moments.append(clocks())
        if i:  # the first round warms up
            for kind, taken in zip(times, np.diff(moments, axis=0), strict=True):
                times[kind].append(taken)
    for each in (package, adapter, actor):
        each.close()
    best = {kind: np.min(rows, axis=0) for kind, rows in times.items()}
    row = {"environment": name, "environments": count, "network": network}
    row |= {f"{kind}_per_second": round(LENGTH * count / best[kind][0]) for kind in times}
    for kind in ("package", "adapter"):
        share, processor_share = 100 * best[kind] / best["acting"]
        row |= {f"of_{kind}_percent": share, f"of_{kind}_processor_percent": processor_share}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ENV", default=SUITES)
    parser.add_argument("--environments", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--network", choices=("linear", "standard"), default="linear")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names:
        try:
            rows.append(measure(name, arguments.network, arguments.environments, arguments.rounds))
        except UserError as error:
            print(f"{name} is left out: {error}")
    report(rows)


if __name__ == "__main__":
    main()
