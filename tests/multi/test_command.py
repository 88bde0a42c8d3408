#!/usr/bin/env python3
"""The hocket command, from outside: help, info, verify, explain. What could break: a subcommand without help, JSON that
does not parse, wrong use answered with success or with more than one line, a wrong schedule called right, and the page
docs/algorithms.md left behind by the registry. Usage: test_command.py HOCKET SOURCE_ROOT [unittest arguments]"""
import json
import os
import re
import subprocess
import sys
import unittest

ROOT = sys.argv.pop(2)
sys.path.insert(0, os.path.join(ROOT, 'tests', 'support'))
sys.dont_write_bytecode = True

from command import HOCKET, Case, hocket # noqa: E402


class Help(Case):
    def test_every_command_has_help(self):
        commands = re.findall(r'^  (\w+) +\S', self.output('--help').split('commands:')[1], re.M)
        self.assertGreaterEqual(set(commands), {'run', 'info', 'verify', 'explain'})
        for command in commands:
            text = self.output(command, '--help')
            self.assertTrue(text.startswith(f'usage: hocket {command}'), command)
            self.assertEqual(self.output('help', command), text)

    def test_version(self):
        for word in ('--version', '-V', 'version'):
            self.assertRegex(self.output(word), r'^hocket \d+\.\d+\.\d+\n$')

    def test_wrong_command(self):
        self.assert_usage('frobnicate', word='frobnicate')
        self.assertEqual(hocket().returncode, 2)

    def test_full_disk_is_no_success(self):
        with open('/dev/full', 'w', encoding='utf-8') as full:
            result = subprocess.run([HOCKET, 'info'], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100,
                                    check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn('could not be written', result.stderr)


class Info(Case):
    def test_text_names_the_transports(self):
        text = self.output('info')
        for name in ('shm', 'tcp', 'cuda'):
            self.assertRegex(text, rf'(?m)^  {name} +(yes|no) +\S')

    def test_settings_show_value_and_mark(self):
        text = self.output('info', '--settings', HOCKET_LANES='3', HOCKET_TOKEN='feedbeef')
        self.assertRegex(text, r'(?m)^\* HOCKET_LANES +3$')
        self.assertRegex(text, r'(?m)^  HOCKET_TIMEOUT +600s$')
        self.assertNotIn('feedbeef', text)

    def test_json(self):
        info = json.loads(self.output('info', '--json', HOCKET_CRC='1'))
        self.assertRegex(info['version'], r'^\d+\.\d+\.\d+$')
        settings = {row['name']: row for row in info['settings']}
        self.assertEqual((settings['HOCKET_CRC']['value'], settings['HOCKET_CRC']['set']), ('1', True))
        self.assertFalse(settings['HOCKET_TIMEOUT']['set'])
        self.assertIn('shm', [row['name'] for row in info['features']])

    def test_a_bad_setting_is_shown_as_the_reason(self):
        self.assertIn('HOCKET_CRC=maybe is not valid', self.output('info', HOCKET_CRC='maybe'))

    def test_wrong_calls(self):
        self.assert_usage('info', '--colour', word='--colour')
        self.assert_usage('info', 'more', word='more')


class Verify(Case):
    def test_whole_registry(self):
        text = self.output('verify', '-n', '1-9')
        self.assertRegex(text, r'\d+ algorithms, 1 to 9 ranks: [1-9]\d+ cases verified, 0 wrong')
        self.assertRegex(text, r'(?m)^all_reduce +ring +36 ')

    def test_one_algorithm_and_json(self):
        rows = json.loads(self.output('verify', 'all_reduce', 'ring', '-n', '5', '--json'))
        self.assertEqual(len(rows), 1)
        self.assertEqual((rows[0]['cases'], rows[0]['wrong'], rows[0]['rounds_max']), (4, 0, 8))
        self.assertTrue(rows[0]['same_bits'])

    def test_wrong_calls(self):
        self.assert_usage('verify', 'all_rdeuce', word='all_reduce')
        self.assert_usage('verify', 'all_reduce', 'rang', word='rang')
        self.assert_usage('verify', '-n', '0', word='1 to 65536')
        self.assert_usage('verify', '-n', '5-2', word='A-B')
        self.assert_usage('verify', '-n', word='needs a value')
        self.assert_usage('verify', 'broadcast', '-n', '4', '--root', '4', word='root 4')
        self.assert_usage('verify', 'broadcast', 'chain', 'x', word='too many')


class Explain(Case):
    def test_ring_by_step(self):
        text = self.output('explain', 'all_reduce', '--algo', 'ring', '-n', '4')
        self.assertEqual(len(re.findall(r'(?m)^round \d+:', text)), 6)
        self.assertEqual(len(re.findall(r'(?m)^ +\d -> \d:', text)), 24)

    def test_formats_differ_and_json_parses(self):
        base = ('explain', 'broadcast', '--algo', 'binomial', '-n', '5', '--root', '2')
        texts = {self.output(*base), self.output(*base, '--by-rank'), self.output(*base, '--json')}
        self.assertEqual(len(texts), 3)
        json.loads(self.output(*base, '--json', '--lowered'))

    def test_list(self):
        rows = json.loads(self.output('explain', '--list', '--json'))
        self.assertGreater(len(rows), 30)
        self.assertEqual(len({(row['collective'], row['algorithm']) for row in rows}), len(rows))
        self.assertTrue(all(row['source'] and row['rounds'] and row['bytes'] and row['summary'] for row in rows))
        self.assertIn('ring', self.output('explain', '--list', 'all_gather'))
        self.assertNotIn('broadcast\n', self.output('explain', '--list', 'all_gather'))

    def test_page_is_current(self):
        with open(os.path.join(ROOT, 'docs', 'algorithms.md'), encoding='utf-8') as file:
            self.assertEqual(file.read(), self.output('explain', '--list', '--markdown'),
                             'run: build/hocket explain --list --markdown >docs/algorithms.md')

    def test_wrong_calls(self):
        self.assert_usage('explain', word='which collective')
        self.assert_usage('explain', 'all_reduce', word='ring')
        self.assert_usage('explain', 'all_reduce', '-a', 'rang', word='ring')
        self.assert_usage('explain', 'all_reduce', '-a', 'ring', '-n', '0', word='1 to 1024')
        self.assert_usage('explain', 'broadcast', '-a', 'chain', '--root', '9', word='root 9')
        self.assert_usage('explain', 'reduce_scatter', '-a', 'recursive_halving', '-n', '3', word='power')


if __name__ == '__main__':
    unittest.main(verbosity=2)
