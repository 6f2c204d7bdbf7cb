"""The user's own YAML (``--config-dir``), whose errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.override_errors import message_text
from knot_runner.config.plugins import found_from
from knot_runner.util.errors import UserError


def search_path(config_dir: str | None) -> list[str]:
    """The override that adds ``config_dir`` to Hydra's search path, through :class:`OwnYaml`; [] without a folder."""
    if not config_dir:
        return []
    Plugins.instance().register(OwnYaml)
    folder = str(Path(config_dir).resolve())
    if "${" in folder or "\\" in folder:
        raise UserError(f"{message_text(folder)}: Hydra cannot read a path with ${{ or a backslash", "--config-dir")
    quoted = folder.replace("'", "\\'")
    return [f"hydra.searchpath=['{OwnYaml.scheme()}://{quoted}']"]


class OwnYaml(FileConfigSource):
    """A Hydra config source for a folder of YAML files; plug-ins named in a file are found beside it."""

    @staticmethod
    def scheme() -> str:
        """The URL scheme, as in ``own://FOLDER``."""
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file. Raises :class:`UserError` naming file and line."""
        path = Path(self.path) / self._normalize_file_name(config_path)
        try:
            found = super().load_config(config_path)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError, OSError) as problem:
            mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            text = getattr(problem, "problem", None) or str(problem) or "nested too deeply"
            raise UserError(f"{message_text(' '.join(str(text).split()), 160)}", f"{path}{line}") from None
        plugins = found.config.get("plugins") if OmegaConf.is_dict(found.config) else None
        if OmegaConf.is_list(plugins):
            found.config.plugins = [found_from(path.parent, one) if isinstance(one, str) else one for one in plugins]
        return found
