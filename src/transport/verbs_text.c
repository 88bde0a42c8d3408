/* Errors of verbs in words: what a code means for this connection, and the mend. */
#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/verbs.h"

/** What to look at, by completion status. Those absent are faults of this program. */
static const struct {
    enum ibv_wc_status status;
    const char *name, *meaning;
} meanings[] = {
    {IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR",
     "the peer's adapter did not acknowledge in time: its process ended, a port or cable went down, or packets of this size "
     "are lost on the way (try HOCKET_IB_MTU=1024; RoCE needs a network without loss, and one MTU throughout)"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR",
     "the peer had no receive request left each time: it hangs, or is of another version; HOCKET_IB_RNR_RETRY=7 waits on"},
    {IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR",
     "the queue pair was taken out of service, as when its device is removed or its port is reconfigured"},
    {IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", "the peer refused access to its memory: its end was closed or reset"},
    {IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", "the peer's adapter failed to carry it out; see its host's kernel log"},
    {IBV_WC_REM_ABORT_ERR, "IBV_WC_REM_ABORT_ERR", "the peer's adapter gave up; see its host's kernel log"},
    {IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", "the adapter failed; see this host's kernel log"},
    {IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", "the peer's adapter did not answer"},
};

void hkt__verbs_wc_text(const struct hkt__verbs_path *path, const struct ibv_wc *wc, char *out_text, size_t bytes)
{
    const struct hkt__verbs_link *link = path->link;
    const struct hkt__verbs_rail *rail = &link->dom->verbs->rails[path->rail];
    const char *name = "another code", *meaning = "this is a fault of hocket: please report it";
    struct ibv_port_attr attr;
    char port[80];

    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (meanings[i].status == wc->status) {
            name = meanings[i].name;
            meaning = meanings[i].meaning;
        }
    hkt__verbs_port_name(&rail->port, port, sizeof port);
    if (ibv_query_port(rail->context, rail->port.port, &attr) == 0 && attr.state != IBV_PORT_ACTIVE) {
        snprintf(out_text, bytes, "%s, queue pair %u: %s (%s, vendor code %u); the port is %s: look at its link", port,
                 path->qp->qp_num, ibv_wc_status_str(wc->status), name, wc->vendor_err, ibv_port_state_str(attr.state));
        return;
    }
    snprintf(out_text, bytes, "%s, queue pair %u: %s (%s, vendor code %u): %s", port, path->qp->qp_num,
             ibv_wc_status_str(wc->status), name, wc->vendor_err, meaning);
}

/** CAP_IPC_LOCK: the limit does not hold. */
static bool may_lock_any(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_IPC_LOCK & 1) != 0;
}

size_t hkt__verbs_lockable_bytes(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_lock_any())
        return SIZE_MAX;
    return (size_t)limit.rlim_cur;
}

enum hkt_status hkt__verbs_fail_register(const char *device, size_t bytes)
{
    const int sys_errno = errno;
    struct rlimit limit = {0, 0};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    errno = sys_errno;
    if (sys_errno == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "%s cannot register %zu KiB: this process may lock %llu KiB of memory only; "
                             "raise that (ulimit -l unlimited; /etc/security/limits.conf: * - memlock unlimited; "
                             "docker run --ulimit memlock=-1; systemd LimitMEMLOCK=infinity, for slurmd too)", device,
                             bytes >> 10, (unsigned long long)limit.rlim_cur >> 10);
    return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "%s cannot register %zu KiB of memory", device, bytes >> 10);
}
