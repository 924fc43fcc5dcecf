"""Checks that a rule keeps its contract, on random data."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.rules import returns
from discorl.rules.base import Rule, summaries
from discorl.rules.registry import is_learned
from discorl.runs import npz
from discorl.types import Array, Key, Outputs, OutputSpec, Params, PyTree, Trajectory, UserError
from discorl.types.findings import Finding, describe, judge, mismatch, not_checked, raised

STEPS, BATCH, ACTIONS = 6, 4, 3
LIFETIME = 100


def check(rule: Rule, eta: Params | None = None, *, seed: int = 0) -> list[Finding]:
    """Checks a rule against its contract, by default with new parameters.

    Stops at the first failed check. An exception raised by the rule counts as one.
    """
    findings: list[Finding] = []
    checks = _Checks(rule, eta, jax.random.key(seed))
    for name, function in checks.all():
        try:
            findings.append(function())
        except Exception as error:  # raised by the rule
            findings.append(Finding(name, False, raised("it", error)))
        if not findings[-1].ok:
            break
    return findings


class _Checks:
    """The checks in order; each may use the results of earlier ones."""

    def __init__(self, rule: Rule, eta: Params | None, key: Key) -> None:
        self._rule, self._eta = rule, eta
        self._key, outputs_key, self._experience_key = jax.random.split(key, 3)
        self._outputs_keys = jax.random.split(outputs_key)

    def all(self) -> list[tuple[str, Callable[[], Finding]]]:
        checks = [
            ("declaration", self.declaration),
            ("parameters", self.parameters),
            ("state", self.state),
            ("summaries", self.summaries),
            ("targets", self.targets),
            ("loss", self.loss),
            ("gradient", self.gradient),
            ("action masks", self.masks),
        ]
        learned = [("meta-gradient", self.meta_gradient), ("file", self.file)]
        return checks + (learned if is_learned(self._rule) else [])

    def declaration(self) -> Finding:
        hash(self._rule)  # static arguments of compiled programs must be hashable
        self._spec = spec = self._rule.outputs(ACTIONS)
        if not isinstance(spec, OutputSpec):
            return Finding("declaration", False, f"outputs is {spec!r}; expected an OutputSpec")
        problems = [
            f"{name} is both a state and an action output; expected different names"
            for name in spec.state.keys() & spec.action.keys()
        ]
        self._online, self._target = (_random(spec, key) for key in self._outputs_keys)
        policy = jax.eval_shape(self._rule.policy, self._of_state(self._online))
        expected = (STEPS + 1, BATCH, ACTIONS)
        if getattr(policy, "shape", None) != expected:
            problems.append(f"policy is {describe(policy)}; expected logits {list(expected)}")
        named = {name: list(shape) for name, shape in (spec.state | spec.action).items()}
        detail = ", ".join(f"{name} {shape}" for name, shape in named.items())
        return judge("declaration", problems, f"with {ACTIONS} actions: {detail}")

    def parameters(self) -> Finding:
        if self._eta is None:
            self._eta = jax.jit(self._rule.init_params)(self._key)
        leaves = jax.tree.leaves_with_path(self._eta)
        problems = [
            f"eta{jax.tree_util.keystr(path)} is {jnp.asarray(leaf).dtype}; expected floats"
            for path, leaf in leaves
            if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)
        ] or _not_finite("eta", self._eta)
        count = sum(jnp.size(leaf) for _, leaf in leaves)
        return judge("parameters", problems, f"{count} numbers" if count else "none")

    def state(self) -> Finding:
        """The state at the start of a life, whose length may be traced."""
        self._state = jax.jit(self._rule.init_state)(jnp.int32(LIFETIME))
        step_size = jax.jit(self._rule.step_size)(self._eta, self._state)
        problems = _not_finite("state", self._state)
        size = "unchanged" if step_size is None else f"times {step_size}"
        if step_size is not None and (jnp.shape(step_size) != () or not jnp.isfinite(step_size)):
            problems.append(f"step_size is {step_size}; expected a finite number")
        count = sum(leaf.size for leaf in jax.tree.leaves(self._state))
        return judge("state", problems, f"{count} numbers; learning rate {size}")

    def summaries(self) -> Finding:
        """Summaries are computed row by row."""
        problems, told = [], {}
        for name, output in self._online.items():
            rows = output.reshape(-1, *output.shape[2:])
            whole = self._rule.summarise(self._eta, name, rows)
            if whole is None:
                continue
            if jnp.shape(whole)[:1] != rows.shape[:1]:
                problems.append(f"{name} is {describe(whole)}; expected {len(rows)} rows")
                continue
            told[name] = whole[0]
            part = self._rule.summarise(self._eta, name, rows[:3])
            if part is None or not np.allclose(part, whole[:3], rtol=1e-4, atol=1e-6):
                problems.append(f"{name} of a row depends on other rows")
        detail = f"of each moment: {describe(told)}" if told else "none"
        return judge("summaries", problems, detail)

    def targets(self) -> Finding:
        self._trajectory = _experience(self._experience_key)
        ask = jax.jit(lambda eta, state: self._ask(eta, state, self._trajectory))
        answer = ask(self._eta, self._state)
        if not isinstance(answer, tuple) or len(answer) != 3:
            many = f" of {len(answer)}" if isinstance(answer, tuple) else ""
            found = f"a {type(answer).__name__}{many}"
            problem = f"returned {found}; expected targets, the new state and metrics"
            return judge("targets", [problem], "")
        self._targets, state, metrics = answer
        problems = mismatch("the new state", state, self._state)
        for path, leaf in jax.tree.leaves_with_path(self._targets):
            if leaf.shape[:2] != (STEPS, BATCH):
                name = f"targets{jax.tree_util.keystr(path)}"
                problems.append(f"{name} is {describe(leaf)}; expected [T, B, ...]")
        problems += [
            f"metric {name!r} is {describe(value)}; expected a number"
            for name, value in metrics.items()
            if jnp.shape(value) != ()
        ]
        problems += _not_finite("targets", self._targets) + _not_finite("the new state", state)
        detail = f"{describe(self._targets)}; state as before; metrics {', '.join(metrics)}"
        return judge("targets", problems, detail)

    def loss(self) -> Finding:
        terms = jax.jit(self._rule.loss)(self._taken(), self._targets, self._trajectory)
        if not isinstance(terms, dict) or not terms:
            return Finding("loss", False, f"it is {terms!r:.40}; expected a dict of named terms")
        problems = [
            f"{name} is {describe(term)}; expected [T, B]"
            for name, term in terms.items()
            if jnp.shape(term) != (STEPS, BATCH)
        ]
        problems += _not_finite("the loss", terms)
        return judge("loss", problems, f"terms {', '.join(terms)}, each [T, B]")

    def gradient(self) -> Finding:
        """The gradient of the loss reaches outputs, in particular the logits."""
        total = jax.jit(jax.grad(self._total))
        gradients = total(self._taken(), self._targets, self._trajectory)
        moved = [name for name, gradient in gradients.items() if jnp.any(gradient != 0)]
        problems = _not_finite("the gradient", gradients)
        needed = ["logits"] if "logits" in self._spec.state else []
        problems += [f"none reaches {name!r}" for name in needed if name not in moved]
        if not moved:
            problems.append("it is zero everywhere; are the targets those of other outputs?")
        return judge("gradient", problems, f"finite; reaches {', '.join(moved)}")

    def masks(self) -> Finding:
        illegal = jax.nn.one_hot((self._trajectory.action + 1) % ACTIONS, ACTIONS, dtype=bool)
        legal = ~jnp.concatenate([illegal, illegal[-1:]])
        trajectory = dataclasses.replace(self._trajectory, action_mask=legal)

        def masked(outputs: Outputs) -> Outputs:
            return outputs | self._rule.mask_actions(self._of_state(outputs), legal)

        @jax.jit
        def gradient(eta: Params, state: PyTree) -> tuple[Outputs, PyTree]:
            online, target = masked(self._online), masked(self._target)
            targets, _, _ = self._ask(eta, state, trajectory, online, target)

            def total(outputs: Outputs) -> Array:
                return self._total(masked(outputs), targets, trajectory)

            return jax.grad(total)(self._taken()), targets

        try:
            policy = jax.nn.softmax(self._rule.policy(masked(self._of_state(self._online))))
        except UserError as error:  # a rule need not support masks
            return not_checked("action masks", str(error))
        gradients, targets = gradient(self._eta, self._state)
        problems = _not_finite("targets", targets) + _not_finite("the gradient", gradients)
        if jnp.any(jnp.where(legal, 0, policy)):
            problems.append(
                "the policy takes illegal actions; expected Rule.mask_actions to be used"
            )
        if jnp.any(jnp.where(legal, 0, gradients.get("logits", 0))):
            problems.append("a gradient reaches the logits of illegal actions")
        return judge("action masks", problems, "illegal actions get no probability and no gradient")

    def meta_gradient(self) -> Finding:
        """The gradient of an update with respect to eta, which discovery needs."""

        def moved(eta: Params) -> Array:
            targets, _, _ = self._ask(eta, self._state, self._trajectory)
            gradients = jax.grad(self._total)(self._taken(), targets, self._trajectory)
            keys = jax.random.split(self._key, len(gradients))
            directions = {
                name: jax.random.normal(key, gradients[name].shape)
                for name, key in zip(gradients, keys, strict=True)
            }
            step_size = self._rule.step_size(eta, self._state)
            along = sum(jnp.sum(gradients[name] * directions[name]) for name in gradients)
            return jnp.asarray(along if step_size is None else along * step_size)

        gradient = jax.jit(jax.grad(moved))(self._eta)
        leaves = jax.tree.leaves(gradient)
        reached = sum(bool(jnp.any(leaf != 0)) for leaf in leaves)
        problems = _not_finite("the meta-gradient", gradient)
        if not reached:
            problems.append("it is zero everywhere: no update depends on eta")
        return judge(
            "meta-gradient", problems, f"finite; reaches {reached} of {len(leaves)} arrays"
        )

    def file(self) -> Finding:
        """The rule survives being written to a file and read back."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rule.npz"
            try:
                self._rule.save(path, self._eta)
            except UserError as error:
                return Finding("file", False, str(error).removeprefix(f"{path}: "))
            archive = npz.read(path)
        settings = type(self._rule).stored_settings(archive)
        eta = self._rule.stored_params(archive)
        problems = mismatch("eta from the file", eta, self._eta)
        problems += [
            f"{name} is {value!r} in the file; expected {getattr(self._rule, name)!r}"
            for name, value in settings.items()
            if value != getattr(self._rule, name)
        ]
        return judge("file", problems, f"{len(archive.arrays)} arrays, written and read back")

    # --- calls as a learner makes them ------------------------------------------------------------

    def _ask(
        self,
        eta: Params,
        state: PyTree,
        trajectory: Trajectory,
        online: Outputs | None = None,
        target: Outputs | None = None,
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        told = self._told(eta, self._online if online is None else online)
        of_target: Outputs = {}
        if self._rule.target_decay is not None:
            of_target = self._told(eta, self._target if target is None else target)
        return self._rule.targets(eta, state, trajectory, told, of_target)

    def _told(self, eta: Params, outputs: Outputs) -> Outputs:
        names = (*self._spec.state, *self._spec.action)
        rows = {name: outputs[name].reshape(-1, *outputs[name].shape[2:]) for name in names}
        found = summaries(self._rule, eta, rows)
        return {name: x.reshape(STEPS + 1, BATCH, *x.shape[1:]) for name, x in found.items()}

    def _of_state(self, outputs: Outputs) -> Outputs:
        return {name: outputs[name] for name in self._spec.state}

    def _taken(self) -> Outputs:
        """Outputs as `Rule.loss` reads them."""
        action = self._trajectory.action
        taken = {n: returns.take_action(self._online[n][:-1], action) for n in self._spec.action}
        return self._of_state(self._online) | taken

    def _total(self, outputs: Outputs, targets: PyTree, trajectory: Trajectory) -> Array:
        terms = self._rule.loss(outputs, targets, trajectory)
        weight = trajectory.learnable(jnp.float32)
        return jnp.sum(sum(terms.values(), start=jnp.zeros(())) * weight)


def _random(spec: OutputSpec, key: Key) -> Outputs:
    """Outputs at all time steps, [T+1, B, ...], and for all actions, [T+1, B, A, ...]."""
    shapes = dict(spec.state) | {name: (ACTIONS, *shape) for name, shape in spec.action.items()}
    keys = jax.random.split(key, max(1, len(shapes)))
    return {
        name: jax.random.normal(each, (STEPS + 1, BATCH, *shape))
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def _experience(key: Key) -> Trajectory:
    """Experience with a termination, and with a truncation and its filler."""
    keys = jax.random.split(key, 3)
    shape = (STEPS, BATCH)
    ends = jnp.zeros(shape, bool)
    return Trajectory(
        observation=jnp.zeros((STEPS + 1, BATCH, 1)),
        action=jax.random.randint(keys[0], shape, 0, ACTIONS),
        reward=jax.random.normal(keys[1], shape),
        terminated=ends.at[2, 0].set(True),
        behaviour_logits=jax.random.normal(keys[2], (*shape, ACTIONS)),
        truncated=ends.at[1, 1].set(True),
    )


def _not_finite(what: str, tree: PyTree) -> list[str]:
    leaves: list[tuple[Any, Any]] = jax.tree.leaves_with_path(tree)
    return [
        f"{what}{jax.tree_util.keystr(path)} holds NaN or infinity"
        for path, leaf in leaves
        if not np.isfinite(np.asarray(leaf)).all()
    ]
