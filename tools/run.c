/* `hocket run`: the launcher. It reads the options, starts the supervisor (run_job.c) and then only passes signals on
 * to it and waits for its exit code. See run.h for why there are two processes. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"
#include "tools.h"

static const char help_text[] =
    "usage: hocket run -n N [OPTIONS] PROGRAM [ARGUMENTS]\n\n"
    "Starts N ranks of a program on this machine. Ends when all ranks have ended; no process of the job is left then.\n\n"
    "  -n, --ranks N       number of ranks, 1 to 4096\n"
    "  -b, --bind KIND     the CPUs of a rank: those of one core, l3, numa (node) or package; none, the default: all that\n"
    "                      hocket itself may use. core takes one core after the other, the others spread evenly;\n"
    "                      where ranks outnumber cores, neighbours share one\n"
    "  -v, --verbose       say which CPUs each rank gets\n"
    "  -T, --tag-output    put \"[rank] \" in front of each line of output\n"
    "  -t, --timeout S     end the job after S seconds (exit code 124); default: never\n"
    "  -g, --grace S       after a rank has failed, give the others S seconds to end by themselves; then SIGTERM, and\n"
    "                      5 seconds later SIGKILL; default 2\n"
    "  -h, --help          this text\n\n"
    "Each rank finds in its environment:\n"
    "  HOCKET_RANK, HOCKET_SIZE, HOCKET_LOCAL_RANK, HOCKET_LOCAL_SIZE, HOCKET_ROOT, HOCKET_TOKEN\n"
    "  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (as from torchrun)\n\n"
    "Standard input goes to rank 0, unless it is a terminal. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are\n"
    "passed on to all ranks; a second SIGINT or SIGTERM ends the job by force after 5 seconds, a third at once.\n\n"
    "exit code: 0 when all ranks succeed; else that of the rank that failed first (128 + signal number if a signal ended\n"
    "it); 124 timeout, 126 program not executable, 127 program not found, 2 wrong usage\n";

void run_signals(sigset_t *out_set)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD };

    sigemptyset(out_set);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaddset(out_set, numbers[i]);
}

/* Seconds with decimals, at most a year. */
static bool parse_seconds(const char *text, double min, int64_t *out_ms)
{
    char *end;
    const double seconds = strtod(text, &end);

    if (end == text || *end != '\0' || !(seconds >= min && seconds <= 31536000.0))
        return false;
    *out_ms = (int64_t)(seconds * 1000.0 + 0.5);
    return true;
}

/* Returns -1 to go on, else the exit code. */
static int read_options(int argc, char **argv, struct run_opts *opts)
{
    static const struct option options[] = {
        { "ranks", required_argument, NULL, 'n' },   { "tag-output", no_argument, NULL, 'T' },
        { "bind", required_argument, NULL, 'b' },    { "verbose", no_argument, NULL, 'v' },
        { "timeout", required_argument, NULL, 't' }, { "grace", required_argument, NULL, 'g' },
        { "help", no_argument, NULL, 'h' },          { NULL, 0, NULL, 0 },
    };
    long nranks = 0;

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "+:n:b:vTt:g:h", options, NULL)) != -1;) {
        switch (c) {
        case 'n':
            if (!hkt_tool_parse_int(optarg, 1, RUN_RANKS_MAX, &nranks))
                return hkt_tool_usage("run", "-n %s: the number of ranks is 1 to %d", optarg, RUN_RANKS_MAX);
            break;
        case 'b':
            if (!run_bind_parse(optarg, &opts->bind))
                return hkt_tool_usage("run", "--bind %s: one of none, core, l3, numa, package", optarg);
            break;
        case 'v':
            opts->verbose = true;
            break;
        case 'T':
            opts->tag_output = true;
            break;
        case 't':
            if (!parse_seconds(optarg, 0.001, &opts->timeout_ms))
                return hkt_tool_usage("run", "--timeout %s: give seconds, more than 0", optarg);
            break;
        case 'g':
            if (!parse_seconds(optarg, 0.0, &opts->grace_ms))
                return hkt_tool_usage("run", "--grace %s: give seconds, 0 or more", optarg);
            break;
        case 'h':
            fputs(help_text, stdout);
            return TOOL_OK;
        case ':':
            return hkt_tool_usage("run", "%s needs a value", argv[optind - 1]);
        default:
            return hkt_tool_usage("run", "there is no option %s", argv[optind - 1]);
        }
    }
    if (nranks == 0)
        return hkt_tool_usage("run", "say how many ranks: -n N");
    if (optind >= argc)
        return hkt_tool_usage("run", "say which program to run, after the options");
    opts->nranks = (int)nranks;
    opts->command = argv + optind;
    return -1;
}

/* Pass signals on until the supervisor ends. */
static int wait_for_supervisor(pid_t supervisor)
{
    sigset_t signals;
    int status;

    run_signals(&signals);
    for (;;) {
        const int signal_number = sigwaitinfo(&signals, NULL);
        pid_t pid;

        if (signal_number > 0 && signal_number != SIGCHLD) {
            kill(supervisor, signal_number);
            continue;
        }
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            if (pid != supervisor)
                continue;
            if (WIFEXITED(status))
                return WEXITSTATUS(status);
            /* Killed: its ranks died with it (PR_SET_PDEATHSIG), what they had started has become ours. */
            hkt_tool_say("run", "the supervisor was killed by SIG%s; ending the job", sigabbrev_np(WTERMSIG(status)));
            run_tree_end(0);
            return 128 + WTERMSIG(status);
        }
    }
}

static int launch(const struct run_opts *opts)
{
    sigset_t signals, inherited;
    int alive[2];

    if (pipe2(alive, O_CLOEXEC) != 0) {
        hkt_tool_say("run", "no pipe: %s", strerror(errno));
        return TOOL_FAILED;
    }
    run_signals(&signals);
    sigprocmask(SIG_BLOCK, &signals, &inherited);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const pid_t supervisor = fork();

    if (supervisor < 0) {
        hkt_tool_say("run", "fork: %s; `ulimit -u` shows the limit", strerror(errno));
        return TOOL_FAILED;
    }
    if (supervisor == 0) {
        close(alive[1]);
        _exit(run_supervise(opts, alive[0], &inherited));
    }
    close(alive[0]);
    return wait_for_supervisor(supervisor);
}

int hkt_tool_run(int argc, char **argv)
{
    struct run_opts opts = { .grace_ms = 2000, .bind = RUN_BIND_NONE };
    int code = read_options(argc, argv, &opts);

    if (code < 0)
        code = run_bind(&opts);
    if (code < 0)
        code = launch(&opts);
    free(opts.cpus);
    return code;
}
