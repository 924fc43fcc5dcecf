"""The published weight format: lossless, deterministic, and strict about what it accepts."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_files import SMALL

from discorl.rules.files import weights
from discorl.runs import npz
from discorl.types import UserError

META_RNN = "lstm/~/meta_lstm/~unroll/"


def small_arrays() -> dict[str, np.ndarray]:
    with np.load(SMALL, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_npz(path: Path, arrays) -> Path:
    np.savez(path, **arrays)
    return path


def assert_same_bits(left, right):
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].shape == right[name].shape
        assert left[name].tobytes() == right[name].tobytes(), name


# ---- round trips ----


@pytest.fixture(params=["small", "disco103"])
def path(request):
    return SMALL if request.param == "small" else request.getfixturevalue("disco103")


def test_import_then_export_keeps_every_name_and_bit(path, tmp_path):
    copy = tmp_path / "copy.npz"
    weights.save(copy, weights.load(path))
    with np.load(path) as original, np.load(copy, allow_pickle=False) as exported:
        assert_same_bits(dict(original), dict(exported))
    archive = npz.read(path)
    assert archive.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert archive.metadata == {}


def test_tree_follows_the_published_names():
    arrays = small_arrays()
    eta = weights.load(SMALL)
    places = {
        "lstm/mlp/~/linear_0": eta["y_net"][0],
        "lstm/mlp_1/~/linear_1": eta["z_net"][1],
        "lstm/lstm/linear": eta["trajectory_lstm"],
        "lstm/linear": eta["gate"],
        "lstm/linear_1": eta["embedding"],
        "lstm/linear_2": eta["y_hat"],
        "lstm/linear_3": eta["z_hat"],
        "lstm/linear_4": eta["pi_hat"],
        META_RNN + "mlp/~/linear_1": eta["meta_rnn"]["y_net"][1],
        META_RNN + "mlp_1/~/linear_0": eta["meta_rnn"]["z_net"][0],
        META_RNN + "mlp_2/~/linear_0": eta["meta_rnn"]["input"][0],
        META_RNN + "lstm/linear": eta["meta_rnn"]["lstm"],
    }
    for name, layer in places.items():
        np.testing.assert_array_equal(layer["w"], arrays[f"{name}/w"])
        np.testing.assert_array_equal(layer["b"], arrays[f"{name}/b"])
    blocks = {
        "lstm/sequential/conv1_d_1": eta["policy_net"][1],
        "lstm/sequential_1/conv1_d": eta["pi_hat_blocks"][0],
        META_RNN + "sequential/conv1_d": eta["meta_rnn"]["policy_net"][0],
    }
    for name, layer in blocks.items():
        np.testing.assert_array_equal(layer["w"], arrays[f"{name}/w"][0])


def test_describe_gives_the_sizes_of_the_small_rule():
    assert weights.describe(weights.load(SMALL)) == {
        "prediction_size": 12,
        "trajectory_lstm": 10,
        "y_net": [6, 1],
        "z_net": [6, 1],
        "policy_net": [7, 2],
        "pi_hat_blocks": [5],
        "meta_rnn": {
            "lstm": 8,
            "input": [6],
            "y_net": [5, 1],
            "z_net": [5, 1],
            "policy_net": [4, 2],
        },
        "parameters": sum(array.size for array in small_arrays().values()),
    }


def test_metadata_survives_and_equal_input_gives_equal_bytes(tmp_path):
    eta = weights.load(SMALL)
    metadata = {"seed": 3, "config": {"bins": [-10, 10], "name": "é"}, "note": None}
    weights.save(tmp_path / "a.npz", eta, metadata)
    weights.save(tmp_path / "b.npz", eta, dict(reversed(metadata.items())))
    assert npz.read(tmp_path / "a.npz").metadata == metadata
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    weights.save(tmp_path / "c.npz", eta, {"seed": 4})
    assert (tmp_path / "a.npz").read_bytes() != (tmp_path / "c.npz").read_bytes()


def test_fortran_order_and_compression_do_not_matter(tmp_path):
    arrays = small_arrays()
    swapped = {name: np.asfortranarray(array) for name, array in arrays.items()}
    np.savez_compressed(tmp_path / "swapped.npz", **swapped)
    eta = weights.load(tmp_path / "swapped.npz")
    for name, array in weights.flatten(eta).items():
        np.testing.assert_array_equal(array, arrays[name])
    weights.save(tmp_path / "a.npz", eta)
    weights.save(tmp_path / "b.npz", weights.load(SMALL))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_gradients_in_float64_can_be_renamed_though_not_saved(tmp_path):
    gradients = {name: array.astype(np.float64) for name, array in small_arrays().items()}
    tree = weights.unflatten(gradients)
    assert_same_bits(weights.flatten(tree), gradients)
    with pytest.raises(UserError, match=r"float64; expected float32: cast"):
        weights.save(tmp_path / "x.npz", tree)
    assert list(tmp_path.iterdir()) == []


widths = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def rules(draw):
    """A consistent rule with every depth and size drawn at random."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))

    def chain(rows, columns, factor=1):
        layers = []
        for width in columns:
            layers.append(layer(factor * rows, width))
            rows = width
        return tuple(layers)

    def layer(rows, columns):
        kernel = generator.normal(size=(rows, columns)).astype(np.float32)
        return {"w": kernel, "b": generator.normal(size=columns).astype(np.float32)}

    def feature_nets():
        y_widths, z_widths, channels = draw(widths), draw(widths), draw(widths)
        embedding = z_widths[-1] = y_widths[-1]
        nets = {
            "y_net": chain(predictions, y_widths),
            "z_net": chain(predictions, z_widths),
            "policy_net": chain(7 + 2 * embedding, channels, factor=2),
        }
        return nets, 9 + 14 * embedding + 2 * channels[-1], embedding, channels[-1]

    predictions, hidden, meta_hidden = (draw(st.integers(1, 6)) for _ in range(3))
    nets, features, _, channels = feature_nets()
    meta_nets, meta_features, meta_y_width, _ = feature_nets()
    blocks, inputs = draw(widths), draw(widths)
    return {
        **nets,
        "trajectory_lstm": layer(features + hidden, 4 * hidden),
        "gate": layer(meta_hidden, hidden),
        "embedding": layer(hidden, 1),
        "y_hat": layer(hidden, predictions),
        "z_hat": layer(hidden, predictions),
        "pi_hat_blocks": chain(hidden + channels, blocks, factor=2),
        "pi_hat": layer(blocks[-1], 1),
        "meta_rnn": {
            **meta_nets,
            "input": chain(meta_features + 1 + meta_y_width, inputs),
            "lstm": layer(inputs[-1] + meta_hidden, 4 * meta_hidden),
        },
    }


@settings(max_examples=40, deadline=None)
@given(rules(), st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
def test_any_consistent_rule_survives_the_file(tmp_path_factory, eta, metadata):
    path = tmp_path_factory.mktemp("rules") / "rule.npz"
    weights.save(path, eta, metadata)
    loaded = weights.load(path)
    assert_same_bits(weights.flatten(loaded), weights.flatten(eta))
    assert npz.read(path).metadata == metadata
    assert len(loaded["y_net"]) == len(eta["y_net"])
    assert len(loaded["meta_rnn"]["input"]) == len(eta["meta_rnn"]["input"])
    assert weights.describe(loaded) == weights.describe(eta)


@settings(max_examples=60, deadline=None)
@given(rules(), st.data())
def test_one_layer_of_another_size_is_refused(eta, data):
    arrays = weights.flatten(eta)
    name = data.draw(st.sampled_from(sorted(name for name in arrays if name.endswith("/w"))))
    axis = data.draw(st.sampled_from([-2, -1]))
    arrays[name] = np.concatenate([arrays[name], np.take(arrays[name], [0], axis)], axis)
    with pytest.raises(UserError, match="expected"):
        weights.validate(weights.unflatten(arrays))


# ---- refusals of a content ----


def grow_rows(array):
    return np.concatenate([array, array[..., :1, :]], axis=-2)


def grow_columns(array):
    return np.concatenate([array, array[..., :1]], axis=-1)


def grow_layer(name):
    """Another output of a layer, in kernel and bias, so that only its neighbours can object."""
    return {f"{name}/w": grow_columns, f"{name}/b": grow_columns}


def put_nan(array):
    array[0] = np.nan
    return array


def put_infinity(array):
    array[0] = -np.inf
    return array


MIDDLE = META_RNN + "mlp_2/~/linear_0"
CHANGES = [
    ({"lstm/linear/w": np.float64}, ["lstm/linear/w", "float64", "float32", "cast"]),
    ({"lstm/linear_4/b": np.float16}, ["lstm/linear_4/b", "float16"]),
    ({"lstm/linear/b": put_nan}, ["lstm/linear/b", "1 NaN or infinite"]),
    ({"lstm/linear_2/b": put_infinity}, ["lstm/linear_2/b", "infinite"]),
    ({"lstm/linear/w": np.ravel}, ["lstm/linear/w", "[80]", "rank 2"]),
    ({"lstm/linear/b": np.atleast_2d}, ["lstm/linear/b", "[1, 10]", "rank 1"]),
    ({"lstm/sequential/conv1_d/w": np.squeeze}, ["lstm/sequential/conv1_d/w", "rank 3"]),
    (
        {"lstm/sequential/conv1_d/w": lambda w: np.repeat(w, 3, axis=0)},
        ["lstm/sequential/conv1_d/w", "[3, 18, 7]", "[1, inputs, outputs]"],
    ),
    ({"lstm/linear_1/w": lambda w: w[:0]}, ["lstm/linear_1/w", "[0, 1]", "length 0"]),
    ({"lstm/linear/b": grow_columns}, ["lstm/linear/b", "[11]", "[10]"]),
    ({"lstm/mlp/~/linear_0/w": grow_rows}, ["lstm/mlp/~/linear_0/w", "13", "12", "y_hat"]),
    ({"lstm/mlp_1/~/linear_1/w": grow_rows}, ["lstm/mlp_1/~/linear_1/w", "7 inputs", "6"]),
    ({"lstm/sequential/conv1_d/w": grow_rows}, ["lstm/sequential/conv1_d/w", "19", "18"]),
    ({"lstm/sequential/conv1_d_1/w": grow_rows}, ["lstm/sequential/conv1_d_1/w", "15", "14"]),
    ({"lstm/lstm/linear/w": grow_rows}, ["lstm/lstm/linear/w", "38", "27 features + 10"]),
    (grow_layer("lstm/lstm/linear"), ["lstm/lstm/linear/w", "41", "multiple of 4"]),
    ({"lstm/linear/w": grow_rows}, ["lstm/linear/w", "9 inputs", "8", "meta-RNN"]),
    (grow_layer("lstm/linear"), ["lstm/linear/w", "11 outputs", "10", "trajectory LSTM"]),
    (grow_layer("lstm/linear_1"), ["lstm/linear_1/w", "2 outputs", "expected 1"]),
    ({"lstm/linear_2/w": grow_rows}, ["lstm/linear_2/w", "11 inputs", "10"]),
    (grow_layer("lstm/linear_3"), ["lstm/linear_3/w", "13 outputs", "12"]),
    ({"lstm/sequential_1/conv1_d/w": grow_rows}, ["lstm/sequential_1/conv1_d/w", "25", "24"]),
    ({"lstm/linear_4/w": grow_rows}, ["lstm/linear_4/w", "6 inputs", "5"]),
    (grow_layer("lstm/linear_4"), ["lstm/linear_4/w", "2 outputs", "one logit"]),
    ({META_RNN + "mlp/~/linear_0/w": grow_rows}, [META_RNN + "mlp/~/linear_0/w", "13", "12"]),
    ({META_RNN + "sequential/conv1_d/w": grow_rows}, ["sequential/conv1_d/w", "19", "18"]),
    ({MIDDLE + "/w": grow_rows}, [MIDDLE, "30", "27 features + 1 embedding + 1"]),
    ({META_RNN + "lstm/linear/w": grow_rows}, ["lstm/linear/w", "15", "6 inputs + 8 hidden"]),
    (
        grow_layer("lstm/mlp_1/~/linear_1"),
        ["'lstm/mlp_1/~/linear_1/w' yields 2", "expected 1: as many as 'lstm/mlp/~/linear_1/w'"],
    ),
    (
        grow_layer(META_RNN + "mlp/~/linear_1"),
        [f"'{META_RNN}mlp_1/~/linear_1/w' yields 1", f"2: as many as '{META_RNN}mlp/~/linear_1/w'"],
    ),
    (
        grow_layer("lstm/mlp/~/linear_1") | grow_layer("lstm/mlp_1/~/linear_1"),
        ["lstm/sequential/conv1_d/w", "18", "22"],
    ),
]


@pytest.mark.parametrize(("changes", "said"), CHANGES, ids=[str(said) for _, said in CHANGES])
def test_inconsistent_arrays_are_refused_by_name(changes, said, tmp_path):
    arrays = small_arrays()
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    path = write_npz(tmp_path / "changed.npz", arrays)
    with pytest.raises(UserError) as caught:
        weights.load(path)
    for text in [str(path), *said]:
        assert text in str(caught.value)


def test_missing_and_unexpected_arrays_are_named(tmp_path):
    arrays = small_arrays()
    del arrays["lstm/linear_3/b"]
    arrays["lstm/linear_5/w"] = arrays["lstm/linear_4/w"]
    with pytest.raises(UserError, match=r"missing 'lstm/linear_3/b'; unexpected 'lstm/linear_5/w'"):
        weights.load(write_npz(tmp_path / "x.npz", arrays))


def test_a_gap_in_the_numbering_is_refused(tmp_path):
    arrays = small_arrays()
    for end in ("w", "b"):
        arrays[f"lstm/mlp/~/linear_2/{end}"] = arrays.pop(f"lstm/mlp/~/linear_1/{end}")
    with pytest.raises(UserError, match=r"unexpected 'lstm/mlp/~/linear_2/b'.*without gaps"):
        weights.load(write_npz(tmp_path / "x.npz", arrays))


def test_an_unrelated_npz_is_not_a_rule(tmp_path):
    with pytest.raises(UserError, match=r"not a rule: missing .* more; unexpected 'a'"):
        weights.load(write_npz(tmp_path / "x.npz", {"a": np.zeros(3, np.float32)}))


def test_malformed_trees_are_refused(tmp_path):
    eta = weights.load(SMALL)
    without_gate = {name: part for name, part in eta.items() if name != "gate"}
    stray = {**eta, "extra": eta["gate"]}
    meta_rnn = {**eta["meta_rnn"], "input": ()}
    for broken, said in [
        (without_gate, "expected a dict with .*'gate'"),
        (stray, "extra"),
        ({**eta, "gate": eta["gate"]["w"]}, "'gate'.*ndarray"),
        ({**eta, "y_net": eta["y_net"][0]}, "'y_net'.*tuple"),
        ({**eta, "meta_rnn": meta_rnn}, "at least one layer"),
        ({**eta, "gate": {**eta["gate"], "w": np.zeros(3, np.float32)}}, "rank 2"),
    ]:
        with pytest.raises(UserError, match=said):
            weights.save(tmp_path / "x.npz", broken)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.frombuffer(b"{not json", np.uint8), "not JSON"),
        (np.frombuffer(b"[1, 2]", np.uint8), "not a JSON object"),
        (np.frombuffer(b"\xff\xff", np.uint8), "not JSON"),
        (np.frombuffer(b"[" * 100_000, np.uint8), "not JSON"),
        (np.zeros(3, np.float32), "expected uint8"),
        (np.zeros((2, 2), np.uint8), "rank 2"),
    ],
)
def test_malformed_metadata_is_refused(array, said, tmp_path):
    path = write_npz(tmp_path / "x.npz", {**small_arrays(), "metadata": array})
    with pytest.raises(UserError, match=said):
        weights.load(path)


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_metadata_that_is_not_json_is_not_written(value, tmp_path):
    with pytest.raises(UserError, match="metadata cannot be written as JSON"):
        weights.save(tmp_path / "x.npz", weights.load(SMALL), {"value": value})
