#!/usr/bin/env python3
"""What `meson install` leaves is enough for a user: headers, library, pkg-config file and command, from a prefix of its
own with a space in it. What could break: a header not installed, a library that does not find itself, a command that
only works from the build tree. Usage: test_install.py SOURCE_ROOT BUILD_ROOT PREFIX C_COMPILER [unittest arguments]"""
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD, PREFIX, CC = (sys.argv.pop(1) for _ in range(4))


def run(args, **env):
    return subprocess.run(args, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, **env})


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix='hocket install ')
        cls.addClassCleanup(cls.folder.cleanup)
        result = run(['meson', 'install', '-C', BUILD, '--no-rebuild', '--destdir', cls.folder.name])
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        cls.prefix = cls.folder.name + PREFIX
        found = [here for here, _, names in os.walk(cls.prefix) if 'libhocket.so' in names]
        assert len(found) == 1, f'libhocket.so in {found}'
        cls.libdir = found[0]

    def pkg_config(self, *args, package='hocket'):
        pkgconfig = os.path.join(self.libdir, 'pkgconfig')
        # The file lies below a destdir, which is not its prefix: tell pkg-config the prefix as it is now.
        result = run(['pkg-config', f'--define-variable=prefix={self.prefix}'.replace(' ', '\\ '), *args, package],
                     PKG_CONFIG_PATH=pkgconfig)
        self.assertEqual(result.returncode, 0, result.stderr)
        return shlex.split(result.stdout)

    def test_headers(self):
        here = sorted(os.listdir(os.path.join(self.prefix, 'include', 'hocket')))
        self.assertEqual(here, sorted(name for name in os.listdir(os.path.join(ROOT, 'include', 'hocket'))
                                      if name.endswith('.h')))

    def test_version(self):
        version = self.pkg_config('--modversion')[0]
        command = run([os.path.join(self.prefix, 'bin', 'hocket'), 'info'], LD_LIBRARY_PATH=self.libdir)
        self.assertEqual(command.returncode, 0, command.stderr)
        self.assertTrue(command.stdout.startswith(f'hocket {version}\n'))

    @unittest.skipIf(shutil.which('pkg-config') is None, 'pkg-config is not installed')
    def test_examples_build_and_run_outside_the_tree(self):
        for name in ('hello_all_reduce', 'byte_pairs'):
            program = os.path.join(self.folder.name, name)
            built = run([CC, '-Wall', '-Werror', os.path.join(ROOT, 'examples', name + '.c'), '-o', program,
                         *self.pkg_config('--cflags', '--libs')])
            self.assertEqual(built.returncode, 0, built.stderr)
            args = [os.path.join(ROOT, 'include', 'hocket')] if name == 'byte_pairs' else []
            ran = run([os.path.join(self.prefix, 'bin', 'hocket'), 'run', '-n', '3', '--timeout', '60', program, *args],
                      LD_LIBRARY_PATH=self.libdir)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertNotEqual(ran.stdout, '')

    @unittest.skipIf(shutil.which('pkg-config') is None, 'pkg-config is not installed')
    def test_parallel_library(self):
        program = os.path.join(self.folder.name, 'mesh')
        with open(program + '.c', 'w', encoding='utf-8') as file:
            file.write('#include <hocket/parallel.h>\n'
                       'int main(void)\n{\n    struct hkt_mesh *mesh;\n'
                       '    return hkt_mesh_create("tp:2 dp:rest", 8, &mesh) != HKT_OK || '
                       'hkt_mesh_print(mesh, stdout, NULL) != HKT_OK;\n}\n')
        built = run([CC, '-Wall', '-Werror', program + '.c', '-o', program,
                     *self.pkg_config('--cflags', '--libs', package='hocket_parallel')])
        self.assertEqual(built.returncode, 0, built.stderr)
        ran = run([program], LD_LIBRARY_PATH=self.libdir)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn('mesh tp:2 dp:4: 8 ranks', ran.stdout)


if __name__ == '__main__':
    unittest.main(verbosity=2)
