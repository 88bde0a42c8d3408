/* Starting one rank: its environment, its process group, its end when the supervisor ends, and the exec. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"
#include "tools.h"

int run_pick_port(int *out_fd)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0
        || bind(fd, (struct sockaddr *)&address, bytes) != 0
        || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        hkt_tool_say("run", "no port on 127.0.0.1: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *out_fd = fd;
    return ntohs(address.sin_port);
}

bool run_make_token(char out_token[33])
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        hkt_tool_say("run", "no random bytes for the job's token: %s", strerror(errno));
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out_token + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* hocket's own variables, and those that torchrun gives, for programs that know these. */
static void set_environment(const struct run_spawn *spawn)
{
    static const char *const rank_names[] = { "HOCKET_RANK", "HOCKET_LOCAL_RANK", "RANK", "LOCAL_RANK" };
    static const char *const size_names[] = { "HOCKET_SIZE", "HOCKET_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE" };
    char root[32];

    for (size_t i = 0; i < sizeof rank_names / sizeof rank_names[0]; i++) {
        set_number(rank_names[i], spawn->rank);
        set_number(size_names[i], spawn->opts->nranks);
    }
    snprintf(root, sizeof root, "127.0.0.1:%d", spawn->root_port);
    setenv("HOCKET_ROOT", root, 1);
    setenv("HOCKET_TOKEN", spawn->token, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", spawn->master_port);
}

/* Rank 0 keeps our stdin unless it is a terminal: a process outside the foreground group may not read one. */
static void set_stdin(int rank)
{
    if (rank == 0 && !isatty(STDIN_FILENO))
        return;
    const int null = open("/dev/null", O_RDONLY);

    if (null > STDIN_FILENO) {
        dup2(null, STDIN_FILENO);
        close(null);
    }
}

/* In the child: become the rank. Reports errno of a failed exec through the pipe, which closes on success. */
static void become_rank(const struct run_spawn *spawn, pid_t supervisor, int report_fd)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor)
        _exit(1); /* it died before the line above */
    set_stdin(spawn->rank);
    if (spawn->out_fd >= 0)
        dup2(spawn->out_fd, STDOUT_FILENO);
    if (spawn->err_fd >= 0)
        dup2(spawn->err_fd, STDERR_FILENO);
    set_environment(spawn);
    if (spawn->opts->cpus != NULL
        && sched_setaffinity(0, sizeof *spawn->opts->cpus, &spawn->opts->cpus[spawn->rank]) != 0) {
        hkt_tool_say("run", "rank %d cannot be bound: %s", spawn->rank, strerror(errno));
        _exit(1);
    }
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTOU, SIG_DFL);
    sigprocmask(SIG_SETMASK, spawn->inherited, NULL);
    execvp(spawn->opts->command[0], spawn->opts->command);
    const int why = errno;

    if (write(report_fd, &why, sizeof why) != (ssize_t)sizeof why)
        _exit(125);
    _exit(127);
}

static int exec_failed(const char *command, int why)
{
    if (why == ENOENT)
        hkt_tool_say("run", "there is no program \"%s\"%s", command,
                     strchr(command, '/') != NULL ? "" : " in PATH; for one in this directory write ./ in front");
    else if (why == EACCES)
        hkt_tool_say("run", "\"%s\" may not be executed; chmod +x helps, or name its interpreter", command);
    else
        hkt_tool_say("run", "\"%s\" could not be started: %s", command, strerror(why));
    return why == ENOENT ? 127 : 126;
}

pid_t run_spawn(const struct run_spawn *spawn, int *out_exit_code)
{
    const pid_t supervisor = getpid();
    int report[2], why = 0;

    *out_exit_code = 1;
    if (pipe2(report, O_CLOEXEC) != 0) {
        hkt_tool_say("run", "rank %d: no pipe: %s; `ulimit -n` shows the limit", spawn->rank, strerror(errno));
        return -1;
    }
    const pid_t pid = fork();

    if (pid == 0)
        become_rank(spawn, supervisor, report[1]);
    if (pid > 0)
        setpgid(pid, pid); /* here too: whoever comes first; fails harmlessly after the exec */
    else
        hkt_tool_say("run", "rank %d: fork: %s; `ulimit -u` shows the limit", spawn->rank, strerror(errno));
    close(report[1]);
    ssize_t got = pid > 0 ? -1 : 0;

    while (got < 0) {
        got = read(report[0], &why, sizeof why);
        if (got < 0 && errno != EINTR)
            got = 0;
    }
    close(report[0]);
    if (got == 0)
        return pid;
    waitpid(pid, NULL, 0);
    *out_exit_code = exec_failed(spawn->opts->command[0], why);
    return -1;
}
