/* SPDX-License-Identifier: Apache-2.0 */
/* Facts that the files of this room tell each other. */
#ifndef EJKI_DEVICE_H
#define EJKI_DEVICE_H

#include <ejkernel/device.h>

/* CPUs that the calling thread, and so every thread it starts, may run on now; at least 1. */
int32_t ejki_allowed_cpus(void);

/*
 * Adds to `cpu`, whose lower tiers are filled in, what only the instruction cpuid tells. `signature` is
 * EAX of leaf 1, or 0 if unknown so far.
 */
void ejki_cpu_add_x86(ejk_cpu_info *cpu, uint32_t signature);

#endif
