#!/usr/bin/env python3
"""The lints themselves: each must find what it is for, at the right line, and nothing in clean code. What could break: a
pattern that matches nothing any more, comments or strings taken for code. Usage: test_lints.py C_COMPILER [unittest arguments]"""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CC = sys.argv.pop(1)

CLEAN_HEADER = '''/* A thing. */
#ifndef HOCKET_CORE_A_H
#define HOCKET_CORE_A_H

int hkt__a(int x);

#endif
'''
CLEAN_SOURCE = '''/* Says "malloc(1)" and /\\* in a comment: no call. */
#include "core/a.h"

static const char text[] = "strcpy(x) { { {"; // } sprintf(

int hkt__a(int x)
{
    return x + text[0] + '{';
}
'''


class Lints(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.write('src/core/a.h', CLEAN_HEADER)
        self.write('src/core/a.c', CLEAN_SOURCE)

    def write(self, path, text):
        path = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)

    def lint(self, name, *args):
        result = subprocess.run([sys.executable, os.path.join(HERE, name + '.py'), self.folder.name, *args],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.stderr, '')
        return result.returncode, result.stdout

    def assert_finds(self, name, place, word, *args):
        code, text = self.lint(name, *args)
        self.assertEqual(code, 1, text)
        self.assertTrue(any(line.startswith(place + ':') and word in line for line in text.splitlines()), text)
        self.assertIn(' 1 to mend', text)

    def test_clean_code_passes(self):
        for name, args in (('layers', ()), ('headers', (CC,)), ('sizes', ()), ('words', ())):
            code, text = self.lint(name, *args)
            self.assertEqual(code, 0, name + text)

    def test_an_empty_tree_is_no_success(self):
        self.folder.cleanup()
        os.mkdir(self.folder.name)
        for name, args in (('layers', ()), ('headers', (CC,)), ('sizes', ()), ('words', ())):
            self.assertEqual(self.lint(name, *args)[0], 1, name)

    def test_include_upwards(self):
        self.write('src/sched/b.h', '')
        self.write('src/core/b.c', '/* "core/a.h" */\n#include "sched/b.h"\n')
        self.assert_finds('layers', 'src/core/b.c:2', 'may not see sched/')

    def test_include_sideways(self):
        self.write('src/exec/b.h', '')
        self.write('src/cost/b.c', '#include "core/a.h"\n# include "exec/b.h"\n')
        self.assert_finds('layers', 'src/cost/b.c:2', 'may not see exec/')

    def test_tool_with_internal_header(self):
        self.write('tools/t.c', '#include "core/a.h"\n')
        self.assert_finds('layers', 'tools/t.c:1', 'may not see core/')

    def test_include_without_folder_and_missing(self):
        self.write('src/core/b.c', '#include "a.h"\n')
        self.assert_finds('layers', 'src/core/b.c:1', 'no folder')
        self.write('src/core/b.c', '#include "core/gone.h"\n')
        self.assert_finds('layers', 'src/core/b.c:1', 'no file core/gone.h')

    def test_header_that_needs_another(self):
        self.write('src/core/b.h', '#ifndef HOCKET_CORE_B_H\n#define HOCKET_CORE_B_H\nsize_t hkt__b(void);\n#endif\n')
        self.assert_finds('headers', 'src/core/b.h:1', 'does not compile alone', CC)

    def test_wrong_guard(self):
        self.write('src/core/b.h', CLEAN_HEADER)
        self.assert_finds('headers', 'src/core/b.h:2', 'HOCKET_CORE_B_H', CC)

    def test_header_that_hides_one_of_the_system(self):
        self.write('src/core/limits.h', '#ifndef HOCKET_CORE_LIMITS_H\n#define HOCKET_CORE_LIMITS_H\nint hkt__b(void);\n#endif\n')
        self.assert_finds('headers', 'src/core/limits.h:1', '<limits.h>', CC)

    def test_long_function(self):
        self.write('src/core/b.c', '\nint hkt__b(int x)\n{\n' + '    x++;\n' * 69 + '    return x;\n}\n')
        self.assert_finds('sizes', 'src/core/b.c:3', 'hkt__b has 72 lines')
        self.write('src/core/b.c', '\nint hkt__b(int x)\n{\n' + '    x++;\n' * 67 + '    return x;\n}\n')
        self.assertEqual(self.lint('sizes')[0], 0)

    def test_long_table_is_no_function(self):
        self.write('src/core/b.c', 'static const int table[] = {\n' + '    SIZE(1),\n' * 200 + '};\n')
        self.assertEqual(self.lint('sizes')[0], 0)

    def test_long_function_in_extern_c(self):
        self.write('src/core/b.h', 'extern "C" {\nstatic inline int b(int x)\n{\n' + 'x++;\n' * 80 + '}\n}\n')
        self.assert_finds('sizes', 'src/core/b.h:3', 'b has 82 lines')

    def test_long_file(self):
        self.write('src/core/b.c', 'int x;\n' * 701)
        self.assert_finds('sizes', 'src/core/b.c:700', 'at most 700')

    def test_words(self):
        for text, word in (('/* ' + 'TO' + 'DO: later */', 'finish it'), ('int x = atoi("1");', 'strtol'),
                           ('void *p = malloc(1);', 'core/mem.h'), ('typedef struct a { int x; } a_t;', 'typedef'),
                           ('int x = printf("");', 'returns errors'), ('char *e = getenv("X");', 'settings.h'),
                           ('int x = sprintf(b, "");', 'snprintf')):
            self.write('src/core/b.c', '\n' + text + '\n')
            self.assert_finds('words', 'src/core/b.c:2', word)

    def test_exports(self):
        self.write('include/hocket/x.h', '/* hkt_comment(void); */\nHKT_API int hkt_one(int x);\nint hkt_two(void);\n'
                   'typedef void (*hkt_fn)(int);\nHKT_API void\nhkt_three(void);\n')
        self.write('lib.c', 'int hkt_one(int x) { return x; } int hkt_two(void) { return 1; } void hkt__four(void) {}')
        library = os.path.join(self.folder.name, 'lib.so')
        subprocess.run([CC, '-shared', '-fPIC', '-o', library, os.path.join(self.folder.name, 'lib.c')], check=True)
        code, text = self.lint('exports', 'nm', library)
        self.assertEqual(code, 1)
        self.assertRegex(text, r'(?m)^include/hocket/x.h:3: hkt_two is declared without HKT_API')
        self.assertRegex(text, r'(?m)^include/hocket/x.h:6: hkt_three is declared but not in')
        self.assertRegex(text, r'(?m)^src/libhocket.map:1: hkt__four is exported')
        self.assertIn('3 to mend', text)

    def test_exports_of_two_libraries(self):
        self.write('include/hocket/hocket.h', '#include "hocket/a.h"\n')
        self.write('include/hocket/a.h', 'HKT_API int hkt_a(void);\n')
        self.write('include/hocket/parallel.h', '#include "hocket/a.h"\n#include "hocket/p.h"\n')
        self.write('include/hocket/p.h', 'HKT_API int hkt_p(void);\nHKT_API int hkt_q(void);\n')
        libraries = []
        for name in ('a', 'p'):
            path = os.path.join(self.folder.name, name)
            self.write(name + '.c', f'int hkt_{name}(void) {{ return 1; }}')
            subprocess.run([CC, '-shared', '-fPIC', '-o', path + '.so', path + '.c'], check=True)
            libraries.append(path + '.so')
        code, text = self.lint('exports', 'nm', *libraries)
        self.assertEqual(code, 1)
        self.assertRegex(text, r'(?m)^include/hocket/p.h:2: hkt_q is declared but not in libhocket_parallel.so')
        self.assertIn('1 to mend', text)


if __name__ == '__main__':
    unittest.main(verbosity=2)
