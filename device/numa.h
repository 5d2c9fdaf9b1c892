/* Which CPUs are next to a device, as Linux tells it under /sys/bus/pci/devices. Knows no driver. */
#ifndef MUSTER_DEVICE_NUMA_H
#define MUSTER_DEVICE_NUMA_H

#include <sched.h>
#include <stdbool.h>

/* `root` is where sysfs is mounted; NULL: "/sys". `pci_bus_id` is as the driver writes it: "0000:1B:00.0", also with a longer domain.
 * Any thread; nothing fails, what cannot be read is not known. */

/* The device's node; -1 when it is not known. */
int mu_numa_node(const char *root, const char *pci_bus_id);

/* The CPUs of the device's node that are in `allowed`. False (output untouched) when the node is not known, lists no CPU, or none of
 * them is allowed. */
bool mu_numa_cpus(const char *root, const char *pci_bus_id, const cpu_set_t *allowed, cpu_set_t *cpus);

/* Keeps the calling thread, and no other, on those CPUs; memory that it touches first, or has pinned, comes from their node then
 * unless the thread's memory policy says otherwise. True when it did: false changes nothing. */
bool mu_numa_settle(const char *root, const char *pci_bus_id);

/* Parses "0-3,8,10-11" into a set; CPUs beyond a cpu_set_t are left out. False (output untouched) when it is not such a list. */
bool mu_numa_parse_list(const char *text, cpu_set_t *cpus);

#endif
