"""One canonical name for a node, whatever a source calls it. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

_ADDRESS = re.compile(r"^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f:]*:[0-9a-f:]+)$")


def folded(name: str) -> str:
    """Lower case, without blanks around it or a dot at its end.

    >>> folded(" GPU-Node01.hpc.Example.edu. ")
    'gpu-node01.hpc.example.edu'
    """
    return name.strip().lower().rstrip(".")


def short(name: str) -> str:
    """The first label of a name; an address stays whole.

    >>> short("node838.hpc.example.edu"), short("10.0.0.1")
    ('node838', '10.0.0.1')
    """
    name = folded(name)
    return name if _ADDRESS.match(name) else name.partition(".")[0]


class NodeNames:
    """The nodes of a cluster and the other names they go by.

    The canonical name is the short one, in lower case, where no other node has the same; else the
    full one. A name that fits no node, or more than one, resolves to ``None``: counting those is
    how a broken join is noticed.

    >>> names = NodeNames(["node838.hpc.example.edu", "node9"], {"node9": ["g843068"]})
    >>> [names.resolve(n) for n in ("NODE838", "node9.cluster.local", "G843068", "node1")]
    ['node838', 'node9', 'node9', None]
    """

    def __init__(
        self, nodes: Iterable[str], aliases: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        given = dict.fromkeys(folded(node) for node in nodes if folded(node))
        given.update(dict.fromkeys(folded(node) for node in aliases or {} if folded(node)))
        by_short: dict[str, set[str]] = defaultdict(set)
        for name in given:
            by_short[short(name)].add(name)
        # A node that is given both ways, short and full, is one node.
        full_of = {s: {n for n in names if n != s} for s, names in by_short.items()}
        self._exact: dict[str, str | None] = {}
        self._canonical: list[str] = []
        for name in given:
            unique = len(full_of[short(name)]) <= 1
            canonical = short(name) if unique else name
            self._exact[name] = canonical
            if canonical not in self._canonical:
                self._canonical.append(canonical)
        self._short = {s: s if len(full) <= 1 else None for s, full in full_of.items()}
        for node, others in (aliases or {}).items():
            for other in others:
                self._add_alias(folded(other), self._exact[folded(node)] if folded(node) else None)

    def nodes(self) -> list[str]:
        """Canonical names, in the order given."""
        return list(self._canonical)

    def resolve(self, name: str) -> str | None:
        """The node's canonical name, ``None`` where it is unknown or ambiguous."""
        name = folded(name)
        if name in self._exact:
            return self._exact[name]
        return self._short.get(short(name))

    def canonical(self, name: str) -> str:
        """The canonical name, or the name itself in lower case where no node is known by it."""
        return self.resolve(name) or folded(name)

    def _add_alias(self, alias: str, node: str | None) -> None:
        """An alias of two nodes names neither; a node's own name is never an alias of another."""
        if not alias or alias in self._canonical:
            return
        known = self._exact.get(alias, node)
        self._exact[alias] = node if known == node else None
