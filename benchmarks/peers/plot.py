"""The picture: time over size, both logarithmic; one panel per collective, one row of panels per number of ranks; the
physical bound as a dashed line. Plain SVG without scripts or outside fonts."""
import math
from xml.sax.saxutils import escape

import report

# Colours that people with any colour vision can tell apart (Okabe and Ito); each library has its own mark too.
COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9']
TIMES = {-3: '1 ns', -2: '10 ns', -1: '100 ns', 0: '1 µs', 1: '10 µs', 2: '100 µs', 3: '1 ms', 4: '10 ms',
         5: '100 ms', 6: '1 s'} # by power of ten of a microsecond
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 250, 210, 62, 92, 62, 66


def mark(kind, x, y, colour):
    shapes = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"',
              f'<rect x="{x - 2.8:.1f}" y="{y - 2.8:.1f}" width="5.6" height="5.6"',
              f'<path d="M{x:.1f} {y - 3.6:.1f} l3.4 6 h-6.8 z"',
              f'<path d="M{x:.1f} {y - 3.8:.1f} l3.8 3.8 l-3.8 3.8 l-3.8 -3.8 z"']
    return f'{shapes[kind % len(shapes)]} fill="{colour}"/>'


def label(x, y, text, anchor='middle', size=11, colour='#333'):
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{colour}">{escape(text)}</text>'


class Axes:
    """Where a size and a time stand in one panel."""

    def __init__(self, x, y, sizes, time_range):
        self.x, self.y = x, y
        self.size_range = (math.log(min(sizes)), math.log(max(max(sizes), 2 * min(sizes))))
        self.time_range = time_range

    def place(self, size, us):
        low, high = self.size_range
        floor, ceiling = self.time_range
        return (self.x + PANEL_WIDTH * (math.log(size) - low) / (high - low),
                self.y + PANEL_HEIGHT * (ceiling - math.log10(us)) / (ceiling - floor))

    def draw(self, sizes, title):
        size = f'width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}"'
        out = [f'<rect x="{self.x}" y="{self.y}" {size} fill="none" stroke="#999"/>',
               label(self.x + PANEL_WIDTH / 2, self.y - 8, title, size=13, colour='#000')]
        floor, ceiling = self.time_range
        for power in range(floor, ceiling + 1):
            y = self.place(sizes[0], 10.0 ** power)[1]
            out.append(f'<path d="M{self.x} {y:.1f} h{PANEL_WIDTH}" stroke="#ddd"/>')
            out.append(label(self.x - 5, y + 4, TIMES.get(power, f'1e{power} µs'), 'end'))
        last = -100.0
        for size in sizes:
            x = self.place(size, 10.0 ** floor)[0]
            if x - last > 30:
                out.append(label(x, self.y + PANEL_HEIGHT + 15, report.size_text(size)))
                last = x
        return out


def line(points, colour, dashed=False):
    path = ' '.join(f'{"L" if i else "M"}{x:.1f} {y:.1f}' for i, (x, y) in enumerate(points))
    dash = ' stroke-dasharray="5 4"' if dashed else ''
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'


def powers_of_ten(cases):
    """The decades that hold all times of a row of panels, so that its panels can be compared."""
    times = [us for case in cases for us in list(case['median_us'].values()) + [case['bound_us']] if us]
    return (math.floor(math.log10(min(times))), math.ceil(math.log10(max(times) * 1.0001))) if times else (0, 1)


def panel(axes, cases, libraries, title):
    out = axes.draw(sorted(case['bytes'] for case in cases), title)
    bounds = [axes.place(case['bytes'], case['bound_us']) for case in cases if case['bound_us']]
    if bounds:
        out.append(line(bounds, '#000', dashed=True))
    for index, one in reversed(list(enumerate(libraries))): # hocket last, on top
        colour = COLOURS[index % len(COLOURS)]
        points = [axes.place(case['bytes'], case['median_us'][one['key']])
                  for case in cases if one['key'] in case['median_us']]
        if points:
            out.append(line(points, colour))
            out += [mark(index, px, py, colour) for px, py in points]
    return out


def legend(libraries):
    out, x = [], LEFT
    for index, one in enumerate(libraries):
        colour = COLOURS[index % len(COLOURS)]
        out += [line([(x, 52), (x + 26, 52)], colour), mark(index, x + 13, 52, colour),
                label(x + 32, 56, one['name'], 'start', 12)]
        x += 50 + 8 * len(one['name'])
    return out + [line([(x, 52), (x + 26, 52)], '#000', dashed=True), label(x + 32, 56, 'physical bound', 'start', 12)]


def svg(result):
    colls = [name for name in dict.fromkeys(case['coll'] for case in result['cases']) if name != 'barrier']
    all_ranks = sorted({case['ranks'] for case in result['cases']})
    width = LEFT + max(len(colls), 2) * (PANEL_WIDTH + GAP_X)
    height = TOP + len(all_ranks) * (PANEL_HEIGHT + GAP_Y)
    machine = result['machine']
    about = f"{machine['cpu']}, {machine['cores']} cores; {result['when'][:10]}; lower is better"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" role="img">', '<title>Time of collectives over size</title>',
           f'<desc>{escape(result["command"])}; {escape(about)}</desc>',
           f'<rect width="{width}" height="{height}" fill="#fff"/>',
           label(LEFT, 26, 'Time per call over size of the larger buffer of a rank', 'start', 16, '#000'),
           label(width - 20, 26, about, 'end', 12)]
    out += legend(result['libraries'])
    for row, ranks in enumerate(all_ranks):
        of_row = [case for case in result['cases'] if case['ranks'] == ranks and case['bytes'] > 0]
        for column, coll in enumerate(colls):
            cases = [case for case in of_row if case['coll'] == coll]
            if cases:
                axes = Axes(LEFT + column * (PANEL_WIDTH + GAP_X), TOP + row * (PANEL_HEIGHT + GAP_Y),
                            [case['bytes'] for case in cases], powers_of_ten(of_row))
                out += panel(axes, cases, result['libraries'], f'{coll}, {ranks} ranks')
    return '\n'.join(out + ['</svg>']) + '\n'
