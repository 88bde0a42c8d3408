/* The `hocket` command: a table of subcommands, and nothing else. */
#include <hocket/hocket.h>
#include <string.h>

#include "tools.h"

struct tool {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct tool tools[] = {
    { "run", hkt_tool_run, "start N ranks of a program on this machine" },
    { "perf", hkt_tool_perf, "time a collective and check its result (busbw benchmark)" },
    { "info", hkt_tool_info, "what is here: version, transports, CPU features, settings" },
    { "doctor", hkt_tool_doctor, "what will go wrong here, or between the hosts of a job, and the mend" },
    { "topo", hkt_tool_topo, "the machine as a graph: show, save, draw it, and order ranks on it" },
    { "verify", hkt_tool_verify, "prove schedules right, for any number of ranks" },
    { "explain", hkt_tool_explain, "print a schedule step by step; list the algorithms" },
    { "train", hkt_tool_train, "train a small GPT on a text, in any layout" },
    { "generate", hkt_tool_generate, "let a trained model go on with a text" },
    { "tune", hkt_tool_tune, "measure this machine, and choose algorithms by it" },
};

#define TOOL_COUNT (sizeof tools / sizeof tools[0])

static void print_help(FILE *file)
{
    fputs("usage: hocket COMMAND [ARGUMENTS]\n"
          "       hocket COMMAND --help\n"
          "       hocket --version\n\n"
          "commands:\n",
          file);
    for (size_t i = 0; i < TOOL_COUNT; i++)
        fprintf(file, "  %-10s %s\n", tools[i].name, tools[i].summary);
    fputs(
        "\nexit codes: 0 success, 1 failure or wrong data, 2 wrong usage; run passes on the code of the rank that failed\n",
        file);
}

static const struct tool *find_tool(const char *name)
{
    for (size_t i = 0; i < TOOL_COUNT; i++)
        if (strcmp(tools[i].name, name) == 0)
            return &tools[i];
    return NULL;
}

/* `hocket help` and `hocket help COMMAND` are what people type first. */
static int help(int argc, char **argv)
{
    const struct tool *tool = argc > 2 ? find_tool(argv[2]) : NULL;
    char flag[] = "--help", *again[] = { argc > 2 ? argv[2] : NULL, flag, NULL };

    if (tool != NULL)
        return tool->run(2, again);
    print_help(stdout);
    return TOOL_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TOOL_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        printf("hocket %d.%d.%d\n", HKT_VERSION_MAJOR, HKT_VERSION_MINOR, HKT_VERSION_PATCH);
        return fflush(stdout) == 0 ? TOOL_OK : TOOL_FAILED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return help(argc, argv);
    const struct tool *tool = find_tool(argv[1]);

    if (tool == NULL) {
        hkt_tool_say(NULL, "there is no command \"%s\"; `hocket --help` lists them", argv[1]);
        return TOOL_USAGE;
    }
    const int code = tool->run(argc - 1, argv + 1);

    /* A full disk or a closed pipe must not look like success. */
    if (fflush(stdout) != 0 && code == TOOL_OK) {
        hkt_tool_say(NULL, "the output could not be written");
        return TOOL_FAILED;
    }
    return code;
}
