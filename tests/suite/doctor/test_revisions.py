from __future__ import annotations

import subprocess
import sys

import mlflow.store.db.utils as mlflow_db
from alembic.script import ScriptDirectory

from suite.doctor.revisions import head_revision, revision_order


def test_the_order_is_the_one_that_alembic_finds() -> None:
    config = mlflow_db._get_alembic_config("")
    steps = ScriptDirectory.from_config(config).walk_revisions()
    assert list(revision_order()) == [step.revision for step in steps][::-1]


def test_the_head_is_the_one_that_mlflow_checks_for() -> None:
    assert head_revision() == mlflow_db._get_latest_schema_revision()


def test_it_is_found_without_mlflow() -> None:
    code = (
        "import sys; from suite.doctor.revisions import head_revision; head_revision(); "
        "print('mlflow' in sys.modules, 'alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
