"""What a run directory may look like when somebody comes back to it: edited, damaged, not ours."""

import json
import math
import os
import random
import warnings
import zipfile

import numpy as np
import pytest

from discorl.runs import Run, npz
from discorl.runs.files import open_regular, write_atomically
from discorl.runs.history import MOST_ROWS, History
from discorl.runs.metrics import EPISODES, RETURN, as_rows
from discorl.runs.versions import read_versions
from discorl.types import UserError

CONFIG = {"learning_rate": 0.1, "updates": 4}
TEMPLATE = {"w": np.zeros(5)}


def state(update):
    return {"w": np.full(5, float(update))}


def rows(*updates):
    return [{"update": update, "global_step": 10 * update, "loss": 0.5} for update in updates]


@pytest.fixture
def path(tmp_path):
    """A run of four updates, with a copied rule and two checkpoints."""
    rule = tmp_path / "mine.npz"
    rule.write_bytes(b"a rule")
    with Run.create(tmp_path / "run", CONFIG, copies={"rule.npz": rule}) as run:
        for update in range(1, 5):
            run.log(rows(update))
            if update % 2 == 0:
                run.save(update, state(update))
    return tmp_path / "run"


# --- folders that are not runs --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine.csv", "notes.txt", ".hidden"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text("update,b\n1,2\n")
    with pytest.raises(UserError, match=f"nor empty: it has {name}"):
        Run.create(tmp_path, CONFIG)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_new_run_never_adopts_old_checkpoints(path):
    (path / "config.json").unlink()
    for name in ("metrics.csv", "rule.npz"):
        (path / name).unlink()
    before = sorted(path.rglob("*"))
    with pytest.raises(UserError, match="nor empty"):
        Run.create(path, CONFIG)
    assert sorted(path.rglob("*")) == before


def test_what_a_killed_creation_leaves_is_no_obstacle(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("lock", "versions.json", "manifest.json", ".config.json.12ab34cd.partial"):
        (tmp_path / name).write_text("{")
    Run.create(tmp_path, CONFIG).close()


def test_tables_of_the_user_are_not_touched(path):
    (path / "mine.csv").write_text("update,b\n100,2\n")
    with Run.open(path) as run:
        run.restore(TEMPLATE)
    assert (path / "mine.csv").read_text() == "update,b\n100,2\n"


# --- what was changed between two stretches -------------------------------------------------------


def edit_config(path):
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace("0.1", "0.2"))


def edit_metrics(path):
    text = (path / "metrics.csv").read_text()
    (path / "metrics.csv").write_text(text.replace("0.5", "0.9", 1))


CHANGES = {
    "config.json has changed": edit_config,
    "rule.npz has changed": lambda path: (path / "rule.npz").write_bytes(b"another"),
    "rule.npz is missing": lambda path: (path / "rule.npz").unlink(),
    "metrics.csv has changed, up to update 4": edit_metrics,
    "the checkpoint of update 4 is missing": lambda path: (
        path / "checkpoints" / "00000004.npz"
    ).unlink(),
    "manifest.json: there is no such file": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_resume_names_what_was_changed(path, message):
    CHANGES[message](path)
    with pytest.raises(UserError, match=f"is not as it was left: {message}.*--accept-changes"):
        Run.open(path)
    Run.open(path, read_only=True).close()
    with Run.open(path, accept_changes=True) as run:
        assert run.restore(TEMPLATE)[0] == (2 if "checkpoint" in message else 4)
    Run.open(path).close()  # what was accepted is what is expected from then on


def test_rows_after_the_checkpoint_may_be_cut(path):
    with (path / "metrics.csv").open("a") as file:
        file.write("5,50,0.5\n6,6")
    with Run.open(path) as run:
        assert run.restore(TEMPLATE)[0] == 4
        assert run.metrics()["update"].tolist() == [1, 2, 3, 4]


def test_a_description_that_changes_is_no_edit(path):
    with Run.open(path) as run:
        run.describe(CONFIG | {"more": 1})
    with Run.open(path) as run:
        assert run.config["more"] == 1


def test_the_newest_finite_checkpoint_remains(path):
    with Run.open(path) as run:
        run.restore(TEMPLATE)
        for update in (5, 6, 7):
            run.save(update, state(math.nan), finite=False)
        assert run.checkpoint_updates() == [4, 6, 7]
        assert run.finite_checkpoint.name == "00000004.npz"
    with Run.open(path) as run:
        run.restore(TEMPLATE)
        run.save(8, state(8))
        run.save(9, state(9))
        assert run.checkpoint_updates() == [8, 9]


def test_checkpoints_that_were_dropped_on_purpose(path):
    with Run.open(path) as run:
        run.drop_checkpoints()
    with Run.open(path) as run:
        assert run.restore(TEMPLATE) is None
        run.save(1, state(1))


def test_a_run_without_its_folder_of_checkpoints_starts_over_if_told_to(path):
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    (path / "checkpoints").rmdir()
    with pytest.raises(UserError, match="checkpoint of update 4 is missing"):
        Run.open(path)
    with Run.open(path, accept_changes=True) as run:
        assert run.restore(TEMPLATE) is None
        run.log(rows(1))
        run.save(1, state(1))


# --- what is not a regular file -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.csv", "rule.npz", "lock", "checkpoints/00000004.npz"]
)
def test_a_fifo_is_never_waited_for(path, name):
    (path / name).unlink()
    os.mkfifo(path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Run.open(path) as run:
                assert run.restore(TEMPLATE)[0] == 2
                run.log(rows(3))
        except UserError as error:
            assert name.rpartition("/")[2] in str(error)


def test_only_regular_files_are_replaced(tmp_path):
    kept = tmp_path / "kept"
    kept.write_bytes(b"old")
    (tmp_path / "link").symlink_to(kept)
    os.mkfifo(tmp_path / "fifo")
    for name, kind in {"link": "a symbolic link", "fifo": "a FIFO", ".": "a folder"}.items():
        with pytest.raises(UserError, match=f"{kind}|expected the name"):
            write_atomically(tmp_path / name, lambda file: file.write(b"new"))
    assert kept.read_bytes() == b"old"
    with open_regular(tmp_path / "link") as file:  # to read through a link is harmless
        assert file.read() == b"old"


# --- damage ---------------------------------------------------------------------------------------


def read_everything(path, accept_changes):
    with Run.open(path, accept_changes=accept_changes) as run:
        read_versions(path)
        update, restored = run.restore(TEMPLATE)
        np.testing.assert_array_equal(restored["w"], update)
        list(run.rows())
        run.log(rows(50))
        run.save(50, state(50))


def damage(content, generator):
    """A content with a few bytes or words changed, cut or repeated."""
    content = bytearray(content)
    kind = generator.randrange(5)
    at = generator.randrange(len(content) + 1)
    if kind == 0:
        content[at : at + 1] = bytes([generator.randrange(256)])
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        content[at:at] = generator.choice([b"\xff", b"\0", b"NaN", b"[" * 5000, b"\n", b"-1e999"])
    elif kind == 3:
        del content[at : at + generator.randrange(1, 40)]
    else:
        words = [b"null", b"true", b"[]", b"{}", b'"x"', b"7", b"1e400"]
        start = content.find(b":", at)
        end = content.find(b"\n", start)
        if 0 <= start < end:
            content[start + 1 : end] = generator.choice(words)
    return bytes(content)


@pytest.mark.parametrize(
    "name", ["config.json", "versions.json", "manifest.json", "metrics.csv", "00000004.npz"]
)
def test_a_damaged_file_is_told_of_by_name_or_harmless(path, name):
    file = next(path.rglob(name))
    whole = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    generator = random.Random(name)
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(60):
            for each in [*path.glob("metrics.csv"), *path.glob("checkpoints/*")]:
                each.unlink()
            for each, content in whole.items():
                each.write_bytes(content)
            file.write_bytes(damage(whole[file], generator))
            try:
                read_everything(path, accept_changes=name != "manifest.json")
            except UserError as error:
                refused += 1
                assert name in str(error) or "is not as it was left" in str(error), error
    # A damaged checkpoint is set aside, and the one before it taken.
    assert refused == 0 if name.endswith(".npz") else refused >= 5


def test_a_checkpoint_called_otherwise_is_none(path):
    (path / "checkpoints" / "25.npz").write_bytes(b"")
    with Run.open(path) as run:
        assert run.checkpoint_updates() == [2, 4]


def test_a_checkpoint_never_unpacks_to_more_than_its_file(path):
    newest = path / "checkpoints" / "00000004.npz"
    with zipfile.ZipFile(newest, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 2**20)
    with (
        Run.open(path) as run,
        pytest.warns(UserWarning, match=r"manifest\.json is compressed; going back to update 2"),
    ):
        assert run.restore(TEMPLATE)[0] == 2


def test_a_rule_that_is_a_fifo(tmp_path):
    os.mkfifo(tmp_path / "rule.npz")
    with pytest.raises(UserError, match=r"rule\.npz: is a FIFO"):
        npz.read(tmp_path / "rule.npz")


# --- memory ---------------------------------------------------------------------------------------


def long_rows(count, seeds):
    return [
        {"update": u, "seed": s, EPISODES: u % 3, RETURN: u + s if u % 3 else math.nan, "x": u}
        for u in range(1, count + 1)
        for s in range(seeds)
    ]


def test_a_short_history_holds_every_row():
    given = long_rows(100, 2)
    history = History(2)
    history.extend(given)
    found = as_rows(history.columns())
    for row, expected in zip(found, given, strict=True):
        np.testing.assert_equal({n: float(x) for n, x in row.items()}, expected)
    assert history.columns("update")["update"].dtype == np.int64


def test_a_long_history_is_bounded_and_keeps_the_means():
    count, given = 40_000, long_rows(40_000, 1)
    history = History()
    for start in range(0, count, 1000):
        history.extend(given[start : start + 1000])
    found = history.columns()
    assert MOST_ROWS / 2 <= len(found["update"]) <= MOST_ROWS
    assert found["update"][-1] == count
    assert found[EPISODES].sum() == sum(row[EPISODES] for row in given)
    earned = sum(row[RETURN] * row[EPISODES] for row in given if row[EPISODES])
    np.testing.assert_allclose(np.nansum(found[RETURN] * found[EPISODES]), earned)
    again = History()
    again.extend(given)  # as a resumed run reads them back
    for name, column in again.columns().items():
        np.testing.assert_array_equal(column, found[name])


@pytest.mark.parametrize("width", [3, 7, 40])
def test_a_history_of_any_number_of_seeds_is_merged_in_pairs(width):
    updates = 2 * MOST_ROWS // width
    history = History(width)
    for update in range(1, updates + 1):
        history.extend([{"update": update, "seed": seed} for seed in range(width)])
    found = history.columns()
    assert found["update"][-1] == updates
    np.testing.assert_array_equal(found["seed"][:width], np.arange(width))


def test_a_loss_that_is_no_number_stays_none():
    history = History()
    history.extend(
        [
            {"update": u, "losses/total": math.nan if u == MOST_ROWS else 1.0}
            for u in range(1, MOST_ROWS + 1)
        ]
    )
    assert math.isnan(history.columns()["losses/total"][-1])


def test_the_manifest_is_json(path):
    noted = json.loads((path / "manifest.json").read_text())
    assert set(noted["files"]) == {"config.json", "rule.npz"}
    assert noted["checkpoint"] == noted["finite_checkpoint"] == 4
