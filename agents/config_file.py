"""The agent's configuration file: read strictly, and noticed when it changes."""

from pathlib import Path

from stethoscope.schemas.agent_config import AgentConfig


def load_agent_config(path: Path | None) -> AgentConfig:
    """The configuration in the file; the defaults without one.

    Raises:
        ConfigError: one line that names file, line, key, value and remedy.
    """
    if path is None:
        return AgentConfig()
    from stethoscope.schemas.strict_yaml import read_document  # PyYAML only where there is a file

    document = read_document(path)
    return document.convert(AgentConfig, document.mapping())


class Watched:
    """A file whose replacement or rewriting is noticed by its inode, size and time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether the file is another than at the last call; a missing one has not changed."""
        now = self._look()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return True

    def _look(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
