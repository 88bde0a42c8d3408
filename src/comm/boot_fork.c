/* Links and fork. A child that the application forks inherits the links' sockets; as long as it lives, the death of
 * its parent would close none of them and nobody would notice. So the child closes its copies, which is all it may do
 * with a communicator of its parent anyway.
 *
 * The list is walked in the child without taking any boot's mutex (another thread may have held it at the fork). That
 * is safe: descriptors are set to -1 before they are closed, and fork copies the table of descriptors before the
 * memory. */
#include <unistd.h>

#include "comm/boot_int.h"

static pthread_mutex_t boots_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hkt__boot *boots;
static pthread_once_t boots_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&boots_mutex);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&boots_mutex);
}

static void close_once(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void after_fork_in_child(void)
{
    for (struct hkt__boot *boot = boots; boot != NULL; boot = boot->next) {
        boot->is_inherited = true;
        for (int i = 0; i < HKT__LINK_COUNT; i++)
            close_once(&boot->links[i].fd);
        close_once(&boot->epoll);
        close_once(&boot->wake);
    }
    boots = NULL;
    pthread_mutex_unlock(&boots_mutex);
}

static void register_once(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void hkt__boot_fork_add(struct hkt__boot *boot)
{
    (void)pthread_once(&boots_once, register_once);
    pthread_mutex_lock(&boots_mutex);
    boot->next = boots;
    boots = boot;
    pthread_mutex_unlock(&boots_mutex);
}

void hkt__boot_fork_remove(struct hkt__boot *boot)
{
    pthread_mutex_lock(&boots_mutex);
    for (struct hkt__boot **at = &boots; *at != NULL; at = &(*at)->next)
        if (*at == boot) {
            *at = boot->next;
            break;
        }
    pthread_mutex_unlock(&boots_mutex);
}
