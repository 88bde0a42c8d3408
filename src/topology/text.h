/* The text form of a graph:
 *
 *     hocket-topology 1
 *     net 0
 *       host 0 name=alpha id=1f link=network:12.5GB/s:2.5us:assumed
 *         package 0 link=socket:20GB/s:50ns:assumed
 *           core 0
 *     link host0/gpu0 host0/gpu1 nvlink:300GB/s:900ns:given
 *
 * Two spaces of indentation per level; KIND NUMBER, then any of name=, id= (hexadecimal, hosts), bytes= (numa, l3), link=
 * (the link to the node around it: KIND:BANDWIDTH:LATENCY:SOURCE, "-" for what is not known), each once. After the nodes
 * the links that are not to the node around. Lines that begin with # and empty lines are skipped. Nothing else is allowed,
 * and errors name file and line. */
#ifndef HOCKET_TOPOLOGY_TEXT_H
#define HOCKET_TOPOLOGY_TEXT_H

#include <stddef.h>

#include "topology/topo.h"

#define HKT__TOPO_FILE_MAX (64 << 20) /* bytes of a file */
#define HKT__TOPO_LINE_MAX 512

/** name: of the text, for errors. */
HKT_NODISCARD enum hkt_status hkt__topo_parse(const char *text, size_t bytes, const char *name,
                                              struct hkt_topo **out_topo);

/** "KIND:BANDWIDTH:LATENCY:SOURCE" into the fields of a link but its ends; INVALID says what is wrong. Changes `text`. */
HKT_NODISCARD enum hkt_status hkt__topo_parse_link(char *text, struct hkt_topo_link *out_link);

#endif
