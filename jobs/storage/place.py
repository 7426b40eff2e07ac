"""Where the files of a state folder's jobs are: in the folder, or in a storage that other machines reach, with the folder as its cache."""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.credentials import without_login
from connectors.durable import publish
from connectors.edge import shown
from connectors.errors import StorageError
from jobs.errors import StateError
from jobs.storage.folder import STATE_VERSION, StateFolder

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

log = logging.getLogger("harvester.storage")

MARK = "state.json"  # file in the storage that names its owner and version
KEYS_S = 5.0  # between two looks at the file of keys
TIDY_S = 3600.0
UNUSED_S = 24 * 3600.0  # age at which a copy is removed whose original is gone


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """``owner`` identifies the state folder; it moves with the storage to a new machine."""

    uri: str
    owner: str


def state_folder(root: Path, uri: str | None) -> StateFolder:
    """State folder of a server process, on any machine. With a storage the folder is made, and its API keys are kept up to date.

    Raises `StorageError` where the storage does not answer or has no mark: without its keys clients could not be told apart. Raises
    `StateError` where the folder belongs to another storage.
    """
    if uri is None:
        return StateFolder(root)
    mirror = _mirror(root, uri)
    folder = StateFolder(root, mirror)
    folder.prepare()
    owner, place = _marked_owner(folder, mirror), storage_place(folder)
    if place is None:
        _note(folder, StoragePlace(uri, owner))  # for commands on this machine, and for a server that begins here later
    elif place.owner != owner:
        raise _other_folder(folder, mirror)
    mirror.fetch(folder.keys)
    threading.Thread(target=_follow, args=(folder, mirror), name="storage", daemon=True).start()
    return folder


def known_folder(root: Path) -> StateFolder:
    """State folder for commands, with the storage of its last server. Raises `StorageError`."""
    place = storage_place(StateFolder(root))
    return StateFolder(root) if place is None else StateFolder(root, _mirror(root, place.uri))


def storage_place(folder: StateFolder) -> StoragePlace | None:
    """Storage of the folder's last server; None: the folder itself. Raises `StorageError`."""
    try:
        told = json.loads(folder.storage_place.read_text(encoding="utf-8"))
        return StoragePlace(str(told["uri"]), str(told["owner"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError) as error:
        raise StorageError(f"cannot read {folder.storage_place}: {error}; it says where results are: start the server again") from error


def settle_storage(folder: StateFolder, uri: str | None, *, may_adopt: bool, owner: str | None = None) -> list[str]:
    """Set up the storage of a server with ``storage: uri``; None is the folder itself. Call it while the folder is locked.

    Returns what was done, a line each. A folder that held its files itself sends them; ``owner`` is its id, if it has one already. An
    empty folder adopts the files in the storage if it ``may_adopt``, which means that its ledger is elsewhere too. Raises `StateError`
    where folder and storage do not belong together, and `StorageError`, also where the storage of an earlier server has lost its mark.
    """
    now = storage_place(folder)
    if uri is None:
        if now is not None:
            raise StateError(
                f"the results of {folder.root} are in {shown(now.uri)}; give it as `storage:`, or, once its files are in {folder.root}, "
                f"remove {folder.storage_place}"
            )
        return []
    if now is not None and _plain(now.uri) != _plain(uri):
        raise StateError(f"the results of {folder.root} are in {shown(now.uri)}, not in {shown(uri)}; give that, or a new --state folder")
    mirror = _mirror(folder.root, uri)
    mine, theirs, lines = owner if now is None else now.owner, _owner_there(folder, mirror), []
    if theirs is None:
        if now is not None:
            raise _unmarked(folder, mirror, f"; or, once its files are in {folder.root}, remove {folder.storage_place} to send them again")
        theirs = mine or secrets.token_hex(8)
        sent = _send_all(folder, mirror)
        lines += [f"sent {sent} files of {folder.root} to {mirror}"] if sent else []
        mirror.put(folder.root / MARK, json.dumps({"version": STATE_VERSION, "owner": theirs}).encode())
    elif now is None and theirs != mine:
        _check_adoption(folder, mirror, may_adopt=may_adopt)
        lines.append(f"took over what lies in {mirror}")
    elif mine != theirs:
        raise _other_folder(folder, mirror)
    if StoragePlace(uri, theirs) != now:
        _note(folder, StoragePlace(uri, theirs))
    if folder.keys.exists() and not mirror.has(folder.keys):  # else a server that asks for keys would be open without them
        mirror.send(folder.keys)
    mirror.fetch(folder.keys)
    return lines


def _mirror(root: Path, uri: str) -> Mirror:
    from jobs.storage.mirror import Mirror  # only now: it loads Arrow, which few commands need

    return Mirror(root, uri)


def _note(folder: StateFolder, place: StoragePlace) -> None:
    with publish(folder.storage_place) as file:
        file.write(json.dumps(asdict(place)).encode() + b"\n")


def _marked_owner(folder: StateFolder, mirror: Mirror) -> str:
    """Owner of a storage that has one. Raises `StorageError` for one without a mark: where it is not mounted, its files seem to be gone."""
    owner = _owner_there(folder, mirror)
    if owner is None:
        raise _unmarked(folder, mirror)
    return owner


def _unmarked(folder: StateFolder, mirror: Mirror, otherwise: str = "") -> StorageError:
    return StorageError(
        f"{mirror.address(folder.root / MARK)} is missing, which every storage of a server has; check that the storage is mounted here and "
        f"its address right, or put a backup of it back{otherwise}"
    )


def _other_folder(folder: StateFolder, mirror: Mirror) -> StateError:
    return StateError(f"{mirror} belongs to another state folder than {folder.root}; give another prefix, or a new --state folder")


def _owner_there(folder: StateFolder, mirror: Mirror) -> str | None:
    """Owner of the storage; None where it has none yet. Raises `StorageError`."""
    data = mirror.read(folder.root / MARK)
    if data is None:
        return None
    try:
        told = json.loads(data)
        owner, version = str(told["owner"]), int(told["version"])
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(f"{mirror.address(folder.root / MARK)} is damaged; put a copy back, or give another prefix") from error
    if version > STATE_VERSION:
        raise StorageError(f"{mirror} is of version {version}, this harvester writes version {STATE_VERSION}; run the one that made it")
    return owner


def _check_adoption(folder: StateFolder, mirror: Mirror, *, may_adopt: bool) -> None:
    if next(folder.jobs.glob("[!.]*"), None) is not None:
        raise StateError(f"{mirror} belongs to another state folder, and {folder.root} has jobs of its own; give another prefix")
    if not may_adopt:
        raise StateError(
            f"{mirror} has the files of another state folder, whose ledger is not here; make it again from them: "
            f"harvester repair --state {folder.root} --storage {mirror}"
        )


def _send_all(folder: StateFolder, mirror: Mirror) -> int:
    """What other machines need, but for the keys. Safe to repeat."""
    folders = (folder.jobs, folder.uploads, folder.inputs, folder.files, folder.batches, folder.root / "profiles")
    return sum(mirror.send_folder(path) for path in folders)


def _plain(uri: str) -> str:
    """The address without credentials and options, which may change."""
    return without_login(uri.partition("?")[0]).rstrip("/")


def _follow(folder: StateFolder, mirror: Mirror) -> None:
    """Fetch the keys when they change; once an hour remove copies of what has gone. A storage without its mark changes nothing."""
    tidy_s = time.monotonic() + TIDY_S
    while True:
        time.sleep(KEYS_S)
        try:
            _marked_owner(folder, mirror)
            mirror.fetch(folder.keys)
            if time.monotonic() > tidy_s:
                tidy_s = time.monotonic() + TIDY_S
                forget_gone(folder, mirror, time.time())
        except StorageError as error:
            log.warning("storage_away %s", error.message)
        except Exception:  # without this thread a revoked key would stay valid
            log.exception("storage_bug")


def forget_gone(folder: StateFolder, mirror: Mirror, now_s: float) -> None:
    """Remove the copies of jobs and uploads that the storage no longer has, if nothing in them was changed within `UNUSED_S`."""
    for parent in (folder.jobs, *folder.uploads.glob("*")):
        there = mirror.names(parent)
        for path in parent.glob("[!.]*"):
            with suppress(FileNotFoundError):
                if path.name not in there and now_s - _changed_s(path) > UNUSED_S:
                    shutil.rmtree(path, ignore_errors=True)


def _changed_s(path: Path) -> float:
    """When the folder, or anything below it, was changed last: an upload that goes on for long changes its file alone."""
    return max(one.stat().st_mtime for one in (path, *path.rglob("*")))
