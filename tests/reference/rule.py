"""A discovered rule: its targets, its losses and their gradients."""

import dataclasses

import numpy as np

from reference.functions import (
    at_action,
    kl,
    linear,
    lstm_step,
    relu,
    scalar_value,
    signed_log,
    softmax,
    squash,
    two_hot,
)

GAMMA, LAMBDA, DECAY, Q_COST = 0.997, 0.95, 0.99, 0.2
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
