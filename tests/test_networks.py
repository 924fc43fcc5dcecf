"""Agent networks: against the reference, their shapes, and messages about a user's own."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from discorl.agent.config import OptimiserConfig
from discorl.agent.learner import Learner
from discorl.agent.optimiser import make_optimiser
from discorl.networks import Network, check_outputs, parts_of, standard
from discorl.networks.standard import ENCODERS, Encoder, Torso
from discorl.rules import ActorCritic
from discorl.types import OutputSpec, UserError

SPEC = OutputSpec(
    3, state={"logits": (3,), "y": (5,)}, action={"z": (5,), "aux_pi": (3,), "q": (7,)}
)
VALUE = OutputSpec(3, state={"logits": (3,), "value": ()})


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def initialised(spec, observation, rows=2, **settings):
    """A small network, its parameters and a batch of observations."""
    network = standard(spec, observation, **{"hidden": (6,), "filters": (2, 3)} | settings)
    rng = np.random.default_rng(0)

    def draw(x):
        numbers = rng.uniform(0, 255, size=(rows, *x.shape))
        return jnp.asarray(numbers if x.dtype == jnp.uint8 else numbers / 255).astype(x.dtype)

    batch = jax.tree.map(draw, observation)
    return network, network.init(jax.random.key(0), batch), batch


def nested(flat):
    tree = {}
    for name, array in flat.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = jnp.asarray(array)
    return tree


@pytest.mark.parametrize("torso", [(8,), (8, 6, 4)])
@pytest.mark.parametrize("head", [(), (5, 4)])
def test_standard_network_agrees_with_the_reference(torso, head):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        flat = reference.random_params(
            rng,
            inputs=6,
            num_actions=3,
            predictions=5,
            num_bins=7,
            torso=torso,
            lstm=4,
            head=head,
        )
        observations = rng.normal(size=(4, 2, 3))
        expected, _ = reference.forward(flat, observations.reshape(4, 6), 3)
        network = standard(
            SPEC, shape(2, 3, dtype=jnp.float64), hidden=torso, action_lstm=4, action_hidden=head
        )
        params = nested(flat)
        shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.asarray(observations))
        assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, params)
        computed = network.apply(params, jnp.asarray(observations))
    assert set(computed) == set(expected)
    for name, output in computed.items():
        assert output.dtype == np.float64
        np.testing.assert_allclose(output, expected[name], rtol=1e-12, atol=1e-12)


def test_parts_agree_with_apply():
    network, params, batch = initialised(SPEC, shape(4), rows=3)
    whole = network.apply(params, batch)
    state, root = network.parts.observe(params, batch)
    every = network.parts.all_actions(params, root)
    actions = jnp.array([2, 0, 1])
    taken = network.parts.taken_actions(params, root, actions)
    for name in SPEC.state:
        np.testing.assert_allclose(state[name], whole[name], rtol=1e-6)
    for name in SPEC.action:
        np.testing.assert_allclose(every[name], whole[name], rtol=1e-5, atol=1e-6)
        picked = whole[name][np.arange(3), np.asarray(actions)]
        np.testing.assert_allclose(taken[name], picked, rtol=1e-5, atol=1e-6)


def test_parts_of_a_plain_network_agree_with_apply():
    network, params, batch = initialised(SPEC, shape(4), rows=3)
    parts = parts_of(Network(network.init, network.apply), SPEC)
    whole = network.apply(params, batch)
    state, root = parts.observe(params, batch)
    assert set(state) == set(SPEC.state)
    taken = parts.taken_actions(params, root, jnp.array([2, 0, 1]))
    for name in SPEC.action:
        np.testing.assert_array_equal(parts.all_actions(params, root)[name], whole[name])
        np.testing.assert_array_equal(taken[name], whole[name][np.arange(3), [2, 0, 1]])


def test_heads_start_small_and_other_layers_at_the_scale_of_their_inputs():
    _, params, _ = initialised(SPEC, shape(400), hidden=(300, 300), action_lstm=200)
    # A normal of scale s cut at 2 s has a deviation of 0.88 s.
    for layer, scale in (
        (params["head"]["y"], 1e-2),
        (params["head"]["logits"], 1e-2),
        (params["torso"]["0"], 400**-0.5),
        (params["action_model"]["root"], 300**-0.5),
        (params["action_model"]["lstm"], 203**-0.5),
    ):
        np.testing.assert_allclose(np.std(layer["w"]), 0.88 * scale, rtol=0.06)
        assert np.abs(layer["w"]).max() <= 2 * scale * 1.001
        np.testing.assert_array_equal(layer["b"], 0)


def test_the_nature_torso_keeps_the_scale_of_its_inputs():
    image = jax.random.normal(jax.random.key(0), (16, 84, 84, 4))
    spec = OutputSpec(256, state={"logits": (256,)})
    network = standard(spec, image[0], torso="nature", filters=(32, 64, 64), hidden=(512, 256))
    params = network.init(jax.random.key(1), image)
    params["head"]["logits"] = {"w": jnp.eye(256), "b": jnp.zeros(256)}
    features = network.apply(params, image)["logits"]
    # The last layer has the gain of a ReLU and none after it, so the square of the scale doubles.
    assert 1 < float(jnp.mean(jnp.square(features))) < 4


def test_scalar_outputs_and_rules_without_action_outputs():
    network, params, batch = initialised(VALUE, shape(4))
    outputs = network.apply(params, batch)
    assert {name: x.shape for name, x in outputs.items()} == {"logits": (2, 3), "value": (2,)}
    assert "action_model" not in params


def test_no_hidden_layer():
    network, params, batch = initialised(VALUE, shape(4), hidden=())
    outputs = network.apply(params, batch)
    expected = batch @ params["head"]["logits"]["w"] + params["head"]["logits"]["b"]
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-6)


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observation", "torso", "is_image"),
    [
        (shape(16, 16, 3), "auto", True),
        (shape(16, 20, 1), "auto", True),
        (shape(15, 16, 3), "auto", False),
        (shape(10, 10, 4), "auto", False),
        (shape(84, 84), "auto", True),
        (shape(15, 84), "auto", False),
        (shape(3, 64, 64), "mlp", False),
        (shape(64), "auto", False),
        (shape(16, 16, 3), "mlp", False),
        (shape(10, 10, 4), "residual", True),
        (shape(10, 10), "residual", True),
        ((shape(64), shape(10, 10)), "residual", True),
    ],
)
def test_which_observations_are_images(observation, torso, is_image):
    network = standard(VALUE, observation, torso=torso, hidden=(4,), filters=(2,))
    batch = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), observation)
    params = jax.eval_shape(network.init, jax.random.key(0), batch)
    assert ("encoder" in params) == is_image


def test_an_image_without_channels_is_one_with_a_single_channel():
    network, params, batch = initialised(VALUE, shape(8, 9), torso="residual")
    other = standard(VALUE, shape(8, 9, 1), torso="residual", hidden=(6,), filters=(2, 3))
    expected = other.apply(params, batch[..., None])
    for name, output in network.apply(params, batch).items():
        np.testing.assert_array_equal(output, expected[name])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_first_are_refused(channels):
    message = rf"\({channels}, 64, 64\) .* channels first; expected \[height, width, channels\]"
    for torso in ("auto", "residual"):
        with pytest.raises(UserError, match=message):
            standard(VALUE, {"image": shape(channels, 64, 64)}, torso=torso)


def test_a_residual_torso_without_an_image_is_refused():
    with pytest.raises(UserError, match=r"torso is 'residual', .*\[\(64,\), \(\)\] hold no image"):
        standard(VALUE, (shape(64), shape()), torso="residual")


def test_a_torso_of_ones_own(monkeypatch):
    """The mean of each channel, weighted; images alone go through it."""

    def init(key, channels, filters):
        return {"w": jnp.full((channels, filters[0]), 0.5)}

    def apply(params, images):
        return images.mean(axis=(1, 2)) @ params["w"]

    monkeypatch.setitem(ENCODERS, "pooled", Encoder(init, apply))
    observation = (shape(4, 4, 2, dtype=jnp.uint8), shape(5))
    network, params, batch = initialised(VALUE, observation, torso="pooled", filters=(3,))
    assert params["torso"]["0"]["w"].shape == (3 + 5, 6)
    means = np.repeat(np.asarray(batch[0]).mean(axis=(1, 2)).sum(-1, keepdims=True) / 510, 3, 1)
    torso, head = params["torso"]["0"], params["head"]["logits"]
    embedding = np.concatenate([means, batch[1]], axis=-1) @ torso["w"] + torso["b"]
    expected = embedding @ head["w"] + head["b"]
    np.testing.assert_allclose(network.apply(params, batch)["logits"], expected, rtol=1e-5)
    with pytest.raises(UserError, match=r"torso is 'pooled', but observations .* hold no image"):
        standard(VALUE, shape(5), torso="pooled")


def test_every_torso_can_be_chosen():
    assert get_args(Torso) == ("auto", "mlp", *ENCODERS)


@pytest.mark.parametrize(
    ("torso", "size", "shapes", "left"),
    [
        ("conv", (6, 7), ((3, 1), (3, 1)), (2, 3)),
        # The last rows and columns are out of reach of the first kernel.
        ("nature", (23, 30), ((8, 4), (4, 2)), (1, 2)),
    ],
)
def test_convolutional_torsos_by_hand(torso, size, shapes, left):
    network, params, batch = initialised(VALUE, shape(*size, 2), torso=torso)
    x = np.asarray(batch)
    for i, (side, stride) in enumerate(shapes):
        layer, blocks = params["encoder"]["0"][str(i)], side // stride
        kernel = np.asarray(layer["w"]).reshape(blocks, blocks, stride, stride, x.shape[-1], -1)
        kernel = kernel.swapaxes(1, 2).reshape(side, side, x.shape[-1], -1)
        height, width = ((length - side) // stride + 1 for length in x.shape[1:3])
        y = np.empty((len(x), height, width, kernel.shape[-1]))
        for row in range(height):
            for column in range(width):
                top, first = stride * row, stride * column
                patch = x[:, top : top + side, first : first + side]
                y[:, row, column] = np.einsum("nijc,ijcf->nf", patch, kernel) + layer["b"]
        x = np.maximum(y, 0)
    assert x.shape == (2, *left, 3)
    linear, head = params["torso"]["0"], params["head"]["logits"]
    expected = (x.reshape(2, -1) @ linear["w"] + linear["b"]) @ head["w"] + head["b"]
    np.testing.assert_allclose(network.apply(params, batch)["logits"], expected, atol=1e-6)


def test_convolutions_of_too_small_an_image_are_refused():
    message = r"an image of 4 x 9 is too small .* 2 x 7 are left for convolution 2 of 2, expected"
    with pytest.raises(UserError, match=message):
        initialised(VALUE, shape(4, 9, 1), torso="conv")


def test_residual_torso_halves_the_image_in_every_section():
    network, params, batch = initialised(VALUE, shape(17, 24, 3))
    # 17 x 24 -> 9 x 12 -> 5 x 6, with the last section's 3 filters
    assert params["torso"]["0"]["w"].shape == (5 * 6 * 3, 6)
    section = params["encoder"]["0"]["1"]
    assert sorted(section) == ["0", "1", "2", "3", "first"]
    assert section["first"]["w"].shape == (3, 3, 2, 3)
    assert section["3"]["w"].shape == (3, 3, 3, 3)
    outputs = network.apply(params, batch)
    check_outputs(network, VALUE, params, batch)
    gradient = jax.grad(lambda x: network.apply(params, x)["value"].sum())(batch)
    assert float(jnp.abs(gradient[:, 0, 0]).max()) > 0, "the corner is not seen"
    assert bool(jnp.isfinite(outputs["logits"]).all())


def test_bytes_of_an_image_are_scaled_to_one_and_those_of_a_vector_are_not():
    network, params, batch = initialised(VALUE, shape(16, 16, 3, dtype=jnp.uint8))
    scaled = network.apply(params, batch.astype(jnp.float32) / 255)
    np.testing.assert_allclose(
        network.apply(params, batch)["logits"], scaled["logits"], rtol=1e-5, atol=1e-7
    )
    network, params, batch = initialised(VALUE, shape(4, dtype=jnp.uint8))
    plain = network.apply(params, batch.astype(jnp.float32))
    np.testing.assert_array_equal(network.apply(params, batch)["logits"], plain["logits"])


def test_observations_of_several_parts():
    observation = {
        "image": shape(16, 16, 1, dtype=jnp.uint8),
        "flag": shape(dtype=jnp.bool_),
        "speed": shape(2, 3),
    }
    network, params, batch = initialised(VALUE, observation)
    assert params["torso"]["0"]["w"].shape == (1 + 4 * 4 * 3 + 6, 6)
    outputs = network.apply(params, batch)
    for name in observation:
        other = dict(batch)
        other[name] = (
            ~batch[name]
            if name == "flag"
            else batch[name] // 2
            if name == "image"
            else (batch[name] * 2)
        )
        changed = network.apply(params, other)
        assert not np.array_equal(changed["logits"], outputs["logits"]), name


# --- a user's network that is not what the rule needs ---------------------------------------------


def learner_of(apply):
    return Learner(
        ActorCritic(),
        Network(lambda key, x: (), apply),
        make_optimiser(OptimiserConfig()),
        num_actions=3,
    )


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (
            lambda p, x: {"logits": jnp.zeros((len(x), 4)), "value": jnp.zeros(len(x))},
            r"^the network's output 'logits' has shape \(1, 4\) for 1 observations; "
            r"the rule needs \(1, 3\)$",
        ),
        (
            lambda p, x: {"logits": jnp.zeros((len(x), 3)), "value": jnp.zeros((len(x), 1))},
            r"output 'value' has shape \(1, 1\) .* the rule needs \(1,\)",
        ),
        (
            lambda p, x: {"logits": jnp.zeros((len(x), 3)), "v": jnp.zeros(len(x))},
            r"no output 'value', which the rule needs with shape \(1,\); it yields \['logits', 'v'",
        ),
        (lambda p, x: jnp.zeros((len(x), 3)), r"a dict with the outputs \['logits', 'value'\]"),
    ],
)
def test_a_wrong_network_is_named(apply, message):
    with pytest.raises(UserError, match=message):
        learner_of(apply).init(jax.random.key(0), shape(2), 1)


def test_a_right_network_is_accepted():
    def apply(params, x):
        return {"logits": jnp.zeros((len(x), 3)), "value": jnp.zeros(len(x)), "more": x}

    learner_of(apply).init(jax.random.key(0), shape(2), 1)
