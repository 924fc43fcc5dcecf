"""Finding, installing and moving rule files, with real folders."""

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rule_files import CONTENT, SHA256, SMALL, another_rule, run

from discorl.rules.files import library, weights
from discorl.types import UserError

pytestmark = pytest.mark.usefixtures("own_library")


# --- finding --------------------------------------------------------------------------------------


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert library.cache_folder() == tmp_path / "cache" / "rules"
    monkeypatch.delenv("DISCORL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.cache_folder() == tmp_path / ".cache" / "discorl" / "rules"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert library.cache_folder() == tmp_path / ".cache" / "discorl" / "rules"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert library.cache_folder() == tmp_path / "xdg" / "discorl" / "rules"


def test_places_are_searched_in_order(monkeypatch, tmp_path, rule_cache):
    given, environment, bundled = (tmp_path / name for name in ("given", "environment", "bundled"))
    for folder in (given, environment, bundled):
        folder.mkdir()
    monkeypatch.setattr(library, "_BUNDLED", bundled)
    monkeypatch.setenv("DISCORL_RULES", str(environment))
    for folder in (rule_cache, bundled, environment, given):  # from the last place to the first
        copy = another_rule(folder / "mine.npz")
        assert library.find("mine", given) == copy
        assert copy in [entry.path for entry in library.available(given)]
    assert library.find("mine") == environment / "mine.npz"


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    path = another_rule(tmp_path / "some.npz")
    assert library.find(str(path)) == path
    assert library.find(path) == path
    monkeypatch.chdir(tmp_path)
    assert library.find("some.npz") == Path("some.npz")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.find("~/some.npz") == path
    for absent in ("other.npz", "./some"):
        with pytest.raises(UserError, match="no such rule file"):
            library.find(absent)


def test_a_published_file_may_keep_its_source_name(rule_cache):
    path = rule_cache / "tiny_7.npz"
    path.write_bytes(CONTENT)
    assert library.find("tiny7") == path
    own = rule_cache / "tiny7.npz"
    own.write_bytes(CONTENT)
    assert library.find("tiny7") == own


def test_rules_path_and_environment_may_be_a_file(tmp_path, monkeypatch):
    odd_name = tmp_path / "weights.npz"
    odd_name.write_bytes(CONTENT)
    assert library.find("tiny7", odd_name) == odd_name
    assert library.find("anything", odd_name) == odd_name
    monkeypatch.setenv("DISCORL_RULES", str(odd_name))
    assert library.find("tiny7") == odd_name  # known by its hash
    with pytest.raises(UserError, match="no rule 'anything'; known: "):
        library.find("anything")
    monkeypatch.setenv("DISCORL_RULES", str(another_rule(tmp_path / "mine.npz")))
    assert library.find("mine") == tmp_path / "mine.npz"


def test_a_place_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"--rules-path is .*absent, which does not exist"):
        library.find("tiny7", tmp_path / "absent")
    monkeypatch.setenv("DISCORL_RULES", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"DISCORL_RULES is .*gone, which does not exist"):
        library.find("tiny7")


def test_a_published_name_with_another_content_is_refused(rule_cache):
    path = another_rule(rule_cache / "tiny7.npz")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(UserError) as caught:
        library.find("tiny7")
    for text in (str(path), sha256, SHA256, "discorl rules fetch tiny7"):
        assert text in str(caught.value)
    assert {entry.name: entry.state for entry in library.available()}["tiny7"] == "damaged"


def test_a_rule_not_fetched_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError) as caught:
        library.find("disco103")
    destination = tmp_path / "cache" / "rules" / "disco103.npz"
    disco103 = library.PUBLISHED["disco103"]
    for text in ("discorl rules fetch disco103", str(destination), disco103.address):
        assert text in str(caught.value)
    assert not destination.parent.exists()  # looking changes nothing


def test_an_unknown_name_suggests_the_nearest(rule_cache):
    another_rule(rule_cache / "mine.npz")
    with pytest.raises(UserError, match=r"no rule 'disco_103'; did you mean 'disco103'\?"):
        library.find("disco_103")
    with pytest.raises(UserError, match=r"known: disco103, mine, tiny7"):
        library.find("zzz")


def test_a_run_in_place_of_a_rule_names_the_rules_in_it(tmp_path):
    with pytest.raises(UserError, match=r"is a directory; expected the file of a rule$"):
        library.find(tmp_path)
    another_rule(tmp_path / "best.npz")
    with pytest.raises(UserError, match=r"the file of a rule, such as .*best\.npz$"):
        library.find(tmp_path)


def test_available_lists_every_state(monkeypatch, tmp_path, rule_cache):
    bundled = tmp_path / "bundled"
    bundled.mkdir()
    monkeypatch.setattr(library, "_BUNDLED", bundled)
    inside, mine = another_rule(bundled / "inside.npz"), another_rule(rule_cache / "mine.npz")
    assert library.available() == [
        library.Entry("disco103", "not fetched", None),
        library.Entry("inside", "bundled", inside),
        library.Entry("mine", "present", mine),
        library.Entry("tiny7", "not fetched", None),
    ]
    monkeypatch.setattr(library, "_BUNDLED", tmp_path / "nothing")
    assert library.find("mine") == mine
    assert library.names(str(SMALL)) == ["disco103", "mine", "tiny7"]
    assert library.available(SMALL)[-1].path == SMALL


def test_the_real_disco103_is_recognised(disco103):
    assert library.find("disco103", disco103.parent) == disco103
    assert library.find("disco103", disco103) == disco103


# --- installing -----------------------------------------------------------------------------------


def test_install_copies_byte_for_byte_and_does_not_overwrite(tmp_path):
    first, second = another_rule(tmp_path / "first.npz"), tmp_path / "second.npz"
    weights.save(second, weights.load(SMALL))
    path = library.install(first, "mine")
    assert path.read_bytes() == first.read_bytes()
    assert library.install(first, "mine") == path  # the same again is no conflict
    with pytest.raises(UserError, match=r"mine\.npz: holds a different rule; --force"):
        library.install(second, "mine")
    assert path.read_bytes() == first.read_bytes()
    library.install(second, "mine", force=True)
    assert library.find("mine").read_bytes() == second.read_bytes()


def test_install_guards_reserved_names(tmp_path, rule_cache, monkeypatch):
    other = another_rule(tmp_path / "other.npz")
    for force in (False, True):
        with pytest.raises(UserError, match="reserved for the published rule"):
            library.install(other, "tiny7", force)
    shutil.copy(other, rule_cache / "tiny7.npz")
    assert library.install(SMALL, "tiny7").read_bytes() == CONTENT  # mends what was damaged
    monkeypatch.setattr(library, "_BUNDLED", tmp_path)
    with pytest.raises(UserError, match="rule in the package"):
        library.install(SMALL, "other")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x.npz", "-x"])
def test_install_refuses_malformed_names(name):
    with pytest.raises(UserError, match="expected letters"):
        library.install(SMALL, name)


def test_install_refuses_what_is_not_a_rule(tmp_path, rule_cache):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(CONTENT[:1000])
    with pytest.raises(UserError, match="damaged"):
        library.install(broken, "mine")
    assert list(rule_cache.iterdir()) == []


# --- commands -------------------------------------------------------------------------------------


def test_list_command_shows_hand_made_and_learned(rule_cache):
    path = another_rule(rule_cache / "mine.npz")
    data, text = run("list")
    rows = {row["name"]: row for row in data["rules"]}
    assert list(rows) == ["by_hand", "disco103", "mine", "tiny7"]
    assert rows["by_hand"]["kind"] == "hand-designed"
    assert rows["by_hand"]["description"] == "A rule made by hand."
    assert rows["mine"] == {
        "name": "mine",
        "kind": "learned",
        "state": "present",
        "path": str(path),
        "description": "",
    }
    assert rows["disco103"]["state"] == "not fetched"
    lines = text.splitlines()
    assert len(lines) == 5
    assert "discorl rules fetch disco103" in text
    assert len({line.index(state) for line, state in zip(lines, _states(lines), strict=True)}) == 1


def _states(lines):
    return ["STATE", *(re.search(r"built in|not fetched|present", line)[0] for line in lines[1:])]


def test_show_command_gives_origin_sizes_and_metadata(rule_cache, tmp_path):
    data, text = run("show", SMALL)
    assert data["sha256"] == SHA256
    assert data["published_as"] == "tiny7"
    assert data["sizes"]["prediction_size"] == 12
    assert re.search(r"^meta_rnn: policy_net +4, 2$", text, re.MULTILINE)
    another_rule(rule_cache / "mine.npz")
    data, text = run("show", "mine")
    assert data["metadata"] == {"seed": 5}
    assert "published_as" not in data
    assert re.search(r"^metadata: seed +5$", text, re.MULTILINE)
    data, text = run("show", "tiny7", "--rules-path", SMALL)
    assert data["path"] == str(SMALL)
    weights.save(tmp_path / "found.npz", weights.load(SMALL), {"config": {"method": "es"}})
    data, text = run("show", tmp_path / "found.npz")
    assert data["metadata"]["config"] == {"method": "es"}
    assert "method" not in text
    data, text = run("show", "by_hand")
    assert "\n\nWith more to say.\n\nsettings, as in `by_hand:NAME=VALUE`" in text


def test_import_then_export_is_lossless(tmp_path):
    mine = another_rule(tmp_path / "mine.npz")
    run("import", mine, "--name", "mine")
    data, _ = run("export", "mine", tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == mine.read_bytes()
    assert data["sha256"] == hashlib.sha256(mine.read_bytes()).hexdigest()
    run("export", "mine", tmp_path / "bare.npz", "--bare")
    with np.load(tmp_path / "bare.npz") as bare, np.load(mine) as original:
        assert set(original.files) - set(bare.files) == {"metadata"}
        for name in bare.files:
            assert bare[name].tobytes() == original[name].tobytes()


def test_import_command_needs_force_to_replace(tmp_path):
    run("import", SMALL, "--name", "mine")
    other = another_rule(tmp_path / "other.npz")
    with pytest.raises(UserError, match="--force"):
        run("import", other, "--name", "mine")
    run("import", other, "--name", "mine", "--force")
    assert library.find("mine").read_bytes() == other.read_bytes()
    with pytest.raises(UserError, match="is taken by a built-in rule"):
        run("import", other, "--name", "by_hand", "--force")
    with pytest.raises(UserError, match="reserved"):
        run("import", other, "--name", "disco103", "--force")
