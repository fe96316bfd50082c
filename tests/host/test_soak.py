"""How the soak tells growth from noise (`tools/soak.py`)."""

from __future__ import annotations

from random import Random

from tools.soak import Growth, slope


def test_a_line_under_noise_has_its_slope_within_the_interval() -> None:
    random = Random(0)
    found = slope([(n, 7 * n + random.randrange(-40, 41)) for n in range(0, 100, 2)])
    assert found.low < 7 < found.high and abs(found.middle - 7) < 0.5 and found.high - found.low < 2
    assert found.times(1000).low == 1000 * found.low


def test_one_step_is_no_growth_and_steps_that_go_on_are() -> None:
    assert slope([(n, 0 if n < 10 else 10**6) for n in range(50)]).middle == 0
    assert slope([(n, n // 5 * 10**6) for n in range(50)]).middle > 10**5


def test_what_two_points_or_fewer_say() -> None:
    assert slope([]).middle == slope([(1, 5)]).middle == 0
    assert slope([(1, 5), (3, 9)]) == slope([(1, 5), (3, 9), (5, 13)]).times(1)


def test_growth_adds_what_each_part_has_grown_by_and_keeps_the_later_half() -> None:
    growth = Growth()
    for grown in (100, -20, 3, 4):
        growth.add(10, grown)
    assert growth.points == [(10, 100), (20, 80), (30, 83), (40, 87)] and growth.late() == [
        (30, 83),
        (40, 87),
    ]
