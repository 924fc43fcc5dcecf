"""Small functions that rules, networks and learners are made of."""

import numpy as np


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
