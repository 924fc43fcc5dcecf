"""Finding, fetching and moving rule files, with real folders and a real server."""

import hashlib
import http.server
import json
import re
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from discorl.cli.rules import COMMANDS
from discorl.rules import library, weights
from discorl.types import UserError

SMALL = Path(__file__).parent / "golden" / "small" / "meta_network.npz"
CONTENT = SMALL.read_bytes()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class HandMade:
    """A rule made by hand.

    With more to say.
    """


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in ("DISCORL_RULES", "XDG_CACHE_HOME", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("discorl.cli.rules.HAND_MADE", {"by_hand": HandMade})
    monkeypatch.setattr(library, "_BUNDLED", tmp_path / "no_bundled_rules")
    # The tiny rule of the golden values stands in for a published one.
    monkeypatch.setitem(
        library.PUBLISHED,
        "tiny7",
        library.PublishedRule(
            address="http://127.0.0.1:9/weights/tiny_7.npz",
            sha256=SHA256,
            size=len(CONTENT),
            licence="MIT",
            description="A tiny rule.",
        ),
    )


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "cache" / "rules"
    folder.mkdir(parents=True)
    return folder


def another_rule(path: Path) -> Path:
    eta = weights.load(SMALL).eta
    eta["gate"]["b"] = eta["gate"]["b"] + np.float32(1)
    weights.save(path, eta, {"seed": 5})
    return path


# ---- finding ----


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert library.cache_folder() == tmp_path / "cache" / "rules"
    monkeypatch.delenv("DISCORL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.cache_folder() == tmp_path / ".cache" / "discorl" / "rules"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert library.cache_folder() == tmp_path / ".cache" / "discorl" / "rules"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert library.cache_folder() == tmp_path / "xdg" / "discorl" / "rules"


def test_places_are_searched_in_order(monkeypatch, tmp_path, cache):
    given, environment, bundled = (tmp_path / name for name in ("given", "environment", "bundled"))
    for folder in (given, environment, bundled):
        folder.mkdir()
    monkeypatch.setattr(library, "_BUNDLED", bundled)
    monkeypatch.setenv("DISCORL_RULES", str(environment))
    for folder in (cache, bundled, environment, given):  # from the last place to the first
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
    for absent in ("other.npz", "./some", str(tmp_path)):
        with pytest.raises(UserError, match="no such rule file"):
            library.find(absent)


def test_a_published_file_may_keep_its_source_name(cache):
    path = cache / "tiny_7.npz"
    path.write_bytes(CONTENT)
    assert library.find("tiny7") == path
    own = cache / "tiny7.npz"
    own.write_bytes(CONTENT)
    assert library.find("tiny7") == own


def test_rules_path_and_environment_may_be_a_file(tmp_path, monkeypatch):
    odd_name = tmp_path / "weights.npz"
    odd_name.write_bytes(CONTENT)
    assert library.find("tiny7", odd_name) == odd_name
    assert library.find("anything", odd_name) == odd_name
    monkeypatch.setenv("DISCORL_RULES", str(odd_name))
    assert library.find("tiny7") == odd_name  # known by its hash
    with pytest.raises(UserError, match="unknown rule 'anything'"):
        library.find("anything")
    monkeypatch.setenv("DISCORL_RULES", str(another_rule(tmp_path / "mine.npz")))
    assert library.find("mine") == tmp_path / "mine.npz"


def test_a_place_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"--rules-path is .*absent, which does not exist"):
        library.find("tiny7", tmp_path / "absent")
    monkeypatch.setenv("DISCORL_RULES", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"DISCORL_RULES is .*gone, which does not exist"):
        library.find("tiny7")


def test_a_published_name_with_another_content_is_refused(cache):
    path = another_rule(cache / "tiny7.npz")
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


def test_an_unknown_name_suggests_the_nearest(cache):
    another_rule(cache / "mine.npz")
    with pytest.raises(UserError, match=r"unknown rule 'disco_103': did you mean disco103\?"):
        library.find("disco_103")
    with pytest.raises(UserError, match=r"there are disco103, mine, tiny7"):
        library.find("zzz")


def test_available_lists_every_state(monkeypatch, tmp_path, cache):
    bundled = tmp_path / "bundled"
    bundled.mkdir()
    monkeypatch.setattr(library, "_BUNDLED", bundled)
    inside, mine = another_rule(bundled / "inside.npz"), another_rule(cache / "mine.npz")
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


# ---- fetching ----


def handler_for(server):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.answer(self)

        def log_message(self, *args):
            pass

    return Handler


class Server:
    """An HTTP server on this machine that can be told to misbehave."""

    def __init__(self):
        self.content = CONTENT
        self.ranges = True  # answers Range requests
        self.status = None  # answers everything with this error
        self.cuts = []  # bytes after which the next answers break off
        self.shift = 0  # starts a partial answer this much off what was asked for
        self.declare_length = True
        self.redirect = None
        self.requests = []  # the Range header of each request, None without
        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self.address = f"http://127.0.0.1:{self.httpd.server_port}/tiny_7.npz"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join()

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        if self.status is not None:
            handler.send_error(self.status)
            return
        if self.redirect is not None:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.end_headers()
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        if start and start >= len(self.content):
            handler.send_error(416)
            return
        first = max(0, start - self.shift)
        handler.send_response(206 if start else 200)
        if start:
            last = len(self.content) - 1
            handler.send_header("Content-Range", f"bytes {first}-{last}/{last + 1}")
        if self.declare_length:
            handler.send_header("Content-Length", str(len(self.content) - first))
        handler.end_headers()
        end = first + self.cuts.pop(0) if self.cuts else None
        handler.wfile.write(self.content[first:end])


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def leftovers(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {"tiny7.lock"}


def test_fetch_puts_the_file_into_the_cache(server, tmp_path):
    seen = []
    path = library.fetch("tiny7", server.address, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cache" / "rules" / "tiny7.npz"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers(path.parent) == {"tiny7.npz"}
    assert library.find("tiny7") == path
    assert library.fetch("tiny7", server.address) == path
    assert server.requests == [None]  # the second fetch asked for nothing


def test_fetch_resumes_within_a_call(server):
    server.cuts = [10_000, 5_000]
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=10000-", "bytes=15000-"]


def test_fetch_resumes_in_the_next_call(server, cache):
    server.cuts = [1_000] * 4
    with pytest.raises(UserError, match=r"broke off after 4,000 of .* run again to resume"):
        library.fetch("tiny7", server.address)
    assert leftovers(cache) == {"tiny7.npz.part"}
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert server.requests[-1] == "bytes=4000-"
    assert leftovers(cache) == {"tiny7.npz"}


@pytest.mark.parametrize("declare_length", [True, False])
def test_fetch_starts_over_where_the_server_ignores_ranges(server, cache, declare_length):
    server.ranges = False
    server.declare_length = declare_length
    server.cuts = [10_000]
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=10000-"]


@pytest.mark.parametrize("declare_length", [True, False])
def test_fetch_starts_over_where_the_server_resumes_elsewhere(server, declare_length):
    server.declare_length = declare_length
    server.cuts = [10_000]
    server.shift = 7
    seen = []
    path = library.fetch("tiny7", server.address, lambda done, total: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert max(seen) == len(CONTENT)  # nothing of the wrong answer was taken
    assert server.requests == [None, "bytes=10000-", None]


@pytest.mark.parametrize(
    "kept",
    [
        b"x" * 500,  # of another file
        b"x" * len(CONTENT),  # complete, and wrong
        b"x" * (len(CONTENT) + 1),
    ],
    ids=["wrong start", "wrong whole", "too large"],
)
def test_fetch_drops_a_bad_part(server, cache, kept):
    (cache / "tiny7.npz.part").write_bytes(kept)
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert server.requests[-1] is None
    assert leftovers(cache) == {"tiny7.npz"}


def test_fetch_takes_a_complete_part_without_asking(server, cache):
    (cache / "tiny7.npz.part").write_bytes(CONTENT)
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert server.requests == []


def test_fetch_drops_a_part_that_the_server_cannot_continue(server, cache):
    server.content = CONTENT[:100]
    (cache / "tiny7.npz.part").write_bytes(CONTENT[:200])
    with pytest.raises(UserError, match=f"a file of 100 bytes; expected {len(CONTENT)}"):
        library.fetch("tiny7", server.address)
    assert server.requests == ["bytes=200-", None]
    assert leftovers(cache) == set()


def test_fetch_replaces_a_damaged_file(server, cache):
    (cache / "tiny7.npz").write_bytes(CONTENT[:-1])
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT


def test_fetch_refuses_a_wrong_hash(server, cache):
    server.content = bytes(len(CONTENT))
    with pytest.raises(UserError, match=f"holds another file; expected sha256 {SHA256}"):
        library.fetch("tiny7", server.address)
    assert server.requests == [None]
    assert leftovers(cache) == set()


def test_fetch_refuses_an_endless_answer(server, cache):
    server.declare_length = False
    server.content = CONTENT * 20
    seen = []
    with pytest.raises(UserError, match="holds another file"):
        library.fetch("tiny7", server.address, lambda done, total: seen.append(done))
    assert max(seen) < len(server.content) / 2  # it stopped reading
    assert not (cache / "tiny7.npz").exists()


@pytest.mark.parametrize("status", [404, 500])
def test_fetch_reports_what_the_server_answered(server, cache, status):
    server.status = status
    with pytest.raises(UserError) as caught:
        library.fetch("tiny7", server.address)
    for text in (server.address, f"answered {status}", str(cache / "tiny7.npz")):
        assert text in str(caught.value)
    assert server.requests == [None]


def test_fetch_offline_says_where_to_put_the_file(cache):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/tiny_7.npz"
        with pytest.raises(UserError) as caught:
            library.fetch("tiny7", address)
    source = library.PUBLISHED["tiny7"].address
    for text in (address, "cannot be reached", source, str(cache / "tiny7.npz"), SHA256):
        assert text in str(caught.value)


def test_fetch_gives_up_on_silence(monkeypatch):
    monkeypatch.setattr(library, "_TIMEOUT", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/tiny_7.npz"
        with pytest.raises(UserError, match=r"cannot be reached \(.*timed out"):
            library.fetch("tiny7", address)


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/x", "/x", "x.npz"])
def test_fetch_refuses_other_schemes(address, tmp_path):
    with pytest.raises(UserError, match="expected one that starts with http"):
        library.fetch("tiny7", address)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("scheme", "said"), [("file", "answered 302"), ("ftp", "unknown url type: ftp")]
)
def test_fetch_follows_no_redirect_to_another_scheme(server, tmp_path, scheme, said):
    copy = tmp_path / "copy.npz"
    copy.write_bytes(CONTENT)
    server.redirect = f"{scheme}://127.0.0.1{copy}"
    with pytest.raises(UserError, match=said):
        library.fetch("tiny7", server.address)


@pytest.mark.parametrize(
    "address", ["http:///x", "http://127.0.0.1:port/x", "http://[bad/x", "http://127.0.0.1/a b"]
)
def test_fetch_refuses_a_malformed_address(address):
    with pytest.raises(UserError, match=re.escape(address)):
        library.fetch("tiny7", address)


def test_fetch_refuses_a_name_without_a_source():
    with pytest.raises(UserError, match=r"'mine' has no published file.*disco103"):
        library.fetch("mine")


def test_two_at_once_download_once(server):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: library.fetch("tiny7", server.address), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert server.requests == [None]


def test_a_cache_that_cannot_be_created_is_named(monkeypatch, tmp_path, server):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/rules: cannot be created .*DISCORL_CACHE"):
        library.fetch("tiny7", server.address)


# ---- installing ----


def test_install_copies_byte_for_byte_and_does_not_overwrite(tmp_path):
    first, second = another_rule(tmp_path / "first.npz"), tmp_path / "second.npz"
    weights.save(second, weights.load(SMALL).eta)
    path = library.install(first, "mine")
    assert path.read_bytes() == first.read_bytes()
    assert library.install(first, "mine") == path  # the same again is no conflict
    with pytest.raises(UserError, match=r"mine\.npz: holds a different rule; --force"):
        library.install(second, "mine")
    assert path.read_bytes() == first.read_bytes()
    library.install(second, "mine", force=True)
    assert library.find("mine").read_bytes() == second.read_bytes()


def test_install_guards_reserved_names(tmp_path, cache, monkeypatch):
    other = another_rule(tmp_path / "other.npz")
    for force in (False, True):
        with pytest.raises(UserError, match="reserved for the published rule"):
            library.install(other, "tiny7", force)
    shutil.copy(other, cache / "tiny7.npz")
    assert library.install(SMALL, "tiny7").read_bytes() == CONTENT  # mends what was damaged
    monkeypatch.setattr(library, "_BUNDLED", tmp_path)
    with pytest.raises(UserError, match="rule in the package"):
        library.install(SMALL, "other")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x.npz", "-x"])
def test_install_refuses_malformed_names(name):
    with pytest.raises(UserError, match="expected letters"):
        library.install(SMALL, name)


def test_install_refuses_what_is_not_a_rule(tmp_path, cache):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(CONTENT[:1000])
    with pytest.raises(UserError, match="damaged"):
        library.install(broken, "mine")
    assert list(cache.iterdir()) == []


# ---- commands ----


def run(*arguments):
    """The data and text of a command, as the command line would run it."""
    command, *rest = map(str, arguments)
    result = COMMANDS[command](list(rest), "discorl rules")
    assert result.ok
    return json.loads(json.dumps(result.data)), result.text


def test_list_command_shows_hand_made_and_learned(cache):
    path = another_rule(cache / "mine.npz")
    data, text = run("list")
    rows = {row["name"]: row for row in data["rules"]}
    assert list(rows) == ["by_hand", "disco103", "mine", "tiny7"]
    assert rows["by_hand"]["kind"] == "hand-made"
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
    return ["STATE", *(re.search(r"bundled|not fetched|present", line)[0] for line in lines[1:])]


def test_show_command_gives_origin_sizes_and_metadata(cache, tmp_path):
    data, text = run("show", SMALL)
    assert data["sha256"] == SHA256
    assert data["published_as"] == "tiny7"
    assert data["sizes"]["prediction_size"] == 12
    assert re.search(r"^meta_rnn: policy_net +4, 2$", text, re.MULTILINE)
    another_rule(cache / "mine.npz")
    data, text = run("show", "mine")
    assert data["metadata"] == {"seed": 5}
    assert "published_as" not in data
    assert re.search(r"^metadata: seed +5$", text, re.MULTILINE)
    data, text = run("show", "tiny7", "--rules-path", SMALL)
    assert data["path"] == str(SMALL)
    data, text = run("show", "by_hand")
    assert text.endswith("With more to say.")


def test_fetch_command(server, cache):
    data, text = run("fetch", "tiny7", "--address", server.address)
    assert data == {"name": "tiny7", "path": str(cache / "tiny7.npz")}
    assert str(cache / "tiny7.npz") in text


def test_fetch_command_brings_disco103_unless_told_otherwise(server, disco103):
    server.content = disco103.read_bytes()
    data, _ = run("fetch", "--address", server.address)
    assert data["name"] == "disco103"
    assert Path(data["path"]).read_bytes() == server.content


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
    with pytest.raises(UserError, match="hand-made rule"):
        run("import", other, "--name", "by_hand", "--force")
    with pytest.raises(UserError, match="reserved"):
        run("import", other, "--name", "disco103", "--force")
