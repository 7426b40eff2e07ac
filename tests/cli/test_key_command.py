"""`harvester key`: keys are made, listed and revoked in the state folder."""

from __future__ import annotations

import json
import os
import stat

import pytest

from bench.harness.servers.jobs_server import serving
from harvester.cli.server import key
from harvester.core import Role
from harvester.serve.access.keys import KeyRing
from jobs.access.handle import make_key
from jobs.storage.folder import StateFolder
from jobs.storage.place import settle_storage


def test_a_key_is_made_shown_once_and_known_to_the_server(cli, state):
    made = cli("key", "add", "ann", "--role", "chat", "--limit", "requests_per_minute=60")
    shown = made.output.splitlines()[0]
    path = StateFolder(state).keys
    assert shown.startswith("hk_")
    assert shown not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing(path=path).identify(shown)
    assert found is not None
    assert (found.name, found.roles, found.limits.requests_per_minute) == ("ann", {Role.CHAT}, 60)
    listed = cli("key", "list").output
    assert "ann" in listed
    assert "requests_per_minute=60" in listed
    assert shown not in listed


def test_a_server_begins_in_the_folder_of_its_first_key(cli, state):
    """The documents have the key made first, on a machine that has nothing yet."""
    before = os.umask(0o022)
    try:
        cli("key", "add", "ann")
    finally:
        os.umask(before)
    StateFolder(state).prepare()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_key_that_root_makes_belongs_to_the_user_of_the_state_folder(cli, state, monkeypatch):
    StateFolder(state).prepare()
    for path in (state, *state.rglob("*")):
        os.chown(path, 65534, 65534)
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append(os.fstat(file).st_uid))  # before it has its name
    cli("key", "add", "ann")
    assert seen[0] == 65534, "a running server reads it once"
    assert {path.stat().st_uid for path in (state, *state.rglob("*"))} == {65534}


def test_json_has_the_key_where_it_is_made_and_nowhere_else(cli, state):
    made = json.loads(cli("key", "add", "ann", "--json").output)
    assert (made["name"], made["roles"], made["expires_at_s"]) == ("ann", ["chat", "batch"], None)
    listed = json.loads(cli("key", "list", "--json").output)["keys"]
    assert [sorted(one) for one in listed] == [["created_at_s", "expires_at_s", "limits", "name", "roles"]]


def test_with_a_storage_a_revoked_key_is_said_to_last_until_the_processes_look_again(cli, state, tmp_path):
    folder = StateFolder(state)
    folder.prepare()
    settle_storage(folder, str(tmp_path / "shared"), may_adopt=False)
    cli("key", "add", "ann")
    cli("key", "add", "bob")
    assert cli("key", "revoke", "bob").output == "Revoked key bob: it is refused within 5 s, by every process that reaches the storage\n"


def test_a_revoked_key_is_refused_and_the_server_stays_closed(cli, state):
    shown = cli("key", "add", "ann").output.splitlines()[0]
    ring = KeyRing(path=StateFolder(state).keys)
    cli("key", "add", "bob")
    assert cli("key", "revoke", "bob").output == "Revoked key bob: it is refused from now on\n"
    assert "there is no other, and keys are still asked for" in cli("key", "revoke", "ann").output
    assert ring.identify(shown) is None
    assert ring.asks_for_key()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add",), "needs a name"),
        (("revoke", "nobody"), "unknown key 'nobody'"),
        (("add", "Ann Smith"), "cannot name a key"),
        (("add", "config"), "other than config"),
        (("add", "ann", "--limit", "requests=3"), "requests_per_minute"),
        (("add", "ann", "--limit", "max_choices=none"), "max_choices"),
        (("add", "ann", "--expires", "2001-01-01"), "--expires 2001-01-01 has passed"),
        (("add", "ann", "--expires", "yesterday"), "--expires 'yesterday' is neither"),
    ],
    ids=str,
)
def test_wrong_use_is_told_in_one_line(cli, words, why):
    result = cli("key", *words)
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_name_is_taken_once(cli):
    assert cli("key", "add", "ann").exit_code == 0
    again = cli("key", "add", "ann")
    assert again.exit_code == 1
    assert "harvester key revoke ann" in again.stderr


def test_no_keys_are_said_to_be_none(cli):
    assert cli("key", "list").output == "No keys; make one with: harvester key add NAME\n"


@pytest.fixture
def default(monkeypatch, tmp_path):
    """The default state folder: the user names none."""
    monkeypatch.delenv("HARVESTER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    return StateFolder(tmp_path / "own" / "harvester")


def test_a_key_is_made_where_the_server_that_answers_looks_for_it(cli, server, default, tmp_path):
    theirs = StateFolder(tmp_path / "served")
    theirs.prepare()
    server.state = str(theirs.root)
    made = cli("key", "add", "ann")
    assert KeyRing(path=theirs.keys).identify(made.stdout.splitlines()[0]) is not None
    assert not default.keys.exists()
    assert made.stderr == f"The server at {server.url} uses state folder {theirs.root}: so does this command\n"
    assert "ann" in cli("key", "list").stdout


def test_a_key_that_the_server_may_not_see_is_made_with_a_warning(cli, server, default, tmp_path):
    server.state = str(tmp_path / "elsewhere")
    made = cli("key", "add", "ann")
    assert KeyRing(path=default.keys).identify(made.stdout.splitlines()[0]) is not None
    assert made.stderr == (
        f"warning: the server at {server.url} uses state folder {server.state}, on another machine or of another user: it may not see "
        f"keys of {default.root} here; run this on its machine as its user, or name the folder with --state\n"
    )


@pytest.mark.parametrize("name", ["own/harvester", "served"], ids=["our own", "another of ours"])
def test_a_folder_that_only_has_the_path_of_the_servers_is_not_taken_for_it(cli, default, tmp_path, monkeypatch, name):
    """Two machines with the same user and the same folders."""
    ours = StateFolder(tmp_path / name)
    for folder in (ours, default):
        folder.prepare()
    make_key(ours)
    with serving(tmp_path / "there" / "state", told_state=ours.root) as elsewhere:
        monkeypatch.setenv("HARVESTER_URL", elsewhere.url)
        made, revoked = cli("key", "add", "ann"), cli("key", "revoke", "ann")
    assert made.stderr.startswith(f"warning: the server at {elsewhere.url} uses state folder {ours.root}, on another machine or of")
    assert revoked.stdout.startswith(f"Revoked key ann: it is refused from now on by servers of {default.root};")
    assert ours.root == default.root or not ours.keys.exists()


def test_a_server_that_sees_this_users_folder_gets_the_key(cli, default, tmp_path, monkeypatch):
    with serving(tmp_path / "served") as server:
        monkeypatch.setenv("HARVESTER_URL", server.url)
        assert (
            cli("key", "add", "ann").stderr == f"The server at {server.url} uses state folder {server.folder.root}: so does this command\n"
        )
        assert cli("key", "revoke", "ann").stdout.startswith("Revoked key ann: it is refused from now on; there is no other")


@pytest.mark.parametrize("is_local", [True, False])
def test_a_server_of_an_earlier_version_that_does_not_say_what_it_sees_must_be_of_this_machine(
    cli, server, default, tmp_path, monkeypatch, is_local
):
    theirs = StateFolder(tmp_path / "served")
    theirs.prepare()
    server.state = str(theirs.root)
    monkeypatch.setattr(key, "is_loopback", lambda host: is_local)
    cli("key", "add", "ann")
    assert (theirs.keys.exists(), default.keys.exists()) == (is_local, not is_local)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_no_key_goes_to_a_folder_of_another_user_that_only_a_server_names(cli, server, default, tmp_path):
    """Anyone may listen on a port and name a folder."""
    theirs = StateFolder(tmp_path / "served")
    theirs.prepare()
    os.chown(theirs.root, 65534, 65534)
    server.state = str(theirs.root)
    server.answers["/api/sources/seen"] = 200, {"is_user": True, "is_seen": True}
    assert "or of another user" in cli("key", "add", "ann").stderr
    assert (theirs.keys.exists(), default.keys.exists()) == (False, True)


def test_a_server_at_a_url_is_not_the_one_that_runs_here_on_the_own_folder(cli, server, default, tmp_path, monkeypatch):
    default.prepare()
    server.state = str(tmp_path / "elsewhere")
    monkeypatch.setenv("HARVESTER_URL", server.url)
    with default.locked():
        assert "uses state folder" in cli("key", "add", "ann").stderr
        default.server.write_text(json.dumps({"url": server.url}))
        assert cli("key", "add", "bob").stderr == ""


def test_a_server_that_asks_for_a_key_may_use_another_folder(cli, server, default):
    server.answers["/api/server"] = 401, {"error": {"code": "invalid_api_key", "message": "this server needs an API key"}}
    assert cli("key", "add", "ann").stderr == (
        f"warning: the server at {server.url} asks for a key and does not say which state folder it uses; if that is not {default.root}, "
        "name it with --state\n"
    )
    with default.locked():
        assert cli("key", "add", "bob").stderr == ""


def test_a_folder_that_is_named_is_used_whatever_answers(cli, server, state, tmp_path):
    server.state = str(tmp_path / "served")
    assert cli("key", "add", "ann").stderr == ""
    assert StateFolder(state).keys.exists()
    assert not server.asked
