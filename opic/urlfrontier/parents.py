"""Discovered pages that wait for the event of the page that links to them, so that they count as its links."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opic.errors import BadInput, OpicError, StoreUnavailable


@dataclass(eq=False, slots=True)
class Child:
    """A discovered page; `linked` tells whether an event with a link to it became durable."""

    url: str
    linked: asyncio.Future[bool]


class Parents:
    """Waiting pages, by the URL of the page that links to them. Not thread-safe: used in one event loop."""

    def __init__(self) -> None:
        self._children: defaultdict[str, dict[Child, None]] = defaultdict(dict)  # In the order of their arrival.

    async def linked(self, parent: str, url: str, seconds: float) -> bool:
        """Wait until an event of `parent` with a link to `url` is durable; return False if none arrives in time.

        Raises:
            OpicError: the event could not be taken.
        """
        child = Child(url, asyncio.get_running_loop().create_future())
        self._children[parent][child] = None
        try:
            return await asyncio.wait_for(child.linked, seconds)
        except TimeoutError:
            return False
        finally:
            waiting = self._children.get(parent, {})
            waiting.pop(child, None)
            if not waiting:
                self._children.pop(parent, None)

    def pop_children(self, parent: str) -> list[Child]:
        """Return and remove the pages that wait for `parent`. The caller puts them into its event: see `tell`."""
        return list(self._children.pop(parent, ()))


@contextmanager
def tell(children: list[Child], *, linked: bool) -> Iterator[None]:
    """Report to waiting pages the outcome of the block, which makes the event of their parent durable.

    They learn whether they are `linked` by it; they are not if it is invalid. Any other error is raised to them too.
    """
    failed: BaseException | None = None
    try:
        yield
    except BadInput:
        linked = False
        raise
    except BaseException as error:
        ours = isinstance(error, OpicError)  # Otherwise the client that reported the page disconnected.
        failed = error if ours else StoreUnavailable("the report of the page was broken off: send it again")
        raise
    finally:
        for child in children:
            if child.linked.done():
                continue
            if failed is None:
                child.linked.set_result(linked)
            else:
                child.linked.set_exception(failed)
