/* SPDX-License-Identifier: Apache-2.0 */
/* Loops on threads that somebody else has awake already. */
#ifndef EJKI_DEVICE_THREADS_H
#define EJKI_DEVICE_THREADS_H

#include <ejkernel/device.h>

/*
 * From now on loops of this thread are run by this function in place of a pool; NULL: by pools again. How a call is
 * shared out, and so its result, does not depend on it.
 */
void ejki_threads_borrow(ejk_parallel_for_fn parallel_for, void *user);

#endif
