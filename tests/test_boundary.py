"""A search for the boundary plays few candidates, and the straight line that leads it tells what plays would."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from vitmem import TrainSettings
from vitmem.boundary import Row
from vitmem.candidate import Candidate
from vitmem.replay import replay
from vitmem.solver import solve_settings
from vitmem.straight import line_through
from vitmem.units import MIB

SMALL = TrainSettings.of("test_vit", res=224, precision="bf16", memory="4GiB")


def at(bs: int, **changes: Any) -> Candidate:
    return Candidate(dataclasses.replace(SMALL, bs=bs, **changes))


def test_between_two_candidates_the_line_reserves_what_the_play_does() -> None:
    line = line_through(at(64), at(128), 64, 128)
    assert line is not None
    for bs in (64, 80, 96, 113, 128, 160):
        reserved = max(run.replay.reserved_bytes for run in at(bs).runs)
        assert line.spare_bytes(bs) == at(bs).device.room_bytes - reserved
    # WHEN it must fit into so much, and into less than giving back what is cached would help
    for room, holds in ((reserved, True), (reserved * 3 // 4, False)):
        context = at(1).device.context
        assert context is not None
        tight = at(64, memory=f"{(room + context.high_bytes) // MIB}MiB")
        line = line_through(tight, at(128), 64, 128)
        assert line is not None
        assert (line.spare_bytes(160) >= 0) is holds


def test_no_line_leads_from_one_course_of_events_to_another() -> None:
    assert line_through(at(64), at(64, accum=2), 64, 128) is None


def test_a_line_backwards_never_has_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_through(at(128), at(64), 128, 64)
    assert line is not None
    asked: list[int] = []
    monkeypatch.setattr("vitmem.device.replay", lambda ledger, *_, **__: asked.extend(ledger.bytes) or replay(ledger))
    line.spare_bytes(-1000)
    assert min(asked) == 0


@pytest.mark.parametrize(
    ("what", "settings", "most"),
    [
        ("bs", {"model": "vit_base_patch16_224", "precision": "bf16", "gpu": "rtx4090"}, 6),
        ("bs", {"model": "swin_tiny_patch4_window7_224", "precision": "bf16", "gpu": "t4"}, 6),
        ("bs", {"model": "facebook/dinov2-base", "gpu": "a100-40g", "grad_checkpointing": True}, 7),
        ("res", {"model": "vit_base_patch16_224", "bs": 32, "gpu": "rtx4090"}, 6),
        ("gpu", {"model": "vit_base_patch16_224", "bs": 180}, 8),
    ],
    ids=str,
)
def test_a_search_plays_few_candidates(
    what: str, settings: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[TrainSettings] = []
    make = Candidate.__init__

    def counted(self: Candidate, settings: TrainSettings) -> None:
        played.append(settings)
        make(self, settings)

    monkeypatch.setattr(Candidate, "__init__", counted)
    solve_settings(what, TrainSettings.of(**settings))
    assert len(played) == len({str(settings) for settings in played}) <= most


def test_a_place_without_a_candidate_of_its_own_is_the_one_below() -> None:
    asked = []

    def settings(place: int) -> TrainSettings:
        asked.append(place)
        return dataclasses.replace(SMALL, bs=place + 1)

    row = Row(settings, range(1, 1000), lambda place: place // 10 * 10)
    place = row.last_that_fits(40)
    assert place is not None
    assert place % 10 == 9
    assert row.candidate(place).fits
    assert not row.candidate(place + 1).fits
    assert all(place % 10 == 0 for place in asked)


def test_what_no_gpu_of_a_generation_can_do_without_is_the_same_for_each() -> None:
    asked = TrainSettings.of("vit_base_patch16_224", res=512, bs=32)
    cards = ("rtx4070", "rtx4090", "l4")  # of 46, 128 and 58 processors
    tried = [Candidate(dataclasses.replace(asked, gpu=name)) for name in cards]
    assert len({candidate.requested_bytes for candidate in tried}) > 1
    (least,) = {candidate.least_bytes for candidate in tried}
    assert least < min(candidate.requested_bytes for candidate in tried)
