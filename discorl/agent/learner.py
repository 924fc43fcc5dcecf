"""The learner: updates an agent's parameters by any rule."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from discorl.agent.optimiser import Optimiser, with_schedule_steps
from discorl.networks import Network, Parts, check_outputs, parts_of
from discorl.rules.base import Rule, summaries
from discorl.rules.returns import entropy
from discorl.runs.metrics import TOTAL_LOSS
from discorl.types import Array, Key, Metrics, Outputs, OutputSpec, Params, PyTree, Trajectory

# Outputs of all actions are computed and summarised in chunks of about this size, which fit in the
# processor's cache.
PIECE_BYTES = 4 * 2**20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnerState:
    """The complete state of an agent's learning."""

    params: Params
    target_params: Params  # of the target network; None if the rule has none
    optimizer: PyTree
    rule: PyTree  # state of the rule
    key: Key
    updates: Array  # [] int32, made so far


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Details:
    """Intermediate results of an update."""

    targets: PyTree  # of the rule
    online: Outputs  # the rule's summaries of the network's outputs, [T+1, B, ...]
    target: Outputs  # likewise for the target network
    policy: Array  # logits of the policy, [T+1, B, A]


@dataclasses.dataclass(frozen=True)
class Learner:
    """Binds a rule, a network and an optimiser into `init` and `update`, both pure.

    Example:
        ```python
        learner = Learner(rule, network, optimizer, num_actions=3)
        state = learner.init(key, observation, lifetime)  # an observation without batch axes
        state, metrics = jax.jit(learner.update)(state, eta, trajectory)
        ```
    """

    rule: Rule
    network: Network
    optimizer: optax.GradientTransformation
    num_actions: int
    # Discovery differentiates the gradient of the loss forward over backward instead of backward
    # over backward. The result is the same. No effect on training.
    mixed_mode: bool = False

    @property
    def spec(self) -> OutputSpec:
        """The outputs that the network must yield."""
        return self.rule.outputs(self.num_actions)

    @property
    def parts(self) -> Parts:
        """The network in the parts that an update needs."""
        return parts_of(self.network, self.spec)

    def init(self, key: Key, observation: PyTree, lifetime: Array | int) -> LearnerState:
        """A fresh agent for observations like this one.

        `lifetime`, [] int, is the number of updates that the agent will make. The schedules of the
        learning rate and of the rule span it.
        """
        network_key, learner_key = jax.random.split(key)
        batch = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), observation)
        params = self.network.init(network_key, batch)
        check_outputs(self.network, self.spec, params, batch)
        return LearnerState(
            params=params,
            target_params=None if self.rule.target_decay is None else params,
            optimizer=with_schedule_steps(
                self.optimizer.init(params), lifetime * self.rule.epochs * self.rule.minibatches
            ),
            rule=self.rule.init_state(jnp.asarray(lifetime, jnp.int32)),
            key=learner_key,
            updates=jnp.zeros((), jnp.int32),
        )

    def policy(
        self,
        params: Params,
        observation: PyTree,
        recurrent_state: PyTree = (),
        action_mask: Array | None = None,
    ) -> tuple[Array, PyTree]:
        """Logits, [N, A], and the next recurrent state for observations [N, ...].

        The recurrent state is [N, ...], or () if the network has none. The mask is [N, A] bool, or
        None if all actions are legal.
        """
        features, recurrent_state = self.network.advance(params, observation, recurrent_state)
        outputs, _ = self.parts.observe(params, features)
        if action_mask is not None:
            outputs = self.rule.mask_actions(outputs, action_mask)
        return self.rule.policy(outputs), recurrent_state

    def update(
        self, state: LearnerState, eta: Params, trajectory: Trajectory
    ) -> tuple[LearnerState, Metrics]:
        """Learns from a batch of trajectories, [T, B]; returns the new state and metrics."""
        state, metrics, _ = self.update_in_detail(state, eta, trajectory)
        return state, metrics

    def update_in_detail(
        self, state: LearnerState, eta: Params, trajectory: Trajectory
    ) -> tuple[LearnerState, Metrics, Details]:
        """Like `update`, and also returns intermediate results."""
        key, steps_key = jax.random.split(state.key)
        step_size = self.rule.step_size(eta, state.rule)
        if self.rule.epochs * self.rule.minibatches == 1:
            # One forward pass serves both the targets and the gradient.
            outputs, pullback, root = jax.vjp(
                lambda params: self.outputs(params, trajectory), state.params, has_aux=True
            )
            details, rule_state, metrics = self._targets(state, eta, trajectory, outputs, root)
            output_gradients, loss_metrics = jax.grad(self._loss, has_aux=True)(
                outputs, details.targets, trajectory
            )
            if self.mixed_mode:
                gradients = self._gradient()(state.params, details.targets, trajectory)
            else:
                (gradients,) = pullback(output_gradients)
            moved, norms = self._apply(gradients, state.params, state.optimizer, step_size)
            metrics |= loss_metrics | norms
        else:
            outputs, root = self.outputs(state.params, trajectory)
            details, rule_state, metrics = self._targets(state, eta, trajectory, outputs, root)
            moved, step_metrics = self._many_steps(
                state, trajectory, details.targets, step_size, steps_key
            )
            metrics |= step_metrics
        target_params = state.target_params
        if self.rule.target_decay is not None:
            # The EMA takes the parameters from before the update.
            target_params = optax.incremental_update(
                state.params, target_params, 1 - self.rule.target_decay
            )
        params, optimizer = moved
        state = LearnerState(params, target_params, optimizer, rule_state, key, state.updates + 1)
        return state, metrics, details

    def details(self, state: LearnerState, eta: Params, trajectory: Trajectory) -> Details:
        """Intermediate results of an update that is not made, of any number of trajectories."""
        outputs, root = self.outputs(state.params, trajectory)
        return self._targets(state, eta, trajectory, outputs, root)[0]

    def _targets(
        self,
        state: LearnerState,
        eta: Params,
        trajectory: Trajectory,
        outputs: Outputs,
        root: PyTree,
    ) -> tuple[Details, PyTree, Metrics]:
        """Computes the rule's targets, its new state and its metrics."""
        online = self._summarise(eta, state.params, outputs, root, trajectory)
        target: Outputs = {}
        if self.rule.target_decay is not None:
            target_outputs, target_root = self.outputs(state.target_params, trajectory)
            target = self._summarise(
                eta, state.target_params, target_outputs, target_root, trajectory
            )
        targets, rule_state, metrics = self.rule.targets(
            eta, state.rule, trajectory, online, target
        )
        details = Details(targets, online, target, self.rule.policy(outputs))
        return details, rule_state, {f"rule/{name}": value for name, value in metrics.items()}

    def _many_steps(
        self,
        state: LearnerState,
        trajectory: Trajectory,
        targets: PyTree,
        step_size: Array | None,
        key: Key,
    ) -> tuple[tuple[Params, PyTree], Metrics]:
        """Takes gradient steps on random minibatches of whole trajectories, for some epochs."""
        batch = trajectory.action.shape[1]
        size = batch // self.rule.minibatches
        orders = jax.vmap(lambda k: jax.random.permutation(k, batch))(
            jax.random.split(key, self.rule.epochs)
        )
        parts = orders[:, : size * self.rule.minibatches].reshape(-1, size)

        def step(moved: tuple, part: Array) -> tuple[tuple, Metrics]:
            params, optimizer = moved
            piece, piece_targets = jax.tree.map(
                lambda x: jnp.take(x, part, axis=1), (trajectory, targets)
            )

            def loss(params: Params) -> tuple[Array, Metrics]:
                return self._loss(self.outputs(params, piece)[0], piece_targets, piece)

            gradients, loss_metrics = jax.grad(loss, has_aux=True)(params)
            moved, norms = self._apply(gradients, params, optimizer, step_size)
            return moved, loss_metrics | norms

        moved, metrics = jax.lax.scan(step, (state.params, state.optimizer), parts)
        return moved, jax.tree.map(jnp.mean, metrics)

    def outputs(self, params: Params, trajectory: Trajectory) -> tuple[Outputs, PyTree]:
        """The outputs that the loss reads, and the root of all actions' outputs."""
        length, batch = trajectory.action.shape
        features = self.network.unroll(params, trajectory)
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), features)
        state_outputs, root = self.parts.observe(params, rows)
        legal = trajectory.legal()
        if legal is not None:
            rows_of_masks = legal.reshape(-1, self.num_actions)
            state_outputs = self.rule.mask_actions(state_outputs, rows_of_masks)
        before_last = jax.tree.map(lambda x: x[: length * batch], root)
        taken = self.parts.taken_actions(params, before_last, trajectory.action.reshape(-1))
        outputs = {
            n: x.reshape(-1, batch, *x.shape[1:]) for n, x in (state_outputs | taken).items()
        }
        return outputs, root

    def _summarise(
        self, eta: Params, params: Params, outputs: Outputs, root: PyTree, trajectory: Trajectory
    ) -> Outputs:
        """The rule's summaries of all outputs, [T+1, B, ...]."""
        batch = trajectory.action.shape[1]

        def of_actions(root: PyTree) -> Outputs:
            return summaries(self.rule, eta, self.parts.all_actions(params, root))

        rows = {n: outputs[n].reshape(-1, *outputs[n].shape[2:]) for n in self.spec.state}
        state = summaries(self.rule, eta, rows)
        action = _in_pieces(of_actions, root, self._pieces(root)) if self.spec.action else {}
        return {n: x.reshape(-1, batch, *x.shape[1:]) for n, x in (state | action).items()}

    def _pieces(self, root: PyTree) -> int:
        """The number of chunks that the rows are split into."""
        leaf = jax.tree.leaves(root)[0]
        largest = max(math.prod(shape) for shape in self.spec.action.values())
        row_bytes = self.num_actions * largest * leaf.dtype.itemsize
        return max(1, round(leaf.shape[0] * row_bytes / PIECE_BYTES))

    def _loss(
        self, outputs: Outputs, targets: PyTree, trajectory: Trajectory
    ) -> tuple[Array, Metrics]:
        terms = self.rule.loss(outputs, targets, trajectory)
        policy = self.rule.policy(outputs)
        weight = trajectory.learnable(policy.dtype)
        weight = weight / (jnp.sum(weight) + 1e-8)
        means = {f"losses/{name}": jnp.sum(term * weight) for name, term in terms.items()}
        total = sum(means.values(), start=jnp.zeros((), weight.dtype))
        policy_entropy = jnp.sum(entropy(policy[:-1]) * weight)
        return total, means | {TOTAL_LOSS: total, "policy/entropy": policy_entropy}

    def _gradient(self) -> Callable[[Params, PyTree, Trajectory], Params]:
        """The gradient of the loss, with forward-over-backward differentiation.

        The pullback of a gradient is a product with the Hessian, which is symmetric. So it equals
        the derivative of the gradient, with respect to parameters and targets, along the cotangent,
        and no residuals of a second backward pass have to be stored.
        """

        def loss(params: Params, targets: PyTree, trajectory: Trajectory) -> Array:
            return self._loss(self.outputs(params, trajectory)[0], targets, trajectory)[0]

        gradient = jax.custom_vjp(jax.grad(loss))

        def forward(*arguments: PyTree) -> tuple[Params, tuple[PyTree, ...]]:
            return jax.grad(loss)(*arguments), arguments

        def backward(arguments: tuple[PyTree, ...], direction: Params) -> tuple[PyTree, ...]:
            params, targets, trajectory = arguments
            _, (to_params, to_targets) = jax.jvp(
                lambda params: jax.grad(loss, argnums=(0, 1))(params, targets, trajectory),
                (params,),
                (direction,),
            )
            return to_params, to_targets, None

        gradient.defvjp(forward, backward)
        return gradient

    def _apply(
        self, gradients: Params, params: Params, optimizer: PyTree, step_size: Array | None
    ) -> tuple[tuple[Params, PyTree], Metrics]:
        metrics = {"optimizer/gradient_norm": optax.tree.norm(gradients)}
        if isinstance(self.optimizer, Optimiser):  # a user's optimiser may not report its rate
            rate = self.optimizer.learning_rate(optimizer)
            metrics["charts/learning_rate"] = rate if step_size is None else step_size * rate
        updates, optimizer = self.optimizer.update(gradients, optimizer, params)
        if step_size is not None:
            updates = jax.tree.map(lambda u: step_size.astype(u.dtype) * u, updates)
        metrics["optimizer/update_norm"] = optax.tree.norm(updates)
        return (optax.apply_updates(params, updates), optimizer), metrics


def _in_pieces(function: Callable[[PyTree], PyTree], rows: PyTree, pieces: int) -> PyTree:
    """Applies a row-wise function in chunks."""
    if pieces == 1:
        return function(rows)
    count = jax.tree.leaves(rows)[0].shape[0]
    size = -(-count // pieces)
    padding = size * pieces - count

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(pieces, size, *x.shape[1:])

    def step(carry: tuple, piece: PyTree) -> tuple[tuple, PyTree]:
        return carry, jax.checkpoint(function)(piece)

    results = jax.lax.scan(step, (), jax.tree.map(cut, rows))[1]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], results)
