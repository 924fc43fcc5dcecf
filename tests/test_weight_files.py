"""Files of weights: damaged, hostile and foreign ones are refused, and writing loses nothing."""

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_files import SMALL

from discorl.rules.files import weights
from discorl.types import UserError

# ---- reading ----


def write_members(path: Path, members, compression=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def npy(array, **options) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def test_absent_file_folder_and_other_formats(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("hello")
    (tmp_path / "empty.npz").touch()
    np.save(tmp_path / "array.npy", np.zeros(3))
    for path, said in [
        (tmp_path / "absent.npz", "no such file"),
        (tmp_path, "is a folder"),
        (text, "not an npz"),
        (tmp_path / "empty.npz", "not an npz"),
        (tmp_path / "array.npy", "not an npz"),
    ]:
        with pytest.raises(UserError, match=said) as caught:
            weights.load(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(share, tmp_path):
    content = SMALL.read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match="damaged or cut short"):
        weights.load(path)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_flipped_bytes_never_raise_anything_else(tmp_path_factory, data):
    content = bytearray(SMALL.read_bytes())
    # The directory at the end of the archive has the most ways to go wrong.
    position = st.integers(0, len(content) - 1) | st.integers(len(content) - 4000, len(content) - 1)
    for index, value in data.draw(
        st.lists(st.tuples(position, st.integers(0, 255)), min_size=1, max_size=4)
    ):
        content[index] = value
    path = tmp_path_factory.mktemp("flipped") / "x.npz"
    path.write_bytes(content)
    try:
        loaded = weights.load(path)
    except UserError as error:
        assert str(path) in str(error)
    else:
        assert weights.describe(loaded)["prediction_size"] == 12


class Explosive:
    def __reduce__(self):
        return (os.abort, ())


def test_pickled_objects_are_never_loaded(tmp_path):
    bomb = np.array([Explosive()], dtype=object)
    members = [("lstm/linear/w.npy", npy(bomb, allow_pickle=True))]
    with pytest.raises(UserError, match=r"'lstm/linear/w' holds pickled objects"):
        weights.load(write_members(tmp_path / "x.npz", members))


def test_an_archive_that_declares_too_much_is_refused_before_unpacking(tmp_path):
    path = write_members(tmp_path / "bomb.npz", [("a.npy", npy(np.zeros(3)))])
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 2**30 + 1)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"would unpack to 1,073,741,825 bytes"):
        weights.load(path)


def test_a_header_that_declares_too_much_allocates_nothing(tmp_path):
    header = io.BytesIO()
    shape = (10**9, 10**9)
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    path = write_members(tmp_path / "x.npz", [("a.npy", header.getvalue())])
    with pytest.raises(UserError, match=r"'a' of shape .* has 0 bytes of data; expected 4,000"):
        weights.load(path)


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "huge.npz"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)  # sparse: no disk is used
    with pytest.raises(UserError, match=r"has 1,073,741,825 bytes"):
        weights.load(path)


def test_odd_archives_are_refused(tmp_path):
    array = npy(np.zeros(3, np.float32))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = write_members(tmp_path / "twice.npz", [("a.npy", array), ("a.npy", array)])
    for path, said in [
        (twice, "more than once"),
        (write_members(tmp_path / "readme.npz", [("readme.txt", b"x")]), "only npy arrays"),
        (write_members(tmp_path / "bare.npz", [("a.npy", b"x")]), "npy header"),
        (write_members(tmp_path / "v9.npz", [("a.npy", b"\x93NUMPY\x09\x00")]), "npy version"),
        (
            write_members(tmp_path / "lzma.npz", [("a.npy", array)], zipfile.ZIP_LZMA),
            "has a compression that npz does not use",
        ),
    ]:
        with pytest.raises(UserError, match=said):
            weights.load(path)


# ---- writing ----


def test_a_refused_save_leaves_the_old_file(tmp_path):
    eta = weights.load(SMALL)
    path = tmp_path / "rule.npz"
    weights.save(path, eta, {"version": 1})
    before = path.read_bytes()
    broken = {**eta, "gate": {**eta["gate"], "b": np.full(10, np.nan, np.float32)}}
    with pytest.raises(UserError, match=r"rule\.npz: array 'lstm/linear/b'"):
        weights.save(path, broken)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path):
    eta = weights.load(SMALL)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UserError, match=r"folder: is a folder; expected a regular file"):
        weights.save(folder, eta)
    assert list(tmp_path.iterdir()) == [folder]
    with pytest.raises(UserError, match=r"absent/rule\.npz: cannot be written"):
        weights.save(tmp_path / "absent" / "rule.npz", eta)


def test_a_saved_file_has_the_usual_permissions(tmp_path):
    weights.save(tmp_path / "rule.npz", weights.load(SMALL))
    (tmp_path / "other").touch()
    assert (tmp_path / "rule.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_metadata_is_stored_as_plain_json(tmp_path):
    weights.save(tmp_path / "rule.npz", weights.load(SMALL), {"seed": 1})
    with np.load(tmp_path / "rule.npz", allow_pickle=False) as file:
        assert file["metadata"].dtype == np.uint8
        assert json.loads(file["metadata"].tobytes()) == {"seed": 1}
