"""Two heads, one acts: a lease in a folder that both reach.

The folder lies on storage that both heads mount. The lease is a file with an epoch, its holder
and a counter that the holder moves on; clocks are never compared between machines. A standby
that has seen nothing move for ``seconds`` of its own clock claims the next epoch with a file that
only one can create. A holder that cannot move the counter, or reads another epoch, no longer
holds it: by then at most ``holds_share`` of the time has passed, so it stops before another begins.

``held`` reads the file each time: it is the fence in front of every write to Slurm.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from daemon.settings import Section

FILE_LIMIT_BYTES = 4096
# A holder that could not renew gives up after this share of the lease's time.
HOLDS_SHARE = 0.6
RENEW_SHARE = 0.2


class LeaseOptions(Section):
    """Two heads: where the lease lies, and after how long of silence the other one takes over."""

    # On storage that both heads mount; unset: this head is alone.
    directory: Path | None = None
    # The other head takes over after so long. Keep 0.4 of it above slurm.deadline_seconds.
    seconds: float = Field(default=60.0, ge=0.2, le=3600)


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands in the lease's file."""

    epoch: int = 0
    holder: str = ""
    beat: int = 0


class Lease:
    """One head's view of the lease. ``held`` may be asked from any thread."""

    def __init__(
        self,
        directory: Path,
        holder: str,
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = directory / "lease.json"
        self._directory = directory
        self.holder = holder
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._epoch = 0
        self._beat = 0
        self._renewed = float("-inf")
        self._seen: Mark | None = None
        self._seen_since = monotonic()
        self._claim_seen = ""
        self._claim_since = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- standing by -------------------------------------------------------------------------

    def try_take(self) -> bool:
        """Asks once; True when this head holds the lease from now on. Never raises OSError."""
        try:
            mark = self._read()
        except OSError:
            self._seen = None  # what is not seen has not stood still
            return False
        now = self._monotonic()
        if self._seen is None or mark != self._seen:
            self._seen, self._seen_since = mark, now
        if mark.holder and now - self._seen_since < self._seconds:
            return False
        return self._claim(mark.epoch + 1)

    def wait(self, stop: threading.Event | None = None) -> bool:
        """Stands by until the lease is ours; False when ``stop`` was set before."""
        stop = stop or self._stop
        while not self.try_take():
            if stop.wait(self._seconds * RENEW_SHARE):
                return False
        return True

    def words(self) -> str:
        """Who holds the lease by its file, or why that is not known."""
        try:
            mark = self._read()
        except OSError as error:
            return f"the lease in {self._directory} cannot be read: {error.strerror}"
        if not mark.holder:
            return "nobody holds the lease"
        return f"{mark.holder} holds the lease"

    def _claim(self, epoch: int) -> bool:
        """Takes ``epoch``, if nobody else has; a claim that died half way is passed over."""
        claim = self._directory / f"lease.{epoch}"
        begun = self._monotonic()
        try:
            handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
            os.write(handle, self.holder.encode()[:200])
            os.fsync(handle)
            os.close(handle)
        except FileExistsError:
            if self._read_quietly().epoch < epoch and self._old(claim):
                return self._claim(epoch + 1)
            return False
        except OSError:
            return False
        with self._lock:
            self._epoch, self._beat, self._renewed = epoch, 0, begun
        for old in range(max(1, epoch - 5), epoch - 2):
            with contextlib.suppress(OSError):
                (self._directory / f"lease.{old}").unlink()
        return self.renew()

    def _old(self, claim: Path) -> bool:
        """Whether a claim without its mark has stood there as long as the lease itself."""
        if claim.name != self._claim_seen:
            self._claim_seen = claim.name
            self._claim_since = self._monotonic()
        return self._monotonic() - self._claim_since >= self._seconds

    # ---- holding -------------------------------------------------------------------------------

    def renew(self) -> bool:
        """Moves the counter on; False when the lease is no longer ours."""
        with self._lock:
            begun = self._monotonic()
            if not self._epoch:
                return False
            try:
                mark = self._read()
                if mark.epoch > self._epoch or self._claimed_after():
                    self._epoch = 0
                    return False
                self._beat += 1
                self._write(Mark(self._epoch, self.holder, self._beat))
            except OSError:
                return begun - self._renewed < self._seconds * HOLDS_SHARE
            self._renewed = begun
            return True

    def held(self) -> str:
        """Why this head must not write, or empty. Reads the file."""
        with self._lock:
            if not self._epoch:
                return "another head holds the lease"
            if self._monotonic() - self._renewed >= self._seconds * HOLDS_SHARE:
                return "the lease could not be renewed in time: another head may hold it"
            try:
                mark, claimed = self._read(), self._claimed_after()
            except OSError as error:
                return f"the lease cannot be read: {error.strerror}"
            if mark.epoch != self._epoch or mark.holder != self.holder:
                return f"{mark.holder or 'another head'} holds the lease"
            return "another head has claimed the lease" if claimed else ""

    def _claimed_after(self) -> bool:
        """Whether somebody has claimed the epoch after ours.

        The mark alone does not do: a machine that was paused, its clock with it, between reading
        and writing it has put its own over that of the head which took over meanwhile.
        """
        return (self._directory / f"lease.{self._epoch + 1}").exists()

    def keep(self, lost: Callable[[], None]) -> None:
        """Renews in a thread of its own; calls ``lost`` once when it is no longer ours."""

        def run() -> None:
            while not self._stop.wait(self._seconds * RENEW_SHARE):
                if not self.renew():
                    lost()
                    return

        self._thread = threading.Thread(target=run, name="tocsin-lease", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """At a clean end: the other head need not wait its time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._seconds)
        if not self.held():
            with self._lock, contextlib.suppress(OSError):
                self._write(Mark(self._epoch, "", self._beat))
        with self._lock:
            self._epoch = 0

    # ---- the file ------------------------------------------------------------------------------

    def _read(self) -> Mark:
        """The mark; an empty one where there is none yet. Raises OSError otherwise."""
        try:
            with self._file.open("rb") as stream:
                raw = stream.read(FILE_LIMIT_BYTES)
        except FileNotFoundError:
            if not self._directory.is_dir():
                raise  # not mounted here: that is not a lease that nobody holds
            return Mark()
        try:
            told = json.loads(raw)
            return Mark(int(told["epoch"]), str(told["holder"])[:200], int(told["beat"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise OSError(5, "the lease's file is damaged") from error

    def _read_quietly(self) -> Mark:
        try:
            return self._read()
        except OSError:
            return Mark(2**62)

    def _write(self, mark: Mark) -> None:
        new = self._directory / f"lease.new.{os.getpid()}"
        body = json.dumps({"epoch": mark.epoch, "holder": mark.holder, "beat": mark.beat})
        with new.open("w") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._file)
