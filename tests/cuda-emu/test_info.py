#!/usr/bin/env python3
"""A build without the CUDA toolkit, one with it where there is no driver, and one with a driver differ only in what
`hocket info` says of CUDA. What could break: the library or the command compiled otherwise where the toolkit is, or linked to
it; a module that does not load without a driver, or changes what does not need it; a reason that does not tell which of module
and driver is missing.

What was built is copied: the command, the libraries, and as kernels/hocket_cuda.so nothing (as a build without the toolkit has
it), nvcc's module, or the emulated one. The driver is played by LD_PRELOAD (driver_here.c).

Usage: test_info.py BUILD EMULATED_MODULE DRIVER_HERE [NVCC_MODULE] [unittest arguments]"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD, EMULATED, DRIVER_HERE, NVCC = [os.path.abspath(argument) if argument else '' for argument in
                                      (sys.argv[1:] + [''])[:4]]
sys.argv[1:] = []
CUDA = ('cuda', 'cuda_p2p') # rows that may differ


def clean_environment():
    """Without settings, and without the folders of the build itself (meson's)."""
    return {name: value for name, value in os.environ.items() if not name.startswith(('HOCKET_', 'EMU_', 'LD_'))}


class Info(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = directory.name
        os.makedirs(os.path.join(self.path, 'src', 'parallel'))
        os.mkdir(os.path.join(self.path, 'kernels'))
        shutil.copy(os.path.join(BUILD, 'hocket'), self.path)
        for folder in ('src', os.path.join('src', 'parallel')):
            for name in os.listdir(os.path.join(BUILD, folder)):
                if re.search(r'\.so(\.\d+)*$', name):
                    shutil.copy(os.path.join(BUILD, folder, name), os.path.join(self.path, folder), follow_symlinks=False)

    def module(self, path):
        target = os.path.join(self.path, 'kernels', 'hocket_cuda.so')
        if os.path.exists(target):
            os.remove(target)
        if path:
            shutil.copy(path, target)

    def hocket(self, *args, driver=False):
        env = clean_environment()
        if driver:
            env['LD_PRELOAD'] = DRIVER_HERE
        run = subprocess.run([os.path.join(self.path, 'hocket'), *args], capture_output=True, text=True, timeout=60, check=False,
                             stdin=subprocess.DEVNULL, env=env)
        self.assertEqual((run.returncode, run.stderr), (0, ''), args)
        return run.stdout

    def look(self, module, driver):
        """(rows of CUDA, everything else that should be the same)"""
        self.module(module)
        info = json.loads(self.hocket('info', '--json', driver=driver))
        rows = {row['name']: (row['present'], row['reason']) for row in info['features'] if row['name'] in CUDA}
        self.assertEqual(sorted(rows), sorted(CUDA))
        rest = [row for row in info['features'] if row['name'] not in CUDA]
        for row in rest:
            if row['name'] == '/dev/shm': # what is free of it changes
                row['reason'] = re.sub(r'\d+', 'N', row['reason'])
        same = [info['version'], info['settings'], rest]
        same.append(self.hocket('explain', 'all_reduce', '--why', '-n', '8', '--bytes', '1M', driver=driver))
        same.append(self.hocket('topo', driver=driver))
        return rows, same

    def test_builds_differ_only_in_what_info_says_of_cuda(self):
        cases = [('', False, False, 'no NVIDIA driver', 'no NVIDIA driver'),
                 ('', True, False, 'no hocket_cuda.so', 'no hocket_cuda.so'),
                 (EMULATED, False, False, 'no NVIDIA driver', 'no NVIDIA driver'),
                 (EMULATED, True, True, '2 devices', 'devices of one host')]
        if NVCC and not os.path.exists('/dev/nvidiactl'):
            cases += [(NVCC, False, False, 'no NVIDIA driver', 'no NVIDIA driver'),
                      (NVCC, True, False, 'driver version is insufficient', 'driver version is insufficient')]
        if os.path.exists('/dev/nvidiactl'):
            cases = [case for case in cases if case[1]]
        first = None
        for module, driver, present, *reasons in cases:
            with self.subTest(module=module, driver=driver):
                rows, same = self.look(module, driver)
                for name, reason in zip(CUDA, reasons):
                    self.assertEqual(rows[name][0], present, rows[name])
                    self.assertIn(reason, rows[name][1], name)
                first = first or same
                self.assertEqual(same, first)

    def test_neither_command_nor_library_needs_cuda(self):
        self.module('')
        text = subprocess.run(['ldd', os.path.join(self.path, 'hocket')], capture_output=True, text=True, timeout=60, check=True,
                              env=clean_environment()).stdout
        self.assertIn('libhocket.so', text)
        self.assertNotIn('not found', text)
        self.assertNotRegex(text, 'cuda|nvidia')

    def test_nothing_but_the_module_is_compiled_with_the_toolkit(self):
        with open(os.path.join(BUILD, 'compile_commands.json'), encoding='utf-8') as file:
            commands = json.load(file)
        looked_at = 0
        for command in commands:
            source = os.path.relpath(os.path.join(command['directory'], command['file']), SOURCE)
            if re.fullmatch(r'(src|tools)/[^/]+(/[^/]+)?\.c', source):
                looked_at += 1
                self.assertNotRegex(command['command'], r'cuda[^/ ]*/(include|targets)|-D\S*CUDA', source)
        self.assertGreater(looked_at, 100)


if __name__ == '__main__':
    unittest.main(verbosity=2)
