"""Use a trained agent in a loop of your own: from its run directory, or right after training.

python use_agent.py --updates 300
"""

import sys
import tempfile
from pathlib import Path

import jax

import discorl

updates = int(sys.argv[2]) if sys.argv[1:2] == ["--updates"] else 300
run = Path(tempfile.mkdtemp()) / "run"
result = discorl.train(rule="ppo", env="catch", lstm=16, updates=updates, out=run)

# The policy of the trained agent; `result.policy()` is the same one.
policy = discorl.load_agent(run)

# One environment, step by step. The state is for agents with an LSTM or stacked frames.
environment = discorl.make_environment("catch")
environment_state, observation = environment.reset(jax.random.key(0))
state, ended, episode_return = policy.init(), False, 0.0
while not ended:
    action, state = policy(observation, state)  # the most likely action
    environment_state, step = environment.step(environment_state, action, jax.random.key(1))
    observation, ended = step.observation, step.terminated | step.truncated
    episode_return += float(step.reward)
print(f"an episode of a greedy agent: return {episode_return:.0f}")

# A batch of observations; a key samples the actions.
observations = jax.vmap(environment.reset)(jax.random.split(jax.random.key(2), 5))[1]
actions, states = policy(observations, policy.init(batch=5), jax.random.key(3))
print(f"sampled actions of a batch: {actions}")

# Whole episodes, with their mean return and its confidence interval.
print(f"mean return {discorl.evaluate(result, episodes=50).summary()['mean_return']:.2f}")
