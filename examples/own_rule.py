"""A rule of your own: actor-critic with four coefficients as parameters, for discovery to tune."""

import jax
import jax.numpy as jnp

import discorl
from discorl.rules import returns


class Tunable(discorl.Rule):
    """Policy gradient along lambda-advantages, a value loss and an entropy bonus."""

    recipe = {"num_envs": 2, "batch": 2, "replay_fraction": 0, "learning_rate": 3e-3}

    def outputs(self, num_actions):
        return discorl.OutputSpec(num_actions, state={"logits": (num_actions,), "value": ()})

    def init_params(self, key):
        return {"policy": 0.0, "value": jnp.log(0.5), "entropy": jnp.log(0.03), "trace": 3.0}

    def targets(self, eta, state, trajectory, online, target):
        v = jax.lax.stop_gradient(online["value"])  # [T+1, B]
        discount = self.discount * (1 - trajectory.terminated)
        steps = trajectory.reward, discount, v[:-1], v[1:], trajectory.cut()
        advantage = returns.gae(*steps, lambda_=jax.nn.sigmoid(eta["trace"]))
        weights = {name: jnp.exp(eta[name]) * jnp.ones_like(advantage) for name in eta}
        return {"advantage": advantage, "return": v[:-1] + advantage, "weight": weights}, state, {}

    def loss(self, outputs, targets, trajectory):
        logits, weight = outputs["logits"][:-1], targets["weight"]
        log_pi = returns.take_action(jax.nn.log_softmax(logits), trajectory.action)
        error = outputs["value"][:-1] - targets["return"]
        terms = {"policy": -log_pi * targets["advantage"], "value": 0.5 * jnp.square(error)}
        terms["entropy"] = -returns.entropy(logits)
        return {name: weight[name] * term for name, term in terms.items()}


if __name__ == "__main__":
    result = discorl.train(rule=Tunable(), env="catch")
    print(f"mean return of the last tenth of the updates: {result.recent_return()[0]:.2f}")
