"""Plans of schedules: at random, of every width, with ends in company, of many lives."""

from collections.abc import Sequence
from itertools import cycle, islice

from megatalker_conformance.schedules import Action, RefusedStart, ScheduleWriter, Upkeep


def at_random(writer: ScheduleWriter, cost: int, price_of_stream: bool) -> list[Action]:
    """Anything the contract allows.

    Args:
        writer: fresh.
        cost: calls of ``decode``, about; or streams in them.
        price_of_stream: whether ``cost`` counts streams.
    """
    chance, scenarios = writer.chance, range(len(writer.pool.scenarios))
    crowd = chance.choice([min(2, writer.width), chance.randint(1, writer.width), writer.width])
    while cost > 0:
        if writer.room and (len(writer.live) < crowd or chance.random() < 0.1):
            together = min(writer.room, chance.choice([1, 1, 2, 3, chance.randint(1, writer.room)]))
            kin = writer.pool.as_long_as(chance.choice(scenarios)) if chance.random() < 0.25 else scenarios
            writer.start(*(chance.choice(kin) for _ in range(together)))
        ready = writer.ready
        if ready:
            most = chance.choice([len(ready), chance.randint(1, len(ready))])
            writer.decode(writer.shuffled(ready, most))
            cost -= most if price_of_stream else 1
        writer.release_finished(0.5)
        if writer.live and (not writer.room or chance.random() < 0.1):
            writer.release(chance.choice(list(writer.live)))
        if not writer.ready and not writer.room:
            writer.release(chance.choice(list(writer.live)))
    return writer.actions


def of_widths(writer: ScheduleWriter, widths: Sequence[int], scenarios: Sequence[int]) -> list[Action]:
    """Calls of these widths, in a full house of streams of different lengths and ages, each used up in its time."""
    scenarios = writer.shuffled(scenarios)
    turn = cycle(scenarios)
    for width in widths:
        while writer.room:
            group = min(writer.room, writer.chance.choice([1, 2, 3, 5, 8]))
            taken = {live.length for live in writer.live.values()}
            of_length = {writer.pool.rows(scenario): scenario for scenario in islice(turn, len(scenarios))}
            others = [scenario for rows, scenario in of_length.items() if rows not in taken]
            writer.start(*(others or scenarios)[:group])
            next(turn)
            if writer.room and writer.ready:
                writer.decode(writer.shuffled(writer.ready, 2))
        finished = [stream for stream, live in writer.live.items() if not live.left]
        for stream in writer.shuffled(finished, max(0, width - len(writer.ready))):
            writer.release(stream)
        short = width - len(writer.ready)
        if short > 0:
            writer.start(*(writer.chance.choice(scenarios) for _ in range(min(short, writer.room))))
        writer.decode(writer.shuffled(writer.ready, width))
    return writer.actions


def ends_in_company(writer: ScheduleWriter, turns: int) -> list[Action]:
    """End one stream, at times two or three, in each call of a full batch: before, after or among the others."""
    pool, chance = writer.pool, writer.chance
    for turn in range(turns):
        while writer.room:
            enders = sum(live.scenario in pool.ending for live in writer.live.values())
            kind = pool.ending if 2 * enders <= len(writer.live) else pool.going
            writer.start(chance.choice(kind))
        last = {stream for stream in writer.ready if writer.live[stream].left == 1}
        ripe = [stream for stream in last if writer.live[stream].scenario in pool.ending]
        now = writer.shuffled(sorted(ripe), 1 + (turn % 4 == 3) + (turn % 8 == 7))
        others = writer.shuffled(stream for stream in writer.ready if stream not in ripe)
        place = (0, len(others), chance.randint(0, len(others)))[turn % 3]
        writer.decode([*others[:place], *now, *others[place:]])
        writer.release_finished()
    for _ in range(2):  # what an ending did to the others shows afterwards
        going = [stream for stream in writer.ready if writer.live[stream].scenario in pool.going]
        if going:
            writer.decode(going)
    if writer.width > 2:
        _end_together(writer, 2)
        _end_together(writer, writer.width - 1)
    return writer.actions


def _end_together(writer: ScheduleWriter, count: int) -> None:
    """End this many streams in one call, and go on with one that was in it."""
    pool = writer.pool
    for stream in list(writer.live):
        writer.release(stream)
    writer.start(pool.going[0], *islice(cycle(writer.shuffled(pool.ending)), count))
    going, *enders = writer.live
    while early := [stream for stream in enders if writer.live[stream].left > 1]:
        writer.decode(early)
    writer.decode(writer.shuffled(writer.live))
    writer.decode([going])
    writer.decode([going])


def continuations(writer: ScheduleWriter) -> list[Action]:
    """Start every scenario that begins as a continuation, all in one batch."""
    for scenario in writer.pool.continued:
        if not writer.room:
            writer.release(next(iter(writer.live)))
        writer.start(scenario)
        newest = max(writer.live)
        while writer.live[newest].left:
            writer.decode([newest])
    return writer.actions


def alike(writer: ScheduleWriter) -> list[Action]:
    """Requests that differ in one thing only, or in nothing: in one call, one after another, and once more later."""
    first, *others = writer.pool.alike
    size = max(1, writer.width - 1)
    for start in range(0, len(others), size):
        scenarios = [first, *others[start : start + size]][: writer.width]
        twins = [*scenarios, first][: writer.width]
        for together in (True, False, True):
            if together:
                writer.start(*scenarios)
            for scenario in twins[len(writer.live) :]:
                writer.start(scenario)
                writer.decode(writer.shuffled(writer.ready, 2))
            while writer.ready:
                writer.decode(writer.shuffled(writer.ready))
            writer.release_finished()
    return writer.actions


def lives(writer: ScheduleWriter, count: int) -> list[Action]:
    """Start and release ``count`` short streams, any number in a call, while a few wait most of the time.

    One of those that wait takes a step now and then, the others at the beginning and at the end only. Now and then a
    prompt is refused.
    """
    pool, chance = writer.pool, writer.chance
    longest = sorted(writer.shuffled(pool.going), key=pool.length)[::-1]
    writer.start(*longest[: min(3, writer.width - 1)])
    waiting = list(writer.live)
    writer.decode(waiting)
    short = sorted(range(len(pool.scenarios)), key=pool.rows)[:8]
    begun, due = 0, 16
    for number in cycle(range(1, writer.room + 1)):
        if begun > count:
            break
        before = len(writer.actions)
        writer.start(*chance.choices(short, k=number))
        begun += number
        new = [stream for stream in writer.live if stream not in waiting]
        some = writer.shuffled(new, chance.choice([0, 1, 1, 1, 1, number]))
        if isinstance(writer.actions[before - 1], RefusedStart):
            writer.decode(new)
            some = [stream for stream in new if stream in writer.ready]
        if some:
            writer.decode(some)
        for stream in writer.shuffled(new):
            writer.release(stream)
        if writer.room > 1 and chance.random() < 0.1:
            writer.actions.append(RefusedStart((short[0], short[1])))
        if begun > due and waiting[0] in writer.ready:
            writer.decode(waiting[:1])
            due *= 2
    while writer.ready:
        writer.decode(writer.shuffled(writer.ready))
    return writer.actions


def very_wide(writer: ScheduleWriter) -> list[Action]:
    """Hold as many streams as there is room for, and decode all of them, then some of them, in any order."""
    pool = writer.pool
    by_rows = sorted(pool.going, key=pool.rows)[:12]
    while writer.room:
        writer.start(*(writer.chance.choice(by_rows) for _ in range(min(writer.room, 50))))
    for most in (None, writer.width // 2, 3, None):
        writer.decode(writer.shuffled(writer.ready, most))
    return writer.actions


def upkeep(writer: ScheduleWriter, times: int) -> list[Action]:
    """Warm up and prepare between the calls of streams that go on."""
    scenarios = cycle(writer.shuffled(writer.pool.going))
    for time in range(1 + times):
        for _ in range(min(writer.room, 2)):
            writer.start(next(scenarios))
        writer.decode(writer.shuffled(writer.ready))
        writer.actions.append(Upkeep("prepare" if time else "warmup"))
        writer.decode(writer.shuffled(writer.ready))
        writer.release_finished()
    return writer.actions


def growing(writer: ScheduleWriter) -> list[Action]:
    """Start prompts that are each longer than all before, in ever wider calls, while other streams are open."""
    pool = writer.pool
    by_rows = {pool.rows(scenario): scenario for scenario in pool.going}
    lengths = sorted(by_rows)
    steps = [round(place * (len(lengths) - 1) / max(1, writer.width - 1)) for place in range(writer.width)]
    for step in steps:
        writer.start(by_rows[lengths[step]])
        writer.decode(writer.ready)
    return writer.actions


def churn(writer: ScheduleWriter, rounds: int) -> list[Action]:
    """Start and end many streams at all moments, while one stream waits, to continue at the end."""
    pool, chance = writer.pool, writer.chance
    waiting = min(1, writer.width - 1)
    if waiting:
        writer.start(pool.going[0])
        writer.decode(writer.ready)
    short = [scenario for scenario in range(len(pool.scenarios)) if pool.rows(scenario) < 40]
    for turn in range(rounds):
        for _ in range(min(writer.room, 1 + turn % 3)):
            writer.start(chance.choice(short))
        going = writer.ready[waiting:]
        if turn % 2 == 0 and going:
            writer.decode(going)
        others = [*writer.live][waiting:]
        for stream in writer.shuffled(others, len(others) - min(1, turn % 7)):
            writer.release(stream)
    writer.release_finished()
    for scenario in writer.shuffled(pool.going, writer.width):
        if writer.room:
            writer.start(scenario)
    while writer.ready:
        writer.decode(writer.ready)
    return writer.actions
