"""The user's own YAML (``--config-dir``), whose errors name the file and the line."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from knot_runner.composing.override_errors import message_text
from knot_runner.config.plugins import found_from
from knot_runner.util.errors import UserError


def search_path(config_dir: str | None) -> list[str]:
    """The override that adds ``config_dir`` to Hydra's search path, through :class:`OwnYaml`; [] without a folder."""
    if not config_dir:
        return []
    Plugins.instance().register(OwnYaml)
    return [f"hydra.searchpath=['{OwnYaml.scheme()}://{quote(str(Path(config_dir).resolve()))}']"]


class OwnYaml(ConfigSource):
    """A Hydra config source for a folder of YAML files; plug-ins named in a file are found beside it."""

    @staticmethod
    def scheme() -> str:
        """The URL scheme, as in ``own://FOLDER``."""
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file. Raises :class:`UserError` naming file and line."""
        path = self._file(config_path)
        try:
            header = self._get_header_dict(path.read_text(encoding="utf-8"))
            config = OmegaConf.load(path)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError, OSError) as problem:
            mark = getattr(problem, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            text = getattr(problem, "problem", None) or str(problem)
            raise UserError(message_text(" ".join(text.split()), 160), f"{path}{line}") from None
        plugins = config.get("plugins") if isinstance(config, DictConfig) else None
        if isinstance(plugins, ListConfig):
            config.plugins = [found_from(path.parent, one) if isinstance(one, str) else one for one in plugins]
        return ConfigResult(self.provider, self.full_path(), config, header)

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return Path(unquote(self.path), config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []  # for messages of Hydra's own, which ours replace

    def _file(self, config_path: str) -> Path:
        return Path(unquote(self.path), f"{config_path}.yaml")
