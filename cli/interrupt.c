/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

/* A handler has no argument of its own, so these are variables of the process. */
static volatile sig_atomic_t pressed;
static struct sigaction former;

_Static_assert(sizeof(sig_atomic_t) == sizeof(int), "the count is read as an int");

static void count(int number) {
    pressed = pressed + 1;
    if (pressed < 2) return;
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(number, &plain, NULL);
}

const volatile int *interrupt_begin(void) {
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    pressed = 0;
    sigaction(SIGINT, &action, &former);
    return &pressed;
}

void interrupt_end(void) {
    sigaction(SIGINT, &former, NULL);
}
