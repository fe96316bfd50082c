"""What is said of many nodes is said once."""

from __future__ import annotations

from tracea_onnx.support.alike import Said, grouped


def said(name: str, kind: str, *lines: str) -> Said:
    return Said(name, kind, lines)


SAID = (
    said("a", "Conv", "Conv 'a' reads 'x'"),
    said("b", "Relu", "Relu 'b' reads 'x'"),
    said("c", "Conv", "Conv 'c' reads 'y'"),
    said("d", "Conv", "Conv 'd' reads 3 values"),
    said("e", "Conv", "Conv 'e' reads 'z'"),
    said("f", "Conv", "Conv 'f' reads 4 values"),
)


def test_sentences_that_differ_in_names_alone_are_one_entry() -> None:
    heads = [head for head, _ in grouped(SAID)]
    assert heads == ["a (Conv) and 2 more like it", "b (Relu)", "d (Conv)", "f (Conv)"]
    assert grouped(SAID)[0][1].lines == ("Conv 'a' reads 'x'",)


def test_two_alike_are_both_named() -> None:
    assert [head for head, _ in grouped(SAID[:3])] == ["a (Conv)", "c (Conv)", "b (Relu)"]


def test_another_line_is_another_entry() -> None:
    other = said("g", "Conv", "Conv 'g' reads 'x'", "fix: drop the output")
    assert len(grouped([*SAID[:1], other, SAID[2], SAID[4]])) == 2


def test_everything_is_each_of_them() -> None:
    assert [head for head, _ in grouped(SAID, everything=True)] == [
        f"{s.name} ({s.kind})" for s in SAID
    ]
