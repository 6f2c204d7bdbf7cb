"""API keys and passwords in environment variables must not get into records, because records are shared with others."""

from __future__ import annotations

import os
import re

from knot_runner.config.strict import dotted_leaves
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError

#: Names of environment variables that hold secrets, and the least length of one that is looked for.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
MIN_LENGTH = 8


def refuse_secrets(config: Config) -> None:
    """Raise :class:`UserError` if a key of the plain ``config`` contains the value of a secret variable.

    The message names the key, not the value, which may come from ``${oc.env:WANDB_API_KEY}``. Otherwise config.yaml and
    trackers would store it.
    """
    for name, value in os.environ.items():
        if not SECRET_NAMES.search(name) or len(value) < MIN_LENGTH:
            continue
        for key, text in dotted_leaves(config):
            if isinstance(text, str) and value in text:
                raise UserError(
                    f"contains the value of the environment variable {name}, which records and trackers would "
                    "keep. Remove it: services read the variable themselves",
                    key,
                )
