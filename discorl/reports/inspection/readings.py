"""What rules of all kinds have in common: a value, an advantage, a push on the policy, targets."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from discorl.reports.inspection.findings import DoesNotApplyError
from discorl.reports.inspection.subject import Moment, Reading, Subject, read
from discorl.rules import disco, returns
from discorl.rules.base import Rule
from discorl.types import Array, Outputs, Params, PyTree

LAMBDA = 0.95  # of advantages, where a rule has none of its own


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["eta", "state", "reading"],
    meta_fields=["label", "rule"],
)
@dataclasses.dataclass(frozen=True)
class Asked:
    """A rule, and all that it is told at one moment of an agent's life."""

    label: str
    rule: Rule
    eta: Params
    state: PyTree
    reading: Reading

    def targets(self) -> PyTree:
        r = self.reading
        return self.rule.targets(self.eta, self.state, r.trajectory, r.online, r.target)[0]


def ask(subject: Subject, moment: Moment) -> Asked:
    """The inspected rule at a moment."""
    return Asked(subject.label, subject.rule, subject.eta, moment.state.rule, moment.reading)


# --- values and advantages ------------------------------------------------------------------------


def action_values(outputs: Outputs, num_actions: int) -> Array | None:
    """Action values among a rule's summaries, [T+1, B, A]; None if it has none."""
    q = outputs.get("q")
    return q if q is not None and q.ndim == 3 and q.shape[-1] == num_actions else None


def state_values(outputs: Outputs, logits: Array) -> Array | None:
    """V(s) or sum_a pi(a|s) Q(s, a), [T+1, B]; None if a rule has neither."""
    if "value" in outputs and outputs["value"].ndim == 2:
        return outputs["value"]
    q = action_values(outputs, logits.shape[-1])
    return None if q is None else jnp.sum(jax.nn.softmax(logits) * q, axis=-1)


def require_values(reading: Reading) -> Array:
    """State values of the target network or, without one, of the agent: [T+1, B]."""
    values = state_values(reading.target or reading.online, reading.logits)
    if values is None:
        raise DoesNotApplyError("its agents have no output `value` or `q` to take advantages from")
    return values


def advantages(rule: Rule, reading: Reading) -> Array:
    """Advantages A_t of the agent's own values, [T, B].

    With action values, A_t = G_t - V(s_t) with the Retrace return G_t; with state values alone,
    generalised advantage estimates. Either way dA_t / dr_t = 1.
    """
    trajectory, v = reading.trajectory, require_values(reading)
    lambda_ = getattr(rule, "lambda_", LAMBDA)
    q = action_values(reading.target or reading.online, reading.logits.shape[-1])
    if q is None:
        discount_t = rule.discount * (1 - trajectory.terminated.astype(v.dtype))
        reward_t = trajectory.reward.astype(v.dtype)
        return returns.gae(reward_t, discount_t, v[:-1], v[1:], trajectory.cut(), lambda_)
    action, mu = trajectory.action, trajectory.behaviour_logits
    rho_t = returns.importance_ratio(reading.logits[:-1], mu, action)
    q_t, trace_t = returns.take_action(q[:-1], action), lambda_ * jnp.minimum(1, rho_t)
    return returns.retrace_along(trajectory, rule.discount, v, q_t, trace_t) - v[:-1]


# --- what a rule does -----------------------------------------------------------------------------


def push(asked: Asked) -> Array:
    """How a step along the rule's gradient changes log pi(a_t|s_t), [T, B].

    With u_t = - alpha d loss / d logits_t, alpha the rule's multiplier of the learning rate, a
    small step along u changes log pi(a_t|s_t) at the rate u_t(a_t) - sum_a pi(a|s_t) u_t(a).
    """
    reading, rule = asked.reading, asked.rule
    if "logits" not in reading.outputs:
        raise DoesNotApplyError("its policy is not an output of its own (`logits`) to be pushed")
    targets = asked.targets()

    def loss(logits: Array) -> Array:
        terms = rule.loss(reading.outputs | {"logits": logits}, targets, reading.trajectory)
        return sum((jnp.sum(term) for term in terms.values()), start=jnp.zeros(()))

    alpha = rule.step_size(asked.eta, asked.state)
    u_t = -jax.grad(loss)(reading.outputs["logits"])[:-1] * (1 if alpha is None else alpha)
    pi_t = jax.nn.softmax(reading.logits[:-1])
    return returns.take_action(u_t, reading.trajectory.action) - jnp.sum(pi_t * u_t, axis=-1)


def named_targets(targets: PyTree) -> dict[str, Array]:
    """The arrays among a rule's targets by name, [T, B, ...]; Disco's logits as probabilities."""
    if isinstance(targets, disco.Targets):
        hats = {name: jax.nn.softmax(getattr(targets, name)) for name in ("pi", "y", "z")}
        return hats | {"q": targets.q}
    leaves = jax.tree_util.tree_leaves_with_path(targets)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") or "target": leaf
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.ndim >= 2
    }


def change(before: Array, after: Array, weight: Array) -> Array:
    """Relative change of a target, [T, B, ...], at each step: root mean square over components.

    It is in units of the target's standard deviation over weighted steps, [T, B]; NaN for a target
    that is constant.
    """
    axes = tuple(range(2, before.ndim))
    wide = weight.reshape(*weight.shape, *[1] * len(axes))
    mean = jnp.sum(wide * before, axis=(0, 1)) / jnp.sum(weight)
    variance = jnp.sum(wide * jnp.square(before - mean), axis=(0, 1)) / jnp.sum(weight)
    spread = jnp.sqrt(jnp.mean(variance))
    moved = jnp.sqrt(jnp.mean(jnp.square(after - before), axis=axes))
    return moved / jnp.where(spread > 1e-7, spread, jnp.nan)


# --- the same data, told to another rule ----------------------------------------------------------


def compared(subject: Subject, moment: Moment) -> Iterator[Asked]:
    """The rules to compare with, each told what the agent of the inspected rule did and said.

    A rule of the same outputs is asked like the inspected one. Others that need a policy and
    values get those of the agent; Q(s, a) = V(s) where it knows no action values. A rule of the
    same class has the inspected one's state, but a meta-RNN of its own. Others begin a new life,
    except that moments are debiased and so those of the batch.
    """
    for label, (rule, eta) in subject.beside.items():
        yield _compared(subject, moment, label, rule, eta)


def kin(subject: Subject, moment: Moment) -> Iterator[Asked]:
    """Those of the rules to compare with that differ in their parameters alone, as a start does.

    A meta-network is left out: its memory of the life would not be its own.
    """
    for label, (rule, eta) in subject.beside.items():
        if type(rule) is type(subject.rule) and not isinstance(moment.state.rule, disco.DiscoState):
            yield _compared(subject, moment, label, rule, eta)


def _compared(subject: Subject, moment: Moment, label: str, rule: Rule, eta: Params) -> Asked:
    state = rule.init_state(jnp.int32(subject.config.updates))
    if rule.outputs(subject.learner.num_actions) != subject.learner.spec:
        return Asked(label, rule, eta, state, _translate(rule, moment.reading))
    if type(rule) is type(subject.rule):
        own = moment.state.rule
        is_disco = isinstance(own, disco.DiscoState)
        state = dataclasses.replace(own, meta_rnn=state.meta_rnn) if is_disco else own
    learner = dataclasses.replace(subject.learner, rule=rule)
    agent = dataclasses.replace(moment.state, rule=state)
    return Asked(label, rule, eta, state, _read(learner, agent, eta, moment.reading.trajectory))


_read = jax.jit(read, static_argnums=0)


def _translate(rule: Rule, reading: Reading) -> Reading:
    """What an agent of another rule would say if it had the same policy and values."""
    num_actions = reading.logits.shape[-1]
    spec = rule.outputs(num_actions)
    trajectory = reading.trajectory

    def summaries(outputs: Outputs) -> tuple[Outputs, Outputs]:
        """Summaries for the rule, and outputs for its loss."""
        v = state_values(outputs, reading.logits)
        assert v is not None, "whoever compares has asked for values"
        q = action_values(outputs, num_actions)
        q = jnp.broadcast_to(v[..., None], reading.logits.shape) if q is None else q
        logits = outputs.get("logits", reading.logits)
        told: Outputs = {"logits": logits, "value": v, "q": q}
        raw = told | {"q": returns.squash(q)}
        return _only(told, spec.state), _only(raw, spec.state)

    online, outputs = summaries(_with_values(reading))
    target = summaries(reading.target or _with_values(reading))[0]
    shape = trajectory.action.shape
    outputs |= {name: jnp.zeros((*shape, *each)) for name, each in spec.action.items()}
    return Reading(
        trajectory, outputs, online, target if rule.target_decay is not None else {}, reading.logits
    )


def _with_values(reading: Reading) -> Outputs:
    """The agent's summaries with the values that advantages are taken from.

    So that all rules see the same advantages, those are the target network's if there is one.
    """
    values = {n: x for n, x in reading.target.items() if n in ("q", "value")}
    return reading.online | values


def _only(values: Outputs, names: Mapping[str, object]) -> Outputs:
    missing = sorted(set(names) - set(values))
    if missing:
        raise DoesNotApplyError(f"a rule beside it needs the outputs {', '.join(missing)}")
    return {name: values[name] for name in names}
