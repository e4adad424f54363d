"""A changed configuration file, taken up by the running worker: SIGHUP, or the file's new content.

The process stays, its content starts anew: stop cleanly, which keeps the state, then execute the
same command again. One way to begin is easier to trust than detectors exchanged in flight.
"""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from stethoscope.agents.config_file import Watched
from stethoscope.schemas.errors import ConfigError

_log = logging.getLogger(__name__)
_LOOK_SECS = 5.0


class Reloader:
    """Sets ``stop`` when the file holds another configuration that can be used.

    Attributes:
        wanted: whether the worker stops to start anew.
    """

    def __init__(self, file: Path | None, stop: asyncio.Event) -> None:
        self._file = file
        self._stop = stop
        self._watched = Watched(file)
        self.wanted = False

    async def watch(self) -> None:
        """Look at the file now and then, and at once on SIGHUP, until cancelled."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        while True:
            await asyncio.sleep(_LOOK_SECS)
            self.look()

    def look(self) -> None:
        """Reload when the file is another than the one last looked at."""
        if self._watched.changed():
            self.reload()

    def reload(self) -> None:
        """Take the file up if it can be used; say so if it cannot, and go on with the old one."""
        from stethoscope.streams.config import load_config

        self._watched.changed()  # what is looked at now is no news later
        try:
            load_config(self._file)
        except ConfigError as error:
            _log.error("new configuration refused, the old one stays", extra={"error": str(error)})
            return
        _log.warning("configuration changed: stopping, to start with it")
        self.wanted = True
        self._stop.set()


def start_anew() -> None:
    """Become the same command again, as the same process."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
