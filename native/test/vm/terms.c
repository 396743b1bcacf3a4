/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#define ATOMS 64

static char atoms[ATOMS][64];

ErlDrvTermData driver_mk_atom(char *name)
{
    ErlDrvTermData atom = 0;

    vm_lock();
    while (atom < ATOMS - 1 && atoms[atom][0] && strcmp(atoms[atom], name) != 0)
        atom++;
    snprintf(atoms[atom], sizeof atoms[atom], "%s", name);
    vm_unlock();
    return atom;
}

ErlDrvTermData driver_mk_port(ErlDrvPort port)
{
    return (ErlDrvTermData)port;
}

ErlDrvTermData driver_caller(ErlDrvPort port)
{
    (void)port;
    return (ErlDrvTermData)pthread_self();
}

/* The terms are listed one after another; a tuple is built from the terms before it. */
static void read_terms(term_t *term, const ErlDrvTermData *data, int len)
{
    char stack[16][TEXT_BYTES];
    int top = 0;

    for (int i = 0; i < len;) {
        char *text = stack[top];
        int count, n = 0;

        switch (data[i]) {
        case ERL_DRV_ATOM:
            snprintf(text, TEXT_BYTES, "%s", atoms[data[i + 1]]);
            break;
        case ERL_DRV_PORT:
            snprintf(text, TEXT_BYTES, "port");
            break;
        case ERL_DRV_PID:
            snprintf(text, TEXT_BYTES, "<%llu>", (unsigned long long)data[i + 1]);
            break;
        case ERL_DRV_UINT64:
            snprintf(text, TEXT_BYTES, "%llu",
                     (unsigned long long)*(const ErlDrvUInt64 *)data[i + 1]);
            break;
        case ERL_DRV_BUF2BINARY:
            term->len = data[i + 2] < TEXT_BYTES ? (size_t)data[i + 2] : TEXT_BYTES;
            memcpy(term->bytes, (const void *)data[i + 1], term->len);
            snprintf(text, TEXT_BYTES, "<<%llu>>", (unsigned long long)data[i + 2]);
            i++;
            break;
        case ERL_DRV_TUPLE: {
            char whole[TEXT_BYTES];

            count = (int)data[i + 1];
            top -= count;
            if (top < 0)
                broken("a term is not well formed");
            for (int j = 0; j < count; j++)
                n += snprintf(whole + n, sizeof whole - (size_t)n, "%s%s", j ? "," : "{",
                              stack[top + j]);
            snprintf(whole + n, sizeof whole - (size_t)n, "}");
            memcpy(stack[top], whole, sizeof whole);
            break;
        }
        default:
            broken("a term of an unknown kind");
        }
        i += 2;
        top++;
    }
    if (top != 1)
        broken("a term is not well formed");
    memcpy(term->text, stack[0], TEXT_BYTES);
}

static int hear(ErlDrvTermData port_term, ErlDrvTermData *data, int len)
{
    ErlDrvPort port = (ErlDrvPort)port_term;
    term_t *term = make(sizeof *term), **at;

    vm_lock();
    read_terms(term, data, len);
    for (at = &port->terms; *at; at = &(*at)->next)
        ;
    *at = term;
    vm_unlock();
    return 1;
}

int erl_drv_output_term(ErlDrvTermData port, ErlDrvTermData *data, int len)
{
    return hear(port, data, len);
}

int erl_drv_send_term(ErlDrvTermData port, ErlDrvTermData to, ErlDrvTermData *data, int len)
{
    (void)to;
    return hear(port, data, len);
}

const char *vm_heard(ErlDrvPort port)
{
    vm_lock();
    free(port->heard);
    port->heard = port->terms;
    if (port->heard)
        port->terms = port->heard->next;
    vm_unlock();
    return port->heard ? port->heard->text : NULL;
}

const uint8_t *vm_heard_bytes(ErlDrvPort port, size_t *len_p)
{
    *len_p = port->heard ? port->heard->len : 0;
    return port->heard ? port->heard->bytes : NULL;
}
