"""The meta-network: reads an agent's outputs along a trajectory and emits targets.

Its parameters `eta` are a tree of layers {"w": [in, out], "b": [out]}; every size is read from
them. The network has two halves, each with its own input nets: the *trajectory* half computes the
targets, and the *meta-RNN* carries information from update to update over an agent's lifetime.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from discorl.networks.layers import init_linear, linear, lstm_step
from discorl.rules.masks import max_over_actions, mean_over_actions
from discorl.rules.returns import take_action
from discorl.types import Array, Key, Params

OUTPUT_STDDEV = 0.3
GATE_STDDEV = 1.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Widths of a meta-network; the defaults are those of Disco103."""

    prediction: int = 600  # P, of y and z
    trajectory_lstm: int = 256
    embedding_net: tuple[int, ...] = (16, 1)  # y_net and z_net
    policy_net: tuple[int, ...] = (16, 2)
    pi_hat_blocks: tuple[int, ...] = (16,)
    meta_lstm: int = 128
    meta_input: tuple[int, ...] = (16,)
    meta_embedding_net: tuple[int, ...] = (16, 1)
    meta_policy_net: tuple[int, ...] = (16, 2)

    @classmethod
    def of(cls, eta: Params) -> "Sizes":
        def widths(layers: Sequence[Params]) -> tuple[int, ...]:
            return tuple(layer["b"].shape[0] for layer in layers)

        meta = eta["meta_rnn"]
        return cls(
            prediction=eta["y_hat"]["b"].shape[0],
            trajectory_lstm=eta["gate"]["b"].shape[0],
            embedding_net=widths(eta["y_net"]),
            policy_net=widths(eta["policy_net"]),
            pi_hat_blocks=widths(eta["pi_hat_blocks"]),
            meta_lstm=eta["gate"]["w"].shape[0],
            meta_input=widths(meta["input"]),
            meta_embedding_net=widths(meta["y_net"]),
            meta_policy_net=widths(meta["policy_net"]),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of the meta-network. Gradients flow through the embeddings only."""

    action: Array  # [T, B]
    reward: Array  # [T, B]
    terminated: Array  # [T, B] bool
    cut: Array  # [T, B] bool, where the backward LSTM is reset
    weight: Array  # [T, B], of each step in averages over the batch
    pi: Array  # [T+1, B, A] probabilities of the agent's policy
    mu: Array  # [T, B, A] of the behaviour policy
    pi_target: Array  # [T, B, A] of the target network's policy
    v: Array  # [T+1, B] values
    q: Array  # [T, B, A] action values of the target network
    adv: Array  # [T, B]
    normalised_adv: Array  # [T, B]
    qv_adv: Array  # [T, B, A]
    normalised_qv_adv: Array  # [T, B, A]
    y: Array  # [T+1, B, E] embeddings by both halves' nets, from `embed`
    y_target: Array  # [T+1, B, E]
    z: Array  # [T+1, B, A, E]
    z_target: Array  # [T+1, B, A, E]
    legal: Array | None = None  # [T+1, B, A] bool, the action mask; None: all actions are legal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MetaState:
    """State of the meta-RNN."""

    hidden: Array  # [H]
    cell: Array  # [H]


def init_state(sizes: Sizes) -> MetaState:
    """State at the beginning of an agent's life."""
    return MetaState(jnp.zeros(sizes.meta_lstm), jnp.zeros(sizes.meta_lstm))


# --- building blocks ------------------------------------------------------------------------------


def _sign_log(x: Array) -> Array:
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def _pair(x: Array) -> Array:
    """Concatenates each moment with the next: [T+1, B, E] -> [T, B, 2 E]."""
    return jnp.concatenate([x[:-1], x[1:]], axis=-1)


def embed(nets: Sequence[Sequence[Params]], logits: Array) -> Array:
    """Applies several small nets to softmax(logits): [..., P] -> [..., sum of their widths].

    The predictions are by far the largest arrays of an update, so they are read as rarely as
    possible: one product serves the first layers of all nets and the softmax's sum.
    """
    weights = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)))
    ones = jnp.ones((logits.shape[-1], 1), logits.dtype)
    sums = weights @ jnp.concatenate([*(net[0]["w"] for net in nets), ones], axis=-1)
    means = sums[..., :-1] / sums[..., -1:]
    outputs, start = [], 0
    for net in nets:
        width = net[0]["b"].shape[0]
        x = means[..., start : start + width] + net[0]["b"]
        start += width
        for layer in net[1:]:
            x = linear(layer, jax.nn.relu(x))
        outputs.append(x)
    return jnp.concatenate(outputs, axis=-1)


def _action_block(
    block: Params, per_action: Array, legal: Array | None, shared: Array | None = None
) -> Array:
    """Dense layer on each action's vector and the mean over actions, then ReLU.

    An action's vector is concat[shared, per_action], [T, B, S] and [T, B, A, C]; the shared part is
    multiplied only once. The mean is over `legal` actions, [T, B, A, 1]. Returns
    [T, B, A, channels].
    """
    own, mean = jnp.split(block["w"], 2, axis=0)
    width = own.shape[0] - per_action.shape[-1]
    once = mean_over_actions(per_action, legal, axis=-2) @ mean[width:] + block["b"]
    if shared is not None:
        once += shared @ (own[:width] + mean[:width])
    return jax.nn.relu(per_action @ own[width:] + once[..., None, :])


def _legal_t(inputs: Inputs) -> Array | None:
    """The mask for vectors of actions: [T, B, A, 1]."""
    return None if inputs.legal is None else inputs.legal[:-1, ..., None]


def _common_features(inputs: Inputs) -> Array:
    """The features that do not depend on a half's own nets: [T, B, 9]."""

    def taken(probabilities: Array) -> Array:
        return take_action(probabilities, inputs.action)

    features = [
        taken(inputs.pi[:-1]),
        taken(inputs.mu),
        _sign_log(inputs.reward),
        1 - inputs.terminated.astype(inputs.reward.dtype),
        _sign_log(inputs.v[:-1]),
        _sign_log(inputs.v[1:]),
        _sign_log(inputs.adv),
        inputs.normalised_adv,
        taken(inputs.pi_target),
    ]
    return jax.lax.stop_gradient(jnp.stack(features, axis=-1))


def _common_action_inputs(inputs: Inputs) -> tuple[Array, Array]:
    """Per-action inputs before and after those of a half's own z_net: [T, B, A, 3] and 4."""
    one_hot = jax.nn.one_hot(inputs.action, inputs.mu.shape[-1], dtype=inputs.mu.dtype)
    before = jnp.stack([inputs.pi[:-1], inputs.mu, inputs.pi_target], axis=-1)
    values = [_sign_log(inputs.q), _sign_log(inputs.qv_adv), inputs.normalised_qv_adv, one_hot]
    return jax.lax.stop_gradient((before, jnp.stack(values, axis=-1)))


def _features(
    inputs: Inputs, own: slice, policy_net: Sequence[Params], common: Array, around: tuple
) -> tuple[Array, Array]:
    """All features of one half, [T, B, F], and the per-action embedding e, [T, B, A, C]."""
    pi = jax.lax.stop_gradient(inputs.pi)[..., None]
    legal = None if inputs.legal is None else inputs.legal[..., None]
    legal_t = _legal_t(inputs)
    features = [common, _pair(inputs.y[..., own]), _pair(inputs.y_target[..., own])]
    for z in (inputs.z[..., own], inputs.z_target[..., own]):
        features.append(take_action(z[:-1], inputs.action))
        features.append(_pair(jnp.sum(pi * z, axis=-2)))
        features.append(_pair(max_over_actions(z, legal, axis=-2)))
    before, after = around
    z_inputs = [inputs.z[:-1, ..., own], inputs.z_target[:-1, ..., own]]
    e = jnp.concatenate([before, *z_inputs, after], axis=-1)
    for block in policy_net:
        e = _action_block(block, e, legal_t)
    features += [mean_over_actions(e, legal_t, axis=-2), take_action(e, inputs.action)]
    return jnp.concatenate(features, axis=-1), e


def _backward_lstm(layer: Params, features: Array, cut: Array) -> Array:
    """LSTM from the end of a trajectory to its start: [T, B, F] -> [T, B, H].

    Its state is reset before a step whose successor belongs to another episode.
    """
    size = layer["b"].shape[0] // 4
    w_input, w_hidden = layer["w"][:-size], layer["w"][-size:]
    gates = features @ w_input + layer["b"]
    keep = 1 - cut.astype(features.dtype)[..., None]

    def step(state: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple, Array]:
        (hidden, cell), (gates_t, keep_t) = state, x
        hidden, cell = lstm_step(gates_t + (keep_t * hidden) @ w_hidden, keep_t * cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((*features.shape[1:-1], size), features.dtype)
    return jax.lax.scan(step, (zeros, zeros), (gates, keep), reverse=True)[1]


# --- the network ----------------------------------------------------------------------------------


def apply(
    eta: Params, state: MetaState, inputs: Inputs, *, reads_y_hat: bool = True
) -> tuple[dict[str, Array], MetaState]:
    """Computes targets for a batch of trajectories and advances the meta-RNN by one step.

    Returns logits of the targets "pi" [T, B, A], "y" [T, B, P] and "z" [T, B, P], and "embedding"
    [T, B, 1], an input of the meta-RNN; and the new state. Without `reads_y_hat`, the meta-RNN sees
    zeros instead of the targets of y.
    """
    meta = eta["meta_rnn"]
    common, around = _common_features(inputs), _common_action_inputs(inputs)
    width = eta["y_net"][-1]["b"].shape[0]

    features, e = _features(inputs, slice(0, width), eta["policy_net"], common, around)
    x = _backward_lstm(eta["trajectory_lstm"], features, inputs.cut)
    x = x * linear(eta["gate"], state.hidden)
    legal_t = _legal_t(inputs)
    pi_hat = _action_block(eta["pi_hat_blocks"][0], e, legal_t, shared=x)
    for block in eta["pi_hat_blocks"][1:]:
        pi_hat = _action_block(block, pi_hat, legal_t)
    targets = {
        "pi": linear(eta["pi_hat"], pi_hat)[..., 0],
        "y": linear(eta["y_hat"], x),
        "z": linear(eta["z_hat"], x),
        "embedding": linear(eta["embedding"], x),
    }

    own, _ = _features(inputs, slice(width, None), meta["policy_net"], common, around)
    y_hat = embed([meta["y_net"]], targets["y"])
    if not reads_y_hat:
        y_hat = jnp.zeros_like(y_hat)
    u = jnp.concatenate([own, targets["embedding"], y_hat], axis=-1)
    for i, layer in enumerate(meta["input"]):
        u = linear(layer, u if i == 0 else jax.nn.relu(u))
    weight = inputs.weight[..., None]
    u = jnp.sum(u * weight, axis=(0, 1)) / jnp.sum(weight)
    gates = linear(meta["lstm"], jnp.concatenate([u, state.hidden]))
    return targets, MetaState(*lstm_step(gates, state.cell))


def init(key: Key, sizes: Sizes) -> Params:
    """Parameters of a new rule."""
    keys = iter(jax.random.split(key, 64))

    def layer(inputs: int, outputs: int, stddev: float | None = None) -> Params:
        return init_linear(next(keys), inputs, outputs, stddev=stddev)

    def chain(inputs: int, widths: Sequence[int], *, twice: bool = False) -> tuple[Params, ...]:
        fan_in = (inputs, *widths[:-1])
        factor = 2 if twice else 1  # action blocks read each vector and the mean over actions
        return tuple(layer(factor * i, o) for i, o in zip(fan_in, widths, strict=True))

    def halves(nets: Sequence[int], policy: Sequence[int]) -> tuple[Params, int]:
        e, c = nets[-1], policy[-1]
        params = {
            "y_net": chain(sizes.prediction, nets),
            "z_net": chain(sizes.prediction, nets),
            "policy_net": chain(7 + 2 * e, policy, twice=True),
        }
        return params, 9 + 14 * e + 2 * c

    trajectory, features = halves(sizes.embedding_net, sizes.policy_net)
    meta, meta_features = halves(sizes.meta_embedding_net, sizes.meta_policy_net)
    hidden, meta_hidden = sizes.trajectory_lstm, sizes.meta_lstm
    return trajectory | {
        "trajectory_lstm": layer(features + hidden, 4 * hidden),
        "gate": layer(meta_hidden, hidden, GATE_STDDEV),
        "embedding": layer(hidden, 1, OUTPUT_STDDEV),
        "y_hat": layer(hidden, sizes.prediction, OUTPUT_STDDEV),
        "z_hat": layer(hidden, sizes.prediction, OUTPUT_STDDEV),
        "pi_hat_blocks": chain(hidden + sizes.policy_net[-1], sizes.pi_hat_blocks, twice=True),
        "pi_hat": layer(sizes.pi_hat_blocks[-1], 1, OUTPUT_STDDEV),
        "meta_rnn": meta
        | {
            "input": chain(meta_features + 1 + sizes.meta_embedding_net[-1], sizes.meta_input),
            "lstm": layer(sizes.meta_input[-1] + meta_hidden, 4 * meta_hidden),
        },
    }
