/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PROMPT_H
#define RD_PROMPT_H

#include <stdbool.h>

/*
 * ssh may ask on the terminal for a passphrase or password, or whether a host's key is correct.
 * Several ssh processes that read the same terminal would steal each other's answers, and
 * the first one to finish would turn the echo on for the others. So each ssh asks through one of
 * our processes (SSH_ASKPASS), and a lock on the terminal makes these processes ask one at a time.
 */

/* Call this in a child process that is about to become ssh. Makes ssh ask through rdpipe if there
 * is a terminal and the user has not set SSH_ASKPASS_REQUIRE to choose otherwise. */
void rd_prompt_by_us(const char *host);

/* Returns whether ssh started this process to ask the user. */
bool rd_prompt_is_asked(int argc);

/* Asks, writes the answer to standard output, and returns the exit status. */
int rd_prompt(const char *text);

#endif
