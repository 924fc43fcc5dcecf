"""Rules on the Hugging Face Hub, by its real client against a server on this machine."""

import base64
import hashlib
import http.server
import json
import re
import threading

import pytest

from discorl import cli
from discorl.rules.files import hub, library
from discorl.training.config import DEFAULT_RULE

COMMIT = "0" * 39 + "1"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the Hub as pushes and pulls ask for; repositories are dicts of files."""

    repositories: dict

    def log_message(self, *_):
        pass

    def answer(self, body: bytes = b"", status: int = 200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
            self.repositories.setdefault(name, {})
            return self.answer(json.dumps({"url": f"{self.server.address}/{name}"}).encode())
        if self.path == "/api/validate-yaml":
            return self.answer(b'{"errors": [], "warnings": []}')
        name, verb = re.match(r"/api/models/([^/]+/[^/]+)/(\w+)/", self.path).groups()
        if verb == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(content)["files"]
            ]
            return self.answer(json.dumps({"files": files}).encode())
        for line in map(json.loads, content.splitlines()):
            if line["key"] == "file":
                file = line["value"]
                self.repositories[name][file["path"]] = base64.b64decode(file["content"])
        address = f"{self.server.address}/{name}/commit/{COMMIT}"
        return self.answer(json.dumps({"commitUrl": address, "commitOid": COMMIT}).encode())

    def do_GET(self):
        repository, file = re.match(r"/([^/]+/[^/]+)/resolve/\w+/(.+)", self.path).groups()
        if file not in self.repositories.get(repository, {}):
            return self.answer(status=404, X_Error_Code="RepoNotFound")
        body = self.repositories[repository][file]
        tag = f'"{hashlib.sha1(body).hexdigest()}"'
        return self.answer(body, ETag=tag, X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@pytest.fixture
def repositories(monkeypatch, tmp_path):
    """The Hub's repositories, on a server of this machine."""
    from huggingface_hub import constants

    class Handler(Hub):
        repositories: dict = {}  # noqa: RUF012

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_token_of_nobody")
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    yield Handler.repositories
    server.shutdown()
    server.server_close()


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["rules", *arguments])


def test_a_rule_that_was_pushed_is_pulled_byte_for_byte(repositories, capsys):
    run("push", DEFAULT_RULE, "hf:somebody/my-rule")
    files = repositories["somebody/my-rule"]
    assert set(files) == {"rule.npz", "README.md"}
    run("pull", "hf:somebody/my-rule", "--name", "mine")
    original = library.find(DEFAULT_RULE).read_bytes()
    assert files["rule.npz"] == original
    assert library.find("mine").read_bytes() == original


def test_the_card_has_a_head_that_the_hub_reads(repositories):
    from huggingface_hub import ModelCard

    run("push", DEFAULT_RULE, "hf:somebody/my-rule")
    text = repositories["somebody/my-rule"]["README.md"].decode()
    data = ModelCard(text).data
    assert data.library_name == "discorl"
    assert "reinforcement-learning" in data.tags
    archive = library.read(library.find(DEFAULT_RULE))
    assert archive.sha256 in text
    if "score" in archive.metadata:
        assert data.eval_results[0].metric_value == archive.metadata["score"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("somebody/my-rule", "expected hf:USER/REPOSITORY"),
        ("hf:my-rule", "expected hf:USER/REPOSITORY"),
        ("hf:somebody/absent", r"hf:somebody/absent: .*NotFound"),
    ],
)
def test_a_bad_address_is_named(repositories, address, message, capsys):
    with pytest.raises(SystemExit, match=r"^[12]$"):
        cli.main(["rules", "pull", address])
    assert re.search(message, capsys.readouterr().err)


def test_a_file_that_is_no_rule_is_refused(repositories, capsys):
    repositories["somebody/broken"] = {hub.FILE: b"not a rule"}
    with pytest.raises(SystemExit, match=r"^[12]$"):
        cli.main(["rules", "pull", "hf:somebody/broken"])
    assert "rule.npz" in capsys.readouterr().err
