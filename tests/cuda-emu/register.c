/* What objects built by nvcc call when they are loaded: each names its kernels, and the addresses by which it launches
 * them. The bodies come from elsewhere, found by name (translate.py), since there is nothing here that runs a GPU's
 * code. Variables of constant memory are in the translated code too. */
#include "engine.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            void *thread_id, void *block_id, void *block_dim, void *grid_dim, int *warp_size);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern, size_t bytes,
                       int is_constant, int is_global);
cudaError_t __cudaGetKernel(void **kernel, const void *address);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes, cudaStream_t stream);

/* Launch address -> name. */
struct alias {
    struct alias *next;
    const void *address;
    char name[256];
};
static struct alias *aliases; /* written while objects are loaded, before main */

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;

    handle = binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
    while (aliases != NULL) {
        struct alias *alias = aliases;

        aliases = alias->next;
        free(alias);
    }
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            void *thread_id, void *block_id, void *block_dim, void *grid_dim, int *warp_size)
{
    struct alias *alias = calloc(1, sizeof *alias);

    (void)handle, (void)device, (void)thread_limit, (void)thread_id;
    (void)block_id, (void)block_dim, (void)grid_dim, (void)warp_size;
    if (alias == NULL)
        abort();
    alias->address = host;
    snprintf(alias->name, sizeof alias->name, "%s", name);
    alias->next = aliases;
    aliases = alias;
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern, size_t bytes,
                       int is_constant, int is_global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)is_extern, (void)bytes, (void)is_constant, (void)is_global;
}

/* Of launches written <<< >>>, which kernels/ has none of: the stubs nvcc writes mention them all the same. */
cudaError_t __cudaGetKernel(void **kernel, const void *address)
{
    (void)kernel, (void)address;
    abort();
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    (void)grid, (void)block, (void)shared_bytes, (void)stream;
    abort();
}

cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes, cudaStream_t stream)
{
    (void)kernel, (void)grid, (void)block, (void)params, (void)shared_bytes, (void)stream;
    abort();
}

const char *emu_name_of(const void *address)
{
    for (const struct alias *alias = aliases; alias != NULL; alias = alias->next)
        if (alias->address == address)
            return alias->name;
    return NULL;
}
