"""A real sshd on 127.0.0.1 for tests: a port, keys and a home of its own, and behind it a riscv64 board whose programs run in QEMU."""

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from conftest import HANGS
from triport.backends.base import Error
from triport.backends.spine import runner


def absent() -> str:
    """Why no sshd can be started here; "" where it can."""
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if missing:
        return f"sshd: {', '.join(missing)} not found (apt-get install openssh-server openssh-client)"
    if not pwd.getpwuid(os.getuid()).pw_shell.endswith("bash") or not shutil.which("bash"):
        return "sshd: the login shell of this user is not bash, whose start-up file the tests write"
    return ""


def _quiet(*command):
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


class Sshd:
    """sshd on a free port, and an `ssh` of `bin` that has the keys of `folder` and nobody's settings.

    home: the board's; board: the emulated one whose programs run behind it ("": this machine itself)."""

    def __init__(self, folder: Path, board: str = ""):
        self.folder, self.home, self.bin, self.there = folder, folder / "home of the board", folder / "bin", folder / "there"
        for part in (self.home, self.bin, self.there):
            part.mkdir()
        self.user = getpass.getuser()
        for name in ("host", "mine", "other"):
            _quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        shutil.copy(folder / "mine.pub", folder / "authorized")
        self._emulate(board)
        (folder / "config").write_text(f"UserKnownHostsFile {folder}/known\nGlobalKnownHostsFile /dev/null\nIdentityFile {folder}/mine\nIdentitiesOnly yes\nIdentityAgent none\n")
        self._program(self.bin / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own empty folder, which its package's service makes
        self._start()

    def _program(self, path: Path, text: str):
        path.write_text(text)
        path.chmod(0o755)

    def _emulate(self, board: str):
        """The board's `uname`, and its `sh`, whose `exec` starts bundles' programs in QEMU."""
        if not board:
            return
        q = runner.get(board)
        words = " ".join(f"'{w}'" for w in [q.program, "-cpu", q.cpu, "-L", q.root])
        self._program(self.there / "uname", "#!/bin/sh\necho riscv64\n")
        self._program(self.there / "sh", textwrap.dedent(f"""\
            #!/bin/bash
            exec() {{ case "$1" in */.cache/triport/*) builtin exec {words} "$@";; *) builtin exec "$@";; esac; }}
            export -f exec
            builtin exec /bin/bash --norc "$@"
            """))

    def _start(self):
        for _ in range(20):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                self.port = s.getsockname()[1]
            (self.folder / "sshd_config").write_text(textwrap.dedent(f"""\
                ListenAddress 127.0.0.1
                Port {self.port}
                HostKey {self.folder}/host
                PidFile none
                AuthorizedKeysFile {self.folder}/authorized
                StrictModes no
                UsePAM no
                PasswordAuthentication no
                KbdInteractiveAuthentication no
                PermitRootLogin yes
                MaxStartups 100
                SetEnv "HOME={self.home}" "PATH={self.there}:{os.environ['PATH']}"
                """))
            sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            self.process = subprocess.Popen([sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("w"))
            end = time.monotonic() + HANGS
            while self.process.poll() is None and time.monotonic() < end:
                if "Server listening" in (self.folder / "log").read_text():
                    return
                time.sleep(0.02)
            self.stop()
        pytest.fail(f"sshd does not start: {(self.folder / 'log').read_text()}")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    @property
    def name(self) -> str:
        return f"ssh:{self.user}@127.0.0.1:{self.port}"

    def meet(self):
        """The host key is known from now on, as after `ssh` once."""
        kind, key = (self.folder / "host.pub").read_text().split()[:2]
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    """`sshd(board)`: an `Sshd` that was met, whose `ssh` is the first on PATH."""
    if reason := absent():
        pytest.skip(reason)
    running = []

    def start(board: str = "") -> Sshd:
        try:
            one = Sshd(tmp_path, board)
        except Error as e:  # no emulator
            pytest.skip(str(e))
        running.append(one)
        one.meet()
        monkeypatch.setenv("PATH", f"{one.bin}:{os.environ['PATH']}")
        return one

    runner.get.cache_clear()
    yield start
    runner.get.cache_clear()
    for one in running:
        one.stop()
