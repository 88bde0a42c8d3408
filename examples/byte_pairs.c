/* A true job on real files: count which pairs of bytes follow each other in the files of a directory, as the first step
 * of byte-pair encoding does. The ranks share the files out, each counts its own, one all-reduce adds the histograms, and
 * rank 0 prints the 20 most frequent pairs. The result does not depend on how many ranks took part.
 *
 *   build/hocket run -n 4 build/examples/byte_pairs /usr/share/common-licenses
 */
#define _POSIX_C_SOURCE 200809L /* strdup, however strictly the compiler is told to read C */

#include <dirent.h>
#include <errno.h>
#include <hocket/hocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PAIRS 65536
#define TOP 20

/** All ranks must fail together: a rank that cannot go on revokes the communicator, so that none waits for it. */
static int give_up(struct hkt_comm *comm, const char *what, const char *why)
{
    fprintf(stderr, "byte_pairs: %s: %s\n", what, why);
    hkt_comm_abort(comm);
    return 1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/** Paths of the regular files in a directory (links followed), sorted so that all ranks number them alike. -1: errno. */
static int list_files(const char *directory, char ***out_paths)
{
    struct dirent *entry;
    struct stat info;
    char **paths = NULL, path[4096];
    int count = 0;
    DIR *dir = opendir(directory);

    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
            continue;
        char **grown = realloc(paths, ((size_t)count + 1) * sizeof *paths);

        if (grown == NULL || (grown[count] = strdup(path)) == NULL) {
            closedir(dir);
            errno = ENOMEM;
            return -1;
        }
        paths = grown;
        count++;
    }
    closedir(dir);
    if (count > 0)
        qsort(paths, (size_t)count, sizeof *paths, by_name);
    *out_paths = paths;
    return count;
}

/** Add a file's pairs to counts[PAIRS]; false: errno. */
static int count_pairs(const char *path, uint64_t *counts)
{
    FILE *file = fopen(path, "rb");
    int previous = EOF, c;

    if (file == NULL)
        return 0;
    while ((c = getc(file)) != EOF) {
        if (previous != EOF)
            counts[previous * 256 + c]++;
        previous = c;
    }
    const int ok = !ferror(file);

    fclose(file);
    return ok;
}

static void print_byte(int byte)
{
    if (byte > ' ' && byte < 127)
        printf("'%c' ", byte);
    else
        printf("0x%02x", byte);
}

/** The TOP largest counts, ties by pair; repeated selection is plenty for 20 of 65536. */
static void print_top(uint64_t *counts)
{
    for (int rank = 1; rank <= TOP; rank++) {
        int best = 0;

        for (int pair = 1; pair < PAIRS; pair++)
            if (counts[pair] > counts[best])
                best = pair;
        if (counts[best] == 0)
            return;
        printf("%2d. ", rank);
        print_byte(best / 256);
        printf(" ");
        print_byte(best % 256);
        printf(" %10llu\n", (unsigned long long)counts[best]);
        counts[best] = 0;
    }
}

int main(int argc, char **argv)
{
    static uint64_t counts[PAIRS];
    struct hkt_comm *comm;
    char **paths = NULL;

    if (argc != 2) {
        fprintf(stderr, "usage: byte_pairs DIRECTORY\n");
        return 2;
    }
    if (hkt_comm_init_env(&comm, NULL) < 0) {
        fprintf(stderr, "byte_pairs: %s\n", hkt_last_error());
        return 1;
    }
    const int files = list_files(argv[1], &paths);

    if (files < 0)
        return give_up(comm, argv[1], strerror(errno));
    for (int i = hkt_comm_rank(comm); i < files; i += hkt_comm_size(comm))
        if (!count_pairs(paths[i], counts))
            return give_up(comm, paths[i], strerror(errno));
    if (hkt_all_reduce(counts, counts, PAIRS, HKT_UINT64, HKT_SUM, comm, NULL) < 0)
        return give_up(comm, "all-reduce", hkt_last_error());
    if (hkt_comm_rank(comm) == 0) {
        printf("%d files in %s, most frequent byte pairs:\n", files, argv[1]);
        print_top(counts);
    }
    for (int i = 0; i < files; i++)
        free(paths[i]);
    free(paths);
    return hkt_comm_destroy(comm) < 0;
}
