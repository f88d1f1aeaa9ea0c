/* SPDX-License-Identifier: Apache-2.0 */
/* A call put together from the description of its operation alone. */
#ifndef EJK_CLI_CALL_H
#define EJK_CLI_CALL_H

#include "options.h"

/*
 * Arguments, and the memory of those tensors that the call owns. Tensors go by an index: that of their field in
 * kernel->args, and behind all fields the members of lists, each as many as a list may have.
 */
typedef struct op_call {
    const ejk_kernel *kernel;
    void *args;              /* the struct that kernel->args describes; zeroed at first */
    ejk_owned_tensor *owned; /* by index */
} op_call;

/* A command on an operation. Both functions answer an exit status. */
typedef struct op_command {
    const char *name;
    /* Prints the help, without an operation that of all. */
    int (*help)(const ejk_kernel *kernel, const option *own);
    /* Does what the words behind the operation's name say; `own` flags write into `wish`. */
    int (*run)(const ejk_kernel *kernel, int count, char **words, const option *own,
               const void *wish);
} op_command;

/* Has the command do what its words ask for, of which the first names the operation. */
int call_command(const op_command *command, int count, char **words, const option *own,
                 const void *wish);

/* The end of such a help: where the flags of an operation are told. */
void call_help_flags(const ejk_kernel *kernel);

bool call_open(const ejk_kernel *kernel, op_call *out);
void call_close(op_call *call);

/* Indices that there are. */
int32_t call_count(const ejk_kernel *kernel);

/* The field of an index, that of the list for a member. */
const ejk_field *call_field(const ejk_kernel *kernel, int32_t index);

/* The index of the first member of a list, which is a field of kernel->args; the others follow. */
int32_t call_member(const ejk_kernel *kernel, const ejk_field *list);

/* The tensor of an index in a struct of arguments; NULL if there is none: another kind, a member too many. */
ejk_tensor *call_tensor(const ejk_kernel *kernel, void *args, int32_t index);

/* True if the call reads the field and writes it in place. */
bool call_is_updated(const ejk_field *field);

/* Index of the first result, or of what is updated first if that is all; -1 if there is none. */
int32_t call_first_output(const ejk_kernel *kernel);

/* Sets the platform, wherever the operation has it; NULL leaves it as it is. */
bool call_set_platform(const ejk_kernel *kernel, void *args, const char *platform);

/* Sets the explicit configuration from JSON; NULL leaves it as it is. */
bool call_set_config(const op_call *call, const char *json);

/*
 * Plans the call. Which floating-point type a result has may depend on other arguments: if the type that
 * was declared is refused, float32 is tried, the type that operations accumulate in.
 */
bool call_plan(op_call *call, ejk_context *context, ejk_plan **out);

#endif
