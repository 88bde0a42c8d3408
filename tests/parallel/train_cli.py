#!/usr/bin/env python3
"""What could break: hocket train does not learn, or writes no curve; a wrong call is not refused at once with its numbers and
exit code 2; another layout learns other pieces of text; a run that is killed at any moment leaves no checkpoint to resume from;
hocket generate does not read what train wrote, or what transformers wrote, or chooses other tokens than it; a checkpoint is not what
transformers reads; a trace shows less than what happened, or something else. Usage: train_cli.py HOCKET"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

HOCKET = sys.argv[1]
# A GPT-2 that transformers saved, with its greedy answers (tests/parallel/oracle.py).
HF_GPT2 = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'golden', 'oracle', 'hf_gpt2')
TINY = ['--layers', '2', '--hidden', '16', '--heads', '2', '--seq', '16', '--batch', '4', '--eval-batches', '1']
DEADLINE_S = 100
failures = []


def run(ranks, *args):
    command = ([HOCKET, 'run', '-n', str(ranks), '--'] if ranks else []) + [HOCKET] + list(args)
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, errors='replace')


def require(ok, what, result=None):
    if not ok:
        failures.append(what)
        print('FAILED:', what)
        if result is not None:
            print(result.args, result.returncode, result.stdout[-1500:], result.stderr[-1500:], sep='\n')


def loss_falls(folder):
    log, curve = os.path.join(folder, 'log.json'), os.path.join(folder, 'curve.svg')
    result = run(4, 'train', '--dp', '2', '--tp', '2', '--zero', '1', '--steps', '30', '--hidden', '64', '--layers', '2',
                 '--save', os.path.join(folder, 'model'), '--json', log, '--svg', curve)
    require(result.returncode == 0, 'the README example in small', result)
    if result.returncode != 0:
        return
    with open(log, encoding='utf-8') as file:
        data = json.load(file)
    steps = data['steps']
    require(len(steps) == 30 and steps[-1]['loss'] < steps[0]['loss'] - 1, 'the loss falls by more than 1', result)
    require(0 < steps[-1]['held_out_loss'] < steps[0]['loss'] - 1, 'the held-out loss falls too', result)
    require(data['run']['mesh'] == 'tp:2 dp:2 pp:1' and data['bytes_of_rank_0']['dp'] > 0 and
            data['bytes_of_rank_0']['tp'] > 0 and data['bytes_of_rank_0']['pp'] == 0, 'the log says what was sent', result)
    sent = data['bytes_of_the_last_step']
    require(all(row['counted'] == row['by_formula'] for row in sent.values()) and sent['dp']['counted'] > 0 and
            sent['tp']['counted'] > 0 and sent['scalars']['counted'] > 0, f'what was sent is what formulas say: {sent}', result)
    held = data['memory_of_the_last_step']
    require(all(row['counted'] == row['by_formula'] for row in held.values()) and held['activations']['counted'] > 0 and
            held['optimizer']['counted'] > 0, f'what was held is what formulas say: {held}', result)
    require('by formula' in result.stdout, 'it is printed beside', result)
    require(data['peak_memory_of_rank_0']['optimizer'] > 0, 'the log says what was held', result)
    require('polyline' in xml.dom.minidom.parse(curve).toxml(), 'the curve is SVG')
    lines = [line for line in result.stdout.splitlines() if 'held out' in line or 'tokens/s' in line]
    require(len(lines) >= 2, 'progress is printed', result)


def traces(folder):
    """Every rank shows what it computed, on its stream and between; nothing overlaps without a stream."""
    where, log = os.path.join(folder, 'trace.json'), os.path.join(folder, 'traced.json')
    for layout, axes, has_stream in ((['--dp', '2', '--pp', '2'], {'dp', 'pp', 'scalars'}, True),
                                     (['--dp', '2', '--tp', '2', '--no-overlap'], {'dp', 'tp', 'scalars'}, False)):
        result = run(4, 'train', '--steps', '4', '--trace', where, '--json', log, *layout, *TINY)
        require(result.returncode == 0, 'a traced run', result)
        if result.returncode != 0:
            return
        with open(where, encoding='utf-8') as file:
            spans = [event for event in json.load(file)['traceEvents'] if event['ph'] == 'X']
        with open(log, encoding='utf-8') as file:
            waited = json.load(file)['waited_seconds_of_rank_0']
        require({span['pid'] for span in spans} == {0, 1, 2, 3}, 'a process a rank')
        require(all(span['ts'] >= 0 and span['dur'] >= 0 for span in spans), 'times count from the beginning of the trace')
        for rank in range(4):
            here = [span for span in spans if span['pid'] == rank]
            require(sum(span['name'] == 'update' for span in here) == 3, 'the last three steps of four')
            require({span['args']['axis'] for span in here if 'args' in span} == axes, f'communication of {axes}')
            require(any(span['cat'] == 'stream' for span in here) == has_stream, f'a stream: {has_stream}')
            require(all((span['tid'] == 1) == (span['cat'] == 'stream') for span in here), 'streams have their own thread')
        require(all((waited[axis] > 0) == (axis in axes) for axis in waited), f'waited for {axes}, not {waited}')


def generates(folder):
    texts = set()
    for ranks in (0, 2, 4):
        result = run(ranks, 'generate', '--from', os.path.join(folder, 'model'), '--temperature', '0', '--tokens', '40')
        require(result.returncode == 0 and result.stdout.startswith('The ') and len(result.stdout) == 45, 'a text of 40 bytes',
                result)
        texts.add(result.stdout)
    require(len(texts) == 1, 'the same text on any number of ranks')
    result = run(0, 'generate', '--from', os.path.join(folder, 'model'), '--tokens', '100')
    require(result.returncode == 1 and 'after the prompt of 4 and 60 more all 64 positions are used' in result.stderr and
            result.stdout == '', 'more than it has positions for', result)
    result = run(2, 'generate', '--temperature', 'hot', '--from', 'x')
    require(result.returncode == 2 and result.stderr.count('--temperature does not take "hot"; it takes a number from 0') == 1,
            'generate says what an option takes, once', result)
    result = run(0, 'generate', '--from', os.path.join(folder, 'nothing'))
    require(result.returncode == 1 and 'holds no checkpoint' in result.stderr, 'no checkpoint', result)


def answers_as_transformers(_):
    with open(os.path.join(HF_GPT2, 'greedy.json'), encoding='utf-8') as file:
        answers = json.load(file)
    for number, answer in enumerate(answers):
        ids, want = ','.join(map(str, answer['prompt'])), ' '.join(map(str, answer['tokens'])) + '\n'
        for ranks in (0, 2, 4) if number == 1 else (0,):
            result = run(ranks, 'generate', '--from', HF_GPT2, '--ids', ids, '--temperature', '0', '--tokens',
                         str(len(answer['tokens'])))
            require(result.returncode == 0 and result.stdout == want, f'{ids} on {ranks or 1}: {want}', result)
    for ids in ('5,', 'five', '5,,6', '-1', ''):
        result = run(0, 'generate', '--from', HF_GPT2, '--ids', ids)
        require(result.returncode == 2 and 'does not take' in result.stderr, f'"{ids}" is no list', result)
    result = run(0, 'generate', '--from', HF_GPT2, '--ids', '60,61')
    require(result.returncode == 1 and 'there is no token 61; the model has 61' in result.stderr, 'no such token', result)


def read_header(folder):
    with open(os.path.join(folder, 'model.safetensors'), 'rb') as file:
        return json.loads(file.read(int.from_bytes(file.read(8), 'little')))


def is_hugging_faces(folder):
    """Whether config.json and the tensors' names and shapes are those of transformers' GPT2LMHeadModel, no more and no less."""
    with open(os.path.join(folder, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    wide, inner = config['n_embd'], config['n_inner'] or 4 * config['n_embd']
    want = {'wte.weight': [config['vocab_size'], wide], 'wpe.weight': [config['n_positions'], wide],
            'ln_f.weight': [wide], 'ln_f.bias': [wide]}
    for layer in range(config['n_layer']):
        for name, shape in (('ln_1', [wide]), ('ln_2', [wide]), ('attn.c_attn', [wide, 3 * wide]), ('attn.c_proj', [wide, wide]),
                            ('mlp.c_fc', [wide, inner]), ('mlp.c_proj', [inner, wide])):
            want[f'h.{layer}.{name}.weight'], want[f'h.{layer}.{name}.bias'] = shape, shape[-1:]
    got = {name: tensor['shape'] for name, tensor in read_header(folder).items() if name != '__metadata__'}
    return got == {'transformer.' + name: shape for name, shape in want.items()} and config['model_type'] == 'gpt2'


def is_read_by_transformers(folder):
    """With nothing of ours in the header the model is the same: config.json says it all. Loaded by transformers: by hand, in
    oracle.py."""
    with open(os.path.join(folder, 'model', 'latest'), encoding='utf-8') as file:
        saved = os.path.join(folder, 'model', file.read().strip())
    require(is_hugging_faces(HF_GPT2), 'what transformers writes is what is expected of us')
    require(is_hugging_faces(saved), 'names and shapes as transformers has them')
    header, bare = read_header(saved), os.path.join(folder, 'bare')
    require(header.pop('__metadata__')['format'] == 'pt', 'the format that transformers asks for')
    os.mkdir(bare)
    shutil.copy(os.path.join(saved, 'config.json'), bare)
    with open(os.path.join(saved, 'model.safetensors'), 'rb') as file:
        file.seek(int.from_bytes(file.read(8), 'little'), 1)
        data, text = file.read(), json.dumps(header).encode()
    with open(os.path.join(bare, 'model.safetensors'), 'wb') as file:
        file.write(len(text).to_bytes(8, 'little') + text + data)
    texts = [run(0, 'generate', '--from', where, '--tokens', '40').stdout for where in (saved, bare)]
    require(len(texts[0]) > 5 and texts[0] == texts[1], f'the same text without our header: {texts}')
    result = run(0, 'train', '--weights', bare, '--hidden', '64', '--layers', '2', '--heads', '2', '--steps', '1')
    require(result.returncode == 1 and 'has 4 heads, this one has 2' in result.stderr, 'other heads', result)
    again = os.path.join(folder, 'again')
    result = run(4, 'train', '--weights', bare, '--tp', '2', '--dp', '2', '--zero', '3', '--lr', '0', '--steps', '1', '--save', again)
    require(result.returncode == 0 and 'zero 3 gathers each layer 16 times a step (--keep-gathered: half as often)' in result.stdout,
            'a step of a model whose shape is in config.json, and what it costs', result)
    with open(os.path.join(again, 'step-00000001', 'model.safetensors'), 'rb') as file:
        file.seek(int.from_bytes(file.read(8), 'little'), 1)
        require(file.read() == data, 'there and back through another layout, to the last bit')
    os.remove(os.path.join(bare, 'config.json'))
    result = run(0, 'generate', '--from', bare)
    require(result.returncode == 1 and 'does not say what its model' in result.stderr, 'no shape anywhere', result)


def learns_pieces(folder):
    where = os.path.join(folder, 'pieces')
    args = ['train', *TINY, '--attention-dropout', '0.1', '--save', where]
    result = run(2, *args, '--dp', '2', '--tokens', 'bpe:300', '--steps', '2')
    require(result.returncode == 0 and 'tokens of a vocabulary of 300' in result.stdout, 'tokens are pieces of bytes', result)
    result = run(2, *args, '--tp', '2', '--tokens', 'bpe:300', '--steps', '3', '--resume', where)
    require(result.returncode == 0, 'the same text gives the same pieces in another layout', result)
    result = run(0, *args, '--tokens', os.path.join(where, 'step-00000003'), '--steps', '4', '--resume', where)
    require(result.returncode == 0, "a checkpoint's pieces", result)
    for tokens, why in (('bpe:299', 'has another vocabulary than this run'), ('bytes', 'was trained on pieces of a vocabulary'),
                        ('bpe:many', 'after bpe: stands a number'), ('/nonexistent', '/nonexistent/vocab.json cannot be read')):
        result = run(0, *args, '--tokens', tokens, '--steps', '5', '--resume', where)
        require(result.returncode != 0 and why in result.stderr, f'--tokens {tokens}: "{why}"', result)
    result = run(0, *args, '--tokens', 'bpe:300', '--resume', where, '--steps', '4')
    require(result.returncode == 1 and 'is of step 4, and --steps 4 is where to end' in result.stderr, 'nothing is left to do', result)
    texts = {run(ranks, 'generate', '--from', where, '--temperature', '0', '--prompt', 'GNU é', '--tokens', '5').stdout
             for ranks in (0, 2)}
    require(len(texts) == 1 and texts.pop().startswith('GNU é'), 'a text of pieces, on one rank and on two')


def refuses():
    for ranks, args, code, why in [
            (2, ['--dp', '4'], 2, 'there are 2 ranks; dp 2 would fit'),
            (3, ['--dp', '3'], 2, '--batch 16 does not divide by --dp 3; 18'),
            (2, ['--dp', '2', '--micro-batches', '3'], 2, 'does not divide by --dp 2 times --micro-batches; 18'),
            (3, ['--tp', '3'], 2, '4 heads do not divide by tp 3; tp 2 or 4'),
            (5, ['--pp', '5'], 2, '4 layers cannot fill pp 5'),
            (2, ['--pp', '2', '--stages', '4'], 2, '--stages names 1, but there are 2'),
            (2, ['--pp', '2', '--stages', '1,2'], 2, 'the 2 stages have 3 layers, the model has 4'),
            (0, ['--stages', '1,'], 2, '--stages does not take "1,"'),
            (0, ['--zero', '4'], 2, '--zero does not take "4"'),
            (0, ['--lr', 'much'], 2, '--lr does not take "much"'),
            (0, ['--schedule', 'forward'], 2, '--schedule does not take'),
            (0, ['--bucket', '0'], 2, 'it takes bytes, as 65536, 64K or 4M'),
            (0, ['--prefetch', '17'], 2, 'it takes a number from 0 to 16'),
            (0, ['--shard', '1'], 2, '--shard without --zero 1, 2 or 3'),
            (0, ['--top-k', '2'], 2, '--experts N'),
            (2, ['--dp', '2', '--svg', '/nonexistent/x.svg'], 1, '/nonexistent/x.svg cannot be written: No such file'),
            (0, ['--layers'], 2, '--layers needs a value'),
            (0, ['--lairs', '3'], 2, 'there is no option --lairs'),
            (0, ['more'], 2, 'one argument too many'),
            (0, ['--data', '/nonexistent'], 1, '/nonexistent cannot be read'),
            (0, ['--resume', '/nonexistent'], 1, 'holds no checkpoint')]:
        result = run(ranks, 'train', *args)
        require(result.returncode == code and why in result.stderr,
                f'{" ".join(args)} on {ranks or 1}: exit {code}, "{why}"', result)
        require(result.stderr.count(why) == 1, f'{" ".join(args)}: it is said once', result)
    result = run(0, 'train', '--help')
    require(result.returncode == 0 and '--zero' in result.stdout, '--help', result)


def survives_kill(folder):
    """Steps are quick and each is saved, so most kills meet a save in progress."""
    where, seed = os.path.join(folder, 'killed'), random.randrange(1 << 30)
    choose = random.Random(seed)
    print('kill seed', seed)
    before = 0
    for round_number in range(4):
        args = ['train', '--dp', '2', '--zero', '2', '--steps', '1000000', '--save', where, '--save-every', '1', *TINY]
        if round_number:
            args += ['--resume', where]
        # A session of its own, so that all ranks can be killed at once.
        job = subprocess.Popen([HOCKET, 'run', '-n', '2', '--', HOCKET, *args], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, start_new_session=True)
        ranks = lambda: [int(pid) for pid in os.listdir('/proc') if pid.isdigit() and is_rank(pid, where)]
        end = time.monotonic() + DEADLINE_S
        while latest(where) <= before and job.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(choose.random() * 0.1)
        for pid in ranks():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _, err = job.communicate(timeout=DEADLINE_S)
        after = latest(where)
        require(after > before, f'round {round_number}: a checkpoint after {before}, not {after}: {err[-500:]!r}')
        before = after
    result = run(1, 'train', '--resume', where, '--steps', str(before + 1), *TINY)
    require(result.returncode == 0, 'what a kill left can be resumed in another layout', result)


def is_rank(pid, where):
    """A rank of our own job: its environment says so, and its command names our folder."""
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as file:
            words = file.read().split(b'\0')
        with open(f'/proc/{pid}/environ', 'rb') as file:
            return where.encode() in words and b'train' in words and b'HOCKET_RANK=' in file.read()
    except OSError:
        return False


def latest(where):
    try:
        with open(os.path.join(where, 'latest'), encoding='utf-8') as file:
            return int(file.read().removeprefix('step-'))
    except (OSError, ValueError):
        return 0


with tempfile.TemporaryDirectory(prefix='hocket-test-') as temporary:
    for part in (lambda _: refuses(), loss_falls, traces, generates, is_read_by_transformers, answers_as_transformers,
                 learns_pieces, survives_kill):
        begin = time.monotonic()
        part(temporary)
        print(f'{time.monotonic() - begin:.1f} s')
sys.exit(1 if failures else 0)
