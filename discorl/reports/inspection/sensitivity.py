r"""How much each input moves a rule's targets.

An input x of the rule, along real trajectories [T, B], is moved toward that of another trajectory:

    x^eps = x + eps (x[sigma] - x),    sigma a random permutation of the batch,

which keeps probabilities normalised and makes steps of the size that the input really varies by.
With f the rule, the other inputs kept, and RMS over steps, components and permutations,

    S(x) = RMS(f(x^eps) - f(x)) / eps / RMS(f(all inputs of sigma) - f(x)),

so that 1 means that the input alone moves a target as far as the way from one trajectory to
another. Terminations are swapped whole, eps = 1. These are finite differences: most inputs of a
meta-network are behind a stop-gradient, through which automatic differentiation reads 0.

Of a Disco rule the inputs are those of its meta-network. Of others they are what `Rule.targets` is
given: rewards, terminations, behaviour, and outputs of the agent and of its target network.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from discorl.reports.charts import IntervalChart
from discorl.reports.inspection import readings
from discorl.reports.inspection.findings import DoesNotApplyError, Findings, row, text_of
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Subject, over_agents
from discorl.rules.disco import Disco
from discorl.types import Array, Key

EPSILON = 0.1
PERMUTATIONS = 4

Inputs = dict[str, Array]  # by name, the batch on the axis after time


def analyse(subject: Subject) -> Findings:
    """Sensitivities of all targets to all inputs, over agents."""
    found = over_agents(
        subject,
        "sensitivity",
        lambda life: measure(readings.ask(subject, life.latest), jax.random.key(life.seed)),
    )
    # By target and input, [agents].
    shares = {name: of for name, (of, whole) in found.items() if np.isfinite(whole).all()}
    if not shares:
        raise DoesNotApplyError("none of its targets varies over the batch")
    panels, facts = [], {}
    first = next(iter(shares.values()))
    inputs = sorted(first, key=lambda x: -sum(s[x].mean() for s in shares.values()))
    for target, by_input in shares.items():
        panels.append((f"target of {target}", tuple(row(x, by_input[x]) for x in inputs)))
        order = sorted(by_input, key=lambda name: -by_input[name].mean())
        facts[f"{target} is moved most by"] = ", ".join(
            f"{name} {text_of(by_input[name])}" for name in order[:3]
        )
    caption = "1: the input alone turns one trajectory's target into the other's."
    title = "Sensitivity to each input"
    chart = IntervalChart("sensitivity", title, tuple(panels), reference=1.0, caption=caption)
    return Findings(facts, (chart,))


@jax.jit
def _measure(asked: Asked, key: Key) -> dict[str, tuple[Inputs, Array]]:
    inputs, function = _disco(asked) if isinstance(asked.rule, Disco) else _any(asked)
    weight = asked.reading.trajectory.learnable(jnp.float32)
    before = function(inputs)

    def distance(after: Inputs, name: str) -> Array:
        axes = tuple(range(2, before[name].ndim))
        squares = jnp.mean(jnp.square(after[name] - before[name]), axis=axes)
        return jnp.sum(weight * squares) / jnp.sum(weight)

    def of_input(key: Key, index: Array) -> Inputs:
        """Mean square distances when one input is moved, or all for an index beyond the last."""
        order = jax.random.permutation(key, weight.shape[1])
        moved = {}
        for i, (name, x) in enumerate(inputs.items()):
            nearby = x[:, order] if x.dtype == bool else x + EPSILON * (x[:, order] - x)
            moved[name] = jnp.where(index == i, nearby, x)
            moved[name] = jnp.where(index == len(inputs), x[:, order], moved[name])
        after = function(moved)
        return {name: distance(after, name) for name in before}

    # One call of the rule in a loop: a copy for each input would take long to compile.
    draw, indices = jnp.divmod(jnp.arange(PERMUTATIONS * (len(inputs) + 1)), len(inputs) + 1)
    keys = jax.random.split(key, PERMUTATIONS)[draw]
    squares = jax.lax.map(lambda each: of_input(*each), (keys, indices))
    found = {}
    for name, x in squares.items():
        size = jnp.sqrt(jnp.mean(x.reshape(PERMUTATIONS, -1), axis=0))
        whole = jnp.where(size[-1] > 1e-7, size[-1], jnp.nan)
        steps = [1.0 if x.dtype == bool else EPSILON for x in inputs.values()]
        shares = zip(inputs, steps, size[:-1], strict=True)
        found[name] = ({n: moved / step / whole for n, step, moved in shares}, whole)
    return found


def measure(asked: Asked, key: Key) -> dict[str, tuple[dict[str, float], float]]:
    """For each target, S of each input, and the distance that it is relative to."""
    return jax.tree.map(float, _measure(asked, key))


def _any(asked: Asked) -> tuple[Inputs, Callable[[Inputs], Inputs]]:
    """What `Rule.targets` is given, and the targets as a function of it."""
    reading = asked.reading
    trajectory = reading.trajectory
    inputs = {
        "reward": trajectory.reward,
        "termination": trajectory.terminated.astype(bool),
        "behaviour": trajectory.behaviour_logits,
    }
    inputs |= {f"agent's {name}": x for name, x in reading.online.items()}
    inputs |= {f"target network's {name}": x for name, x in reading.target.items()}

    def function(changed: Inputs) -> Inputs:
        told = dataclasses.replace(
            trajectory,
            reward=changed["reward"],
            terminated=changed["termination"],
            behaviour_logits=changed["behaviour"],
        )
        moved = dataclasses.replace(
            reading,
            trajectory=told,
            online={name: changed[f"agent's {name}"] for name in reading.online},
            target={name: changed[f"target network's {name}"] for name in reading.target},
        )
        return readings.named_targets(dataclasses.replace(asked, reading=moved).targets())

    return inputs, function


_NAMES = {  # of the meta-network's inputs
    "reward": "reward",
    "terminated": "termination",
    "pi": "policy",
    "mu": "behaviour policy",
    "pi_target": "target network's policy",
    "v": "value",
    "q": "action values",
    "adv": "advantage",
    "normalised_adv": "advantage, normalised",
    "qv_adv": "actions' advantages",
    "normalised_qv_adv": "actions' advantages, normalised",
    "y": "y",
    "y_target": "target network's y",
    "z": "z",
    "z_target": "target network's z",
}


def _disco(asked: Asked) -> tuple[Inputs, Callable[[Inputs], Inputs]]:
    """Inputs of the meta-network, and the targets as a function of them."""
    rule, reading = asked.rule, asked.reading
    assert isinstance(rule, Disco)
    values, _ = rule.values(asked.state, reading.trajectory, reading.online, reading.target)
    told = rule.inputs(values, reading.trajectory, reading.online, reading.target)
    inputs = {label: getattr(told, name) for name, label in _NAMES.items()}
    inputs[_NAMES["terminated"]] = told.terminated.astype(bool)

    def function(changed: Inputs) -> Inputs:
        moved = {name: changed[label] for name, label in _NAMES.items()}
        # Where an episode ends, the trajectory LSTM forgets.
        moved["cut"] = moved["terminated"] | (told.cut & ~told.terminated.astype(bool))
        hats, _ = rule.ask(asked.eta, asked.state.meta_rnn, dataclasses.replace(told, **moved))
        return {name: jax.nn.softmax(hats[name]) for name in ("pi", "y", "z")}

    return inputs, function
