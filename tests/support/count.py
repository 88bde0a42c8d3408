#!/usr/bin/env python3
"""Counts the results of the phases of ./check from meson's logs, single cases within a program included, prints why
tests were skipped and which failed, and ends in the line "N passed, N failed[, N skipped]".

What could go wrong: a program that dies half way must count as failed even if all cases so far passed, and a phase
without any log must not count as success."""
import json
import re
import sys

DIRECTORIES = {'release': 'build', 'asan': 'build-asan', 'tsan': 'build-tsan'}
# Lines of cmocka, of python's unittest -v, and of TAP.
PASSED = re.compile(r'^\[       OK \]|^\S.* \.\.\. ok$|^ok \d+(?!.*# SKIP)', re.M)
FAILED = re.compile(r'^\[  FAILED  \] \S+$|^\S.* \.\.\. (?:FAIL|ERROR)$|^not ok \d+', re.M)
SKIPPED = re.compile(r'^\[  SKIPPED \] (\S+)$|^(\S.*) \.\.\. skipped (.*)$|^ok \d+ (.*# SKIP.*)$', re.M)


def text_of(test):
    return (test.get('stdout') or '') + '\n' + (test.get('stderr') or '')


def reason_of(test):
    """A program that exits with 77 says why on its last line."""
    lines = [line for line in text_of(test).splitlines() if line.strip()]
    return lines[-1].strip() if lines else 'no reason given'


def count_test(phase, test):
    """(passed, failed, skipped) of one program."""
    result, text, name = test['result'], text_of(test), test['name']
    if result == 'SKIP':
        print(f'skipped ({phase}): {name}: {reason_of(test)}')
        return 0, 0, 1
    skips = [next(group for group in reversed(match.groups()) if group) for match in SKIPPED.finditer(text)]
    for skip in skips:
        print(f'skipped ({phase}): {name}: {skip}')
    passed = len(PASSED.findall(text))
    if result in ('OK', 'EXPECTEDFAIL'):
        return max(passed, 0 if skips else 1), 0, len(skips)
    # cmocka lists each failed case twice: as it happens, and in its summary.
    failed = len(set(FAILED.findall(text)))
    print(f'FAILED ({phase}): {name}: {result.lower()}, after {test.get("duration", 0):.1f} s')
    return passed, max(failed, 1), len(skips)


def count_phase(phase):
    path = f'{DIRECTORIES[phase]}/meson-logs/testlog.json'
    totals = [0, 0, 0]
    try:
        with open(path, encoding='utf-8', errors='replace') as log:
            tests = [json.loads(line) for line in log if line.strip()]
    except OSError as error:
        print(f'FAILED ({phase}): no test log: {error}')
        return [0, 1, 0]
    for test in tests:
        totals = [a + b for a, b in zip(totals, count_test(phase, test))]
    if not tests:
        print(f'FAILED ({phase}): the log is empty')
        totals[1] += 1
    return totals


def main():
    totals = [0, 0, 0]
    print()
    for phase in sys.argv[1:]:
        counts = count_phase(phase)
        print(f'{phase}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped')
        totals = [a + b for a, b in zip(totals, counts)]
    line = f'{totals[0]} passed, {totals[1]} failed'
    print(line + (f', {totals[2]} skipped' if totals[2] else ''))
    return 1 if totals[1] else 0


if __name__ == '__main__':
    sys.exit(main())
