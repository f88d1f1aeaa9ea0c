/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a child of fork() must not use: threads exist only in the process that started them, and CUDA works only
 * in the process that initialised it.
 */
#ifndef EJKI_FORK_H
#define EJKI_FORK_H

#include <ejkernel/status.h>

#include <stdatomic.h>

/* Forks between the process that called ejki_forks_watch() first and this one. Differs in a child. */
extern atomic_uint ejki_forks;

/* Counts forks from here on. Once is enough. */
EJK_NODISCARD ejk_status ejki_forks_watch(void);

/* A lock of the whole process that fork() waits for, so that no child finds it held. After the call above. */
void ejki_fork_lock(void);
void ejki_fork_unlock(void);

#endif
