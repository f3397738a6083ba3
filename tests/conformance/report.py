"""Counts, file by file, how many recorded cases of the reference planner we answer alike: `make conformance`."""

import sys
from collections import Counter

from conformance import ABSENT, VECTORS, all_cases, missing, run


def main() -> int:
    if not VECTORS.is_dir():
        print(ABSENT, file=sys.stderr)
        return 0
    counts: dict[str, Counter[str]] = {}
    failures = []
    for case in all_cases():
        count = counts.setdefault(case.file, Counter())
        try:
            count["deliberate differences" if run(case) else "matched"] += 1
        except AssertionError as e:
            count["not yet" if missing(case) else "failed"] += 1
            failures += [] if missing(case) else [f"{case.file} {case.title}: {e}"]
    width = max(len(file) for file in counts)
    for file, count in counts.items():
        shown = ["matched", "deliberate differences", *(kind for kind in ("not yet", "failed") if count[kind])]
        print(f"{file:<{width}}" + "".join(f"{count[kind]:6d} {kind}" for kind in shown))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
