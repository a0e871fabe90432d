"""Wrong passwords, counted by address and name together: whoever guesses waits, the account's own person does not.

Counted in the memory of this process, so that a flood of wrong passwords writes nothing to the database; a restart
forgets it, and several server processes count apart. A password has at least 15 characters: what is left to guess by
does not matter.
"""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

#: Wrong passwords in a row that cost nothing, and the seconds to wait after the next ones: each doubles the last.
FREE_TRIES, FIRST_WAIT, LONGEST_WAIT = 5, 60.0, 3600.0
#: Pairs of address and name that are remembered; the one that was seen longest ago makes room.
REMEMBERED = 50_000


@dataclass
class _Failures:
    """Wrong passwords in a row, and the time (monotonic) before which no password is looked at."""

    count: int = 0
    until: float = 0.0


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The address, or the network that one subscriber has in IPv6, where addresses cost nothing.

    >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3:4:5:6"), network_of("testclient")
    ('192.0.2.7', '2001:db8:1:2::/64', 'testclient')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))


class SignInThrottle:
    """Who has to wait before the next password is looked at.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        self._changing = threading.Lock()

    def must_wait(self, address: str, name: str) -> bool:
        """Whether passwords of this address for this name are not looked at now.

        Args:
            address: of the caller.
            name: as accounts have it, whether there is such an account or not.
        """
        with self._changing:
            failures = self._pairs.get((network_of(address), name))
            return failures is not None and failures.until > self._clock()

    def failed(self, address: str, name: str) -> bool:
        """Count a wrong password.

        Returns:
            Whether it is the one with which the waiting begins.
        """
        pair = (network_of(address), name)
        with self._changing:
            failures = self._pairs.setdefault(pair, _Failures())
            self._pairs.move_to_end(pair)
            failures.count += 1
            if failures.count >= FREE_TRIES:
                wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures.count - FREE_TRIES, 30))
                failures.until = self._clock() + wait
            while len(self._pairs) > REMEMBERED:
                self._pairs.popitem(last=False)
            return failures.count == FREE_TRIES

    def succeeded(self, address: str, name: str) -> None:
        """Forget the wrong passwords of a person who has signed in."""
        with self._changing:
            self._pairs.pop((network_of(address), name), None)
