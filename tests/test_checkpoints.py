import tracemalloc
import zipfile

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from discorl.runs import checkpoints
from discorl.runs.files import remove_leftovers, write_atomically
from discorl.types import UserError

NUMPY_DTYPES = [np.bool_, np.int8, np.uint8, np.int64, np.float16, np.float32, np.float64]
FOREIGN_DTYPES = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4]
JAX_DTYPES = [np.bool_, np.int8, np.uint8, np.float32, ml_dtypes.bfloat16]
SHAPES = st.sampled_from([(), (0,), (3,), (2, 3)])


@st.composite
def numpy_leaves(draw, dtypes):
    """Random bits, so that NaNs, infinities and negative zeros all come up."""
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype in (np.bool_, ml_dtypes.int4):
        return rng.integers(0, 2, shape).astype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return np.frombuffer(bits.tobytes(), dtype).reshape(shape)


@st.composite
def key_leaves(draw):
    key = jax.random.key(draw(st.integers(0, 1000)), impl=draw(st.sampled_from(["rbg", None])))
    return jax.random.split(key, 3) if draw(st.booleans()) else key


leaves = st.one_of(
    numpy_leaves(NUMPY_DTYPES + FOREIGN_DTYPES),
    numpy_leaves(JAX_DTYPES).map(jnp.asarray),
    key_leaves(),
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=6,
)


def bits(leaf):
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return np.asarray(leaf).dtype, np.shape(leaf), np.asarray(leaf).tobytes()


def assert_identical(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        assert bits(one) == bits(other)


def abstract(leaf):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf


@settings(max_examples=60, deadline=None)
@given(tree=trees)
def test_any_tree_comes_back_bit_for_bit(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "state.npz"
    checkpoints.save(path, tree)
    assert_identical(checkpoints.restore(path, tree), tree)
    assert_identical(checkpoints.restore(path, jax.tree.map(abstract, tree)), tree)


def test_kinds_of_leaves_follow_the_template(tmp_path):
    path = tmp_path / "state.npz"
    checkpoints.save(path, {"a": np.arange(3, dtype=np.int32), "b": np.float32(2)})
    as_jax = checkpoints.restore(path, {"a": jnp.zeros(3, int), "b": jnp.float32(0)})
    assert isinstance(as_jax["a"], jax.Array) and isinstance(as_jax["b"], jax.Array)
    as_numpy = checkpoints.restore(path, {"a": np.zeros(3, np.int32), "b": np.float32(0)})
    assert isinstance(as_numpy["a"], np.ndarray) and isinstance(as_numpy["b"], np.float32)


@pytest.mark.parametrize("value", [2.5, 3])
def test_weak_types_stay_weak(tmp_path, value):
    path = tmp_path / "state.npz"
    tree = [jnp.asarray(value), jnp.full((2,), value), jnp.ones(2)]
    checkpoints.save(path, tree)
    restored = checkpoints.restore(path, jax.tree.map(jnp.zeros_like, tree))
    assert [leaf.weak_type for leaf in restored] == [True, True, False]
    assert_identical(restored, tree)


def test_file_is_an_npz_without_pickle(tmp_path):
    tree = {"w": np.arange(6.0).reshape(2, 3).T, "b": [np.ones(2, np.int8)]}
    checkpoints.save(tmp_path / "state.npz", tree)
    with np.load(tmp_path / "state.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["['w']"], tree["w"])
        np.testing.assert_array_equal(arrays["['b'][0]"], tree["b"][0])


def test_equal_trees_give_equal_files(tmp_path):
    for name in "ab":
        checkpoints.save(tmp_path / name, {"x": np.ones(3), "k": jax.random.key(1)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"w": np.zeros((3, 2), np.float32)}, ["['w']", "float32[2,3]", "float32[3,2]"]),
        ({"w": np.zeros((2, 3), np.float64)}, ["['w']", "float32[2,3]", "float64[2,3]"]),
        ({"v": np.zeros((2, 3), np.float32)}, ["['v']", "found no such array"]),
        ({}, ["['w']", "expected no such array"]),
        ({"w": jax.random.key(0)}, ["['w']", "float32[2,3]", "key<fry>[]"]),
        ({"w": 1}, ["['w']", "expected int[]"]),
    ],
)
def test_another_tree_is_refused_by_name(tmp_path, template, words):
    path = tmp_path / "state.npz"
    checkpoints.save(path, {"w": np.zeros((2, 3), np.float32)})
    with pytest.raises(UserError) as caught:
        checkpoints.restore(path, template)
    assert not isinstance(caught.value, checkpoints.DamagedCheckpoint)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_keys_of_another_generator_are_refused(tmp_path):
    checkpoints.save(tmp_path / "state.npz", jax.random.key(0, impl="rbg"))
    with pytest.raises(UserError, match=r"found key<rbg>\[\], expected key<urbg>\[\]"):
        checkpoints.restore(tmp_path / "state.npz", jax.random.key(0, impl="unsafe_rbg"))


def test_float64_is_not_silently_narrowed(tmp_path):
    if jax.config.jax_enable_x64:
        pytest.skip("needs JAX in its default precision")
    checkpoints.save(tmp_path / "state.npz", np.ones(2))
    with pytest.raises(UserError, match="JAX_ENABLE_X64"):
        checkpoints.restore(tmp_path / "state.npz", jax.ShapeDtypeStruct((2,), np.float64))


SMALL = {"w": np.arange(12, dtype=np.float32), "n": 3, "f": np.ones(3, ml_dtypes.bfloat16)}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "state.npz"
    checkpoints.save(path, SMALL)
    return path.read_bytes()


def test_every_truncation_is_noticed(small_file, tmp_path):
    path = tmp_path / "cut.npz"
    for length in range(0, len(small_file), 7):
        path.write_bytes(small_file[:length])
        with pytest.raises(checkpoints.DamagedCheckpoint, match=r"cut\.npz"):
            checkpoints.restore(path, SMALL)


def test_no_flipped_bit_gets_through(small_file, tmp_path):
    """Either the flip was in no part that matters, or it is noticed."""
    path = tmp_path / "flipped.npz"
    noticed = 0
    positions = range(0, len(small_file), 3)
    for position in positions:
        flipped = bytearray(small_file)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            assert_identical(checkpoints.restore(path, SMALL), SMALL)
        except UserError:
            noticed += 1
    assert noticed > len(positions) / 2


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("hello")])
def test_no_checkpoint_at_all(tmp_path, make):
    make(tmp_path / "state.npz")
    with pytest.raises(checkpoints.DamagedCheckpoint, match=r"state\.npz"):
        checkpoints.restore(tmp_path / "state.npz", SMALL)


def test_an_npz_from_elsewhere_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", w=np.ones(3))
    with pytest.raises(UserError, match=r"manifest\.json"):
        checkpoints.restore(tmp_path / "other.npz", {"w": np.ones(3)})


@pytest.mark.parametrize(
    "leaf", ["text", object(), np.array([None]), jax.ShapeDtypeStruct((), int)]
)
def test_leaves_without_numbers_are_refused_by_name(tmp_path, leaf):
    with pytest.raises(TypeError, match="'odd'"):
        checkpoints.save(tmp_path / "state.npz", {"odd": leaf})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write_half(file):
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, write_half)
    assert path.read_text() == "old"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_written_files_have_ordinary_permissions(tmp_path):
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "atomic", lambda file: None)
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    for name in (".state.npz.12ab34cd.partial", "state.npz", "notes.partial"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {left.name for left in tmp_path.iterdir()} == {"notes.partial", "state.npz"}


def test_saving_does_not_copy_the_tree(tmp_path):
    tree = [np.ones(2**20) for _ in range(8)]  # 64 MiB, which numpy reports to tracemalloc
    tracemalloc.start()
    checkpoints.save(tmp_path / "state.npz", tree)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * 2**20
    assert all(
        info.compress_type == zipfile.ZIP_STORED
        for info in zipfile.ZipFile(tmp_path / "state.npz").infolist()
    )
