#!/usr/bin/env python3
"""hocket topo and hocket run --bind, from outside. What could break: the orders of the machines the design names (golden
texts), a saved machine that loads as another, a drawing that is no SVG or needs the network, ranks bound to other cores than
said, more ranks than cores bound silently. Usage: test_topo.py HOCKET SOURCE_ROOT [unittest arguments]; with
HOCKET_GOLDEN=write the golden texts are written anew."""
import json
import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = sys.argv.pop(2)
sys.path.insert(0, os.path.join(ROOT, 'tests', 'support'))
sys.dont_write_bytecode = True

from command import HOCKET, Case, hocket # noqa: E402

GOLDEN = {
    'two_socket': ('package:2 numa:4 l3:2 core:8', '16'),
    'dgx': ('host:1 package:2 numa:1 gpu:8 nvswitch:1@450GB/s,468ns nic:8@50GB/s,2us', '8'),
    '64_hosts': ('host:64 package:2 numa:4 l3:2 core:8', '512'),
}
# Ranks by what; sizes at which the choice is kept.
CHOICE_COLLS = ('all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'reduce', 'all_to_all', 'barrier')
CHOICE_SIZES = ('8', '1K', '64K', '1M', '16M', '256M')
SHOW_CPUS = ('import os; os.write(1, (os.environ["RANK"] + ":" + ",".join(map(str, sorted(os.sched_getaffinity(0)))) + "\\n")'
             '.encode())')


class InFolder(Case):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix='hocket test ')
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)


class Machines(InFolder):
    def test_golden(self):
        for name, (line, nranks) in GOLDEN.items():
            text = self.output('topo', '--synthetic', line, '--ranks', nranks)
            path = os.path.join(ROOT, 'tests', 'golden', f'topo_{name}.txt')
            if os.environ.get('HOCKET_GOLDEN') == 'write':
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
            with open(path, encoding='utf-8') as file:
                self.assertEqual(file.read(), text, f'{path}: HOCKET_GOLDEN=write writes it anew')

    def choices(self, line, nranks):
        """Which algorithm would be chosen, collective by collective and size by size."""
        text = ''
        for coll in CHOICE_COLLS:
            for size in CHOICE_SIZES if coll != 'barrier' else ('0',):
                why = json.loads(self.output('explain', coll, '--why', '-n', nranks, '--topo', line, '--bytes', size, '--json',
                                             HOCKET_TUNE='off'))
                text = text or f'on {line}, {nranks} ranks: {why["hierarchy"]}\n'
                text += f'{coll:15} {size:>5}  {why["candidates"][0]["algorithm"]}\n'
        return text

    def test_golden_choices(self):
        for name, (line, nranks) in GOLDEN.items():
            if os.environ.get('HOCKET_TEST_SMALL') and int(nranks) > 64:
                continue
            text = self.choices(line, nranks)
            path = os.path.join(ROOT, 'tests', 'golden', f'choices_{name}.txt')
            if os.environ.get('HOCKET_GOLDEN') == 'write':
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
            with open(path, encoding='utf-8') as file:
                self.assertEqual(file.read(), text, f'{path}: HOCKET_GOLDEN=write writes it anew')

    def test_why_on_described_machines(self):
        line = 'host:4@125MB/s,20us core:3'
        text = self.output('explain', 'all_reduce', '--why', '-n', '12', '--topo', line, '--bytes', '16M')
        self.assertIn(f'on {line}: 3 ranks per host, 4 hosts per job\n', text)
        self.assertRegex(text, r'\n  hierarchical .* chosen: ')
        self.assertRegex(text, r'\n  bound .* 1\.5 n bytes over the link of the busiest of 4 hosts at 0\.125 GB/s')
        self.assertRegex(text, r'\n  two_shot .* needs memory that all peers can address')
        # The same from a file; a faster network changes the bound.
        self.output('topo', '--synthetic', line, '--save', self.path('machines'))
        from_file = self.output('explain', 'all_reduce', '--why', '-n', '12', '-T', self.path('machines'), '--bytes', '16M')
        self.assertEqual(from_file.replace(self.path('machines'), line), text)
        # 10 ranks on 4 hosts of 3 cores: hosts of 2 and 3 ranks are no groups of one size.
        text = self.output('explain', 'all_reduce', '--why', '-n', '10', '--topo', line)
        self.assertRegex(text, r'\n  hierarchical +- +needs as many ranks on each host\n')

    def test_why_cuts_as_the_job_would(self):
        # Of a vector of 1 MiB an eighth, where each rank has a link of 10 Gbit/s or more to itself.
        # Other slices are some times as long; what the user says is all there is.
        def cuts(line, **env):
            text = self.output('explain', 'all_reduce', '--why', '--json', '-n', '4', '--bytes', '1M', '--topo', line, **env)
            rows = [row for row in json.loads(text)['candidates'] if 'slices' in row]
            self.assertTrue(all(row['slices'] >= 1048576 / row['slice_bytes'] / 4 for row in rows), text)
            return {row['slice_bytes'] >> 10 for row in rows}, {row['lanes'] for row in rows}
        for line, usual in (('host:4@1250MB/s core:1', 128), ('host:4@1240MB/s core:1', 64), ('host:2@1250MB/s core:2', 64)):
            sizes, _ = cuts(line)
            self.assertEqual(min(sizes), usual, line)
            self.assertLessEqual(sizes, {usual, 2 * usual, 4 * usual}, line)
            self.assertEqual(cuts(line, HOCKET_SLICE_BYTES='96K')[0], {96}, line)
            self.assertEqual(cuts(line, HOCKET_LANES='2')[1], {2}, line)

    def test_why_where_ranks_share_cores(self):
        args = ('explain', 'all_gather', '--why', '-n', '4', '--bytes', '64', '--crowd', '2', '--json')
        one_each, two_each, here = ({row['algorithm']: row.get('predicted_us')
                                     for row in json.loads(self.output(*args, *more, HOCKET_TUNE='off', HOCKET_CMA='0'))['candidates']}
                                    for more in (('--topo', 'core:4'), ('--topo', 'core:2'), ()))
        self.assertEqual(one_each['hierarchical'], one_each['recursive_doubling'])
        self.assertLess(two_each['hierarchical'], two_each['recursive_doubling']) # whose last wait is for the other core
        self.assertEqual(here, two_each) # ranks keep to cores, by themselves

    def test_why_with_one_set_apart_for_large_vectors(self):
        for size, choice in (('256K', r'direct_user .* chosen: the least of those for vectors of this size\n  write_user'),
                             ('16M', r'write_user .* chosen: the least\n')):
            text = self.output('explain', 'all_gather', '--why', '-n', '4', '-R', '--bytes', size, '--topo', 'core:4')
            self.assertRegex(text, r'\n  ' + choice)

    def test_why_mistakes(self):
        for args, word in (('--topo', 'host:2 hub:3'), 'hub'), (('--topo', '/nowhere'), 'nowhere'), \
                          (('--topo', 'host:2 core:1'), '4 ranks, but 2 cores'), (('--topo', 'core:4', '--by', 'rank'), 'rank'):
            self.assert_usage('explain', 'all_reduce', '--why', *args, word=word)

    def test_save_and_load(self):
        for line, _ in GOLDEN.values():
            saved = self.output('topo', '-s', line, '--save', '-')
            with open(self.path('machine'), 'w', encoding='utf-8') as file:
                file.write(saved)
            self.assertEqual(self.output('topo', '--load', self.path('machine'), '-o', '-'), saved)
            self.output('topo', '--load', self.path('machine'), '--save', self.path('again'))
            with open(self.path('again'), encoding='utf-8') as file:
                self.assertEqual(file.read(), saved)

    def test_this_machine(self):
        cpus = os.sched_getaffinity(0)
        text = self.output('topo')
        self.assertRegex(text, r'^this machine, read (with hwloc|from /sys)')
        self.assertIn(f'{len(cpus)} CPU', text)
        one = min(cpus)
        text = self.output('topo', '--full', cpus={one})
        self.assertIn(f'(pu {one})', text)
        self.assertIn('1 CPU', text)

    def test_json(self):
        shown = json.loads(self.output('topo', '-s', 'host:2 package:2 core:2 nic:2@25GB/s', '-n', '8', '-r', '3', '--json'))
        kinds = [node['kind'] for node in shown['nodes']]
        self.assertEqual((kinds.count('host'), kinds.count('core'), kinds.count('nic')), (2, 8, 4))
        self.assertTrue(all(node['parent'] < i for i, node in enumerate(shown['nodes'])))
        self.assertTrue(any(link['bytes_per_s'] == 25e9 and link['source'] == 'given' for link in shown['links']))
        ranks = shown['ranks']
        self.assertEqual(ranks['ring'], list(range(8)))
        self.assertEqual([shown['nodes'][node]['kind'] for node in ranks['nodes']], ['core'] * 8)
        self.assertEqual(ranks['parents'].index(-1), 3)
        self.assertEqual([(f['level'], f['most']) for f in ranks['factors']], [('package', 2), ('host', 2), ('all', 2)])
        levels = {level['level']: level['groups'] for level in ranks['levels']}
        self.assertEqual(levels['host'], [[0, 1, 2, 3], [4, 5, 6, 7]])

    def test_full_text_names_every_part(self):
        line = 'package:2 core:3 gpu:2 nvswitch:1'
        self.assertNotRegex(self.output('topo', '-s', line), r' core \d')
        full = self.output('topo', '-s', line, '--full')
        self.assertEqual(full.count(' core '), 6)
        self.assertEqual(full.count(' - switch 0'), 2)

    def test_wrong_calls(self):
        self.assert_usage('topo', '-s', 'core:0', word='core:0')
        self.assert_usage('topo', '-s', 'core:2', '-n', '3', word='3 ranks, but 2 cores')
        self.assert_usage('topo', '-s', 'core:2', '-n', '0', word='1 to 65536')
        self.assert_usage('topo', '-s', 'core:2', '-n', '2', '--by', 'numb', word='numa')
        self.assert_usage('topo', '-s', 'core:2', '-n', '2', '--by', 'l3', word='no l3')
        self.assert_usage('topo', '-s', 'core:2', '-n', '2', '--root', '2', word='root 2')
        self.assert_usage('topo', '-s', 'core:2', '-l', 'x', word='either')
        self.assert_usage('topo', '-l', self.path('none'), word='cannot be opened')
        self.assert_usage('topo', '--colour', word='--colour')
        self.assert_usage('topo', 'more', word='more')
        self.assert_usage('topo', '--load', word='needs a value')
        with open(self.path('wrong'), 'w', encoding='utf-8') as file:
            file.write('hocket-topology 1\nnet 0\n  hots 0\n')
        self.assert_usage('topo', '-l', self.path('wrong'), word=':3: "hots"')
        self.assert_usage('topo', '-s', 'core:2', '--by', 'core', word='--ranks')
        why = 'explain', 'all_reduce', '--why'
        self.assert_usage(*why, '--topo', self.path('wrong'), word='--topo: ' + self.path('wrong') + ':3: "hots"')
        self.assert_usage(*why, '--by', 'core', word='--topo')
        self.assert_usage(*why, '--algo', 'ring', word='--algo')
        self.assert_usage('explain', 'send_recv', '--why', word='no algorithms')
        for coll in ('gather', 'broadcast', 'all_gather_v'):
            self.assert_usage('explain', coll, '--why', '-i', word='own affair')
        self.assertIn(', in place', self.output('explain', 'all_to_all', '--why', '-i'))

    def test_files_that_cannot_be_written(self):
        for option in ('--save', '--svg'):
            result = hocket('topo', '-s', 'core:2', option, '/nonexistent/x')
            self.assertEqual((result.returncode, result.stdout), (1, ''))
            self.assertIn('/nonexistent/x cannot be written', result.stderr)
            self.assertEqual(hocket('topo', '-s', 'host:64 core:64', option, '/dev/full').returncode, 1)


class Job(InFolder):
    def topo(self, nranks, *options, bind='core'):
        result = hocket('run', '-n', str(nranks), '--bind', bind, HOCKET, 'topo', '--job', *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_ranks_that_see_one_core_each_show_all_of_them(self):
        alone = json.loads(self.output('topo', '--json'))
        cores = [i for i, node in enumerate(alone['nodes']) if node['kind'] == 'core']
        self.assertEqual(self.topo(len(cores), '--save', '-'), self.output('topo', '--save', '-'))
        merged = json.loads(self.topo(len(cores), '--json'))
        self.assertEqual(merged['nodes'], alone['nodes'])
        own = [alone['nodes'][node]['parent'] if alone['nodes'][node]['kind'] == 'pu' else node for node in merged['ranks']['nodes']]
        self.assertEqual(own, cores)

    def test_ranks_that_are_not_bound(self):
        ranks = json.loads(self.topo(3, '--json', '--root', '2', bind='none'))['ranks']
        self.assertEqual((len(set(ranks['nodes'])), ranks['parents']), (1, [2, 2, -1]))
        self.assertRegex(self.topo(2, bind='none'), r'\n2 ranks where they run\n')

    def test_mistakes(self):
        for option in (('--load', 'x'), ('-s', 'core:2'), ('-n', '2'), ('--by', 'l3')):
            self.assert_usage('topo', '--job', *option, word='--job')
        result = hocket('run', '-n', '2', HOCKET, 'topo', '--job', '--root', '2')
        self.assertEqual(result.stderr.count('root 2 is no rank of 2'), 1, 'one rank says it')


class Drawing(InFolder):
    SVG = '{http://www.w3.org/2000/svg}'

    def draw(self, *args):
        self.output('topo', *args, '--svg', self.path('x.svg'))
        with open(self.path('x.svg'), encoding='utf-8') as file:
            text = file.read()
        for word in ('href', 'url(', '<script', '<image', '<style'):
            self.assertNotIn(word, text, 'the file stands alone')
        return xml.fromstring(text)

    def boxes(self, root):
        found = []
        for group in root.iter(self.SVG + 'g'):
            rect = group.find(self.SVG + 'rect')
            x, y, width, height = (float(rect.get(name)) for name in ('x', 'y', 'width', 'height'))
            found.append((group.find(self.SVG + 'title').text.split(';')[0], x, y, x + width, y + height))
        return found

    def test_every_part_has_a_box_in_its_parent(self):
        root = self.draw('-s', 'host:2 package:2 numa:2 l3:2 core:4 gpu:4 nvswitch:1 nic:2', '-n', '8')
        boxes = self.boxes(root)
        kinds = [title.split()[0] for title, *_ in boxes]
        for kind, count in (('host', 2), ('package', 4), ('numa', 8), ('l3', 16), ('core', 64), ('gpu', 8), ('switch', 2), ('nic', 4)):
            self.assertEqual(kinds.count(kind), count, kind)
        _, _, _, width, height = boxes[kinds.index('net')]
        for title, x0, y0, x1, y1 in boxes:
            self.assertTrue(0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height, title)
        # Two boxes lie apart or one in the other.
        for i, (one, a0, b0, a1, b1) in enumerate(boxes):
            for two, c0, d0, c1, d1 in boxes[i + 1:]:
                apart = a1 <= c0 or c1 <= a0 or b1 <= d0 or d1 <= b0
                nested = (a0 <= c0 and c1 <= a1 and b0 <= d0 and d1 <= b1) or (c0 <= a0 and a1 <= c1 and d0 <= b0 and b1 <= d1)
                self.assertTrue(apart or nested, f'{one} and {two} overlap')
        self.assertEqual(len(root.find(self.SVG + 'polygon').get('points').split()), 8)
        self.assertEqual(len(list(root.iter(self.SVG + 'line'))), 8)

    def test_names_are_escaped(self):
        odd = self.path('odd \x01<')
        with open(odd, 'w', encoding='utf-8') as file:
            file.write('hocket-topology 1\nnet 0\n  host 0 name=<a>&"b"\n    core 0\n')
        titles = [title for title, *_ in self.boxes(self.draw('-l', odd))]
        self.assertIn('host 0 <a>&"b"', titles)

    def test_large_machines_stay_readable(self):
        root = self.draw('-s', 'host:200 core:64')
        self.assertLess(len(self.boxes(root)), 2000)
        self.assertIn('and 199 more like it', ''.join(root.itertext()))
        self.assertLess(len(self.boxes(self.draw('-s', 'host:64 package:2 numa:4 l3:2 core:8', '-n', '512'))), 5000)


class Bind(InFolder):
    def cpus_by_rank(self, nranks, *options, cpus=None, said=''):
        result = hocket('run', '-n', str(nranks), *options, sys.executable, '-c', SHOW_CPUS, cpus=cpus)
        self.assertEqual((result.returncode, result.stderr), (0, said), options)
        rows = dict(line.split(':') for line in result.stdout.split())
        return [{int(cpu) for cpu in rows[str(rank)].split(',')} for rank in range(nranks)]

    def cores(self):
        """CPUs of each core this process may use, in the order of the topology."""
        nodes = json.loads(self.output('topo', '--json'))['nodes']
        pus = {}
        for node in nodes:
            if node['kind'] == 'pu':
                pus.setdefault(node['parent'], set()).add(node['index'])
        return [pus[i] for i, node in enumerate(nodes) if node['kind'] == 'core']

    def test_ranks_get_cores_in_order(self):
        cores = self.cores()
        self.assertEqual(self.cpus_by_rank(len(cores), '--bind', 'core'), cores)
        self.assertEqual(self.cpus_by_rank(1, '-b', 'core'), cores[:1])

    def test_none_is_the_default(self):
        own = os.sched_getaffinity(0)
        self.assertEqual(self.cpus_by_rank(2), [own, own])
        self.assertEqual(self.cpus_by_rank(3, '--bind', 'none'), [own] * 3)

    def test_parts_with_several_cores(self):
        cores = self.cores()
        for kind in ('numa', 'package'):
            result = hocket('run', '-n', '1', '--bind', kind, 'true')
            if result.returncode == 2:
                self.assertIn(f'shows no {kind}', result.stderr)
                continue
            sets = self.cpus_by_rank(len(cores), '--bind', kind)
            for rank, core in enumerate(cores):
                self.assertLessEqual(core, sets[rank], 'rank r is near core r when there are as many')

    def test_only_cpus_that_hocket_may_use(self):
        one = max(os.sched_getaffinity(0))
        self.assertEqual(self.cpus_by_rank(1, '--bind', 'core', cpus={one}), [{one}])

    def test_ranks_that_outnumber_cores_share_them_and_are_told(self):
        cores = self.cores()
        ranks = 2 * len(cores) + 1
        said = f'hocket run: --bind core: {ranks} ranks share {len(cores)} core{"s" if len(cores) > 1 else ""}\n'
        self.assertEqual(self.cpus_by_rank(ranks, '--bind', 'core', said=said),
                         [cores[r * len(cores) // ranks] for r in range(ranks)])

    def test_what_the_system_does_not_show(self):
        self.assert_usage('run', '-n', '2', '--bind', 'rack', 'true', word='none, core, l3, numa, package')

    def test_verbose_says_what_each_rank_gets(self):
        result = hocket('run', '-n', '1', '--verbose', '--bind', 'core', 'true')
        self.assertRegex(result.stderr, r'^hocket run: rank 0: core \d+, cpus \d+')
        self.assertIn('not bound', hocket('run', '-n', '1', '-v', 'true').stderr)


class Info(InFolder):
    def test_says_what_the_machine_is_read_with(self):
        self.assertRegex(self.output('info'), r'(?m)^topology\n  hwloc    (yes  \d|no   built without).*\n  machine  yes  .*core')
        rows = json.loads(self.output('info', '--json'))['features']
        self.assertEqual([row['name'] for row in rows if row['kind'] == 'topology'], ['hwloc'])


if __name__ == '__main__':
    unittest.main(verbosity=2)
