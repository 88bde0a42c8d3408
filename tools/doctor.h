/* `hocket doctor`, inside: what its files share. A check adds findings to a report: what was looked at, how it stands, the
 * figure, and the mend where something is to be mended. Reports are plain memory, so that ranks can exchange them. */
#ifndef HOCKET_TOOLS_DOCTOR_H
#define HOCKET_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor_finding {
    enum doctor_level level;
    char check[32];
    char figure[192];
    char mend[256];              /* "": nothing to mend */
};

#define DOCTOR_FINDINGS_MAX 48   /* those beyond are counted in `left_out` */

struct doctor_report {
    char host[64];
    int count, left_out;
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
};

/** mend: "" or what to do; where the level is OK it is dropped. */
void hkt_doctor_add(struct doctor_report *report, const char *check, enum doctor_level level, const char *mend,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/** The first line of a file below root, without its end; false if there is none. */
bool hkt_doctor_read(const char *root, const char *path, char *out_text, size_t bytes);

/* Checks of this machine; root stands before /proc, /sys and /dev ("": this machine's). */
void hkt_doctor_limits(struct doctor_report *report, const char *root);
void hkt_doctor_cgroup(struct doctor_report *report, const char *root);
void hkt_doctor_network(struct doctor_report *report, const char *root);
void hkt_doctor_rdma(struct doctor_report *report, const char *root);
bool hkt_doctor_has_rdma(const char *root);

#define DOCTOR_NODES_MAX 64

/** What ranks found out together. */
struct doctor_job {
    int nreports;                        /* one per host; the first is this one's */
    struct doctor_report *reports;       /* owned; NULL: alone */
    int nnodes;                          /* of the matrices: hosts, or ranks where there is one host */
    char nodes[DOCTOR_NODES_MAX][80];
    double gbytes_per_s[DOCTOR_NODES_MAX][DOCTOR_NODES_MAX]; /* [from][to] */
    double latency_us[DOCTOR_NODES_MAX][DOCTOR_NODES_MAX];
};
/** Meet the other ranks, if there are any, and measure. Adds what is wrong to the own report, which is then exchanged.
 *  Returns this process's rank. out_job->reports is to be freed. */
int hkt_doctor_meet(struct doctor_report *own, struct doctor_job *out_job);

#endif
