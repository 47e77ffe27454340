"""Discovered pages that wait for the page that links to them: its event carries them as links, and then they count."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Child:
    """A page, and whether the event with the link to it became durable."""

    url: str
    linked: asyncio.Future[bool]


class Parents:
    """The pages that wait, by the URL of the page that links to them. For one event loop."""

    def __init__(self) -> None:
        """Begin with none."""
        self._children: defaultdict[str, list[Child]] = defaultdict(list)

    async def linked(self, parent: str, url: str, seconds: float) -> bool:
        """Wait until a page's event has a link to `url`; return False if none comes in time.

        Raises:
            OpicError: the event could not be taken.
        """
        child = Child(url, asyncio.get_running_loop().create_future())
        self._children[parent].append(child)
        try:
            return await asyncio.wait_for(child.linked, seconds)
        except TimeoutError:
            return False
        finally:
            self._drop(parent, child)

    def _drop(self, parent: str, child: Child) -> None:
        if child in (waiting := self._children.get(parent, [])):
            waiting.remove(child)
            if not waiting:
                del self._children[parent]

    def take(self, parent: str) -> list[Child]:
        """Return those that wait for a page, whose event carries them from now on: they wait for that alone."""
        return self._children.pop(parent, [])


def tell(children: list[Child], error: BaseException | None = None) -> None:
    """Tell pages that the event with their links is durable, or why it is not."""
    for child in children:
        if child.linked.done():
            continue
        if error is None:
            child.linked.set_result(True)
        else:
            child.linked.set_exception(error)
