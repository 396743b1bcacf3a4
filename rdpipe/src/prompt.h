/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PROMPT_H
#define RD_PROMPT_H

#include <stdbool.h>

/*
 * What ssh asks at a terminal: passphrases, passwords, whether a host's key is right. Several ssh
 * that read one terminal would take each other's answers, and the one that is through first turns
 * the echo on for the others. So each ssh asks by a process of ours (SSH_ASKPASS), and a lock on
 * the terminal lets these ask one after the other.
 */

/* In a child that becomes ssh: makes it ask so, if there is a terminal and the user has not chosen
 * another way by SSH_ASKPASS_REQUIRE. */
void rd_prompt_by_us(const char *host);

/* True if this process was started by ssh to ask. */
bool rd_prompt_is_asked(int argc);

/* Asks, and writes the answer to standard output. The exit status. */
int rd_prompt(const char *text);

#endif
