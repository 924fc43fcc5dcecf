r"""What an agent's outputs know of the future (as in Oh et al., Nature 648, 2025, Fig. 4c).

Agents play, without learning. From what an agent says at t, small MLPs predict, k = 0..10 steps
ahead in the same episode,

    the policy's entropy H(pi(.|s_{t+k}))           R² = 1 - sum (x - x_hat)² / sum (x - mean)²
    whether the reward r_{t+k} is large             balanced accuracy, 0.5 by chance

A reward is large if it is more than a standard deviation above the mean reward. One MLP (32 hidden
units, Adam with weight decay, 400 steps of 256 samples) predicts both for all k, from one source at
a time: log-probabilities of y, of z(a_t), and of the policy, the value V(s_t), or the torso's
features, each reduced to its 64 largest principal components. Numbers are of 5-fold
cross-validation, whose folds hold whole environments. Controls are the same probes on an agent
before its first update, and on targets shuffled over time and environments.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl.agent import acting, frames
from discorl.agent.learner import LearnerState
from discorl.networks.layers import init_mlp, mlp
from discorl.reports.charts import LineChart
from discorl.reports.inspection import readings
from discorl.reports.inspection.findings import Findings, line, text_of
from discorl.reports.inspection.subject import Life, Reading, Subject, by_agent, read
from discorl.rules import returns
from discorl.types import Array, Key, Trajectory

MOST_STEPS = 10  # k
ENVIRONMENTS, STEPS = 40, 100
FOLDS = 5
_COMPONENTS = 64
_HIDDEN, _BATCH, _UPDATES, _LEARNING_RATE, _WEIGHT_DECAY = 32, 256, 400, 3e-3, 1e-3
_LEAST_SAMPLES, _LEAST_EVENTS, _LEAST_VARIANCE = 200, 20, 1e-5
_QUOTED = 4  # k, as in the paper

TRAINED, UNTRAINED, SHUFFLED = "trained", "untrained agent", "shuffled targets"


@dataclasses.dataclass(frozen=True)
class Futures:
    """What is to be predicted, for N samples."""

    entropy: np.ndarray  # [N, K]
    large: np.ndarray  # [N, K], 0 or 1
    known: np.ndarray  # [N, K] bool, the episode lasts that long
    fold: np.ndarray  # [N]


@dataclasses.dataclass(frozen=True)
class Scores:
    """How well the future is predicted, for each k; NaN where too few samples tell."""

    entropy: np.ndarray  # [K], R²
    large: np.ndarray  # [K], balanced accuracy


def analyse(subject: Subject) -> Findings:
    """Probes of all agents, from all sources."""
    play = jax.jit(lambda state, key: _play(subject, state, key))

    def measure(life: Life) -> dict[tuple[str, str], Scores]:
        """Scores by source and kind."""
        found = {}
        key = jax.random.fold_in(jax.random.key(life.seed), 0xF07)
        for kind, moment in ((TRAINED, life.latest), (UNTRAINED, life.moments[0])):
            reading, torso = play(moment.state, key)
            futures = futures_of(reading)
            for source, features in sources(reading, torso).items():
                x = components(features)
                found[source, kind] = probe(x, futures, key)
                if kind == TRAINED:
                    found[source, SHUFFLED] = probe(x, shuffled(futures), key)
        return found

    found = by_agent(subject, "future", measure)
    charts, facts = [], {}
    for name, title, y_label in (
        ("entropy", "The policy's entropy k steps ahead", "R²"),
        ("large", "A large reward k steps ahead", "balanced accuracy"),
    ):
        values = {
            each: np.stack([getattr(scores[each], name) for scores in found]) for each in found[0]
        }
        chart = _chart(f"future-{name}", title, y_label, values)
        if chart.lines:
            charts.append(chart)
        else:
            facts[title] = "too few samples, or all alike"
        for (source, kind), by_life in values.items():
            if kind == TRAINED and np.isfinite(by_life).any():
                k = min(_QUOTED, int(np.flatnonzero(np.isfinite(by_life).any(axis=0))[-1]))
                facts[f"{y_label} at k = {k} from {source}"] = text_of(by_life[:, k])
    return Findings(facts, tuple(charts))


def _chart(
    name: str, title: str, y_label: str, values: Mapping[tuple[str, str], np.ndarray]
) -> LineChart:
    """Sources of trained agents, and the best of them under each control."""
    # Probes that do worse than a constant say nothing more by how much.
    floor = 0.0 if name.endswith("entropy") else 0.4
    control = "y" if ("y", UNTRAINED) in values else "policy"
    shown = {source: found for (source, kind), found in values.items() if kind == TRAINED}
    shown |= {f"{control}, {kind}": values[control, kind] for kind in (UNTRAINED, SHUFFLED)}
    lines = [
        line(label, i, np.arange(MOST_STEPS + 1), np.maximum(found, floor))
        for i, (label, found) in enumerate(shown.items())
        if np.isfinite(found).any()
    ]
    return LineChart(name, title, "steps ahead, k", y_label, tuple(lines))


# --- data -----------------------------------------------------------------------------------------


def _play(subject: Subject, state: LearnerState, key: Key) -> tuple[Reading, Array | None]:
    """Trajectories of an agent, what it says along them, and the torso's features, [T+1, B, F]."""
    agent, learner = subject.agent, subject.learner
    environment = agent.stacked_environment
    start_key, key = jax.random.split(key)
    actor = acting.init(environment, start_key, ENVIRONMENTS, learner.network.state)
    _, trajectory, _ = acting.rollout(
        environment, functools.partial(agent.policy, state.params), actor, key, STEPS
    )
    if agent.config.frame_stack > 1:
        trajectory = frames.without_repeats(trajectory)
    trajectory = frames.with_stacks(trajectory, agent.config.frame_stack)
    torso = None
    if learner.network.recurrence is not None:
        torso = learner.network.unroll(state.params, trajectory)
    elif learner.network.torso is not None:
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.observation)
        features = learner.network.torso(state.params, rows)
        torso = features.reshape(STEPS + 1, ENVIRONMENTS, -1)
    return read(learner, state, subject.eta, trajectory), torso


def sources(reading: Reading, torso: Array | None) -> dict[str, np.ndarray]:
    """What probes read, [T * B, F] each."""
    found = {"policy": jax.nn.log_softmax(reading.logits[:-1])}
    for name in ("y", "z"):
        if name in reading.outputs:
            steps = reading.trajectory.action.shape[0]
            found[name] = jax.nn.log_softmax(reading.outputs[name][:steps])
    values = readings.state_values(reading.online, reading.logits)
    if values is not None:
        found["value"] = values[:-1, :, None]
    if torso is not None:
        found["torso"] = torso[:-1]
    return {name: np.asarray(x).reshape(-1, x.shape[-1]) for name, x in found.items()}


def futures_of(reading: Reading) -> Futures:
    """Entropies and large rewards of the next steps, for every step."""
    trajectory: Trajectory = reading.trajectory
    entropy = np.asarray(returns.entropy(reading.logits[:-1]))
    reward, cut = np.asarray(trajectory.reward), np.asarray(trajectory.cut())
    real = ~np.asarray(trajectory.fillers())
    large = reward > reward[real].mean() + max(reward[real].std(), 1e-6)
    length, batch = reward.shape
    ends = np.cumsum(np.pad(cut, ((1, 0), (0, 0))), axis=0)[:-1]  # episodes ended before a step
    entropies, events, known = [], [], []
    for k in range(MOST_STEPS + 1):
        later = np.minimum(np.arange(length) + k, length - 1)
        same = (ends[later] == ends) & real & real[later]
        known.append(same & (np.arange(length) + k < length)[:, None])
        entropies.append(entropy[later])
        events.append(large[later])
    columns = [np.stack(x, axis=-1).reshape(-1, MOST_STEPS + 1) for x in (entropies, events, known)]
    fold = np.broadcast_to(np.arange(batch) % FOLDS, (length, batch)).reshape(-1)
    return Futures(columns[0], columns[1].astype(np.float32), columns[2], fold)


# --- probes ---------------------------------------------------------------------------------------


def shuffled(futures: Futures) -> Futures:
    """The futures of other moments, over time and environments."""
    order = np.random.default_rng(0).permutation(len(futures.fold))
    entropy, large, known = (x[order] for x in (futures.entropy, futures.large, futures.known))
    return Futures(entropy, large, known, futures.fold)


def components(features: np.ndarray) -> np.ndarray:
    """The largest principal components of features, [N, F]: standardised, [N, 64], zero-padded."""
    centred = features - features.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))  # ascending
    kept = variances[-_COMPONENTS:] > 1e-8 * variances[-1] + 1e-12
    parts = centred @ directions[:, -_COMPONENTS:][:, kept]
    scaled = parts / np.sqrt(variances[-_COMPONENTS:][kept])
    return np.pad(scaled, ((0, 0), (0, _COMPONENTS - kept.sum()))).astype(np.float32)


def probe(x: np.ndarray, futures: Futures, key: Key) -> Scores:
    """Scores of cross-validated probes that read x, [N, 64]."""
    known = futures.known
    count = known.sum(axis=0)
    mean = (futures.entropy * known).sum(axis=0) / np.maximum(count, 1)
    variance = (np.square(futures.entropy - mean) * known).sum(axis=0) / np.maximum(count, 1)
    events = (futures.large * known).sum(axis=0)
    entropy = (futures.entropy - mean) / np.sqrt(variance + 1e-12)
    targets = entropy.astype(np.float32), futures.large, known.astype(np.float32)
    predicted = np.asarray(_fit(x, *targets, futures.fold, key))
    own = predicted[futures.fold, np.arange(len(x))]  # of the probe that has not seen the sample
    guess, event = own[:, : MOST_STEPS + 1], own[:, MOST_STEPS + 1 :] > 0
    error = (np.square(guess - entropy) * known).sum(axis=0) / np.maximum(count, 1)
    hits = (event * futures.large * known).sum(axis=0) / np.maximum(events, 1)
    others = np.maximum(count - events, 1)
    misses = (~event * (1 - futures.large) * known).sum(axis=0) / others
    enough = (count >= _LEAST_SAMPLES) & (variance > _LEAST_VARIANCE)
    both = np.minimum(events, count - events) >= _LEAST_EVENTS
    return Scores(np.where(enough, 1 - error, np.nan), np.where(both, (hits + misses) / 2, np.nan))


@jax.jit
def _fit(x: Array, entropy: Array, large: Array, known: Array, fold: Array, key: Key) -> Array:
    """Predictions of the probes of all folds for all samples, [FOLDS, N, 2 K]."""
    width, outputs = x.shape[1], 2 * entropy.shape[1]
    optimiser = optax.adamw(_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)

    def of_fold(held_out: Array, key: Key) -> Array:
        weight = known * (fold != held_out)[:, None]
        share = jnp.sum(weight * large, axis=0) / jnp.maximum(jnp.sum(weight, axis=0), 1)
        # Events and their absence weigh the same, however rare events are.
        balance = jnp.where(large > 0, 0.5 / jnp.maximum(share, 1e-3), 0.5 / (1 - share + 1e-3))

        def loss(params: tuple, rows: Array) -> Array:
            found = mlp(params, x[rows])
            guess, logit = jnp.split(found, 2, axis=-1)
            fit = weight[rows] * jnp.square(guess - entropy[rows])
            labels = large[rows]
            crossed = optax.sigmoid_binary_cross_entropy(logit, labels)
            return jnp.mean(fit + weight[rows] * balance[rows] * crossed)

        def update(carry: tuple, key: Key) -> tuple[tuple, None]:
            params, state = carry
            rows = jax.random.randint(key, (_BATCH,), 0, x.shape[0])
            change, state = optimiser.update(jax.grad(loss)(params, rows), state, params)
            return (optax.apply_updates(params, change), state), None

        first, key = jax.random.split(key)
        params = init_mlp(first, width, (_HIDDEN, outputs))
        start = (params, optimiser.init(params))
        (params, _), _ = jax.lax.scan(update, start, jax.random.split(key, _UPDATES))
        return mlp(params, x)

    folds = jnp.arange(FOLDS), jax.random.split(key, FOLDS)
    return jax.lax.map(lambda each: of_fold(*each), folds)
