# SPDX-License-Identifier: Apache-2.0
# Included first by each Makefile, to print one clear message on systems where nothing can be built.
SYSTEM := $(shell uname -s)
$(if $(filter Linux,$(SYSTEM)),,$(error this is $(SYSTEM); Beamway needs Linux (memfd, eventfd and epoll). Use a Linux machine, virtual machine or container))
