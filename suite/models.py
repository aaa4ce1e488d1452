"""Models to calibrate: pretraining cells of the study, hub ids, local folders, GGUF files."""

# transformers is partly untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from suite.corpora.places import find_folder, is_file
from suite.corpora.pretrained import pretrained_tokenizer
from suite.errors import InputError, SuiteError
from suite.study import KVShape, ModelSpec, Study

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lightning_modules.kv.layout import KVLayout
    from suite.corpora import Tokenizer

MODEL_DIGEST_TAG = "suite.model.digest"
"""Run tag with the digest of the model that a pretraining cell has written."""

_DECISIVE = (
    *("*.safetensors", "*.gguf", "pytorch_model*.bin", "config.json", "*.py"),
    *("tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
    *("*.model", "adapter_config.json", "adapter_model.bin"),
)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a model is loaded from, and what it is.

    Attributes:
        spec: what the study says.
        folder: local folder, or none for a hub id.
        identity: digest of what decides its activations: the fingerprint of its pretraining
            cell, or of its files or the commit of its hub repository, with the GGUF file and
            whether its own code is run.
        key: key path in the study file.
        digest: of the files that a pretraining cell of the study has written, where it is known.
        commit: of its hub repository, where it comes from one.
    """

    spec: ModelSpec
    folder: Path | None
    identity: str
    key: str
    digest: str | None = None
    commit: str | None = None

    @property
    def name(self) -> str:
        """What transformers loads it by."""
        return str(self.folder or self.spec.path)

    @property
    def _revision(self) -> str:
        """The commit, so that a later push changes nothing."""
        return self.commit or "main"

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer.

        Raises:
            InputError: if it cannot be loaded.
        """
        return pretrained_tokenizer(
            self.name,
            key=self.key,
            base=Path(),
            revision=self._revision,
            gguf_file=self.spec.gguf_file,
            trust_remote_code=self.spec.trust_remote_code,
            opens=self.spec.size is None,  # streams of a study's own models have no such token
        )

    def load(self, *, precision: str) -> tuple[PreTrainedModel, Tokenizer]:
        """The model in evaluation mode, and its tokenizer.

        Args:
            precision: see ``TrainerSpec``. Mixed precisions keep 32-bit weights, and
                ``32-true`` means 32 bits, whatever the checkpoint is stored in.

        Raises:
            InputError: if either cannot be loaded.
            SuiteError: if its files are not what the pretraining cell has written.
        """
        self._check_files()
        import torch
        from transformers import AutoModelForCausalLM

        import lightning_modules.looplm.modeling  # noqa: F401 - registers the looped model

        options = {} if self.spec.gguf_file is None else {"gguf_file": self.spec.gguf_file}
        widths = {"bf16-true": torch.bfloat16, "64-true": torch.float64}
        tokenizer = self.tokenizer()
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.name,
                output_loading_info=True,
                revision=self._revision,
                trust_remote_code=self.spec.trust_remote_code,
                dtype=widths.get(precision, torch.float32),
                **options,
            )
        except Exception as error:
            # missing files, unknown classes and lost networks each raise something else
            raise InputError(
                f"cannot load the model {self.spec.path or self.name!r}: "
                f"{type(error).__name__}: {error}; name a causal language model by hub id or "
                "folder",
                key=self.key,
            ) from error
        model, told = loaded
        self._check_whole(model, told["missing_keys"])
        model.train(False)
        return model, tokenizer

    def _check_whole(self, model: PreTrainedModel, missing: Iterable[str]) -> None:
        """Refuse a checkpoint that lacks parameters, which transformers would draw at random.

        The head may be missing: no logits are computed.
        """
        head = model.get_output_embeddings()
        heads = {name for name, module in model.named_modules() if module is head}
        lacking = sorted(name for name in missing if name.rpartition(".")[0] not in heads)
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise InputError(
                f"the checkpoint {self.spec.path or self.name!r} lacks {lacking[0]}{more}, which "
                "would be random numbers; give a checkpoint that is whole, and of this "
                "architecture",
                key=self.key,
            )

    def _check_files(self) -> None:
        if self.digest is None or self.folder is None or folder_digest(self.folder) == self.digest:
            return
        raise SuiteError(
            f"the model in {self.folder} is not what its pretraining run has written: a file was "
            "damaged or changed; put it back from a copy, or delete the run "
            f"{self.folder.parent.name} in MLflow and run again to train it anew"
        )


def folder_digest(folder: Path) -> str:
    """Digest of the files of a model that decide its activations, and of their names."""
    return _digest(folder, None)


def find_checkpoint(spec: ModelSpec, *, base: Path, key: str) -> ModelSource:
    """Locate a checkpoint and digest it, without loading the model.

    Args:
        spec: a model with ``path``, which may also lead to a GGUF file.
        base: folder that relative paths start from.
        key: key path in the study file.

    Raises:
        InputError: if there is no such folder, file or hub repository.
    """
    spec = _with_gguf_file(spec)
    assert spec.path is not None
    folder = find_folder(spec.path, base=base)
    if spec.gguf_file is not None:
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    f"GGUF files need the package {package}; "
                    "install the extra: pip install 'loopkv-suite[gguf]'",
                    key=f"{key}.gguf_file",
                )
        if Path(spec.gguf_file).name != spec.gguf_file:
            raise InputError(
                f"got {spec.gguf_file!r}; give the name of a file in path, without a folder",
                key=f"{key}.gguf_file",
            )
        if folder is not None and not is_file(folder / spec.gguf_file):
            raise InputError(f"no file {spec.gguf_file!r} in {folder}", key=f"{key}.gguf_file")
    if folder is not None:
        identity = _identity(_digest(folder, spec.gguf_file), spec)
        return ModelSource(spec=spec, folder=folder, identity=identity, key=key)
    if spec.path.startswith((".", "/", "~")):
        raise InputError(
            f"there is no folder {spec.path!r}, seen from {base}; give a folder or a hub id",
            key=f"{key}.path",
        )
    commit = _hub_commit(spec, key)
    return ModelSource(
        spec=spec, folder=None, identity=_identity(commit, spec), key=key, commit=commit
    )


def _identity(files: str, spec: ModelSpec) -> str:
    """What the files are, and which of them are loaded by which code, as far as a study says."""
    chosen = [spec.gguf_file] if spec.gguf_file is not None else []
    chosen += ["its own code"] if spec.trust_remote_code else []
    if not chosen:
        return files
    return hashlib.sha256("\0".join([files, *chosen]).encode()).hexdigest()[:16]


def _digest(folder: Path, gguf_file: str | None) -> str:
    """Digest of the files that decide a model's activations."""
    files = {file for pattern in _DECISIVE for file in folder.glob(pattern)}
    digest = hashlib.sha256()
    for file in sorted(files) if gguf_file is None else [folder / gguf_file]:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _hub_commit(spec: ModelSpec, key: str) -> str:
    if spec.revision and re.fullmatch(r"[0-9a-f]{40}", spec.revision):
        return spec.revision
    from transformers import AutoConfig

    try:
        if spec.gguf_file is not None:
            commit = _gguf_commit(str(spec.path), spec.gguf_file, spec.revision or "main")
        else:
            config = AutoConfig.from_pretrained(
                str(spec.path),
                revision=spec.revision or "main",
                trust_remote_code=spec.trust_remote_code,
            )
            commit = config._commit_hash
    except Exception as error:
        raise InputError(
            f"cannot have the model {spec.path!r} from the hub ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}); give a hub id that exists, accept its "
            "licence and log in where it asks for that, give a local folder, or set revision to a "
            "commit that is cached",
            key=f"{key}.path",
        ) from error
    if commit is None:
        raise InputError(
            f"the commit of {spec.path!r} is not known; set revision to one", key=f"{key}.revision"
        )
    return str(commit)


def _gguf_commit(path: str, gguf_file: str, revision: str) -> str | None:
    """Commit of a hub repository with a GGUF file, which need have no configuration beside it.

    The file is not fetched: a header of the hub's answer tells, or the cache does.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from transformers.utils.hub import extract_commit_hash

    try:
        return get_hf_file_metadata(hf_hub_url(path, gguf_file, revision=revision)).commit_hash
    except Exception:
        # offline, or a hub that cannot be reached; what is cached may still do
        file = hf_hub_download(path, gguf_file, revision=revision, local_files_only=True)
        return extract_commit_hash(file, None)


def _with_gguf_file(spec: ModelSpec) -> ModelSpec:
    """The same with the file named apart, where ``path`` leads to a GGUF file itself."""
    if spec.gguf_file is not None or not str(spec.path).lower().endswith(".gguf"):
        return spec
    file = PurePosixPath(str(spec.path))
    return replace(spec, path=str(file.parent), gguf_file=file.name)


def check_shape(declared: KVShape | None, *, key_width: int, key: str) -> None:
    """Refuse a declared shape that the loaded model does not have.

    Raises:
        InputError: naming both widths.
    """
    if declared is None:
        return
    width = declared.layers * declared.heads * declared.head_dim
    if width != key_width:
        raise InputError(
            f"declares {width} features (layers x heads x head_dim), the loaded model has "
            f"{key_width}",
            key=f"{key}.shape",
        )


def check_rank(study: Study, layout: KVLayout, *, key: str) -> None:
    """Refuse ranks that a loaded model has too few features for.

    Raises:
        InputError: naming the rank and the width.
    """
    widths = {"key": layout.key_width, "value": layout.value_width}
    width = min(widths[kind] for kind in layout.kinds)
    position = int(key.split("[")[1].rstrip("]"))
    asked = {"calibration.rank": study.calibration.rank if study.calibration else 0}
    for number, search in enumerate(study.searches):
        if search.model == position:
            asked[f"searches[{number}].over.rank"] = max(search.over.rank)
    for where, rank in asked.items():
        if rank > width:
            raise InputError(
                f"got {rank}; keys and values of the model of {key} have {width} features, so the "
                "rank is at most that",
                key=where,
            )
