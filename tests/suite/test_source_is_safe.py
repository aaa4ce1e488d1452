"""What the source never does: unpickle, evaluate text, run a shell, or trust remote code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_modules
import suite
import tuning

PACKAGES = (suite, lightning_modules, tuning)
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
OTHERS = {"tempfile.mktemp", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}


def faults(source: str) -> list[str]:
    """What a piece of source does that it must not, with line numbers."""
    tree = ast.parse(source)
    return [f"line {line}: {fault}" for node in ast.walk(tree) for line, fault in _of(node)]


def _of(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.split(".")[0] in UNPICKLERS:
                yield node.lineno, f"imports {name.name}"
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
        yield node.lineno, f"imports from {node.module}"
    elif isinstance(node, ast.Call):
        for fault in _of_call(ast.unparse(node.func), node):
            yield node.lineno, fault


def _of_call(called: str, node: ast.Call) -> Iterator[str]:
    given = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
    last = called.rpartition(".")[2]
    if called in EVALUATORS | SHELLS | OTHERS:
        yield f"calls {called}"
    if called == "yaml.load" and "SafeLoader" not in given.get("Loader", ""):
        yield "reads YAML without SafeLoader"
    if called == "torch.load" and given.get("weights_only") != "True":
        yield "unpickles a checkpoint"
    if last in ("fit", "validate") and "ckpt_path" in given and given.get("weights_only") != "True":
        yield "unpickles a checkpoint of Lightning"
    if called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        yield "may unpickle an array"
    if "Auto" in called and last == "from_pretrained" and "trust_remote_code" not in given:
        yield "leaves it to a library, which may ask on the terminal, whether to run remote code"
    for word in ("trust_remote_code", "shell", "allow_pickle"):
        if given.get(word) == "True":
            yield f"sets {word}"


SOURCES = sorted(
    path for package in PACKAGES for path in Path(str(package.__file__)).parent.rglob("*.py")
)


def test_there_is_source_to_look_at() -> None:
    assert len(SOURCES) > 80
    assert {path.name for path in SOURCES} >= {"cli.py", "checkpoint_files.py", "models.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_source_is_safe(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, dill as d",
        "def f():\n    from joblib import load",
        "eval('1')",
        "exec(text)",
        "os.system('ls')",
        "subprocess.run(command, shell=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.FullLoader)",
        "yaml.unsafe_load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=unsure)",
        "trainer.fit(module, ckpt_path=path)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "AutoConfig.from_pretrained(name)",
        "AutoConfig.from_pretrained(name, trust_remote_code=True)",
        "ModelSpec(path=name, trust_remote_code=True)",
    ],
)
def test_a_fault_is_seen(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "re.compile(pattern)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=False)",
        "trainer.fit(module, ckpt_path=path, weights_only=True)",
        "trainer.fit(module, loader)",
        "AutoConfig.from_pretrained(name, trust_remote_code=spec.trust_remote_code)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
    ],
)
def test_what_is_fine_is_no_fault(source: str) -> None:
    assert faults(source) == []


def test_the_reader_of_study_files_is_a_safe_one() -> None:
    import yaml

    from suite import study_yaml

    loader = study_yaml._Loader
    assert issubclass(loader, yaml.SafeLoader)
    assert loader.yaml_constructors.keys() == yaml.SafeLoader.yaml_constructors.keys()
    assert not loader.yaml_multi_constructors
