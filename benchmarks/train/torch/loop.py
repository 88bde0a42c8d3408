#!/usr/bin/env python3
"""The model of `hocket train` as a plain PyTorch training loop: same shapes, same sequences, AdamW, clipping, learning rate.
Usage: loop.py LAYERS HIDDEN HEADS SEQ BATCH STEPS THREADS WEIGHTS TEXT [compile]
WEIGHTS: model.safetensors of a checkpoint by `hocket train --save`. Prints seconds and loss of every step as JSON."""
import json
import math
import struct
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, HEADS, SEQ, BATCH, STEPS, THREADS = (int(word) for word in sys.argv[1:8])
VOCAB, SEED, SITE_DATA, HELD_OUT = 256, 1, 0xd0, 0.1
LR, LR_MIN, WARMUP = 1e-3, 1e-4, 10
torch.set_num_threads(THREADS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.c_attn, self.attn_out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.c_fc, self.mlp_out = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (part.view(batch, seq, HEADS, HIDDEN // HEADS).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(HIDDEN, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_out(y.transpose(1, 2).reshape(batch, seq, HIDDEN))
        return x + self.mlp_out(F.gelu(self.c_fc(self.ln_2(x)), approximate='tanh'))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(HIDDEN)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def read_weights(path):
    """GPT-2's names; its linear layers are stored as [in][out]."""
    with open(path, 'rb') as file:
        head = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
        data = bytearray(file.read())
    tensors = {name: torch.frombuffer(data, dtype=torch.float32, offset=row['data_offsets'][0],
                                      count=math.prod(row['shape'])).view(row['shape'])
               for name, row in head.items() if name != '__metadata__'}
    return {name.removeprefix('transformer.'): tensor for name, tensor in tensors.items()}


def load(model, path):
    stored = read_weights(path)
    names = {'attn_out': 'attn.c_proj', 'mlp_out': 'mlp.c_proj', 'c_attn': 'attn.c_attn', 'c_fc': 'mlp.c_fc'}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for ours, theirs in names.items():
                name = name.replace(f'.{ours}.', f'.{theirs}.')
            is_linear = name.endswith('.weight') and ('attn.' in name or 'mlp.' in name)
            parameter.copy_(stored[name].t() if is_linear else stored[name])


def philox(counter, key):
    """Philox4x32-10, by which hocket chooses sequences."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xffffffff, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c


def places(step, count):
    site = SITE_DATA << 56 | step
    for index in range(BATCH):
        words = philox((index // 2, 0, site & 0xffffffff, site >> 32), (SEED, 0))
        high, low = words[2 * (index % 2)], words[2 * (index % 2) + 1]
        yield (high << 32 | low) % count


def rate(step):
    if step < WARMUP:
        return LR * step / WARMUP
    if step >= STEPS:
        return LR_MIN
    return LR_MIN + (LR - LR_MIN) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def main():
    with open(sys.argv[9], 'rb') as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    count = len(text) - int(len(text) * HELD_OUT) - SEQ
    model = Model()
    load(model, sys.argv[8])
    groups = [{'params': [p for p in model.parameters() if p.dim() >= 2], 'weight_decay': 0.1},
              {'params': [p for p in model.parameters() if p.dim() < 2], 'weight_decay': 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8, fused=True)
    run = torch.compile(model) if sys.argv[10:] == ['compile'] else model
    losses, seconds = [], []
    for step in range(1, STEPS + 1):
        begin = time.perf_counter()
        starts = list(places(step, count))
        ids = torch.stack([text[at:at + SEQ] for at in starts])
        targets = torch.stack([text[at + 1:at + SEQ + 1] for at in starts])
        for group in optimizer.param_groups:
            group['lr'] = rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss = run(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({'loss': losses, 'seconds': seconds, 'params': sum(p.numel() for p in model.parameters())}))


main()
