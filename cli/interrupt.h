/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C as a number: 1 = finish with what there is, 2 = stop at once. A third one ends the process. */
#ifndef EJK_CLI_INTERRUPT_H
#define EJK_CLI_INTERRUPT_H

/* Counts from here on; the number is as #ejk_tuner_options wants it. */
const volatile int *interrupt_begin(void);

/* Makes Ctrl-C what it was before. */
void interrupt_end(void);

#endif
