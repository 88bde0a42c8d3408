#!/usr/bin/env python3
"""What Hugging Face's `tokenizers` make of a text with contractions, white space, numbers and several scripts: prints tokens_case.h.
By hand: tokens_oracle.py > tokens_case.h (needs the package tokenizers; 0.23.3 wrote what is here)."""
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LEARNED = ("The quick brown fox jumps over the lazy dog. It's the fox's dog, isn't it? They'll say they've seen 12 foxes,\n"
           "then 123 foxes, then 1234.  The dog  doesn't   care;\tthe fox does.\r\n\r\n   The end... or the beginning?\n"
           "Größe, größer, am größten. Ελληνικά και ελληνικά. 狐狸和狗,狐狸和狗。 الثعلب والكلب\n"
           "aaaaaaaaaaaaaaaaaaaa aaaaaaa (((((()))))) ²³ ½ １２ \u00a0\u3000end\n")
ENCODED = LEARNED + "We'd NEVER'VE   thought\n\n so, foxes'  'tis the dogs' end! größte 狐 \U0001f98a e\u0301 \u2028 x\u00a0y 'S 'll"
VOCAB = 320


def string(text):
    """A C string in lines, with every byte outside ASCII in octal."""
    line = ''.join(chr(b) if 32 <= b < 127 and b not in (34, 92, 63) else f'\\{b:03o}' for b in text.encode())
    lines, part = [], ''
    while line:
        cut = 100
        while line[:cut].rfind('\\') > cut - 4 and cut < len(line):
            cut -= 1
        part, line = line[:cut], line[cut:]
        lines.append(f'    "{part}"')
    return '\n'.join(lines)


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([LEARNED], trainer)
    ids, text, line = tokenizer.encode(ENCODED).ids, '', '   '
    for number in ids:
        if len(line) > 100:
            text, line = text + line + '\n', '   '
        line += f' {number},'
    print(f"""/* Written by tokens_oracle.py: a text, and what Hugging Face's tokenizers make of it once they have learned its beginning. */
enum {{ CASE_VOCAB = {VOCAB}, CASE_LEARNED = {len(LEARNED.encode())} }};
static const char case_text[] =
{string(ENCODED)};
static const int32_t case_tokens[] = {{
{text}{line}
}};""")


main()
