"""Writes src/base/case_fold_table.h: the simple case foldings (one code point to one) of Unicode, as runs.

Run: python3 native/tools/make_case_fold.py > native/src/base/case_fold_table.h

Python has the full foldings only; where those give several code points, the simple one (status S of CaseFolding.txt)
is the lower case. U+0130 has none.
"""

import sys
import unicodedata

ONLY_IN_CASE_FOLDING_TXT = {0x1FD3: 0x0390, 0x1FE3: 0x03B0, 0xFB05: 0xFB06}


def simple_foldings() -> dict[int, int]:
    foldings = dict(ONLY_IN_CASE_FOLDING_TXT)
    for code_point in range(sys.maxunicode + 1):
        character = chr(code_point)
        folded = character.casefold()
        if len(folded) != 1:
            folded = character.lower()
        if len(folded) == 1 and folded != character:
            foldings[code_point] = ord(folded)
    return foldings


def runs(foldings: dict[int, int]) -> list[tuple[int, int, int, int]]:
    """(first, last, stride, difference) such that first, first + stride, ... last fold by adding the difference."""
    found = []
    points = sorted(foldings)
    i = 0
    while i < len(points):
        difference = foldings[points[i]] - points[i]
        longest = (i, 1)
        for stride in (1, 2):
            j = i
            while j + 1 < len(points) and points[j + 1] == points[j] + stride:
                if foldings[points[j + 1]] - points[j + 1] != difference:
                    break
                j += 1
            longest = max(longest, (j, stride), key=lambda run: run[0])
        found.append((points[i], points[longest[0]], longest[1], difference))
        i = longest[0] + 1
    return found


def main() -> None:
    version = unicodedata.unidata_version
    print(f"// Written by native/tools/make_case_fold.py: all simple case foldings of Unicode {version}.")
    print("#pragma once\n\n#include <cstdint>\n\nnamespace kalos {\n")
    print("// first, first + stride, ... last fold by adding the difference; sorted.")
    print("struct CaseFoldRun {\n  uint32_t first, last, stride;\n  int32_t difference;\n};\n")
    print("inline constexpr CaseFoldRun case_fold_runs[] = {")
    for first, last, stride, difference in runs(simple_foldings()):
        print(f"    {{0x{first:04X}, 0x{last:04X}, {stride}, {difference}}},")
    print("};\n\n}  // namespace kalos")


if __name__ == "__main__":
    main()
