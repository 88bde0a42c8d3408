"""The tables: per number of ranks and collective one row per size, with the time of each library, hocket's as a ratio
to each, and the physical bound beside; then what they say together."""
import math
import statistics

NOISE = 1.05 # without --twice: ratios nearer to 1 than this say nothing


def size_text(size):
    for unit, name in ((1 << 20, 'M'), (1 << 10, 'K')):
        if size >= unit and size % unit == 0:
            return f'{size // unit}{name}'
    return str(size)


def time_text(us):
    if us is None:
        return '-'
    return f'{us:.2f}' if us < 100 else f'{us:.0f}'


def ratio_text(ratio):
    return f'{ratio:.2f}' if ratio >= 0.095 else f'{ratio:.2g}'


def add_medians(case):
    """case['median_us']: library -> median over the rounds; case['ratio']: library -> hocket's time over its."""
    case['median_us'] = {key: statistics.median(turn['median_us'] for turn in turns)
                         for key, turns in case['rounds'].items() if turns}
    case['wrong'] = sum(turn['wrong'] for turns in [*case['rounds'].values(), case['bound_rounds']] for turn in turns)
    ours = case['median_us'].get('hocket')
    case['ratio'] = {key: ours / us for key, us in case['median_us'].items() if key != 'hocket'} if ours else {}
    peers = [us for key, us in case['median_us'].items() if not key.startswith('hocket')]
    case['ratio_to_best'] = ours / min(peers) if ours and peers else None
    add_shares_of_bound(case)
    spread = [turn['median_us'] for turn in case['rounds'].get('hocket', [])]
    case['spread'] = max(spread) / min(spread) if spread else None


def add_shares_of_bound(case):
    """case['of_bound']: set of hocket -> how much of the bound it reaches: least, median, greatest of the quotients inside rounds
    where the bound took turns; else of that computed before the run."""
    bound_us = [turn['median_us'] for turn in case['bound_rounds']]
    case['of_bound'] = {}
    for key in ('hocket', 'hocket_symmetric'):
        turns = [turn['median_us'] for turn in case['rounds'].get(key, [])]
        if bound_us and turns:
            shares = sorted(bound / ours for bound, ours in zip(bound_us, turns))
            case['of_bound'][key] = [shares[0], statistics.median(shares), shares[-1]]
        elif case['bound_us'] and turns:
            case['of_bound'][key] = [case['bound_us'] / case['median_us'][key]] * 3
    if bound_us:
        case['bound_us'] = statistics.median(bound_us)


def best_peer(case):
    return min((key for key in case['median_us'] if not key.startswith('hocket')), key=case['median_us'].get)


def wrong(result):
    return sum(case['wrong'] for case in result['cases'])


def wrong_lines(result):
    lines = [f'wrong elements: {wrong(result)}']
    names = {'bound': 'the loops of the bound', **{one['key']: one['name'] for one in result['libraries']}}
    for case in result['cases']:
        for key, turns in {**case['rounds'], 'bound': case['bound_rounds']}.items():
            count = sum(turn['wrong'] for turn in turns)
            if count:
                lines.append(f"{names[key]}: {count} in {case['coll']} {size_text(case['bytes'])}, {case['ranks']} ranks")
    return lines


def noise_of(result, ranks):
    """How far two equal sets differ: the factor that nine of ten cases stay within; None without --twice."""
    ratios = sorted(abs(math.log(case['ratio']['hocket2'])) for case in result['cases']
                    if case['ranks'] == ranks and 'hocket2' in case['ratio'])
    return math.exp(ratios[len(ratios) * 9 // 10]) if ratios else None


def limits_of(result):
    """Number of ranks -> the ratio from which on hocket counts as slower."""
    return {ranks: max(noise_of(result, ranks) or NOISE, 1.001) for ranks in sorted({case['ranks'] for case in result['cases']})}


def table(cases, libraries, limit):
    keys = [one['key'] for one in libraries if any(one['key'] in case['median_us'] for case in cases)]
    names = {one['key']: one['name'] for one in libraries}
    others = [key for key in keys if key != 'hocket'] if 'hocket' in keys else []
    heads = ['size'] + [names[key] for key in keys] + ['/' + names[key] for key in others]
    shares = [key for key in ('hocket', 'hocket_symmetric') if key in keys]
    heads += ['/best', 'bound'] + ['bound/' + names[key] for key in shares]
    rows = []
    for case in cases:
        row = [size_text(case['bytes']) if case['bytes'] else '']
        row += [time_text(case['median_us'].get(key)) for key in keys]
        row += [ratio_text(case['ratio'][key]) if key in case['ratio'] else '-' for key in others]
        best = case['ratio_to_best']
        row.append('-' if best is None else ratio_text(best) + (' slower' if best > limit else ''))
        row.append(time_text(case['bound_us']))
        row += [f"{100 * case['of_bound'][key][1]:.0f} %" if key in case['of_bound'] else '-' for key in shares]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows + [heads]) for i in range(len(heads))]
    return '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [heads] + rows)


def mean_ratio(ratios):
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def summary(result, limits):
    names = {one['key']: one['name'] for one in result['libraries']}
    lines = []
    for ranks in sorted({case['ranks'] for case in result['cases']}):
        cases = [case for case in result['cases'] if case['ranks'] == ranks]
        for key in names:
            ratios = [case['ratio'][key] for case in cases if key in case['ratio']]
            if ratios:
                lines.append(f'{ranks} ranks, hocket / {names[key]}: geometric mean {ratio_text(mean_ratio(ratios))}, '
                             f'least {ratio_text(min(ratios))}, greatest {ratio_text(max(ratios))}, over {len(ratios)} '
                             'cases')
        slower = sorted((case for case in cases if case['ratio_to_best'] and case['ratio_to_best'] > limits[ranks]),
                        key=lambda case: -case['ratio_to_best'])
        compared = sum(case['ratio_to_best'] is not None for case in cases)
        if compared:
            lines.append(f'{ranks} ranks: slower than the best peer in {len(slower)} of {compared} cases' +
                         (': ' + ', '.join(f"{case['coll']} {size_text(case['bytes'])} {case['ratio_to_best']:.2f} "
                                           f"({names[best_peer(case)]})" for case in slower) if slower else ''))
    return lines


def bound_lines(result):
    """How near all_reduce of two ranks comes to what the machine can do."""
    lines = []
    for key, name in (('hocket', 'malloc'), ('hocket_symmetric', 'symmetric memory')):
        cases = [case for case in result['cases'] if case['coll'] == 'all_reduce' and case['ranks'] == 2 and key in case['median_us']]
        if cases and result['probe']:
            small = min(cases, key=lambda case: case['bytes'])
            lines.append(f"2 ranks, all_reduce, {name}: {size_text(small['bytes'])} bytes take "
                         f"{small['median_us'][key] * 1000 / (2 * result['probe']['line_ns']):.2f} round trips of a cache line")
        reached = [f"{size_text(case['bytes'])} {median:.0%} ({least:.0%} to {greatest:.0%})" for case in cases
                   if case['bound_rounds'] and key in case['of_bound'] for least, median, greatest in [case['of_bound'][key]]]
        if reached:
            lines.append(f'2 ranks, all_reduce, {name}, of the bound, median (least to greatest) of the rounds: ' + ', '.join(reached))
    return lines


def cpu_lines(result):
    """CPU time of all ranks during a call over its time, mean over the cases: what waiting costs."""
    names = {one['key']: one['name'] for one in result['libraries']}
    lines = []
    for ranks in sorted({case['ranks'] for case in result['cases']}):
        shares = []
        for key in names:
            turns = [turn for case in result['cases'] if case['ranks'] == ranks for turn in case['rounds'].get(key, [])]
            if turns:
                busy = statistics.fmean(turn['cpu_us'] / turn['mean_us'] for turn in turns)
                shares.append(f'{names[key]} {busy:.2f}')
        lines.append(f'{ranks} ranks, cores kept busy: ' + ', '.join(shares))
    return lines


def probe_lines(probe):
    if not probe:
        return ['no bounds: the probe did not run']
    sizes = probe['working_set_bytes']
    lines = [f"cache line, core to core: {probe['line_ns']:.0f} ns one way; switch between two threads of a core: "
             f"{probe['switch_ns']:.0f} ns",
             f"GB/s read + written, {probe['cores']} cores together, by working set per core:"]
    rates = probe['gbps']['all_cores']
    lines.append(f"{'':16}" + ''.join(f'{size_text(size):>8}' for size in sizes))
    lines += [f'{name:16}' + ''.join(f'{rate:8.1f}' for rate in row) for name, row in rates.items()]
    return lines


def about_lines(result):
    """What was measured, on what and how."""
    machine = result['machine']
    lines = [result['command'],
             f"{result['when']}, {result['seconds']} s; load average before {result['load_before']:.2f}, after "
             f"{result['load_after']:.2f}",
             f"{machine['cpu']}, {machine['cores']} cores, {', '.join(machine['caches'])}, {machine['memory_gib']} GiB",
             f"{machine['system']}, Linux {machine['kernel']}", '']
    lines += [f"{one['name']} ({one['version']}): {one['settings']}" for one in result['libraries']]
    lines += [f"left out: {one['key']}: {one['reason']}" for one in result['missing']]
    lines += [f"FAILED: {one['key']} on {one['ranks']} ranks: {one['reason']}" for one in result['failures']]
    lines += [f"all: {'each rank on its core where ranks fit' if result['pinned'] else 'not pinned'}; malloc "
              f"{'keeps freed memory' if result['malloc'] else 'at its defaults'}", '']
    lines += [f"{part['ranks']} ranks, {size_text(part['sizes'][0])} to {size_text(part['sizes'][-1])}: {part['rounds']} "
              f"interleaved rounds of turns of {part['budget_ms']} ms, at least {part['samples_min']} samples"
              for part in result['parts']]
    return lines


def limit_line(result, limits):
    by_ranks = ', '.join(f'{limit:.2f} ({ranks} ranks)' for ranks, limit in limits.items())
    two_sets = any('hocket2' in case['ratio'] for case in result['cases'])
    return f'"slower": more than so many times the best peer: {by_ranks}' + (
        '; the factor within which nine of ten cases of two equal sets agree.' if two_sets else '.')


def text(result):
    limits = limits_of(result)
    lines = about_lines(result)
    lines += ['Times in microseconds: a sample is a batch of calls of at least 20 us, its time that of the '
              'slowest rank; median over the samples of a turn, then over the rounds. A library that takes 20 times as long as '
              'the fastest in the first round is left out of the others, and of larger sizes if a turn took over 1 s.',
              'Ratios are hocket / other: below 1, hocket is faster. float, sum, root 0; size = larger buffer of a '
              'rank. Calls of broadcast overlap: its root does not wait, so a small one may take less than the latency '
              'bound.', 'The bound is computed from the probe at the end; from 1M on it is the time of loops that move the same bytes '
              'on shared huge pages and took turns with the libraries, and shares of it are medians of quotients inside rounds.',
              limit_line(result, limits)]
    for ranks, limit in limits.items():
        for coll in dict.fromkeys(case['coll'] for case in result['cases']):
            cases = [case for case in result['cases'] if case['ranks'] == ranks and case['coll'] == coll]
            if cases:
                lines += ['', f"{coll}, {ranks} ranks on {result['machine']['cores']} cores",
                          table(sorted(cases, key=lambda case: case['bytes']), result['libraries'], limit)]
    lines += [''] + summary(result, limits) + bound_lines(result) + cpu_lines(result)
    lines += wrong_lines(result) + [''] + probe_lines(result['probe'])
    return '\n'.join(lines) + '\n'


def page(result, tables, picture):
    """The tables as a page with the picture."""
    names = [one['name'] for one in result['libraries'] if not one['key'].startswith('hocket')]
    return (f"# hocket{' beside ' if names else ''}{', '.join(names)}, {result['when'][:10]}\n\n"
            f'![time over size]({picture})\n\n```\n{tables}```\n')
