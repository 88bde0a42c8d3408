#!/usr/bin/env python3
"""Functions of at most 70 lines, files of at most 700 (tests: 900), so that each
can be read in one go. Usage: sizes.py SOURCE_ROOT"""
import re
import sys

import source

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
TEST_LINES_MAX = 900 # a test file is a list of cases, read one at a time


def functions(text):
    """(name, first line, last line) of every function body; text is code without comments. None at the end when the
    braces do not balance, as when both branches of an #if open one."""
    text = re.sub(r'^[ \t]*#(?:[^\n\\]|\\\n|\\.)*', lambda m: re.sub(r'[^\n]', ' ', m.group()), text, flags=re.M)
    depth, head_start, name, first = 0, 0, None, 0
    for match in re.finditer(r'[{};]', text):
        token = match.group()
        if token == '{':
            head = text[head_start:match.start()]
            if re.search(r'\bextern\s+"\s*"?\s*$', head):
                head_start = match.end()
                continue
            if depth == 0:
                called = re.search(r'(\w+)\s*\(', head)
                is_function = called and '=' not in head and head.rstrip().endswith(')')
                name, first = (called.group(1) if is_function else None), source.line_of(text, match.start())
            depth += 1
        elif token == '}':
            if depth == 0:
                head_start = match.end() # of extern "C"
                continue
            depth -= 1
            if depth == 0 and name:
                yield name, first, source.line_of(text, match.start())
        if depth == 0:
            head_start = match.end()
    if depth != 0:
        yield None


def main():
    root, report = sys.argv[1], source.Report('sizes')
    for path in source.files(root, source.C_FOLDERS, ('.c', '.h', '.cu', '.cuh')):
        text = source.read(root, path)
        lines = text.split('\n')
        report.looked_at += 1
        most = TEST_LINES_MAX if path.startswith('tests/') else FILE_LINES_MAX
        if len(lines) > most:
            report.find(path, most, f'{len(lines)} lines, at most {most}; split it by idea')
        for function in functions(source.code(text)):
            if function is None:
                report.find(path, len(lines), 'braces do not balance for a reader of plain text; keep each #if branch '
                                              'balanced')
                continue
            name, first, last = function
            if last - first + 1 > FUNCTION_LINES_MAX:
                report.find(path, first, f'{name} has {last - first + 1} lines, at most {FUNCTION_LINES_MAX}; split it')
    report.end()


main()
