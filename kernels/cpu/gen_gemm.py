"""Register tiles of GEMM, written out because compilers keep 28 named accumulators in
registers but not an array of them.

`tile<r>`: r rows of two vectors, c[i, :] = init[:] + a[i, :k] b[:k, :] (init null: c += a b). The
weights of a panel are [k][32]; a tile reads 2 * width of the 32 columns, and fetches what is `next`
into L2, `step` elements per k. `narrow<r>` has one vector of columns. `wide<r>`: the same for few
rows over several whole panels at once, so that enough independent sums hide the latency of the
multiply-add and several streams of weights come from memory. `steady<r>` and `back<r>` are for
weights that are read again and again: they leave fetching to the hardware, which takes up to a
fifth less time where the weights lie in L2 or L3 (one Zen 4 core), and `back` takes the terms from
last to first, so that what one pass has left in the first cache is what the next begins with.
`steady_pair` and `back_pair` also work on another GEMM: one row takes its weights from L2 or L3
as fast as they come, which leaves half of the multiply-adds free for a tile of rows.
"""

from __future__ import annotations

#: Rows of the largest tile: 2 * rows accumulators, 2 weight vectors and a broadcast fill the
#: register file (32, 16 and 16 vectors).
TILE_ROWS = {"avx512": 14, "avx2": 6, "base": 6}
#: Panels of 32 columns a wide tile covers, for 1, 2, ... rows.
WIDE_PANELS = {"avx512": (4, 4, 2, 2), "avx2": (2, 1, 1), "base": (1,)}
#: Rows of the tile beside one row over WIDE_PANELS panels, where registers suffice.
PAIR_ROWS = {"avx512": 6}
#: Weight rows fetched ahead of use.
AHEAD, AHEAD_WIDE = 8, 24


def _addresses(rows: int) -> tuple[list[str], list[str]]:
    """Row base pointers (every third row) and the element expression of each row: x86 addresses
    base + lda and base + 2 lda directly.
    """
    bases = [f"  const float* a{g} = a + {g} * lda;" for g in range(0, rows, 3)]
    return bases, [f"a{i // 3 * 3}[{('0', 'lda', '2 * lda')[i % 3]}]" for i in range(rows)]


def _body(
    rows: int,
    vectors: int,
    loads: list[str],
    fetch: list[str],
    step: str,
    columns: list[str],
    sign: str = "+",
) -> list[str]:
    bases, element = _addresses(rows)
    sums = [f"c{i}_{j}" for i in range(rows) for j in range(vectors)]
    lines = [*bases, f"  vf {', '.join(f'{s} = vf{{}}' for s in sums)};", "  for (; k > 0; k--) {"]
    lines += [f"    const vf {', '.join(f'b{j} = load({expr})' for j, expr in enumerate(loads))};"]
    lines += [f"    __builtin_prefetch({p});" for p in fetch]
    for i in range(rows):
        lines.append(
            f"    {{ const vf s = splat({element[i]}); "
            + " ".join(f"c{i}_{j} = fma(s, b{j}, c{i}_{j});" for j in range(vectors))
            + " }"
        )
    lines.append("    " + step + " " + " ".join(f"a{g}{sign}{sign};" for g in range(0, rows, 3)))
    lines.append("  }")
    lines.append("  if (init) {")
    lines.append(
        f"    const vf {', '.join(f'i{j} = load(init + {columns[j]})' for j in range(vectors))};"
    )
    lines += [
        "    "
        + " ".join(f"store(c + {i} * ldc + {columns[j]}, c{i}_{j} + i{j});" for j in range(vectors))
        for i in range(rows)
    ]
    lines.append("  } else {")
    lines += [
        "    "
        + " ".join(
            f"store(c + {i} * ldc + {columns[j]}, c{i}_{j} + load(c + {i} * ldc + {columns[j]}));"
            for j in range(vectors)
        )
        for i in range(rows)
    ]
    return [*lines, "  }", "}"]


def _tile(rows: int, width: int, vectors: int) -> str:
    head = (
        f"static __attribute__((noinline)) void {'tile' if vectors == 2 else 'narrow'}{rows}"
        "(const float* a, int64_t lda, const float* b, float* c, int64_t ldc, const float* init, "
        "int64_t k, const float* next, int64_t step) {"
    )
    loads = ["b", "b + W"][:vectors]
    fetch = [
        f"b + {AHEAD * 32}",
        *([f"b + {AHEAD * 32} + W"] if width * vectors == 32 else []),
        "next, 0, 2",
    ]
    return "\n".join(
        [head, *_body(rows, vectors, loads, fetch, "b += 32; next += step;", ["0", "W"][:vectors])]
    )


def _wide(name: str, rows: int, panels: int, width: int) -> str:
    """`name`: wide, steady or back."""
    per, sign = 32 // width, "-" if name == "back" else "+"
    head = (
        f"static __attribute__((noinline)) void {name}{rows}"
        "(const float* a, int64_t lda, const float* b, int64_t pitch, float* c, int64_t ldc, "
        "const float* init, int64_t k) {"
    )
    names = ["b", *(f"q{p}" for p in range(1, panels))]
    turn = ["  a += k - 1; b += (k - 1) * 32;"] if sign == "-" else []
    bases = [f"  const float* q{p} = b + {p} * pitch;" for p in range(1, panels)] or [
        "  (void)pitch;"
    ]
    loads = [f"{n} + {v * width}" for n in names for v in range(per)]
    ahead = [f"{n} + {AHEAD_WIDE * 32 + o}" for n in names for o in (0, 16)]
    step = " ".join(f"{n} {sign}= 32;" for n in names)
    columns = [str(j * width) for j in range(panels * per)]
    fetch = ahead if name == "wide" else []
    return "\n".join(
        [head, *turn, *bases, *_body(rows, panels * per, loads, fetch, step, columns, sign)]
    )


def _pair(name: str, panels: int, rows: int, width: int) -> str:
    """`name`: steady or back, of the one row; the tile's terms run forwards."""
    per, sign = 32 // width, "-" if name == "back" else "+"
    head = (
        f"static __attribute__((noinline)) void {name}_pair(const float* a, const float* b, "
        "int64_t pitch, float* c, const float* init, int64_t k, const Beside& t) {"
    )
    turn = ["  a += k - 1; b += (k - 1) * 32;"] if sign == "-" else []
    names = ["b", *(f"q{p}" for p in range(1, panels))]
    own = [f"s{j}" for j in range(panels * per)]
    bases, element = _addresses(rows)
    bases = [line.replace(" = a +", " = t.a +").replace("lda", "t.lda") for line in bases]
    sums = [[f"c{i}_{j}" for j in range(per)] for i in range(rows)]
    lines = [head, *turn, *(f"  const float* q{p} = b + {p} * pitch;" for p in range(1, panels))]
    lines += ["  const int64_t lda = t.lda;", "  const float* w = t.b;", *bases]
    every = [*own, *(v for row in sums for v in row)]
    lines.append(f"  vf {', '.join(f'{v} = vf{{}}' for v in every)};")
    lines.append("  for (; k > 0; k--) {")
    lines.append("    { const vf s = splat(*a);")
    lines += [
        f"      {v} = fma(s, load({names[j // per]} + {j % per * width}), {v});"
        for j, v in enumerate(own)
    ]
    lines.append("    }")
    lines += [f"    const vf w{j} = load(w + {j * width});" for j in range(per)]
    for i, row in enumerate(sums):
        terms = " ".join(f"{v} = fma(s, w{j}, {v});" for j, v in enumerate(row))
        lines.append(f"    {{ const vf s = splat({element[i]}); {terms} }}")
    step = " ".join(f"{n} {sign}= 32;" for n in names)
    lines += [f"    a{sign}{sign}; {step} w += 32;"]
    lines += ["    " + " ".join(f"a{g}++;" for g in range(0, rows, 3)), "  }"]
    lines += [f"  store(c + {j * width}, {v} + load(init + {j * width}));"
              for j, v in enumerate(own)]  # fmt: skip
    lines += [
        f"  store(t.c + {i} * t.ldc + {j * width}, {v} + load(t.init + {i} * t.ldi + {j * width}));"
        for i, row in enumerate(sums)
        for j, v in enumerate(row)
    ]
    return "\n".join([*lines, "}"])


def _table(name: str, rows: int) -> str:
    tiles = ", ".join(["nullptr", *(f"{name}{r}" for r in range(1, rows + 1))])
    return f"const WideTile k{name.capitalize()}Tiles[] = {{{tiles}}};"


def _pairs(rows: int, panels: int, width: int) -> list[str]:
    """Both tiles and their table, of nulls where there are none."""
    names = ("steady_pair", "back_pair") if rows else ("nullptr", "nullptr")
    tiles = [_pair(n, panels, rows, width) for n in ("steady", "back") if rows]
    return [
        *tiles,
        f"const PairTile kPairTiles[] = {{{', '.join(names)}}};",
        f"static_assert(kPairRows == {rows});",
    ]


def source(isa: str, width: int) -> str:
    """C++ text of every tile of one instruction set and the tables that `common/tile.h`
    declares.
    """
    rows, wide = TILE_ROWS[isa], WIDE_PANELS[isa]
    parts = [
        "// Generated by gen_gemm.py.",
        '#include "common/tile.h"',
        "namespace tracea { namespace TRACEA_NS {",
    ]
    parts += [_tile(r, width, vectors) for vectors in (2, 1) for r in range(1, rows + 1)]
    forms = ("wide", "steady", "back")
    parts += [_wide(n, r, panels, width) for n in forms for r, panels in enumerate(wide, 1)]
    parts += [
        *_pairs(PAIR_ROWS.get(isa, 0), wide[0], width),
        f"static_assert(kTileRows == {rows} && kWideRows == {len(wide)});",
        f"const Tile kTiles[] = {{nullptr, {', '.join(f'tile{r}' for r in range(1, rows + 1))}}};",
        (
            f"const Tile kNarrowTiles[] = {{nullptr, "
            f"{', '.join(f'narrow{r}' for r in range(1, rows + 1))}}};"
        ),
        *(_table(name, len(wide)) for name in forms),
        f"const int kWidePanels[] = {{0, {', '.join(map(str, wide))}}};",
        "}}",
        "",
    ]
    return "\n".join(parts)
