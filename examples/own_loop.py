"""Learn with a discovered or hand-designed rule inside a loop of your own.

The learner is two pure functions. It asks for trajectories, wherever they come from, and hands
back parameters: the loop, the environments and the data stay yours. Here the agent is to say which
of the first three numbers it sees is the largest.

    python own_loop.py --updates 200
"""

import sys

import jax
import numpy as np

import discorl

T, B, A = 8, 16, 3  # transitions of a trajectory, trajectories of a batch, actions
updates = int(sys.argv[2]) if sys.argv[1:2] == ["--updates"] else 200
rule, eta = discorl.load_rule("actor_critic")  # or disco103, or a file
observation = jax.ShapeDtypeStruct((4,), np.float32)  # of one moment; any pytree of arrays
network = discorl.networks.standard(rule.outputs(A), observation, hidden=(64,))
learner = discorl.Learner(rule, network, discorl.make_optimiser(discorl.OptimiserConfig(1e-3)), A)
state, update = learner.init(jax.random.key(0), observation, updates), jax.jit(learner.update)
for seed in range(updates):
    generator = np.random.default_rng(seed)
    seen = generator.normal(size=(T + 1, B, 4)).astype(np.float32)  # [T+1, B, ...]
    logits = learner.policy(state.params, seen[:-1].reshape(-1, 4))[0].reshape(T, B, A)
    action = np.argmax(logits + generator.gumbel(size=logits.shape), axis=-1)  # [T, B]
    reward = (action == seen[:-1, :, :A].argmax(axis=-1)).astype(np.float32)  # [T, B]
    batch = discorl.Trajectory(seen, action, reward, np.ones((T, B), bool), logits)
    # The new parameters are state.params; every number in metrics is a scalar.
    state, metrics = update(state, eta, batch)
print(f"mean reward {reward.mean():.2f} (0.33 by chance), loss {metrics['losses/total']:.3f}")
