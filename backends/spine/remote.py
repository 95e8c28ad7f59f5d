"""A board's shell, over the user's own ssh: its address, commands there, and what to do where ssh fails.

Keys, hosts and options are those of the user's ssh, which never asks (BatchMode). What is run there begins behind a line of its own on both of its
outputs, so that nothing that the board's start-up files print is taken for an answer.
"""

from __future__ import annotations

import functools
import re
import secrets
import shlex
import shutil
from dataclasses import dataclass

from ..base import Error, Unavailable
from . import process

#: seconds that an answer of the board about itself may take
ASK = 60.0
_OPTIONS = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
_USER, _HOST = r"[A-Za-z0-9_][\w.+%-]*(?:@[\w.+%-]+)*", r"[A-Za-z0-9_][\w.%-]*"
#: user, then an address in brackets, or one of IPv6 without, or a name; then a port
_PLACE = re.compile(rf"(?:(?P<user>{_USER})@)?(?:\[(?P<bracketed>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)|"
                    rf"(?P<name>{_HOST}))(?::(?P<port>[^:@/]*))?", re.ASCII)


@dataclass(frozen=True)
class Host:
    """Where a board is. host: a name that ssh knows, or an address; port: 0 for what ssh takes."""

    user: str
    host: str
    port: int

    @property
    def words(self) -> list[str]:
        """What ssh is given to reach it."""
        return [*(["-p", str(self.port)] if self.port else []), "--", self.there]

    @property
    def there(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def by_hand(self) -> str:
        """What a person types to reach it."""
        return shlex.join([*(["-p", str(self.port)] if self.port else []), self.there])

    @property
    def known(self) -> str:
        """Its name in a file of known hosts."""
        return shlex.quote(f"[{self.host}]:{self.port}" if self.port not in (0, 22) else self.host)


def host_of(text: str) -> Host:
    """The address in `ssh:user@board:2222` or `ssh://user@board:2222`, where user and port may be left out, and an address of IPv6 stands in
    brackets before a port. Raises `Error`."""
    rest = text.partition(":")[2]
    hit = _PLACE.fullmatch(rest.removeprefix("//").removesuffix("/") if rest.startswith("//") else rest)
    if not hit:
        raise Error(f"--on {text}: {rest!r} is no host; it takes ssh:board, ssh:user@board or ssh:user@board:2222, and the same with ssh://")
    port = hit["port"]
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 1 << 16):
        raise Error(f"--on {text}: {port!r} is no port; it takes a number from 1 to 65535, as in ssh:user@board:2222")
    return Host(hit["user"] or "", hit["bracketed"] or hit["bare"] or hit["name"], int(port or 0))


class Shell:
    """A board's shell. name: the board, as the user typed it."""

    def __init__(self, name: str):
        self.name, self.host = name, host_of(name)

    @functools.cached_property
    def _mark(self) -> str:
        return f"triport-{secrets.token_hex(8)}"

    def command(self, script: str) -> list[str]:
        """The argument vector that has the board run a script of sh's."""
        return [*_OPTIONS, *self.host.words, f"exec sh -c {shlex.quote(f'echo {self._mark}; echo {self._mark} >&2; {script}')}"]

    def run(self, script: str, data: bytes = b"", seconds: float = ASK, what: str = "") -> bytes:
        """What a script of sh's writes there, given `data`. Raises `Error`: where ssh fails with what to do, and where the script does."""
        if shutil.which("ssh") is None:
            raise Unavailable(f"{self.name}: there is no ssh here: apt-get install openssh-client, or your system's package with it")
        ended = process.run(self.command(script), data, seconds, what or self.name)
        line = self._mark.encode() + b"\n"
        before, began, out = ended.out.partition(line)
        if not began:
            raise Error(self._not_reached(ended.err.decode(errors="replace"), before, ended.code))
        noise, said, err = ended.err.partition(line)
        return process.output(process.Ended(ended.code, out, err if said else noise), what or self.name)

    def _not_reached(self, said: str, before: bytes, code: int) -> str:
        """The sentence for a script that was not come to. said: what ssh wrote; before: what the board did."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        host = self.host
        port = f"port {host.port}" if host.port else "ssh's port"
        for pattern, text in _FAILURES:
            if re.search(pattern, said, re.I):
                line = next((x for x in reversed(lines) if re.search(pattern, x, re.I)), last)
                return f"{self.name}: {text.format(args=host.by_hand, known=host.known, host=host.host, port=port)} (ssh says: {line.removeprefix('ssh: ')[:200]})"
        if code == 255 and not before:
            return f"{self.name}: ssh could not reach it: {last[:300] or 'it does not say why'}; try `ssh {host.by_hand}`"
        wrote = (before.decode(errors="replace").strip() or last)[:120]
        return (f"{self.name}: its shell ended with exit code {code} before it came to triport's command" + (f", and wrote {wrote!r}" if wrote else "")
                + f": look at the start-up files there (~/.bashrc, ~/.profile), and try `ssh {host.by_hand} true`")


#: what ssh writes -> what to do; the first that fits
_FAILURES = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one that is known for it: where the board was installed anew, run `ssh-keygen -R {known}`, then `ssh {args}` once; "
     "else something else answers at its address"),
    (r"Host key verification failed|No \S+ host key is known", "host key unknown: run `ssh {args}` once and say yes to it, or add the line of `ssh-keyscan` for it to ~/.ssh/known_hosts"),
    (r"UNPROTECTED PRIVATE KEY FILE|bad permissions", "ssh ignores a key that others can read: run `chmod 600` on that file"),
    (r"Too many authentication failures", "it was offered too many keys: name the one for it in ~/.ssh/config (IdentityFile, IdentitiesOnly yes)"),
    (r"Permission denied", "it takes none of your keys, and triport asks for no password: run `ssh-copy-id {args}` once (`ssh-keygen` makes a key, `ssh-add` unlocks one with a passphrase), "
     "and mind the user's name"),
    (r"Could not resolve hostname", "no address is known for {host!r}: write its IP address, or name it in ~/.ssh/config"),
    (r"Connection refused", "nothing answers at {port} there: is sshd running, and is it the right port (ssh:user@board:2222)?"),
    (r"No route to host|Network is unreachable|Connection timed out|Operation timed out|timed out", "it does not answer: is it on, and on this network?"),
    (r"no matching (?:host key type|key exchange method|cipher|mac)", "its sshd and this ssh have no method in common: run `ssh {args}` to see which, and allow one in ~/.ssh/config"),
    (r"Bad owner or permissions|Bad configuration option|terminating, \d+ bad", "ssh refuses its own settings here: run `ssh {args}` and mend what it names"),
    (r"Connection (?:closed|reset)|kex_exchange_identification", "it ended the connection at once: is that port sshd's, and may this machine log in there?"),
)
