#!/usr/bin/env python3
"""An independent oracle for the reference transformer: the same models written here from their formulas with PyTorch, which also
makes the gradients; and Hugging Face's GPT-2. Not part of ./check: it needs torch, transformers and safetensors from PyPI, and
is run by hand when a model changes. What it writes is committed, so the tests need none of these.

  oracle.py write FOLDER            makes FOLDER/NAME/model.safetensors of the models below (weights, tokens, loss, logits, all
                                    gradients, in f64), and FOLDER/hf_gpt2, saved by transformers, with its greedy answers.
                                    FOLDER is tests/golden/oracle. tests/parallel/test_oracle.c and train_cli.py read them.
  oracle.py exported HOCKET LIBRARY checks the other way: a checkpoint of `hocket train` is loaded by transformers, strictly, and
                                    has the logits that libhocket_parallel.so has. Prints the differences.

Nothing below looks at hocket's sources: matrices are as in Hugging Face's GPT-2 files (x @ W, W is [in][out]; q, k and v side by
side), the router's is [experts][in] as torch.nn.Linear has it."""
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_file

SEQ, MICRO_BATCH, MICROS = 6, 2, 2
BASE = {'layers': 2, 'heads': 4, 'kv_heads': 4, 'experts': 0, 'top_k': 0, 'hidden': 12, 'head_dim': 3, 'ffn': 11, 'vocab': 23,
        'positions': 0, 'gated': 0, 'biases': 0, 'tied': 0, 'dense_layers': 0, 'dense_ffn': 11, 'norm': 0,
        'capacity': 0.0, 'balance': 0.0, 'z': 0.0, 'renormalise': 1}
GPT2 = dict(BASE, positions=9, biases=1, tied=1)
LLAMA = dict(BASE, kv_heads=2, hidden=10, head_dim=6, gated=1, norm=1)
MODELS = {
    'gpt2': GPT2,
    'llama': LLAMA,
    # Experts behind a dense layer; no limit on how many tokens one takes.
    'experts': dict(LLAMA, biases=1, experts=4, top_k=2, ffn=7, dense_layers=1, balance=0.1, z=0.01),
    # A limit that drops choices, weights as the router gives them, experts without gates.
    'drops': dict(GPT2, experts=3, top_k=2, ffn=7, capacity=1.0, balance=0.05, z=0.02, renormalise=0),
}


def shapes(c):
    """Names and shapes of all tensors."""
    h, queries, keys = c['hidden'], c['heads'] * c['head_dim'], c['kv_heads'] * c['head_dim']
    out = {'transformer.wte.weight': (c['vocab'], h), 'transformer.ln_f.weight': (h,)}
    biases = {'transformer.ln_f.bias': (h,)} if c['norm'] == 0 else {}
    if c['positions']:
        out['transformer.wpe.weight'] = (c['positions'], h)
    if not c['tied']:
        out['lm_head.weight'] = (c['vocab'], h)
    for layer in range(c['layers']):
        at = f'transformer.h.{layer}.'
        for norm in ('ln_1', 'ln_2'):
            out[f'{at}{norm}.weight'] = (h,)
            if c['norm'] == 0:
                biases[f'{at}{norm}.bias'] = (h,)
        for name, into, to in (('attn.c_attn', h, queries + 2 * keys), ('attn.c_proj', queries, h)):
            out[f'{at}{name}.weight'], biases[f'{at}{name}.bias'] = (into, to), (to,)
        sparse = c['experts'] > 0 and layer >= c['dense_layers']
        if sparse:
            out[f'{at}mlp.router.weight'] = (c['experts'], h)
        width = c['ffn'] if sparse or c['experts'] == 0 else c['dense_ffn']
        for mlp in [f'{at}mlp.experts.{e}.' for e in range(c['experts'])] if sparse else [f'{at}mlp.']:
            for name in ('c_gate', 'c_up') if c['gated'] else ('c_fc',):
                out[f'{mlp}{name}.weight'], biases[f'{mlp}{name}.bias'] = (h, width), (width,)
            out[f'{mlp}c_proj.weight'], biases[f'{mlp}c_proj.bias'] = (width, h), (h,)
    return dict(out, **biases) if c['biases'] else out


def norm(w, c, name, x):
    gain = w[name + '.weight']
    if c['norm'] == 1:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * gain + w.get(name + '.bias', 0)


def linear(w, name, x):
    return x @ w[name + '.weight'] + w.get(name + '.bias', 0)


def turn(x, positions):
    """Rotary positions: element i of the first half turns with element i of the second. x [batch][heads][seq][d]."""
    half = x.shape[-1] // 2
    angle = positions[:, None].to(x.dtype) * 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()), -1)


def attention(w, c, at, x):
    batch, seq, _ = x.shape
    d, queries, keys = c['head_dim'], c['heads'] * c['head_dim'], c['kv_heads'] * c['head_dim']
    heads = lambda t: t.reshape(batch, seq, -1, d).transpose(1, 2)
    q, k, v = (heads(t) for t in linear(w, at + 'attn.c_attn', x).split((queries, keys, keys), -1))
    if not c['positions']:
        q, k = turn(q, torch.arange(seq)), turn(k, torch.arange(seq))
    k, v = (t.repeat_interleave(c['heads'] // c['kv_heads'], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -math.inf)
    y = torch.softmax(scores, -1) @ v
    return linear(w, at + 'attn.c_proj', y.transpose(1, 2).reshape(batch, seq, queries))


def mlp(w, c, at, x):
    if c['gated']:
        gate = linear(w, at + 'c_gate', x)
        return linear(w, at + 'c_proj', gate * torch.sigmoid(gate) * linear(w, at + 'c_up', x))
    x = linear(w, at + 'c_fc', x)
    return linear(w, at + 'c_proj', 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))))


def experts(w, c, at, x, extra):
    """Each token goes to its top_k experts; first choices of all tokens come before second ones where room is short."""
    rows = x.reshape(-1, x.shape[-1])
    n, count, k = len(rows), c['experts'], c['top_k']
    logits = rows @ w[at + 'mlp.router.weight'].T
    probs = torch.softmax(logits, -1)
    gates, choice = probs.topk(k, -1)
    if c['renormalise']:
        gates = gates / gates.sum(-1, keepdim=True)
    chosen = torch.bincount(choice.flatten(), minlength=count).to(x.dtype)
    extra['balance'] += c['balance'] * count * ((chosen / (n * k)) * probs.mean(0)).sum()
    extra['z'] += c['z'] * (torch.logsumexp(logits, -1) ** 2).mean()
    room = [math.ceil(n * k / count * c['capacity']) if c['capacity'] else n * k] * count
    y = [torch.zeros_like(rows[0]) for _ in range(n)]
    for place in range(k):
        for t in range(n):
            e = int(choice[t, place])
            if room[e] > 0:
                room[e] -= 1
                y[t] = y[t] + gates[t, place] * mlp(w, c, f'{at}mlp.experts.{e}.', rows[t])
            else:
                extra['dropped'] += 1
    sorted_probs = probs.detach().sort(-1, descending=True).values
    extra['margin'] = min([extra['margin']] + (sorted_probs[:, :-1] - sorted_probs[:, 1:])[:, :k].flatten().tolist())
    return torch.stack(y).reshape(x.shape)


def forward(w, c, ids, extra):
    x = w['transformer.wte.weight'][ids]
    if c['positions']:
        x = x + w['transformer.wpe.weight'][:ids.shape[-1]]
    for layer in range(c['layers']):
        at = f'transformer.h.{layer}.'
        x = x + attention(w, c, at, norm(w, c, at + 'ln_1', x))
        between = norm(w, c, at + 'ln_2', x)
        sparse = c['experts'] > 0 and layer >= c['dense_layers']
        x = x + (experts(w, c, at, between, extra) if sparse else mlp(w, c, at + 'mlp.', between))
    head = w['transformer.wte.weight' if c['tied'] else 'lm_head.weight']
    return norm(w, c, 'transformer.ln_f', x) @ head.T


def run(weights, c, ids, targets, dtype):
    """Sums over the micro-batches, and gradients of loss + balance + z, the last two times the tokens that count."""
    w = {name: t.to(dtype).requires_grad_() for name, t in weights.items()}
    total = {'loss': 0.0, 'balance': 0.0, 'z': 0.0}
    logits, dropped, margin = [], 0, 1.0
    for micro_ids, micro_targets in zip(ids, targets):
        extra = {'balance': torch.zeros((), dtype=dtype), 'z': torch.zeros((), dtype=dtype), 'dropped': 0, 'margin': 1.0}
        out = forward(w, c, micro_ids, extra)
        counts = micro_targets >= 0
        log_probs = out - torch.logsumexp(out, -1, keepdim=True)
        loss = -log_probs[counts].gather(-1, micro_targets[counts][:, None]).sum()
        tokens = int(counts.sum())
        (loss + tokens * (extra['balance'] + extra['z'])).backward()
        total['loss'] += loss.item()
        total['balance'] += tokens * extra['balance'].item()
        total['z'] += tokens * extra['z'].item()
        logits.append(out.detach())
        dropped, margin = dropped + extra['dropped'], min(margin, extra['margin'])
    return w, total, torch.stack(logits), dropped, margin


def write_model(folder, name, c, seed):
    random = torch.Generator().manual_seed(seed)
    # Values that f32 holds, so that runs in f32 and f64 have the same ones; nothing is negligible.
    weights = {n: torch.randn(s, generator=random) * (0.1 if len(s) == 1 else 0.35) + (1 if n.endswith('.weight') and len(s) == 1
                                                                                       else 0) for n, s in shapes(c).items()}
    ids = torch.randint(0, c['vocab'], (MICROS, MICRO_BATCH, SEQ), generator=random)
    targets = torch.randint(0, c['vocab'], ids.shape, generator=random)
    targets[0, 1, 2:] = -1  # a sequence that ends early
    targets[1, 0, 0] = -1
    w, total, logits, dropped, margin = run(weights, c, ids, targets, torch.float64)
    narrow = run(weights, c, ids, targets, torch.float32)[0]
    worst = max((narrow[n].grad.double() - t.grad).abs().max().item() / max(t.grad.abs().max().item(), 1e-3) for n, t in w.items())
    tensors = {n: t.detach().contiguous() for n, t in w.items()}
    tensors.update({'grad.' + n: t.grad.contiguous() for n, t in w.items()})
    tensors.update({'logits': logits.contiguous(), 'ids': ids.int(), 'targets': targets.int(),
                    'losses': torch.tensor([total['loss'], total['balance'], total['z'], dropped], dtype=torch.float64)})
    metadata = {key: str(value) for key, value in c.items()}
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    path = os.path.join(folder, name, 'model.safetensors')
    save_file(tensors, path, metadata=dict(metadata, format='pt', seq=str(SEQ), micro_batch=str(MICRO_BATCH)))
    print(f'{name}: loss {total["loss"]:.6f}, balance {total["balance"]:.6f}, z {total["z"]:.6f}, {dropped} dropped, '
          f'least margin between experts {margin:.2g}, {os.path.getsize(path)} bytes; PyTorch in f32 is off by {worst:.2g}')


def greedy(model, ids, count):
    """The likeliest token each time, and the least distance from the second."""
    out, margin = list(ids), math.inf
    for _ in range(count):
        with torch.no_grad():
            first, second = model(torch.tensor([out])).logits[0, -1].topk(2)
        margin = min(margin, (first[0] - first[1]).item())
        out.append(int(second[0]))
    return out[len(ids):], margin


def write_hf(folder):
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(39)
    config = GPT2Config(vocab_size=61, n_positions=29, n_embd=20, n_layer=3, n_head=4, n_inner=None, initializer_range=0.3,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim == 1:  # biases and norms that are not at their start, so that a lost one shows
                tensor += 0.2 * torch.randn(tensor.shape)
        model.transformer.wpe.weight *= 3  # answers that are not one token again and again
    path = os.path.join(folder, 'hf_gpt2')
    model.save_pretrained(path)
    answers = []
    for prompt in ([7], [0, 60, 17, 3, 3, 42], list(range(5, 17))):
        tokens, margin = greedy(model, prompt, 16)
        answers.append({'prompt': prompt, 'tokens': tokens, 'margin': round(margin, 5)})
        print(f'hf_gpt2: {prompt} -> {tokens}, least margin {margin:.4f}')
    with open(os.path.join(path, 'greedy.json'), 'w', encoding='utf-8') as file:
        json.dump(answers, file)
        file.write('\n')
    generation = os.path.join(path, 'generation_config.json')
    if os.path.exists(generation):
        os.remove(generation)


class GenerateConfig(ctypes.Structure):
    """struct hkt_generate_config of hocket/generate.h."""
    _fields_ = [('dir', ctypes.c_char_p), ('dtype', ctypes.c_int), ('temperature', ctypes.c_double), ('top_k', ctypes.c_int),
                ('positions', ctypes.c_int64), ('seed', ctypes.c_uint64)]


def hocket_logits(library, path, dtype, ids):
    """Logits after each token, by libhocket_parallel."""
    lib, generator, value = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_int()
    lib.hkt_parallel_last_error.restype = ctypes.c_char_p
    lib.hkt_generator_vocab.restype = ctypes.c_int64
    assert lib.hkt_dtype_parse(dtype.encode(), ctypes.byref(value)) == 0
    config = GenerateConfig(dir=path.encode(), dtype=value.value)
    if lib.hkt_generator_create(ctypes.byref(config), None, ctypes.byref(generator)) < 0:
        sys.exit(lib.hkt_parallel_last_error().decode())
    out = (ctypes.c_double * lib.hkt_generator_vocab(generator))()
    rows = []
    for token in ids:
        assert lib.hkt_generator_prompt(generator, ctypes.byref(ctypes.c_int32(token)), ctypes.c_int64(1)) == 0
        assert lib.hkt_generator_logits(generator, out) == 0
        rows.append(list(out))
    lib.hkt_generator_destroy(generator)
    return torch.tensor(rows, dtype=torch.float64)


def exported(hocket, library):
    from transformers import GPT2LMHeadModel
    ids = list(b'The quick brown fox jumps over')
    for dtype, torch_dtype in (('float', torch.float32), ('double', torch.float64)):
        with tempfile.TemporaryDirectory(prefix='hocket-oracle-') as folder:
            subprocess.run([hocket, 'run', '-n', '4', '--', hocket, 'train', '--tp', '2', '--dp', '2', '--zero', '3', '--dtype',
                            dtype, '--steps', '20', '--layers', '3', '--hidden', '48', '--heads', '4', '--save', folder],
                           check=True, stdout=subprocess.DEVNULL)
            with open(os.path.join(folder, 'latest'), encoding='utf-8') as file:
                path = os.path.join(folder, file.read().strip())
            model, info = GPT2LMHeadModel.from_pretrained(path, output_loading_info=True, dtype=torch_dtype)
            assert not any(info.values()), info  # no missing, unexpected or mismatched keys
            again = GPT2LMHeadModel(model.config).to(torch_dtype).eval()
            load_model(again, os.path.join(path, 'model.safetensors'), strict=True)
            with safe_open(os.path.join(path, 'model.safetensors'), 'pt') as file:
                kinds = {str(file.get_tensor(name).dtype) for name in file.keys()}
            with torch.no_grad():
                theirs, strict = model(torch.tensor([ids])).logits[0].double(), again(torch.tensor([ids])).logits[0].double()
            ours = hocket_logits(library, path, dtype, ids)
            assert torch.equal(theirs, strict)
            print(f'{dtype}: {kinds}, logits up to {theirs.abs().max():.3f}, largest difference '
                  f'{(ours - theirs).abs().max():.3g}')
            prompt = ','.join(map(str, ids))
            ask = [hocket, 'generate', '--from', path, '--ids', prompt, '--temperature', '0', '--tokens', '30', '--dtype', dtype]
            got = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
            tokens, margin = greedy(model, ids, 30)
            print(f'{dtype}: greedy tokens {"are the same" if list(map(int, got)) == tokens else "DIFFER"}, least margin '
                  f'{margin:.3g}')
            assert list(map(int, got)) == tokens


if len(sys.argv) == 3 and sys.argv[1] == 'write':
    for index, (model_name, shape) in enumerate(MODELS.items()):
        write_model(sys.argv[2], model_name, shape, 11 + index)
    write_hf(sys.argv[2])
elif len(sys.argv) == 4 and sys.argv[1] == 'exported':
    exported(sys.argv[2], sys.argv[3])
else:
    sys.exit(__doc__)
