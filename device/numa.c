#include "device/numa.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_BYTES = 32, LIST_BYTES = 4096, PATH_BYTES = 512 };

/* In sysfs ids are lower case, with a domain of four digits unless more are needed. */
static bool sysfs_id(const char *pci_bus_id, char id[ID_BYTES]) {
    const char *colon = strchr(pci_bus_id, ':');
    if (!colon || strchr(pci_bus_id, '/')) return false;
    while (colon - pci_bus_id > 4 && *pci_bus_id == '0') pci_bus_id++;
    size_t length = strlen(pci_bus_id);
    if (length >= ID_BYTES) return false;
    for (size_t i = 0; i <= length; i++) id[i] = (char)tolower((unsigned char)pci_bus_id[i]);
    return true;
}

/* The first line of an attribute of the device. */
static bool read_attribute(const char *root, const char *pci_bus_id, const char *name, char *text, int bytes) {
    char id[ID_BYTES], path[PATH_BYTES];
    if (!sysfs_id(pci_bus_id, id)) return false;
    int length = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root ? root : "/sys", id, name);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(text, bytes, file) != NULL;
    fclose(file);
    if (read) text[strcspn(text, "\n")] = '\0';
    return read;
}

int mu_numa_node(const char *root, const char *pci_bus_id) {
    char text[LIST_BYTES], *end;
    if (!read_attribute(root, pci_bus_id, "numa_node", text, sizeof text)) return -1;
    long node = strtol(text, &end, 10);
    return end == text || *end || node < 0 || node > 1 << 20 ? -1 : (int)node;
}

static bool parse_number(const char **text, unsigned long *number) {
    char *end;
    if (!isdigit((unsigned char)**text)) return false;
    *number = strtoul(*text, &end, 10);
    *text = end;
    return true;
}

bool mu_numa_parse_list(const char *text, cpu_set_t *cpus) {
    cpu_set_t found;
    CPU_ZERO(&found);
    for (;;) {
        unsigned long first, last;
        if (!parse_number(&text, &first)) return false;
        last = first;
        if (*text == '-' && (text++, !parse_number(&text, &last))) return false;
        if (last < first) return false;
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, &found);
        if (!*text) break;
        if (*text++ != ',') return false;
    }
    *cpus = found;
    return true;
}

bool mu_numa_cpus(const char *root, const char *pci_bus_id, const cpu_set_t *allowed, cpu_set_t *cpus) {
    char list[LIST_BYTES];
    cpu_set_t local, both;
    /* Without a node, sysfs lists every CPU: there is nothing to prefer. */
    if (mu_numa_node(root, pci_bus_id) < 0) return false;
    if (!read_attribute(root, pci_bus_id, "local_cpulist", list, sizeof list) || !mu_numa_parse_list(list, &local))
        return false;
    CPU_AND(&both, &local, allowed);
    if (CPU_COUNT(&both) == 0) return false;
    *cpus = both;
    return true;
}

bool mu_numa_settle(const char *root, const char *pci_bus_id) {
    cpu_set_t allowed, cpus;
    /* 0 is the calling thread. A machine with more CPUs than a cpu_set_t holds is refused here, and left alone. */
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    if (!mu_numa_cpus(root, pci_bus_id, &allowed, &cpus)) return false;
    return sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}
