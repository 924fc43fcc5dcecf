"""The standard network, forwards and backwards, and the updates of an agent."""

import numpy as np

from reference.functions import entropy, linear, relu, sigmoid
from reference.rule import Q_COST, Rule

# --- the standard network, forwards and backwards -------------------------------------------------


def depth_of(params, name):
    return sum(key.startswith(f"{name}/") and key.endswith("/w") for key in params)


def mlp_forward(params, name, x):
    inputs = []
    for i in range(depth_of(params, name)):
        x = relu(x) if i else x
        inputs.append(x)
        x = linear(params, f"{name}/{i}", x)
    return x, inputs


def linear_backward(gradients, params, name, x, d):
    """Adds to the gradients of a layer and returns the one of its input."""
    flat_x, flat_d = x.reshape(-1, x.shape[-1]), d.reshape(-1, d.shape[-1])
    gradients[f"{name}/w"] = gradients.get(f"{name}/w", 0) + flat_x.T @ flat_d
    gradients[f"{name}/b"] = gradients.get(f"{name}/b", 0) + flat_d.sum(axis=0)
    return d @ params[f"{name}/w"].T


def mlp_backward(gradients, params, name, inputs, d):
    for i in reversed(range(len(inputs))):
        d = linear_backward(gradients, params, f"{name}/{i}", inputs[i], d)
        d = d * (inputs[i] > 0) if i else d
    return d


ACTION_HEADS = ("z", "aux_pi", "q")


def forward(params, observations, num_actions):
    """Outputs [N, ...] for flat observations [N, D], and what `backward` needs."""
    torso, torso_inputs = mlp_forward(params, "torso", observations)
    cell = linear(params, "action_model/root", torso)
    root_hidden = np.tanh(cell)
    one_hot = np.broadcast_to(np.eye(num_actions), (len(torso), num_actions, num_actions))
    spread = np.repeat(root_hidden[:, None], num_actions, axis=1)
    lstm_input = np.concatenate([one_hot, spread], axis=-1)
    gates = linear(params, "action_model/lstm", lstm_input)
    i, g, f, o = np.split(gates, 4, axis=-1)
    new_cell = sigmoid(f + 1) * cell[:, None] + sigmoid(i) * np.tanh(g)
    new_hidden = sigmoid(o) * np.tanh(new_cell)
    outputs = {name: linear(params, f"head/{name}", torso) for name in ("logits", "y")}
    head_inputs = {}
    for name in ACTION_HEADS:
        outputs[name], head_inputs[name] = mlp_forward(params, f"action_model/{name}", new_hidden)
    memory = (torso, torso_inputs, cell, root_hidden, lstm_input, gates, new_cell, head_inputs)
    return outputs, memory


def backward(params, memory, d_outputs):
    """Gradients by all parameters, from the ones by the outputs."""
    torso, torso_inputs, cell, root_hidden, lstm_input, gates, new_cell, head_inputs = memory
    gradients = {}
    d_hidden = sum(
        mlp_backward(gradients, params, f"action_model/{n}", head_inputs[n], d_outputs[n])
        for n in ACTION_HEADS
    )
    i, g, f, o = np.split(gates, 4, axis=-1)
    tanh_cell = np.tanh(new_cell)
    d_cell = d_hidden * sigmoid(o) * (1 - tanh_cell**2)
    slope = lambda x: sigmoid(x) * (1 - sigmoid(x))  # noqa: E731
    d_gates = np.concatenate(
        [
            d_cell * np.tanh(g) * slope(i),
            d_cell * sigmoid(i) * (1 - np.tanh(g) ** 2),
            d_cell * cell[:, None] * slope(f + 1),
            d_hidden * tanh_cell * slope(o),
        ],
        axis=-1,
    )
    d_input = linear_backward(gradients, params, "action_model/lstm", lstm_input, d_gates)
    d_root_hidden = d_input[..., -root_hidden.shape[-1] :].sum(axis=1)
    d_root = (d_cell * sigmoid(f + 1)).sum(axis=1) + d_root_hidden * (1 - root_hidden**2)
    d_torso = linear_backward(gradients, params, "action_model/root", torso, d_root)
    for name in ("logits", "y"):
        d_torso = d_torso + linear_backward(
            gradients, params, f"head/{name}", torso, d_outputs[name]
        )
    mlp_backward(gradients, params, "torso", torso_inputs, d_torso)
    return gradients


# --- the learner ----------------------------------------------------------------------------------


class Learner:
    """An agent and its updates."""

    def __init__(self, weights, params, learning_rate=1e-3):
        self.rule = Rule(weights)
        self.params = dict(params)
        self.target_params = dict(params)
        self.learning_rate = learning_rate
        self.first = {name: np.zeros_like(p) for name, p in params.items()}
        self.second = {name: np.zeros_like(p) for name, p in params.items()}
        self.updates = 0

    def outputs(self, params, observations, num_actions):
        moments, batch = observations.shape[:2]
        flat = observations.reshape(moments * batch, -1)
        outputs, memory = forward(params, flat, num_actions)
        return {n: x.reshape(moments, batch, *x.shape[1:]) for n, x in outputs.items()}, memory

    def update(self, given):
        """All that a golden file holds of one update; `given` as in its `in/`."""
        num_actions = given["behaviour_logits"].shape[-1]
        agent, memory = self.outputs(self.params, given["observations"], num_actions)
        target, _ = self.outputs(self.target_params, given["observations"], num_actions)
        called = self.rule.call(dict(given, agent=agent, target=target))
        mask = given["mask"].astype(np.float64)
        weight = mask / (mask.sum() + 1e-8)
        loss = np.sum((called["loss_per_step"] + called["value_loss_per_step"]) * weight)
        weight_of_moment = np.concatenate([weight, np.zeros_like(weight[:1])])
        d_outputs = {}
        for name in agent:
            d = called[f"grad/{name}"]
            d = d * weight_of_moment.reshape(weight_of_moment.shape + (1,) * (d.ndim - 2))
            d_outputs[name] = d.reshape(-1, *d.shape[2:])
        gradients = backward(self.params, memory, d_outputs)
        steps = self._adam(gradients)
        self.target_params = {
            name: 0.9 * self.target_params[name] + 0.1 * self.params[name] for name in self.params
        }
        self.params = {name: p + steps[name] for name, p in self.params.items()}
        norm = lambda tree: np.sqrt(sum(np.sum(x**2) for x in tree.values()))  # noqa: E731
        out = {
            "total_loss": loss,
            "pi_loss": called["losses"]["pi"].mean(),
            "aux_kl_loss": called["losses"]["aux_pi"].mean(),
            "q_loss": called["losses"]["q"].mean() / Q_COST,
            "global_gradient_norm": norm(gradients),
            "global_update_norm": norm(steps),
            "entropy": entropy(agent["logits"][:-1]).mean(),
            "pi_hat_entropy": entropy(called["pi"]).mean(),
        }
        out |= {f"target/{name}": called[name] for name in ("pi", "y", "z")}
        return out | {f"params/{name}": p for name, p in self.params.items()}

    def _adam(self, gradients):
        self.updates += 1
        steps = {}
        for name, g in gradients.items():
            self.first[name] = 0.9 * self.first[name] + 0.1 * g
            self.second[name] = 0.999 * self.second[name] + 0.001 * g**2
            first = self.first[name] / (1 - 0.9**self.updates)
            second = self.second[name] / (1 - 0.999**self.updates)
            step = first / (np.sqrt(second) + 1e-8)
            steps[name] = -self.learning_rate * np.clip(step, -1, 1)
        return steps
