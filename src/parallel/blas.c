/* Opening a CBLAS library. It stays open: OpenBLAS has threads. */
#include "parallel/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "parallel/isa.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* the values of cblas.h */

/* In this order: OpenBLAS, then whatever the system has chosen to be its BLAS, if that speaks C. Without: none. */
static const char *const names[] = {
#ifdef HKT__BLAS
    "libopenblas.so.0", "libcblas.so.3", "libblas.so.3",
#endif
    NULL,
};

static struct hkt__blas library;
static const struct hkt__blas *found;

/* Whether OpenBLAS runs kernels without AVX although this CPU has AVX2: these are the cores it has none for. */
static int is_blind(const char *core)
{
    static const char *const old[] = { "Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Katmai", "Coppermine",
                                       "Northwood", "Banias", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat",
                                       "Atom", "Nano", "Unknown" };

    for (size_t i = 0; i < sizeof old / sizeof *old && hkt__isa_best() != HKT__ISA_base; i++)
        if (strcmp(core, old[i]) == 0)
            return 1;
    return 0;
}

/* As POSIX has it: C knows no way from object to function pointers. */
static int find(void *handle, const char *symbol, void *out_function)
{
    void *address = dlsym(handle, symbol);

    memcpy(out_function, &address, sizeof address);
    return address != NULL;
}

static int take(void *handle)
{
    char *(*config)(void), *(*core)(void);

    if (!find(handle, "cblas_sgemm", &library.sgemm) || !find(handle, "cblas_dgemm", &library.dgemm))
        return 0;
    find(handle, "openblas_set_num_threads", &library.set_threads);
    library.name = find(handle, "openblas_get_config", &config) ? config() : "cblas";
    library.is_blind = find(handle, "openblas_get_corename", &core) && is_blind(core());
    return 1;
}

static void open_once(void)
{
    for (int i = 0; names[i] != NULL && found == NULL; i++) {
        void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

        if (handle == NULL)
            continue;
        if (take(handle))
            found = &library;
        else
            dlclose(handle);
    }
}

const struct hkt__blas *hkt__blas_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_once);
    return found;
}

/* The library wants ld >= 1 even of an empty matrix. */
static int ld_of(int64_t ld)
{
    return ld < 1 ? 1 : (int)ld;
}

void hkt__blas_f32(const struct hkt__blas *blas, const struct hkt__gemm *g)
{
    if (g->m > 0 && g->n > 0)
        blas->sgemm(ROW_MAJOR, g->trans_a ? TRANS : NO_TRANS, g->trans_b ? TRANS : NO_TRANS, (int)g->m, (int)g->n,
                    (int)g->k, (float)g->alpha, g->a, ld_of(g->lda), g->b, ld_of(g->ldb), (float)g->beta, g->c,
                    ld_of(g->ldc));
}

void hkt__blas_f64(const struct hkt__blas *blas, const struct hkt__gemm *g)
{
    if (g->m > 0 && g->n > 0)
        blas->dgemm(ROW_MAJOR, g->trans_a ? TRANS : NO_TRANS, g->trans_b ? TRANS : NO_TRANS, (int)g->m, (int)g->n,
                    (int)g->k, g->alpha, g->a, ld_of(g->lda), g->b, ld_of(g->ldb), g->beta, g->c, ld_of(g->ldc));
}
