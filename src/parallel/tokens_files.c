/* A tokenizer as two files, as GPT-2 has them: vocab.json, from a piece to its number, and merges.txt, a version and then a line
 * for each merge. In both a byte of a piece stands as a character that can be printed (hkt__byte_char), in UTF-8.
 *
 * A vocabulary has no gaps, and every piece of more than one byte comes from a merge, special tokens (<...> or [...]) aside: so files that
 * were cut off, or that do not belong together, are noticed. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/safetensors.h"
#include "parallel/tokens.h"

#define FILE_BYTES_MAX (1L << 28)
#define CHARS 512 /* more than the highest character that stands for a byte */

/* ---- reading ---- */

struct reader {
    struct hkt_tokenizer *tokenizer;
    char path[HKT__ST_PATH_MAX + 16];
    int byte_of[CHARS]; /* the byte that a character stands for, or -1 */
};

static enum hkt_status no_memory(const struct reader *r)
{
    return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %s", r->path);
}

/* The whole file, with a 0 after it. */
static enum hkt_status read_file(const struct reader *r, char **out_text, size_t *out_bytes)
{
    FILE *file = fopen(r->path, "rb");
    const long end = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    enum hkt_status rc = HKT_OK;

    *out_text = NULL;
    if (end < 0 || fseek(file, 0, SEEK_SET) != 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be read: %s", r->path, strerror(errno));
    else if (end > FILE_BYTES_MAX)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has %ld bytes; no vocabulary is as long", r->path, end);
    else if ((*out_text = hkt__parallel_calloc((size_t)end + 1, 1)) == NULL)
        rc = no_memory(r);
    else if (fread(*out_text, 1, (size_t)end, file) != (size_t)end)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s became shorter while it was read", r->path);
    else
        *out_bytes = (size_t)end;
    if (file != NULL)
        fclose(file);
    return rc;
}

/* A piece as it stands in a file, to its bytes, in place. One with a character that stands for no byte is a special token, and is
 * what it says. Returns their number. */
static size_t unprint(const struct reader *r, unsigned char *piece, size_t bytes)
{
    for (int is_change = 0; is_change <= 1; is_change++) {
        size_t to = 0;

        for (size_t at = 0, one; at < bytes; at += one) {
            uint32_t code = CHARS;

            one = hkt__char_read(piece + at, bytes - at, &code);
            if (one == 0 || code >= CHARS || r->byte_of[code] < 0)
                return bytes; /* not before the first pass has seen all */
            if (is_change)
                piece[to++] = (unsigned char)r->byte_of[code];
        }
        if (is_change)
            return to;
    }
    return bytes;
}

static enum hkt_status check_entry(const struct reader *r, const cJSON *item, int64_t count, const char *const *names)
{
    const double number = cJSON_IsNumber(item) ? item->valuedouble : -1;

    if (!(number >= 0 && number < (double)count) || number != (double)(int64_t)number)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: \"%.40s\" has no number from 0 to %lld", r->path, item->string,
                                  (long long)count - 1);
    if (names[(int64_t)number] != NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: \"%.40s\" and \"%.40s\" are both number %.0f", r->path,
                                  names[(int64_t)number], item->string, number);
    if (item->string[0] == '\0')
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: number %.0f is a piece of no bytes", r->path, number);
    return HKT_OK;
}

/* In the order of their numbers. */
static enum hkt_status add_pieces(struct reader *r, char **names, int64_t count)
{
    struct hkt_tokenizer *t = r->tokenizer;
    enum hkt_status rc = HKT_OK;

    for (int64_t i = 0; i < count && rc == HKT_OK; i++) {
        unsigned char *piece = (unsigned char *)names[i];
        const size_t bytes = unprint(r, piece, strlen(names[i]));
        const int32_t same = hkt__strings_find(&t->pieces, t->text.data, piece, bytes);

        if (same >= 0)
            return hkt__parallel_fail(HKT_ERR_INVALID, "%s: numbers %d and %lld are the same bytes", r->path, same, (long long)i);
        rc = hkt__tokenizer_add_piece(t, piece, bytes);
    }
    for (int b = 0; b < 256 && rc == HKT_OK; b++)
        if (t->of_byte[b] < 0)
            rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has no piece for the byte %d: this is not a vocabulary of bytes", r->path, b);
    return rc;
}

static enum hkt_status read_vocab(struct reader *r)
{
    char *text = NULL, **names = NULL;
    size_t bytes = 0;
    int64_t count = 0;
    enum hkt_status rc = read_file(r, &text, &bytes);
    cJSON *root = rc == HKT_OK ? cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, 1) : NULL;
    const cJSON *item;

    if (rc == HKT_OK && !cJSON_IsObject(root))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s is not an object of JSON from pieces to numbers, or not all of one", r->path);
    if (rc == HKT_OK) {
        cJSON_ArrayForEach(item, root)
            count++;
        names = hkt__parallel_calloc((size_t)count + 1, sizeof *names);
        if (count > HKT_TOKENIZER_VOCAB_MAX)
            rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has %lld pieces; at most %d", r->path, (long long)count,
                                    HKT_TOKENIZER_VOCAB_MAX);
        else if (names == NULL)
            rc = no_memory(r);
    }
    cJSON_ArrayForEach(item, root) {
        if (rc == HKT_OK)
            rc = check_entry(r, item, count, (const char *const *)names);
        if (rc < 0)
            break;
        names[(int64_t)item->valuedouble] = item->string;
    }
    if (rc == HKT_OK)
        rc = add_pieces(r, names, count);
    cJSON_Delete(root);
    hkt__parallel_free(names);
    hkt__parallel_free(text);
    return rc;
}

/* "left right", which ends at `bytes`. */
static enum hkt_status add_line(struct reader *r, int line, unsigned char *text, size_t bytes)
{
    struct hkt_tokenizer *t = r->tokenizer;
    unsigned char *space = memchr(text, ' ', bytes);
    int32_t parts[2] = { -1, -1 }, made = -1;

    if (space == NULL || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - text)) != NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: line %d is not two pieces with a space between", r->path, line);
    unsigned char *const pieces[2] = { text, space + 1 };
    const size_t lengths[2] = { (size_t)(space - text), bytes - (size_t)(space - text) - 1 };

    for (int i = 0; i < 2; i++) {
        const size_t count = unprint(r, pieces[i], lengths[i]);

        parts[i] = hkt__strings_find(&t->pieces, t->text.data, pieces[i], count);
    }
    enum hkt_status rc = parts[0] < 0 || parts[1] < 0 ? HKT_OK : hkt__tokenizer_joined(t, parts[0], parts[1], &made);

    if (rc == HKT_OK && made < 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: line %d has a piece, or makes one, that is not in vocab.json", r->path, line);
    return rc == HKT_OK ? hkt__tokenizer_add_merge(t, parts[0], parts[1], &made) : rc;
}

static enum hkt_status check_all_made(const struct reader *r)
{
    const struct hkt_tokenizer *t = r->tokenizer;
    const struct hkt__merge *merges = t->merges.data;
    bool *is_made = hkt__parallel_calloc(t->pieces.list.count + 1, sizeof *is_made);
    enum hkt_status rc = HKT_OK;

    if (is_made == NULL)
        return no_memory(r);
    for (size_t i = 0; i < t->merges.count; i++)
        is_made[merges[i].made] = true;
    for (int32_t i = 0; i < hkt_tokenizer_vocab(t) && rc == HKT_OK; i++) {
        size_t bytes;
        const char *piece = hkt_tokenizer_piece(t, i, &bytes);
        const char first = piece[0], last = piece[bytes - 1];

        if (!is_made[i] && bytes > 1 && !(first == '<' && last == '>') && !(first == '[' && last == ']'))
            rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s makes nowhere the piece of %zu bytes that vocab.json has as %d: it is not all "
                                    "there, or belongs to another vocabulary", r->path, bytes, i);
    }
    hkt__parallel_free(is_made);
    return rc;
}

static enum hkt_status read_merges(struct reader *r)
{
    char *text = NULL;
    size_t bytes = 0;
    enum hkt_status rc = read_file(r, &text, &bytes);
    int line = 0;

    for (size_t at = 0, end; rc == HKT_OK && at < bytes; at = end + 1) {
        const char *newline = memchr(text + at, '\n', bytes - at);

        end = newline != NULL ? (size_t)(newline - text) : bytes;
        const size_t length = end - at - (end > at && text[end - 1] == '\r');

        line++;
        if (length > 0 && !(line == 1 && strncmp(text + at, "#version", 8) == 0))
            rc = add_line(r, line, (unsigned char *)text + at, length);
    }
    hkt__parallel_free(text);
    return rc == HKT_OK ? check_all_made(r) : rc;
}

enum hkt_status hkt_tokenizer_load(const char *dir, struct hkt_tokenizer **out_tokenizer)
{
    struct reader r = { .tokenizer = hkt__tokenizer_create() };
    enum hkt_status rc;

    for (int c = 0; c < CHARS; c++)
        r.byte_of[c] = -1;
    for (int b = 0; b < 256; b++)
        r.byte_of[hkt__byte_char((unsigned char)b)] = b;
    snprintf(r.path, sizeof r.path, "%.*s/vocab.json", HKT__ST_PATH_MAX, dir);
    rc = r.tokenizer == NULL ? no_memory(&r) : read_vocab(&r);
    snprintf(r.path, sizeof r.path, "%.*s/merges.txt", HKT__ST_PATH_MAX, dir);
    if (rc == HKT_OK)
        rc = read_merges(&r);
    if (rc < 0)
        hkt_tokenizer_destroy(r.tokenizer);
    else
        *out_tokenizer = r.tokenizer;
    return rc;
}

/* ---- writing ---- */

static void print_char(FILE *file, uint32_t code, bool is_json)
{
    if (is_json && (code == '"' || code == '\\'))
        fputc('\\', file);
    if (code < 0x80)
        fputc((int)code, file);
    else {
        fputc((int)(0xc0 | code >> 6), file);
        fputc((int)(0x80 | (code & 0x3f)), file);
    }
}

static void print_piece(FILE *file, const struct hkt_tokenizer *t, int32_t token, bool is_json)
{
    size_t bytes;
    const char *piece = hkt_tokenizer_piece(t, token, &bytes);

    for (size_t i = 0; i < bytes; i++)
        print_char(file, hkt__byte_char((unsigned char)piece[i]), is_json);
}

static enum hkt_status finish(FILE *file, const char *path)
{
    const bool is_ok = file != NULL && ferror(file) == 0;

    return (file != NULL && fclose(file) != 0) || !is_ok
               ? hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno))
               : HKT_OK;
}

enum hkt_status hkt_tokenizer_save(const struct hkt_tokenizer *t, const char *dir)
{
    const struct hkt__merge *merges = t->merges.data;
    char path[HKT__ST_PATH_MAX + 16];
    FILE *file;

    snprintf(path, sizeof path, "%.*s/vocab.json", HKT__ST_PATH_MAX, dir);
    file = fopen(path, "w");
    for (int32_t i = 0; file != NULL && i < hkt_tokenizer_vocab(t); i++) {
        fputs(i == 0 ? "{\"" : ",\"", file);
        print_piece(file, t, i, true);
        fprintf(file, "\":%d", i);
    }
    if (file != NULL)
        fputs("}\n", file);
    enum hkt_status rc = finish(file, path);

    if (rc < 0)
        return rc;
    snprintf(path, sizeof path, "%.*s/merges.txt", HKT__ST_PATH_MAX, dir);
    file = fopen(path, "w");
    if (file != NULL)
        fputs("#version: 0.2\n", file);
    for (size_t i = 0; file != NULL && i < t->merges.count; i++) {
        print_piece(file, t, merges[i].left, false);
        fputc(' ', file);
        print_piece(file, t, merges[i].right, false);
        fputc('\n', file);
    }
    return finish(file, path);
}
