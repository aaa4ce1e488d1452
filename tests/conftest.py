"""Set-up of every test process."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded; see suite.cli

# The same examples every time, so that a red run can be repeated; HYPOTHESIS_PROFILE=default
# looks further afield.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
