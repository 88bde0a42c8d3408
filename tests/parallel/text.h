/*
 * A temporary folder of one test, with a text in it to train on: the same words in every test, so that figures compare.
 */
#ifndef HOCKET_TESTS_PARALLEL_TEXT_H
#define HOCKET_TESTS_PARALLEL_TEXT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/hocket-test-parallel-XXXXXX";
static char text_path[sizeof folder + sizeof "/text"];

/* Makes the folder, and the text of `words` sheep. */
static bool text_make(int words)
{
    FILE *file;

    if (mkdtemp(folder) == NULL)
        return false;
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    file = fopen(text_path, "wb");
    for (int i = 0; file != NULL && i < words; i++)
        fprintf(file, "%d sheep, ", i * i % 997);
    return file != NULL && fclose(file) == 0;
}

/* Removes the folder with all that the test put into it: 0, or what rm said. */
static int text_remove(void)
{
    char command[sizeof folder + sizeof "rm -rf ''"];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
