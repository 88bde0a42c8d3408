/* The parts of `hocket run`. Two processes stand between the shell and the ranks:
 *
 *   launcher     what the user started: forwards signals to the supervisor and passes on its exit code
 *   supervisor   starts the ranks, watches them, tags their output, ends them
 *
 * Both are subreapers, and the supervisor sees the launcher's death as the end of a pipe. So whichever of the two is
 * killed, the other finds every process of the job below itself and ends it, grandchildren and daemons included. */
#ifndef HOCKET_TOOLS_RUN_H
#define HOCKET_TOOLS_RUN_H

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RUN_RANKS_MAX 4096
#define RUN_KILL_AFTER_MS 5000 /* between SIGTERM and SIGKILL */
#define RUN_EXIT_TIMEOUT 124   /* as timeout(1) */
#define RUN_BIND_NONE (-1)

struct run_opts {
    int nranks;
    bool tag_output, verbose;
    int bind;           /* enum hkt_topo_kind of the part each rank gets, or RUN_BIND_NONE */
    cpu_set_t *cpus;    /* [rank] what it may use; NULL: not bound */
    int64_t timeout_ms; /* 0: none */
    int64_t grace_ms;   /* from the first failure to SIGTERM for the others */
    char **command;     /* NULL-terminated */
};

/** Supervisor: run the job and return the exit code. `launcher_pipe` ends when the launcher dies; `inherited` is the
 *  signal mask the ranks get. Called with the signals of run_signals and SIGCHLD blocked. */
int run_supervise(const struct run_opts *opts, int launcher_pipe, const sigset_t *inherited);

/** Signals that are passed on to the ranks, SIGCHLD added. */
void run_signals(sigset_t *out_set);

/* run_bind.c: the CPUs of each rank. */
/** "none", "core", "l3", "numa", "package"; false: none of them. */
bool run_bind_parse(const char *text, int *out_kind);
/** Fill opts->cpus unless nothing is bound; with --verbose say which. Returns -1 to go on, else the exit code, after saying why. */
int run_bind(struct run_opts *opts);

/* run_rank.c: starting one rank. */
struct run_spawn {
    const struct run_opts *opts;
    int rank;
    int root_port, master_port;
    const char *token;
    const sigset_t *inherited;
    int out_fd, err_fd; /* stdout and stderr of the rank; -1: inherit */
};
/** Pid of the rank, in a process group of its own and past its exec. On failure -1, after saying why, with the exit
 *  code for it (126 not executable, 127 not found, 1 otherwise). */
pid_t run_spawn(const struct run_spawn *spawn, int *out_exit_code);
/** A free port on the loopback. *out_fd keeps it reserved while open: bound, not listening, so that rank 0 may bind it
 *  too (SO_REUSEADDR) but the kernel hands it to nobody else. Returns -1 after saying why. */
int run_pick_port(int *out_fd);
/** 32 random hexadecimal digits. */
bool run_make_token(char out_token[33]);

/* run_tree.c: all processes below this one. */
/** Send a signal to every descendant; returns how many there were. */
int run_tree_kill(int signal_number);
/** End every descendant: SIGTERM, then SIGKILL after kill_after_ms, reaping until none is left. */
void run_tree_end(int64_t kill_after_ms);
int64_t run_now_ms(void);

/* run_output.c: lines of the ranks, tagged. */
struct run_tag {
    int fd; /* what the rank writes comes out here; -1: ended */
    int to; /* STDOUT_FILENO or STDERR_FILENO */
    int rank;
    char *line; /* the line that is not complete yet */
    size_t bytes, room;
};
/** Make the pipe; returns the end for the rank, or -1 with errno. */
int run_tag_open(struct run_tag *tag, int rank, int to);
/** Pass on what is there, without blocking. */
void run_tag_pump(struct run_tag *tag);
/** Pass on the rest, a last line without its newline included, and release. */
void run_tag_close(struct run_tag *tag);

#endif
