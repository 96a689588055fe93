"""What the driver does, whatever becomes of workers and of itself."""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import Bench, Died, World

from bpf_opt_farm.errors import BAD, INTERNAL, OK, FarmError
from bpf_opt_farm.farm import AHEAD, FUNCTIONS


def many(bench: Bench, count: int) -> list:
    """Each object has one function that all have, one that two have, and one of its own."""
    return [bench.object(f"o{n}.o", f"all 5\npair{n // 2} 7\nown{n} 9\n") for n in range(count)]


def test_a_function_of_many_objects_is_worked_on_once(bench: Bench) -> None:
    world = World()
    result = bench.run(world, many(bench, 40))
    assert result.code == OK and len(result.rows) == 40
    assert len(world.made) == 1 + 20 + 40 and set(world.made.values()) == {1}
    assert (bench.folder / "out/o7.o").read_text() == "all+pair3+own7"


def test_objects_of_the_same_bytes_are_put_together_once_and_written_to_all_places(bench: Bench) -> None:
    items = [bench.object(f"twin{n}.o", "f 3\n") for n in range(5)]
    world = World()
    assert len(bench.run(world, items).rows) == 5
    assert sum(world.assembled.values()) == 1
    assert all(item.target.read_text() == "f" for item in items)


@pytest.mark.parametrize("killed_at", [1, 2, 3, 5, 8, 13])
def test_a_driver_that_is_begun_again_does_the_rest_and_nothing_else(bench: Bench, killed_at: int) -> None:
    items = many(bench, 120)
    first = World()

    def kill(number: int) -> None:
        if number == killed_at:
            raise KeyboardInterrupt

    first.before = kill
    assert bench.run(first, items).interrupted
    second = World()
    result = bench.run(second, items)
    assert result.code == OK and not result.interrupted
    both = first.made + second.made
    assert set(both.values()) == {1}, "nothing was in flight, so nothing is done twice"
    assert set((first.assembled + second.assembled).values()) == {1}
    alone = World()
    alone_bench = Bench(bench.folder / "alone")
    alone_bench.run(alone, [type(i)(i.path, alone_bench.folder / "out" / i.path.name) for i in items])
    assert all(i.target.read_bytes() == (alone_bench.folder / "out" / i.path.name).read_bytes() for i in items)


def test_a_finished_run_does_nothing_but_write_results(bench: Bench) -> None:
    items = many(bench, 10)
    bench.run(World(), items)
    items[3].target.unlink()
    world = World()
    result = bench.run(world, items)
    assert world.calls == 0 and all(row.resumed for row in result.rows)
    assert items[3].target.exists()


def test_calls_of_workers_that_died_are_begun_again(bench: Bench) -> None:
    world = World()

    def die(number: int) -> None:
        if number % 3 == 1:
            raise Died

    world.before = die
    result = bench.run(world, many(bench, 50))
    assert result.code == OK and result.costs.calls_again > 0
    assert set(world.made.values()) == {1}


def test_what_kills_every_worker_ends_the_run_and_what_is_finished_stays(bench: Bench) -> None:
    world = World()

    def die(number: int) -> None:
        if number > 3:
            raise Died

    world.before = die
    with pytest.raises(FarmError) as e:
        bench.run(world, many(bench, 60))
    assert e.value.code == INTERNAL
    second = World()
    bench.run(second, many(bench, 60))
    assert set((world.made + second.made).values()) == {1}


def test_an_object_that_fails_stops_no_other(bench: Bench) -> None:
    items = [bench.object("no.o", "! text"), bench.object("bad.o", "bad 3\nf 2\n"), bench.object("good.o", "f 2\n")]
    result = bench.run(World(), items)
    errors = [row.entry.get("error") for row in result.rows]
    assert result.code == BAD and errors == ["is no object", "broken", None]
    assert not items[0].target.exists() and items[2].target.read_text() == "f"
    assert any("internal error" in line for line in bench.watch.said)


def test_little_is_in_flight(bench: Bench) -> None:
    world = World(slots=3)
    bench.run(world, many(bench, 200))
    assert world.most_open <= 3 * AHEAD


def test_calls_are_large_enough_that_they_cost_little(bench: Bench) -> None:
    world = World()
    bench.run(world, [bench.object("one.o", "".join(f"f{n} 5\n" for n in range(160)))])
    assert world.calls == 1 + 160 // FUNCTIONS + 1
    assert world.made == Counter(dict.fromkeys(world.made, 1))
