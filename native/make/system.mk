# SPDX-License-Identifier: Apache-2.0
# Included first by each Makefile: one clear line where nothing here could be built.
SYSTEM := $(shell uname -s)
$(if $(filter Linux,$(SYSTEM)),,$(error this is $(SYSTEM); Beamway needs Linux (memfd, eventfd and epoll). Use a Linux machine, virtual machine or container))
