"""Made-up cases of any size, as golden files hold them."""

import dataclasses
import itertools

import numpy as np

from reference.learner import Learner
from reference.rule import META, Rule

NOT_IN_FILES = ("losses", "q_prime")


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
