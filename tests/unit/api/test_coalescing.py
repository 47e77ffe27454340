"""Calls that come together are worked out together, each with its own answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from opic.api.coalescing import GROWING_TURNS_MAX, Coalescer, InLoop


def test_calls_that_arrive_during_a_batch_form_the_next_batch() -> None:
    batches: list[list[int]] = []
    go = threading.Event()

    def work_out(asked: Sequence[int]) -> Sequence[int]:
        batches.append(list(asked))
        assert go.wait(10)
        return [n + 100 for n in asked]

    async def ask_all() -> list[int]:
        together = Coalescer(work_out, "test", most=4)
        first = asyncio.ensure_future(together.ask(0))
        while not batches:
            await asyncio.sleep(0)
        others = [asyncio.ensure_future(together.ask(n)) for n in range(1, 7)]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(ask_all()) == list(range(100, 107))
    assert batches == [[0], [1, 2, 3, 4], [5, 6]]


def test_an_error_for_one_call_leaves_the_others_answered() -> None:
    def work_out(asked: Sequence[int]) -> Sequence[int | Exception]:
        return [ValueError(f"no {n}") if n % 2 else n for n in asked]

    async def ask_all() -> list[int | BaseException]:
        together = Coalescer(work_out, "test")
        return await asyncio.gather(*(together.ask(n) for n in range(3)), return_exceptions=True)

    one, two, three = asyncio.run(ask_all())
    assert (one, three) == (0, 2)
    assert isinstance(two, ValueError)


def test_an_error_of_a_whole_batch_reaches_each_call_and_the_next_batch_is_answered() -> None:
    broken = [True]

    def work_out(asked: Sequence[int]) -> Sequence[int]:
        if broken:
            broken.clear()
            raise ConnectionError("away")
        return asked

    async def ask_all() -> int:
        together = Coalescer(work_out, "test")
        with pytest.raises(ConnectionError):
            await together.ask(1)
        return await together.ask(2)

    assert asyncio.run(ask_all()) == 2


def test_a_cancelled_call_does_not_affect_the_others() -> None:
    go = threading.Event()

    def work_out(asked: Sequence[int]) -> Sequence[int]:
        assert go.wait(10)
        return asked

    async def ask_all() -> int:
        together = Coalescer(work_out, "test")
        given_up, other = asyncio.ensure_future(together.ask(1)), asyncio.ensure_future(together.ask(2))
        await asyncio.sleep(0)
        given_up.cancel()
        go.set()
        return await other

    assert asyncio.run(ask_all()) == 2


def test_callers_that_ask_again_at_once_are_answered_together_again() -> None:
    batches: list[int] = []

    def work_out(asked: Sequence[int]) -> Sequence[int]:
        batches.append(len(asked))
        return asked

    async def ask_all() -> None:
        together = Coalescer(work_out, "test")

        async def caller(number: int) -> None:
            for _ in range(5):
                assert await together.ask(number) == number
                for _ in range(number % 3):  # Some take longer to come back.
                    await asyncio.sleep(0)

        await asyncio.gather(*map(caller, range(8)))

    asyncio.run(ask_all())
    assert batches == [8] * 5


def test_requests_of_a_few_turns_of_the_loop_share_an_answer_and_a_lone_one_waits_two_turns() -> None:
    batches: list[list[int]] = []

    def work_out(asked: Sequence[int]) -> Sequence[int]:
        batches.append(list(asked))
        return asked

    async def ask_all() -> None:
        together, waiting = InLoop(work_out), list[asyncio.Future[int]]()
        waiting.append(together.ask(0))
        for _ in range(2):
            assert not batches
            await asyncio.sleep(0)
        assert batches == [[0]]
        for number in range(1, 2 * GROWING_TURNS_MAX):  # One in each turn, without an end.
            waiting.append(together.ask(number))
            await asyncio.sleep(0)
        assert await asyncio.gather(*waiting) == list(range(2 * GROWING_TURNS_MAX))

    asyncio.run(ask_all())
    assert batches[:2] == [[0], list(range(1, GROWING_TURNS_MAX + 2))]


def test_an_error_in_the_loop_reaches_each_call_and_the_next_one_is_answered() -> None:
    def work_out(asked: Sequence[int]) -> Sequence[int | Exception]:
        if 0 in asked:
            raise ConnectionError("away")
        return [ValueError(f"no {n}") if n == 2 else n for n in asked]

    async def ask_all() -> list[int | BaseException]:
        together = InLoop(work_out)
        first = await asyncio.gather(together.ask(0), together.ask(1), return_exceptions=True)
        return [*first, *await asyncio.gather(together.ask(2), together.ask(3), return_exceptions=True)]

    away, also, bad, fine = asyncio.run(ask_all())
    assert isinstance(away, ConnectionError)
    assert isinstance(also, ConnectionError)
    assert isinstance(bad, ValueError)
    assert fine == 3
