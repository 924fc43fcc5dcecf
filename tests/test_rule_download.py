"""Fetching published rule files, from a real server that can be told to misbehave."""

import http.server
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rule_files import CONTENT, SHA256, run

from discorl.rules.files import library
from discorl.types import UserError

pytestmark = pytest.mark.usefixtures("own_library")


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
        self.status = None  # answers everything with this error
        self.cuts = []  # bytes after which the next answers break off
        self.declare_length = True
        self.redirect = None
        self.requests = []
        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self.address = f"http://127.0.0.1:{self.httpd.server_port}/tiny_7.npz"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()
        self.thread.join()

    def answer(self, handler):
        self.requests.append(handler.path)
        if self.status is not None:
            handler.send_error(self.status)
            return
        if self.redirect is not None:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.end_headers()
            return
        handler.send_response(200)
        if self.declare_length:
            handler.send_header("Content-Length", str(len(self.content)))
        handler.end_headers()
        handler.wfile.write(self.content[: self.cuts.pop(0) if self.cuts else None])


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"tiny7.lock"}


def test_fetch_puts_the_file_into_the_cache(server, tmp_path):
    seen = []
    path = library.fetch("tiny7", server.address, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "cache" / "rules" / "tiny7.npz"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert leftovers(path.parent) == {"tiny7.npz"}
    assert library.find("tiny7") == path
    assert library.fetch("tiny7", server.address) == path
    assert len(server.requests) == 1  # the second fetch asked for nothing


def test_fetch_tries_again_after_a_broken_connection(server, rule_cache):
    server.cuts = [10_000, 5_000]
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT
    assert len(server.requests) == 3
    assert leftovers(rule_cache) == {"tiny7.npz"}


def test_fetch_gives_up_after_some_broken_connections(server, rule_cache):
    server.cuts = [1_000] * 4
    with pytest.raises(UserError, match=f"broke off after .* of {len(CONTENT):,} bytes, 4 times"):
        library.fetch("tiny7", server.address)
    assert len(server.requests) == 4
    assert leftovers(rule_cache) == set()


def test_fetch_replaces_a_damaged_file(server, rule_cache):
    (rule_cache / "tiny7.npz").write_bytes(CONTENT[:-1])
    assert library.fetch("tiny7", server.address).read_bytes() == CONTENT


def test_fetch_refuses_a_wrong_hash(server, rule_cache):
    server.content = bytes(len(CONTENT))
    with pytest.raises(UserError, match=f"holds another file; expected .* sha256 {SHA256}"):
        library.fetch("tiny7", server.address)
    assert len(server.requests) == 1
    assert leftovers(rule_cache) == set()


def test_fetch_refuses_an_endless_answer(server, rule_cache):
    server.declare_length = False
    server.content = CONTENT * 20
    seen = []
    with pytest.raises(UserError, match="holds another file"):
        library.fetch("tiny7", server.address, lambda done, total: seen.append(done))
    assert max(seen) < len(server.content) / 2  # it stopped reading
    assert not (rule_cache / "tiny7.npz").exists()


@pytest.mark.parametrize("status", [404, 500])
def test_fetch_reports_what_the_server_answered(server, rule_cache, status):
    server.status = status
    with pytest.raises(UserError) as caught:
        library.fetch("tiny7", server.address)
    for text in (server.address, f"answered {status}", str(rule_cache / "tiny7.npz")):
        assert text in str(caught.value)
    assert len(server.requests) == 1


def test_fetch_offline_says_where_to_put_the_file(rule_cache):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/tiny_7.npz"
        with pytest.raises(UserError) as caught:
            library.fetch("tiny7", address)
    source = library.PUBLISHED["tiny7"].address
    for text in (address, "cannot be reached", source, str(rule_cache / "tiny7.npz"), SHA256):
        assert text in str(caught.value)


def test_fetch_gives_up_on_silence(monkeypatch):
    monkeypatch.setattr("discorl.rules.files.download._TIMEOUT", 0.05)
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


@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_fetch_follows_no_redirect_to_another_scheme(server, tmp_path, scheme):
    copy = tmp_path / "copy.npz"
    copy.write_bytes(CONTENT)
    server.redirect = f"{scheme}://127.0.0.1{copy}"
    with pytest.raises(UserError, match=f"No connection adapters were found for '{scheme}:"):
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
    assert len(server.requests) == 1


def test_a_cache_that_cannot_be_created_is_named(monkeypatch, tmp_path, server):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/rules: cannot be created .*DISCORL_CACHE"):
        library.fetch("tiny7", server.address)


def test_fetch_command(server, rule_cache):
    data, text = run("fetch", "tiny7", "--address", server.address)
    assert data == {"name": "tiny7", "path": str(rule_cache / "tiny7.npz")}
    assert str(rule_cache / "tiny7.npz") in text


def test_fetch_command_brings_disco103_unless_told_otherwise(server, disco103):
    server.content = disco103.read_bytes()
    data, _ = run("fetch", "--address", server.address)
    assert data["name"] == "disco103"
    assert Path(data["path"]).read_bytes() == server.content
