#!/usr/bin/env python3
"""Translates nvcc's PTX to C++ for the engine, so that what the compiler really made of the kernels, inline PTX included,
runs on the CPU. Registers become variables, labels stay labels; a backward branch over a load of a flag lets others run.
What it does not know is an error: an instruction nobody has thought of cannot slip through.

Source: NVIDIA, Parallel Thread Execution ISA, version 9.0. Usage: translate.py KERNEL_REGEX PTX... > CPP"""
import re
import sys

C_TYPES = {'pred': 'bool', 'f32': 'float', 'f64': 'double'}
for bits in (8, 16, 32, 64):
    C_TYPES |= {f'u{bits}': f'uint{bits}_t', f'b{bits}': f'uint{bits}_t', f's{bits}': f'int{bits}_t'}
SPECIAL = {'%tid': 'emu_self->index', '%ctaid': 'emu_self->block->index', '%ntid': 'emu_self->block->grid->threads',
           '%nctaid': 'emu_self->block->grid->blocks'}
ARITHMETIC = {'add': '+', 'sub': '-', 'mul': '*', 'and': '&', 'or': '|', 'xor': '^'}
COMPARE = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>='}
ORDERS = {'acquire': '__ATOMIC_ACQUIRE', 'release': '__ATOMIC_RELEASE', 'relaxed': '__ATOMIC_RELAXED'}


class Unknown(Exception):
    pass


def width(t):
    return int(t[1:])


def unsigned(t):
    return C_TYPES[t] if t[0] == 'f' or t == 'pred' else f'uint{width(t)}_t'


class Kernel:
    def __init__(self, name):
        self.name = name
        self.params, self.param_bytes = {}, 0
        self.shared, self.shared_bytes = {}, 0
        self.registers, self.statements, self.lines = [], [], []

    def operand(self, x, t):
        """An operand as a C++ expression of type t."""
        c = C_TYPES[t]
        if re.fullmatch(r'-?\d+', x):
            return f'{c}({int(x) % 2**64}ull)'
        if re.fullmatch(r'0[fF][0-9a-fA-F]{8}', x):
            return f'as<{c}>(uint32_t(0x{x[2:]}))'
        if re.fullmatch(r'0[dD][0-9a-fA-F]{16}', x):
            return f'as<{c}>(uint64_t(0x{x[2:]}))'
        special = re.fullmatch(r'(%\w+)\.([xyz])', x)
        if special and special[1] in SPECIAL:
            return f'{c}({SPECIAL[special[1]]}.{special[2]})'
        if re.fullmatch(r'%([a-z]+\d+|tmp)', x):
            return f'as<{c}>({x[1:]})'
        if x in self.params:
            return f'uint64_t(params + {self.params[x]})'
        if x in self.shared:
            return f'{c}({self.shared[x]})'
        raise Unknown(f'operand {x}')

    def address(self, x, is_shared):
        parts = re.fullmatch(r'\[([^\s+\]]+)(?:\+(-?\d+))?\]', x)
        if not parts:
            raise Unknown(f'address {x}')
        base = self.operand(parts[1], 'u32' if is_shared else 'u64')
        return f'{"shared + " if is_shared else ""}{"" if is_shared else "(char *)"}({base} + {parts[2] or 0})'

    def access(self, words, args):
        """ld and st, vectors and flags included."""
        is_load, t = words[0] == 'ld', words[-1]
        where, values = (args[1], args[0]) if is_load else (args[0], args[1])
        values = [value.strip() for value in values.strip('{}').split(',')]
        order = next((ORDERS[word] for word in words if word in ORDERS), None)
        step, c = width(t) // 8, C_TYPES[t]
        code = [f'char *at = {self.address(where, "shared" in words)};']
        if len(values) > 1:
            code.append(f'emu_check_access(at, {step * len(values)});')
        for i, value in enumerate(values):
            place = f'reinterpret_cast<{c} *>(at + {i * step})'
            if is_load:
                code.append(f'{c} x{i}; ' + (f'__atomic_load({place}, &x{i}, {order});' if order else
                                             f'x{i} = *{place};'))
            else:
                code.append(f'{c} x{i} = {self.operand(value, t)}; ' +
                            (f'__atomic_store({place}, &x{i}, {order});' if order else f'*{place} = x{i};'))
        if is_load: # all read before any is written: the address may be one of the registers
            code += [f'set({value[1:]}, x{i});' for i, value in enumerate(values)]
        return ' '.join(code)

    def move(self, t, args):
        dst, src = args
        if dst.startswith('{'):
            parts = [part.strip() for part in dst.strip('{}').split(',')]
            bits = width(t) // len(parts)
            return f'const auto whole = {self.operand(src, t)}; ' + ' '.join(
                f'set({part[1:]}, uint{bits}_t(whole >> {bits * i}));' for i, part in enumerate(parts) if part != '_')
        if src.startswith('{'):
            parts = [part.strip() for part in src.strip('{}').split(',')]
            bits = width(t) // len(parts)
            return f'set({dst[1:]}, {C_TYPES[t]}(' + ' | '.join(
                f'{C_TYPES[t]}({self.operand(part, f"u{bits}")}) << {bits * i}' for i, part in enumerate(parts)) + '));'
        return f'set({dst[1:]}, {self.operand(src, t)});'

    def convert(self, words, args):
        to, source = words[-2], words[-1]
        if words[1:] == ['f32', 'f16']:
            return f'f32_of_f16({self.operand(args[1], "u16")})'
        if words[1:] == ['rn', 'f16', 'f32']:
            return f'to_small({self.operand(args[1], "f32")}, HKT_F16)'
        if words[1:] == ['rn', 'bf16', 'f32']:
            return f'to_small({self.operand(args[1], "f32")}, HKT_BF16)'
        if to in C_TYPES and source in C_TYPES and (source[0] != 'f' or to[0] == 'f'):
            return f'{C_TYPES[to]}({self.operand(args[1], source)})'
        raise Unknown('.'.join(words))

    def compare(self, words, args):
        t, how = words[-1], words[1]
        a, b = self.operand(args[1], t), self.operand(args[2], t)
        if how in ('nan', 'num'):
            return f'{"" if how == "num" else "!"}({a} == {a} && {b} == {b})'
        if how in COMPARE and (t[0] != 'f' or how != 'ne'):
            return f'{a} {COMPARE[how]} {b}'
        if how[:-1] in COMPARE and how[-1] == 'u': # or unordered
            return f'!({a} == {a} && {b} == {b}) || {a} {COMPARE[how[:-1]]} {b}'
        raise Unknown('.'.join(words))

    def value(self, words, args):
        """What an instruction that sets one register sets it to."""
        name, t = words[0], words[-1]
        x = [self.operand(arg, t) if name not in ('cvt', 'setp', 'selp', 'cvta') else None for arg in args[1:]]
        if name in ARITHMETIC and 'wide' not in words and 'hi' not in words:
            u = unsigned(t)
            return f'{u}({u}({x[0]}) {ARITHMETIC[name]} {u}({x[1]}))'
        if name == 'mul' and 'wide' in words:
            wide = C_TYPES[f'{t[0]}{2 * width(t)}']
            return f'{wide}({wide}({x[0]}) * {wide}({x[1]}))'
        if name in ('mad', 'fma') and t[0] != 'f' and 'lo' in words:
            u = unsigned(t)
            return f'{u}({u}({x[0]}) * {u}({x[1]}) + {u}({x[2]}))'
        if name in ('div', 'rem') and (t[0] != 'f' or 'rn' in words):
            return f'{C_TYPES[t]}({x[0]} {"/" if name == "div" else "%"} {x[1]})'
        if name in ('min', 'max') and t[0] != 'f':
            return f'{x[0]} {"<" if name == "min" else ">"} {x[1]} ? {x[0]} : {x[1]}'
        if name in ('not', 'neg'):
            return f'{C_TYPES[t]}({"!" if t == "pred" else "~" if name == "not" else "-"}{x[0]})'
        if name in ('shl', 'shr'):
            return f'shifted_{"left" if name == "shl" else "right"}<{C_TYPES[t]}>({x[0]}, {self.operand(args[2], "u32")})'
        if words == ['shf', 'r', 'wrap', 'b32']:
            return f'funnel_right({x[0]}, {x[1]}, {x[2]})'
        if words == ['prmt', 'b32']:
            return f'permuted({x[0]}, {x[1]}, {x[2]})'
        if name == 'bfi':
            return f'inserted<{C_TYPES[t]}>({x[0]}, {x[1]}, {self.operand(args[3], "u32")}, {self.operand(args[4], "u32")})'
        if name == 'setp':
            return self.compare(words, args)
        if name == 'selp':
            return f'{self.operand(args[3], "pred")} ? {self.operand(args[1], t)} : {self.operand(args[2], t)}'
        if name == 'cvta': # memory of the block as others see it: from its number to its address
            return ('uint64_t(shared) + ' if words[1] == 'shared' else '') + self.operand(args[1], 'u64')
        if name == 'cvt':
            return self.convert(words, args)
        raise Unknown('.'.join(words))

    def instruction(self, text, at, labels, flags):
        parts = re.fullmatch(r'(?:@(!?)%(p\d+)\s+)?([a-z][\w.:]*)\s*(.*)', text, re.S)
        if not parts:
            raise Unknown(text)
        words = parts[3].replace('::', '.').split('.')
        args = [arg.strip() for arg in re.findall(r'\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*', parts[4])]
        if words[0] in ('ret', 'exit'):
            code = 'return;'
        elif words[0] == 'bra':
            back = labels[args[0]]
            code = ('emu_spin(); ' if back <= at and any(flags[back:at]) else '') + f'goto {args[0].replace("$", "")};'
        elif words[:2] == ['bar', 'sync'] and args == ['0']:
            code = 'emu_barrier();'
        elif words[0] in ('ld', 'st'):
            code = self.access(words, args)
        elif words[0] == 'mov':
            code = self.move(words[-1], args)
        else:
            code = f'set({args[0][1:]}, {self.value(words, args)});'
        self.lines.append(f'    {"if (" + parts[1] + parts[2] + ") " if parts[2] else ""}{{ {code} }}')

    def translate(self):
        labels = {text[:-1]: i for i, text in enumerate(self.statements) if text.endswith(':')}
        flags = [bool(re.search(r'\bld\.(acquire|relaxed)\S*\.[ub]\d+', text)) for text in self.statements]
        for i, text in enumerate(self.statements):
            if text.endswith(':'):
                self.lines.append(f'{text.replace("$", "")};')
            else:
                self.instruction(text, i, labels, flags)

    def declare(self, text):
        """A directive of the body. Returns whether it was one."""
        register = re.fullmatch(r'\.reg\s+\.(\w+)\s+%(\w+)<(\d+)>', text)
        if register:
            names = ', '.join(f'{register[2]}{i}{{}}' for i in range(int(register[3])))
            self.registers.append(f'    {C_TYPES[register[1]]} {names};')
            return True
        if text == '.reg .b64 %tmp': # of a cvta; one for all of them
            if '    uint64_t tmp{};' not in self.registers:
                self.registers.append('    uint64_t tmp{};')
            return True
        shared = re.fullmatch(r'\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]', text)
        if shared:
            align = int(shared[1])
            self.shared_bytes = (self.shared_bytes + align - 1) // align * align
            self.shared[shared[2]] = self.shared_bytes
            self.shared_bytes += int(shared[3])
            return True
        if text.startswith(('.pragma', '.loc')):
            return True
        if text.startswith('.'):
            raise Unknown(text)
        return False

    def write(self):
        print(f'static void run_{self.name}(const void *packed)\n{{')
        print('    char *params = (char *)packed, *shared = emu_self->block->shared;')
        print(*self.registers, sep='\n')
        print('    (void)params;\n    (void)shared;')
        print(*self.lines, sep='\n')
        print('}')
        copies = ' '.join(f'memcpy((char *)out + {at}, params[{i}], {size});' for i, (at, size) in enumerate(self.sizes))
        print(f'static void pack_{self.name}(void **params, void *out) {{ {copies} }}')
        print(f'static emu_kernel kernel_{self.name} = {{(const void *)run_{self.name}, {self.param_bytes}, '
              f'pack_{self.name}, run_{self.name}, "{self.name}", {self.shared_bytes}, nullptr}};')
        print(f'static const bool is_listed_{self.name} = (emu_register_kernel(&kernel_{self.name}), true);')

    sizes = ()


def kernels(path, wanted):
    with open(path, encoding='utf-8') as file:
        source = re.sub(r'//[^\n]*', '', file.read())
    if re.search(r'^\s*(\.visible\s+)?\.func', source, re.M):
        raise Unknown('.func: the kernels call nothing that is not inlined')
    common = re.findall(r'^(\.shared\s[^;]*);', source, re.M) # of all kernels of the file
    for entry in re.finditer(r'\.entry\s+(\w+)\(([^)]*)\)(.*?)^\{(.*?)^\}', source, re.S | re.M):
        if not re.search(wanted, entry[1]):
            continue
        kernel, sizes = Kernel(entry[1]), []
        for param in re.finditer(r'\.param\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]', entry[2]):
            kernel.params[param[2]] = kernel.param_bytes
            sizes.append((kernel.param_bytes, int(param[3])))
            kernel.param_bytes += int(param[3])
        kernel.sizes = sizes
        for text in common:
            kernel.declare(text)
        if len(sizes) != 1:
            raise Unknown(f'{entry[1]}: parameters {entry[2]}; a kernel takes one structure')
        body = re.sub(r'^(\$\w+):', r';\1:;', entry[4], flags=re.M)
        for text in re.split(r';', re.sub(r'^\s*[{}]\s*$', '', body, flags=re.M)):
            text = re.sub(r'\s+', ' ', text).strip().lstrip('{} ')
            if text and not kernel.declare(text):
                kernel.statements.append(text)
        kernel.translate()
        yield kernel


def main():
    print('#include "ptx_run.h"\n#pragma GCC diagnostic ignored "-Wunused-label"')
    count = 0
    for path in sys.argv[2:]:
        try:
            for kernel in kernels(path, sys.argv[1]):
                kernel.write()
                count += 1
        except Unknown as what:
            sys.exit(f'{path}: not known: {what}')
    if count == 0:
        sys.exit(f'no kernel matches {sys.argv[1]}')


main()
