"""The system once more, slowly and in float64: a second opinion on what discorl computes.

Plain numpy, written from the description of the system without looking at discorl, which nothing
here imports. Gradients are derived by hand. Trees are flat dicts, their names joined by "/".
"""

import dataclasses
import itertools

import numpy as np

GAMMA, LAMBDA, DECAY, Q_COST = 0.997, 0.95, 0.99, 0.2

# --- small functions ------------------------------------------------------------------------------


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(logits):
    p = softmax(logits)
    return -np.sum(p * np.log(p), axis=-1)


def kl(target_logits, logits):
    p, q = softmax(target_logits), softmax(logits)
    return np.sum(p * (np.log(p) - np.log(q)), axis=-1)


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def relu(x):
    return np.maximum(x, 0)


def signed_log(x):
    return np.sign(x) * np.log(1 + np.abs(x))


def squash(x):
    """The paper's h."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 0.001 * x


def unsquash(y):
    """Solves h(x) = y: with s = sqrt(|x| + 1), 0.001 s^2 + s - 1.001 - |y| = 0."""
    s = (-1 + np.sqrt(1 + 4 * 0.001 * (1.001 + np.abs(y)))) / (2 * 0.001)
    return np.sign(y) * (s**2 - 1)


def scalar_value(q_logits):
    half = (q_logits.shape[-1] - 1) // 2
    return unsquash(softmax(q_logits) @ np.arange(-half, half + 1.0))


def two_hot(x, num_bins):
    """Shares of the bins above and below; the lower one divided by 1 + 1e-5, as published."""
    half = (num_bins - 1) // 2
    result = np.zeros((*x.shape, num_bins))
    for i, value in np.ndenumerate(np.clip(x, -half, half)):
        upper = int(np.ceil(value))
        share = (upper - value) / (1 + 1e-5)
        if upper > -half:
            result[(*i, upper - 1 + half)] = share
        result[(*i, upper + half)] = 1 - share
    return result


def at_action(x, actions):
    """x[t, b, a_tb] for x of shape [T, B, A, ...]."""
    steps, batch = actions.shape
    rows = [[x[t, b, actions[t, b]] for b in range(batch)] for t in range(steps)]
    return np.array(rows)


def linear(weights, name, x):
    return x @ weights[f"{name}/w"] + weights[f"{name}/b"]


def lstm_step(weights, name, x, hidden, cell):
    gates = linear(weights, name, np.concatenate([x, hidden], axis=-1))
    i, g, f, o = np.split(gates, 4, axis=-1)
    cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


# --- the rule -------------------------------------------------------------------------------------

META = "lstm/~/meta_lstm/~unroll"


@dataclasses.dataclass
class Moments:
    """An exponential moving average of a quantity and its square."""

    moment1: float = 0.0
    moment2: float = 0.0
    decay_product: float = 1.0

    def advance(self, x):
        self.moment1 = DECAY * self.moment1 + (1 - DECAY) * np.mean(x)
        self.moment2 = DECAY * self.moment2 + (1 - DECAY) * np.mean(x**2)
        self.decay_product *= DECAY

    def normalise(self, x, subtract_mean=True):
        mean = self.moment1 / (1 - self.decay_product)
        square = self.moment2 / (1 - self.decay_product)
        deviation = np.sqrt(max(0.0, square - mean**2) + 1e-12) + 1e-6
        return (x - mean * subtract_mean) / deviation


class Rule:
    """A discovered rule at work on one agent; carries the meta-RNN's state and the normalisers."""

    def __init__(self, weights):
        self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
        size = self.weights["lstm/linear/w"].shape[0]
        self.hidden, self.cell = np.zeros(size), np.zeros(size)
        self.adv, self.td = Moments(), Moments()

    def call(self, given):
        """Everything that a golden file holds of one call; `given` as in its `in/`."""
        steps = given["rewards"].shape[0]
        actions = given["actions"][:steps]
        agent, target = given["agent"], given["target"]
        pi = softmax(agent["logits"])
        mu = softmax(given["behaviour_logits"])
        out = self._values(given, actions, pi, mu)
        v = out.pop("v")
        e, features = self._features("lstm", given, actions, pi, mu, v, out)

        size = self.weights["lstm/lstm/linear/w"].shape[1] // 4
        hidden = np.zeros((actions.shape[1], size))
        cell = np.zeros((actions.shape[1], size))
        x = np.zeros((*actions.shape, size))
        for t in reversed(range(steps)):
            going_on = 1.0 - given["is_terminal"][t][:, None]
            hidden, cell = lstm_step(
                self.weights, "lstm/lstm/linear", features[t], hidden * going_on, cell * going_on
            )
            x[t] = hidden
        x = x * linear(self.weights, "lstm/linear", self.hidden)

        embedding = linear(self.weights, "lstm/linear_1", x)
        y_hat = linear(self.weights, "lstm/linear_2", x)
        z_hat = linear(self.weights, "lstm/linear_3", x)
        per_action = np.stack(
            [np.concatenate([x, e[:, :, a]], axis=-1) for a in range(pi.shape[-1])], axis=2
        )
        block = self._block("lstm/sequential_1/conv1_d", per_action)
        pi_hat = linear(self.weights, "lstm/linear_4", block)[..., 0]

        _, own = self._features(META, given, actions, pi, mu, v, out)
        own_y = self._mlp(f"{META}/mlp", softmax(y_hat))[..., None]
        joined = np.concatenate([own, embedding, own_y], axis=-1)
        pooled = linear(self.weights, f"{META}/mlp_2/~/linear_0", joined).mean(axis=(0, 1))
        self.hidden, self.cell = lstm_step(
            self.weights, f"{META}/lstm/linear", pooled, self.hidden, self.cell
        )

        out |= {"pi": pi_hat, "y": y_hat, "z": z_hat, "meta_input_emb": embedding}
        out |= self._losses(agent, target, actions, given, out)
        out["meta_rnn/hidden"], out["meta_rnn/cell"] = self.hidden, self.cell
        for name, moments in (("adv_ema", self.adv), ("td_ema", self.td)):
            out |= {f"{name}/{k}": np.array(v) for k, v in vars(moments).items()}
        return out

    def _values(self, given, actions, pi, mu):
        steps, batch = actions.shape
        q, q_prime = scalar_value(given["agent"]["q"]), scalar_value(given["target"]["q"])
        v, v_prime = np.sum(pi * q, axis=-1), np.sum(pi * q_prime, axis=-1)
        g = np.zeros((steps, batch))
        for b in range(batch):
            for t in reversed(range(steps)):
                after = v_prime[t + 1, b]
                if t + 1 < steps:
                    a = actions[t + 1, b]
                    c = LAMBDA * min(1.0, pi[t + 1, b, a] / mu[t + 1, b, a])
                    after += c * (g[t + 1, b] - q_prime[t + 1, b, a])
                discount = 0.0 if given["is_terminal"][t, b] else GAMMA
                g[t, b] = given["rewards"][t, b] + discount * after
        adv = g - v_prime[:-1]
        q_td = g - at_action(q, actions)
        qv_adv = q_prime - v_prime[..., None]
        self.adv.advance(adv)
        self.td.advance(q_td)
        return {
            "v": v,
            "q_value": q,
            "q_target": g,
            "q_prime": q_prime,
            "adv": adv,
            "normalized_adv": self.adv.normalise(adv),
            "qv_adv": qv_adv,
            "normalized_qv_adv": self.adv.normalise(qv_adv),
            "q_td": q_td,
            "normalized_q_td": self.td.normalise(q_td, subtract_mean=False),
        }

    def _mlp(self, name, x):
        """y_net or z_net: [..., P] -> [...]."""
        depth = sum(key.startswith(f"{name}/~/") and key.endswith("/w") for key in self.weights)
        for i in range(depth):
            x = linear(self.weights, f"{name}/~/linear_{i}", x)
            x = relu(x) if i + 1 < depth else x
        return x[..., 0]

    def _block(self, name, x):
        mean = np.broadcast_to(x.mean(axis=-2, keepdims=True), x.shape)
        w, b = self.weights[f"{name}/w"][0], self.weights[f"{name}/b"]
        return relu(np.concatenate([x, mean], axis=-1) @ w + b)

    def _features(self, where, given, actions, pi, mu, v, values):
        """The features of every step [T, B, 27], and e of every action [T, B, A, 2]."""
        agent, target = given["agent"], given["target"]
        num_actions = pi.shape[-1]
        pi_target = softmax(target["logits"])
        pair = lambda x: [x[:-1], x[1:]]  # noqa: E731
        take = lambda x: at_action(x[: len(actions)], actions)  # noqa: E731
        features = [
            take(pi),
            take(mu),
            signed_log(given["rewards"]),
            1.0 - given["is_terminal"],
            *pair(signed_log(v)),
            signed_log(values["adv"]),
            values["normalized_adv"],
            take(pi_target),
            *pair(self._mlp(f"{where}/mlp", softmax(agent["y"]))),
            *pair(self._mlp(f"{where}/mlp", softmax(target["y"]))),
        ]
        z = [self._mlp(f"{where}/mlp_1", softmax(outputs["z"])) for outputs in (agent, target)]
        for z_net in z:
            features += [take(z_net), *pair(np.sum(pi * z_net, axis=-1)), *pair(z_net.max(axis=-1))]
        per_action = np.stack(
            [
                pi[:-1],
                mu[: len(actions)],
                pi_target[:-1],
                z[0][:-1],
                z[1][:-1],
                signed_log(values["q_prime"])[:-1],
                signed_log(values["qv_adv"])[:-1],
                values["normalized_qv_adv"][:-1],
                np.eye(num_actions)[actions],
            ],
            axis=-1,
        )
        e, i = per_action, 0
        for i in range(sum(k.startswith(f"{where}/sequential/") for k in self.weights) // 2):
            suffix = f"_{i}" if i else ""
            e = self._block(f"{where}/sequential/conv1_d{suffix}", e)
        features = np.stack(features, axis=-1)
        return e, np.concatenate([features, e.mean(axis=2), at_action(e, actions)], axis=-1)

    def _losses(self, agent, target, actions, given, out):
        """The losses of every step and the gradient of their sum by the agent's outputs."""
        going_on = 1.0 - given["is_terminal"]
        z, q = at_action(agent["z"][:-1], actions), at_action(agent["q"][:-1], actions)
        aux = at_action(agent["aux_pi"][:-1], actions)
        logits, next_logits = agent["logits"][:-1], agent["logits"][1:]
        bins = two_hot(squash(out["q_target"]), q.shape[-1])
        losses = {
            "pi": kl(out["pi"], logits),
            "y": kl(out["y"], agent["y"][:-1]),
            "z": kl(out["z"], z),
            "aux_pi": kl(next_logits, aux) * going_on,
            "q": -Q_COST * np.sum(bins * np.log(softmax(q)), axis=-1),
        }
        at_taken = {
            "z": softmax(z) - softmax(out["z"]),
            "aux_pi": (softmax(aux) - softmax(next_logits)) * going_on[..., None],
            "q": Q_COST * (softmax(q) - bins),
        }
        gradients = {name: np.zeros_like(agent[name]) for name in agent}
        gradients["logits"][:-1] = softmax(logits) - softmax(out["pi"])
        gradients["y"][:-1] = softmax(agent["y"][:-1]) - softmax(out["y"])
        for (t, b), a in np.ndenumerate(actions):
            for name, gradient in at_taken.items():
                gradients[name][t, b, a] = gradient[t, b]
        return {
            "losses": losses,
            "loss_per_step": losses["pi"] + losses["y"] + losses["z"] + losses["aux_pi"],
            "value_loss_per_step": losses["q"],
        } | {f"grad/{name}": gradient for name, gradient in gradients.items()}


NOT_IN_FILES = ("losses", "q_prime")


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


# --- made-up cases of any size --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large a made-up rule is."""

    predictions: int = 12
    trajectory_lstm: int = 10
    meta_lstm: int = 8
    meta_input: int = 6
    y_net: tuple[int, ...] = (6,)
    z_net: tuple[int, ...] = (6,)
    policy_net: tuple[int, ...] = (7, 2)
    pi_hat_block: int = 5
    meta_y_net: tuple[int, ...] = (5,)
    meta_z_net: tuple[int, ...] = (5,)
    meta_policy_net: tuple[int, ...] = (4, 2)


def random_rule(rng, sizes):
    """Weights of a rule, named as in the published file, in float32 as a file holds them."""
    weights = {}

    def layer(name, inputs, outputs, conv=False):
        shape = (1, inputs, outputs) if conv else (inputs, outputs)
        weights[f"{name}/w"] = rng.normal(size=shape) * 1.5 / np.sqrt(inputs)
        weights[f"{name}/b"] = rng.normal(size=outputs) * 0.2

    def mlp(name, widths):
        widths = (sizes.predictions, *widths, 1)
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layer(f"{name}/~/linear_{i}", a, b)

    def blocks(name, channels):
        inputs = 9
        for i, c in enumerate(channels):
            layer(f"{name}/conv1_d" + (f"_{i}" if i else ""), 2 * inputs, c, conv=True)
            inputs = c

    features = 23 + 2 * sizes.policy_net[-1]
    meta_features = 23 + 2 * sizes.meta_policy_net[-1]
    mlp("lstm/mlp", sizes.y_net)
    mlp("lstm/mlp_1", sizes.z_net)
    blocks("lstm/sequential", sizes.policy_net)
    layer("lstm/lstm/linear", features + sizes.trajectory_lstm, 4 * sizes.trajectory_lstm)
    layer("lstm/linear", sizes.meta_lstm, sizes.trajectory_lstm)
    layer("lstm/linear_1", sizes.trajectory_lstm, 1)
    layer("lstm/linear_2", sizes.trajectory_lstm, sizes.predictions)
    layer("lstm/linear_3", sizes.trajectory_lstm, sizes.predictions)
    block_inputs = sizes.trajectory_lstm + sizes.policy_net[-1]
    layer("lstm/sequential_1/conv1_d", 2 * block_inputs, sizes.pi_hat_block, conv=True)
    layer("lstm/linear_4", sizes.pi_hat_block, 1)
    mlp(f"{META}/mlp", sizes.meta_y_net)
    mlp(f"{META}/mlp_1", sizes.meta_z_net)
    blocks(f"{META}/sequential", sizes.meta_policy_net)
    layer(f"{META}/mlp_2/~/linear_0", meta_features + 2, sizes.meta_input)
    layer(f"{META}/lstm/linear", sizes.meta_input + sizes.meta_lstm, 4 * sizes.meta_lstm)
    return {name: w.astype(np.float32) for name, w in weights.items()}


def random_trajectory(rng, steps, batch, num_actions):
    return {
        "behaviour_logits": rng.normal(size=(steps + 1, batch, num_actions)),
        "actions": rng.integers(num_actions, size=(steps + 1, batch)).astype(np.int32),
        "rewards": rng.normal(size=(steps, batch)) * 2,
        "is_terminal": rng.random((steps, batch)) < 0.25,
    }


def random_outputs(rng, steps, batch, num_actions, predictions, num_bins):
    shapes = {
        "logits": (num_actions,),
        "y": (predictions,),
        "z": (num_actions, predictions),
        "q": (num_actions, num_bins),
        "aux_pi": (num_actions, num_actions),
    }
    return {n: rng.normal(size=(steps + 1, batch, *shape)) for n, shape in shapes.items()}


def flatten(tree, prefix=""):
    flat = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = np.asarray(value)
    return flat


def rule_case(rng, weights, *, steps, batch, num_actions, num_bins, calls=3):
    """A golden file of calls of the rule, computed here."""
    predictions = weights["lstm/linear_2/b"].shape[0]
    rule, file = Rule(weights), {}
    for call in range(calls):
        given = random_trajectory(rng, steps, batch, num_actions)
        for whose in ("agent", "target"):
            given[whose] = random_outputs(rng, steps, batch, num_actions, predictions, num_bins)
        del given["target"]["aux_pi"]  # which a rule has no use for
        out = rule.call(given)
        file |= flatten(given, f"call{call}/in/")
        file |= flatten({n: x for n, x in out.items() if n not in NOT_IN_FILES}, f"call{call}/out/")
    return file


def random_params(rng, *, inputs, num_actions, predictions, num_bins, torso, lstm, head):
    """Parameters of a standard network, by the names of a golden file."""
    params = {}

    def layer(name, fan_in, fan_out, scale=1.0):
        params[f"{name}/w"] = rng.normal(size=(fan_in, fan_out)) * scale / np.sqrt(fan_in)
        params[f"{name}/b"] = rng.normal(size=fan_out) * 0.1

    def mlp(name, widths):
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layer(f"{name}/{i}", a, b)

    mlp("torso", (inputs, *torso))
    layer("head/logits", torso[-1], num_actions)
    layer("head/y", torso[-1], predictions)
    layer("action_model/root", torso[-1], lstm)
    layer("action_model/lstm", num_actions + lstm, 4 * lstm)
    for name, size in (("z", predictions), ("aux_pi", num_actions), ("q", num_bins)):
        mlp(f"action_model/{name}", (lstm, *head, size))
    return params


def learner_case(
    rng, weights, params, *, shape, steps, batch, num_actions, learning_rate, updates=3
):
    """A golden file of updates of an agent, computed here."""
    learner = Learner(weights, params, learning_rate)
    file = flatten(params, "init/params/") | {"lr": np.array(learning_rate)}
    for update in range(updates):
        given = random_trajectory(rng, steps, batch, num_actions)
        given["observations"] = rng.normal(size=(steps + 1, batch, *shape))
        given["mask"] = rng.random((steps, batch)) < 0.8
        file |= flatten(given, f"step{update}/in/")
        file |= flatten(learner.update(given), f"step{update}/out/")
    file |= flatten(learner.target_params, "final/target_params/")
    file["final/meta_rnn/hidden"], file["final/meta_rnn/cell"] = (
        learner.rule.hidden,
        learner.rule.cell,
    )
    return file
