/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for tests of kernels: each loop starts its own and ends them, the last index first. A pool's
 * threads would spin between the many small loops of such a test, more of them than there are cores.
 */
#ifndef TESTS_TEST_THREADS_H
#define TESTS_TEST_THREADS_H

#include <ejkernel/device.h>

/* Exits the process if they cannot be had. Ended by ejk_threads_destroy(). */
ejk_threads *test_threads_create(int32_t count);

#endif
