/* Preloaded (LD_PRELOAD) into a process that is to see a machine with an NVIDIA driver: its device file is there. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int access(const char *path, int how)
{
    return strcmp(path, "/dev/nvidiactl") == 0 ? 0 : faccessat(AT_FDCWD, path, how, 0);
}
