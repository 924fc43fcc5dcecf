"""What a sweep would save if trials that differ in the learning rate trained in one call.

CPU seconds of an update of 3 agents, times 4, over those of 12 agents in one program: above 1, four
learning rates with three seeds each would be cheaper together.
"""

import time

import discorl
from discorl.types import settings

UPDATES = 60
REPEATS = 3


def seconds(config) -> float:
    """CPU seconds per update, the fastest of several calls."""
    with discorl.make_trainer(config) as trainer:
        state, _, _ = trainer.run(trainer.init(), 5)
        found = []
        for _ in range(REPEATS):
            start = time.process_time()
            state, _, _ = trainer.run(state, UPDATES)
            found.append((time.process_time() - start) / UPDATES)
    return min(found)


def main() -> None:
    for rule, env in (("lean1", "catch"), ("ppo", "chain:seed=1"), ("actor_critic", "catch")):
        config = discorl.configure(rule=rule, env=env)
        few, many = (seconds(settings.replace(config, seeds=count)) for count in (3, 12))
        print(
            f"{rule:13} {env:13} 3 agents {few:.2e} s, 12 agents {many:.2e} s: {4 * few / many:.2f}"
        )


if __name__ == "__main__":
    main()
