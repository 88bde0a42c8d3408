"""What the lints share: which files, C without its comments and strings, and the report."""
import os
import re
import sys

C_FOLDERS = ('include', 'src', 'kernels', 'tools', 'examples', 'benchmarks', 'tests')
TEXT_ENDINGS = ('.c', '.h', '.cu', '.cuh', '.py', '.sh', '.md', '.build', '.map', '.txt')


def files(root, folders, endings):
    """Paths below root, in order; build directories and hidden folders are left out."""
    for folder in folders:
        for here, below, names in os.walk(os.path.join(root, folder)):
            below[:] = sorted(name for name in below if not name.startswith(('.', 'build', '__')))
            for name in sorted(names):
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(here, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return file.read()


TOKENS = re.compile(r'//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/|"(?:[^"\\\n]|\\.|\\\n)*"|\'(?:[^\'\\\n]|\\.)*\'', re.S)


def code(text, keep_strings=False):
    """The text with comments and the inside of strings blanked; lines and columns stay where they are."""
    def blank(match):
        token = match.group()
        if token[0] in '"\'':
            if keep_strings:
                return token
            return token[0] + re.sub(r'[^\n]', ' ', token[1:-1]) + token[-1]
        return re.sub(r'[^\n]', ' ', token)
    return TOKENS.sub(blank, text)


def line_of(text, offset):
    return text.count('\n', 0, offset) + 1


class Report:
    """Findings of one lint: "file:line: what is wrong; the mend"."""

    def __init__(self, what):
        self.what, self.findings, self.looked_at = what, 0, 0

    def find(self, path, line, message):
        self.findings += 1
        print(f'{path}:{line}: {message}')

    def end(self):
        print(f'{self.what}: {self.looked_at} looked at, {self.findings} to mend')
        if self.looked_at == 0:
            print('nothing was looked at: the lint itself is broken')
        sys.exit(1 if self.findings or not self.looked_at else 0)
