"""The folder of the embedded model: found in the package, or made once under the state folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harvester.engine.embedded.shape import MAX_TOKENS, llama_config
from harvester.engine.embedded.tokenizer import PAD, START, STOP, tokenizer_config, train
from harvester.engine.embedded.weights import write_weights
from harvester.errors import StorageError

EMBEDDED_NOTE = (
    "The embedded model has random weights and says noise: it shows that the machinery works. "
    "For a real one: harvester serve --model Qwen/Qwen3-8B"
)

# Raised with every change to what the folder holds, so that a folder made by an older release is left alone.
FOLDER_NAME = "embedded-1"
SHIPPED = Path(__file__).parent / "model"


def embedded_model(models_dir: Path, shipped: Path = SHIPPED) -> Path:
    """Folder of the embedded model, as vLLM and `transformers` load it.

    Weights that the package ships (``shipped``) are taken as they are. Otherwise the folder ``models_dir/embedded-1`` is made,
    in about a second, if it is not there yet. It appears whole or not at all: several processes may ask at once, and a killed one
    leaves nothing that a later one would take for the model.
    Raises `StorageError` when the folder cannot be written.
    """
    if (shipped / "config.json").is_file():
        return shipped
    target = models_dir / FOLDER_NAME
    if target.is_dir():
        return target
    try:
        return _make(models_dir, target)
    except OSError as error:
        raise StorageError(f"cannot write the embedded model to {target}: {error.strerror}; choose another --state folder") from error


def _make(models_dir: Path, target: Path) -> Path:
    models_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}-", dir=models_dir))
    try:
        _fill(draft)
        draft.chmod(0o755)  # mkdtemp's 0700 would lock out a replica of another user
        try:
            draft.rename(target)
        except OSError:
            # Another process was first: a rename onto a folder that holds files fails.
            if not target.is_dir():
                raise
        return target
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(folder: Path) -> None:
    tokenizer = train()
    ids = tokenizer.get_vocab()
    bos_id, eos_id, pad_id = ids[START], ids[STOP], ids[PAD]
    config = llama_config(len(ids), bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_weights(folder, config)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(MAX_TOKENS))
    _write_json(folder / "generation_config.json", {"bos_token_id": bos_id, "eos_token_id": eos_id, "pad_token_id": pad_id})
    _write_json(folder / "config.json", config)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
