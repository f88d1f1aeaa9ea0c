/* SPDX-License-Identifier: Apache-2.0 */
/* The command `ejk`: which of its commands is meant. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *doc;
    int (*run)(int count, char **words);
} commands[] = {
    {"info", "what the library and this machine can do", info_command},
    {"run", "run an operation on tensors from files", run_command},
    {"bench", "measure an operation against what this machine can do at most", bench_command},
    {"tune", "find the fastest configuration of a call, and keep it", tune_command},
    {"cache", "show and change the configurations that are kept", cache_command},
    {"explain", "say which configuration a call gets, and why", explain_command},
    {"prebuild", "compile kernels for GPUs before they are needed", prebuild_command},
    {"labels", "find calls in HLO or StableHLO text", labels_command},
    {"mask-info", "process masks, JSON in and out", mask_info_command},
    {"mask", "draw a mask: elements, blocks, the order of visits", mask_command},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(void) {
    puts("ejk: kernels from the command line\n");
    puts("usage: ejk COMMAND [--flag value]...\n");
    for (int i = 0; i < COMMANDS; i++) printf("  %-11s%s\n", commands[i].name, commands[i].doc);
    puts("\n`ejk COMMAND --help` says more about each, `ejk info --op OPERATION` about an\n"
         "operation, `ejk --version` which version this is.");
}

static int dispatch(int count, char **words) {
    if (count < 2 || strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0) {
        print_help();
        return DONE;
    }
    if (strcmp(words[1], "--version") == 0) {
        printf("ejk %s\n", ejk_version());
        return DONE;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(words[1], commands[i].name) == 0) return commands[i].run(count - 2, words + 2);
    report_error("'%s' is no command, expected info, run, bench, tune, cache, explain, prebuild, "
                 "labels, mask or mask-info",
                 words[1]);
    return FAILED;
}

int main(int count, char **words) {
    int status = dispatch(count, words);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    report_error("standard output could not be written");
    return FAILED;
}
