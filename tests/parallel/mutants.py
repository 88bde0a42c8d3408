#!/usr/bin/env python3
"""Faults put on purpose into the sources of the model and its training, one at a time, and whether tests notice. Each is compiled apart and
linked in the place of the right one, so nothing in the product knows of it. Usage: mutants.py BUILD_DIR [WORD...]: only those whose
text has one of the words. Ends with the number of faults that nobody noticed. mutants.py --apply: only whether each fault still has
its place in the sources."""
import json
import os
import shlex
import subprocess
import sys
import tempfile

MODEL = ['gpt', 'gpt_bits', 'gpt_ranks', 'oracle']
TRAINING = ['train', 'engine']
MEMORY = ['step_bytes']
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# what is wrong, file, text, its replacement
NOTHING = ('nothing is wrong', 'gpt_finish.c', 'int', 'int')
MUTANTS = [
    # Another model, though consistent with itself: the oracle's alone.
    ('scores are divided by the dimension', 'attention_par.c', '.scale = 1 / sqrt((double)d)', '.scale = 1 / (double)d'),
    ('rotary positions turn neighbours', 'attention_par.c', 'HKT__ROTARY_HALVES', 'HKT__ROTARY_NEIGHBOURS'),
    ("norms' epsilon is another", 'gpt.c', 'config->norm_eps : 1e-5', 'config->norm_eps : 1e-4'),
    ('norms under sequence parallelism are not added up', 'gpt_finish.c', 'if (gpt->block.is_cut)', 'if (0)'),
    ('copied key-value heads are not added up', 'gpt_finish.c', 'if (gpt->copies.size > 1)', 'if (0)'),
    ('biases of copied heads are not added up', 'gpt_finish.c', 'reduce(gpt, &gpt->copies, key_biases, unit);', ';'),
    ('a tied embedding has the gradient of its own stage alone', 'gpt_finish.c',
     'gpt->block.real_ops->add(mine, mine, other, elems);', '(void)0;'),
    ('a tied embedding is added twice', 'gpt_finish.c', 'gpt->block.real_ops->add(mine, mine, other, elems);',
     'gpt->block.real_ops->add(mine, mine, other, elems), gpt->block.real_ops->add(mine, mine, other, elems);'),
    ('a bias is added on each rank', 'attention_par.c', '.weight = weights->attn_out.value,\n                                                    .y = y',
     '.weight = weights->attn_out.value,\n.bias = weights->attn_bias.value, .y = y'),
    ("an expert's bias is added on each rank", 'moe_layer.c', '&& block->tp.rank == 0)', ')'),
    ('the maximum is that of the own words', 'vocab_head.c',
     'hkt__block_note(block, hkt__link_all_reduce(&block->tp, ce.row_max, rows, real, HKT_MAX));', ''),
    ('sums of the softmax are those of the own words', 'vocab_head.c', 'ce.sum_exp, 2 * rows, real, HKT_SUM',
     'ce.target_logit, rows, real, HKT_SUM'),
    ("the target's logit is lost where it is elsewhere", 'vocab_head.c', 'ce.sum_exp, 2 * rows, real, HKT_SUM',
     'ce.sum_exp, rows, real, HKT_SUM'),
    ('heads and their keys are on different ranks', 'shard.c', 'tp / out_shard->copies, index / out_shard->copies',
     'tp / out_shard->copies, index % (tp / out_shard->copies)'),
    ('the last, partial shard of the vocabulary is dropped', 'shard.c', '{ first, end - first }, block, padded',
     '{ first, end - first < block ? 0 : block }, block, padded'),
    ('balance loss grows with tp', 'moe_router.c', 'row->dp[e] = config->balance_weight * weight',
     'row->dp[e] = block->tp.size * config->balance_weight * weight'),
    ("the weights' gradients are of one rank's part", 'moe_router.c', 'hkt__link_all_reduce(&block->tp, dgate',
     '1 ? HKT_OK : hkt__link_all_reduce(&block->tp, dgate'),
    ("the router's gradient is added once a rank", 'block_layer.c', 'd = hkt__tp_reduce(block, d);\n        if',
     'block->ops->add(d, d, router, elems); d = hkt__tp_reduce(block, d); if (0)\n        if'),
    ("experts' gradients grow with ep", 'moe_layer.c', 'd[c] *= saved->gates[pair];',
     'd[c] *= saved->gates[pair] * block->ep.size;'),
    ('arrivals are not sorted by expert', 'moe_layer.c', 'row_at(block, arrivals, plan->arrival[i]),\n               (size_t)',
     'row_at(block, arrivals, i),\n               (size_t)'),
    ('dropout is keyed by the place on this rank', 'block_layer.c', 'site->first_row + block->first_here', 'site->first_row'),
    ('dropout is keyed by the place in the micro-batch', 'block_layer.c', 'site->first_row + block->first_here',
     'block->first_here'),
    ('attention drops by the head on this rank', 'attention_par.c', '.first_head = block->first_head', '.first_head = 0'),
    ('attention drops by the place in the micro-batch', 'attention_par.c', '.first_row = site->first_row', '.first_row = 0'),
    ('recompute drops other elements', 'block_layer.c', 'quiet.result = NULL;', 'quiet.result = NULL; quiet.step++;'),
    ('balance is reported again by recompute', 'block_layer.c', 'quiet.result = NULL;', ''),
    ('the residual gets no gradient', 'block_layer.c', 'block->ops->add(d, d, grad->dout, here);', '(void)here;'),
    ('the gradient of the weights is that of the last micro-batch', 'gpt_run.c',
     'hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);\n    done',
     'if (turn->micro < turn->gpt->step->pipe->micros - 1) hkt__layer_drop(turn->block, &slot->saved[i], &slot->kept[i]); '
     'else hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);\n    done'),
    ('W of the first micro-batch is forgotten', 'gpt_run.c',
     'hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);\n        done',
     'if (turn->micro == 0) hkt__layer_drop(turn->block, &slot->saved[i], &slot->kept[i]); '
     'else hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);\n        done'),
    ('positions start anew on each rank', 'vocab_embedding.c', 'block->positions + block->first_here', 'block->positions'),
    ('a stage has the layers of another', 'gpt_run.c', 'const int at = chunk * gpt->pp + gpt->stage;',
     'const int at = gpt->stage * gpt->chunks + chunk;'),
    ('micro-batches share the buffer of activations', 'pipe_run.c', 'op->chunk * r->pipe->micros + op->micro;',
     'op->chunk * r->pipe->micros + (is_grad ? op->micro : 0);'),
    ('initial values are those of the place on the rank', 'gpt_params.c',
     '.first_row = is_cut_in ? 0 : piece->first,', '.first_row = 0,'),
    ('a norm of a cut row is of another epsilon', 'block_layer.c', '.eps = block->config->norm_eps,\n                                    .x = x,',
     '.eps = block->config->norm_eps + block->first_here,\n                                    .x = x,'),
    ('a gather more than needed', 'block_layer.c', 'kept->mlp_dy = join_grad(block, &mlp, grad->dout);',
     'kept->mlp_dy = join_grad(block, &mlp, grad->dout); '
     '{ void *x = hkt__block_get(block, block->rows_here * block->hidden); if (x) __builtin_memset(x, 0, 8); '
     'x = hkt__tp_reduce(block, block->is_cut ? hkt__tp_gather(block, x) : x); hkt__block_drop(block, &x); }'),
    ('q, k and v are taken from each other', 'attention_par.c', '.k = at(block, saved->qkv, block->heads * d)',
     '.k = at(block, saved->qkv, block->kv_heads * d)'),
    ('a norm that tensor-parallel ranks share counts once a rank', 'ownership.c', ' && is_lowest(place, param)', ''),
    ('a tied embedding counts twice in the norm', 'ownership.c', 'held->holds && param->stage == place->pp_index && copy',
     'held->holds && copy'),
    ('a key-value head on several ranks counts on each', 'ownership.c', 'place->pp_index && copy == 0 &&', 'place->pp_index &&'),
    ('a tied gradient is added up after it was reduced', 'gpt_run.c',
     'hkt__gpt_finish_tied(gpt);\n        report(gpt, 0, step->pipe->micros - 1);',
     'report(gpt, 0, step->pipe->micros - 1);\n        hkt__gpt_finish_tied(gpt);'),
    ('gradients are divided by the ranks once more', 'train_step.c', '(double)totals.tokens, report.lr',
     '(double)totals.tokens * t->config.layout.dp, report.lr'),
    ('gradients are not divided by the micro-batches', 'train_step.c', '(double)totals.tokens, report.lr',
     '(double)totals.tokens / (double)t->nmicros, report.lr'),
    ('gradients are divided by the tokens of this rank', 'train_step.c', '(double)totals.tokens, report.lr',
     '(double)(t->nmicros * t->config.layout.micro_batch * t->config.layout.seq), report.lr'),
    ("the last bucket's shard is not updated", 'engine_step.c', 'more = hkt__own_next(e->own, false, &cursor, &run);',
     'more = hkt__own_next(e->own, false, &cursor, &run) && (e->opts.zero == 0 || run.bucket < '
     'e->flat[run.flat].flat->nbuckets - 1);'),
    ('gradients of experts come from other slots', 'moe_exchange.c', 'is_back ? plan->recv_displs : plan->send_displs',
     'is_back ? plan->recv_displs : plan->recv_displs'),
    ('memory: what stood between attention and MLP stays until W', 'block_layer.c',
     'hkt__block_drop(block, &dmiddle);\n    hkt__block_drop(block, &saved->middle);', 'hkt__block_drop(block, &dmiddle);'),
    ('memory: results of experts stay during backward', 'moe_layer.c',
     'hkt__block_drop(block, &saved->results);\n    kept->arrived_grad', 'kept->arrived_grad'),
    ('memory: a unit more is gathered ahead', 'engine_comm.c', 'ahead < e->opts.prefetch', 'ahead <= e->opts.prefetch'),
    ('memory: three reductions are behind', 'engine_comm.c', 'e->nreducing > 1 ||', 'e->nreducing > 2 ||'),
    ('memory: a message stays when it has left', 'pipe_run.c', '            drop(r, buffer_of(r, OUT, is_grad_message(op), op));',
     '            continue;'),
]

def mutate(text, old, new):
    if old not in text:
        sys.exit(f'mutants: the sources no longer have: {old}')
    return text.replace(old, new, 1)


def links(build):
    """The link command of each test."""
    found = {}
    for name in MODEL + TRAINING + MEMORY:
        lines = subprocess.run(['ninja', '-C', build, '-t', 'commands', f'tests/parallel/test_{name}'],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        found[name] = lines[-1]
    return found


def notices(command, build):
    """Does a test of this executable fail? Whoever fails first ends it."""
    test = subprocess.Popen(command, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True, env={**os.environ, 'LD_LIBRARY_PATH': os.path.join(build, 'src'),
                                                         'HOCKET_SOURCE_ROOT': ROOT})
    for line in test.stdout:
        if 'FAILED' in line:
            os.killpg(test.pid, 9)
            test.wait()
            return True
    return test.wait() != 0


def compile_mutant(entry, build, folder, mutant):
    _, name, old, new = mutant
    source, made = os.path.join(folder, name), os.path.join(folder, 'mutant.o')
    with open(os.path.join(build, entry['file'])) as file, open(source, 'w') as out:
        out.write(mutate(file.read(), old, new))
    words = shlex.split(entry['command'])
    at = words.index('-MQ')
    del words[at:at + 4]  # what it depends on is not the build's business
    words = [source if a == entry['file'] else made if a == entry['output'] else a for a in words
             if a not in ('-MD', '-Werror')]
    subprocess.run(words + ['-w'], cwd=build, check=True)
    return made


def tests_of(mutant):
    if mutant[0].startswith('memory'):
        return MEMORY
    is_training = mutant[1] in ('ownership.c', 'train_step.c', 'engine_step.c') or 'after it was reduced' in mutant[0]
    return TRAINING if is_training else MODEL


def noticed_by(tests, link, made, folder, build):
    for test in tests:
        exe, words = os.path.join(folder, test), shlex.split(link[test])
        words[words.index('-o') + 1] = exe
        words.insert(next(i for i, a in enumerate(words) if a.endswith('.a') or a == '-Wl,--start-group'), made)
        subprocess.run(words, cwd=build, check=True, capture_output=True)
        if notices([exe], build):
            return test
    return None


def apply_all():
    """The faults of a list that no longer fits the sources would be noticed by nobody."""
    for _, name, old, new in MUTANTS:
        with open(os.path.join(ROOT, 'src', 'parallel', name)) as file:
            mutate(file.read(), old, new)
    print(f'mutants: {len(MUTANTS)} can be put into the sources')


def main():
    if sys.argv[1] == '--apply':
        return apply_all()
    build = os.path.abspath(sys.argv[1])
    words = sys.argv[2:] or ['']
    chosen = [m for m in MUTANTS if any(word in m[0] for word in words)]
    with open(os.path.join(build, 'compile_commands.json')) as file:
        compiles = {os.path.basename(c['file']): c for c in json.load(file)
                    if 'libhocket_parallel_all' in c['output']}
    link, missed = links(build), 0
    for mutant in [NOTHING] + chosen:
        with tempfile.TemporaryDirectory() as folder:
            made = compile_mutant(compiles[mutant[1]], build, folder, mutant)
            tests = [t for m in chosen for t in tests_of(m)] if mutant is NOTHING else tests_of(mutant)
            by = noticed_by(dict.fromkeys(tests), link, made, folder, build)
        if mutant is NOTHING:
            if by:
                sys.exit(f'mutants: {by} fails as it is')
            continue
        missed += by is None
        print(f'{"noticed by " + by if by else "NOT NOTICED":24} {mutant[0]}', flush=True)
    print(f'mutants: {missed} not noticed')
    sys.exit(min(missed, 100))


main()
