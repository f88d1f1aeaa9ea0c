/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a check in a process of its own, for what changes a whole process: environment, limits, CPU set. */
#ifndef TESTS_SUPPORT_CHILD_H
#define TESTS_SUPPORT_CHILD_H

#include <stdbool.h>

/* ThreadSanitizer ends a process that starts threads after a fork. */
#if defined(__SANITIZE_THREAD__)
#define THREADS_AFTER_FORK 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREADS_AFTER_FORK 0
#endif
#endif
#ifndef THREADS_AFTER_FORK
#define THREADS_AFTER_FORK 1
#endif

/* What `check(argument)` answers in a child; false too if the child dies or takes over a minute. */
bool holds_in_child(bool (*check)(const void *argument), const void *argument);

#endif
