/* Ending every process below this one. A subreaper inherits orphans, so all descendants of the job stay below it
 * however often they fork, daemonize or change their group; /proc tells who they are. New ones may appear while the
 * list is read, so ending repeats until there is nothing left to reap. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run.h"

struct process {
    pid_t pid, parent;
    bool is_ours;
};

int64_t run_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Parent of a process from /proc/PID/stat: "pid (name) state ppid ...", where the name may hold anything. */
static pid_t parent_of(const char *pid_text)
{
    char path[64], text[512];

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -1;
    const ssize_t bytes = read(fd, text, sizeof text - 1);

    close(fd);
    if (bytes <= 0)
        return -1;
    text[bytes] = '\0';
    const char *name_end = strrchr(text, ')');

    return name_end != NULL && strlen(name_end) > 4 ? (pid_t)strtol(name_end + 4, NULL, 10) : -1;
}

/* All processes of the machine; NULL when there is no memory or no /proc. */
static struct process *list_processes(size_t *out_count)
{
    struct process *list = NULL;
    size_t count = 0, room = 0;
    DIR *proc = opendir("/proc");

    if (proc == NULL)
        return NULL;
    for (struct dirent *entry = readdir(proc); entry != NULL; entry = readdir(proc)) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (count == room) {
            struct process *more = realloc(list, (room + 256) * sizeof *list);

            if (more == NULL)
                break;
            list = more;
            room += 256;
        }
        list[count++] = (struct process){ (pid_t)strtol(entry->d_name, NULL, 10), parent_of(entry->d_name), false };
    }
    closedir(proc);
    *out_count = count;
    return list;
}

int run_tree_kill(int signal_number)
{
    const pid_t self = getpid();
    size_t count = 0;
    struct process *list = list_processes(&count);
    int found = 0;

    /* Children of ours are ours; repeat until a pass finds no new one. */
    for (bool grew = true; grew;) {
        grew = false;
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < count && !list[i].is_ours; j++)
                if (list[i].parent == self || (list[j].is_ours && list[j].pid == list[i].parent))
                    list[i].is_ours = grew = true;
    }
    for (size_t i = 0; i < count; i++)
        if (list[i].is_ours && kill(list[i].pid, signal_number) == 0)
            found++;
    free(list);
    return found;
}

void run_tree_end(int64_t kill_after_ms)
{
    const int64_t kill_at = run_now_ms() + kill_after_ms;
    bool asked = false;

    for (;;) {
        const pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid > 0)
            continue;
        if (pid < 0 && errno == ECHILD)
            return;
        if (run_now_ms() >= kill_at) {
            run_tree_kill(SIGKILL);
        } else if (!asked) {
            run_tree_kill(SIGTERM);
            asked = true;
        }
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
}
