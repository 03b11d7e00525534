# synctrain: build, check, demo, bench, install.  Everything made goes under build/.
#
#   make                 programs, libraries and the SPANK plugin
#   make demo            sets up a private one-box Slurm cluster and trains on it
#   make check           sets up everything and passes all tests;  T=name runs the tests whose name holds it
#   make check-long      the long forms as well
#   make check SAN=address,undefined | SAN=thread
#   make fuzz T=name SECONDS=600            libFuzzer, for each target whose name holds it; needs clang; findings go to build/fuzz/found/
#   make bench           ratios against peers in the same run
#   make install DESTDIR= prefix= libexecdir= sysconfdir= slurm_plugindir=; uninstall takes the same

prefix          ?= /usr/local
bindir          ?= $(prefix)/bin
libdir          ?= $(prefix)/lib
libexecdir      ?= $(prefix)/libexec
sysconfdir      ?= /etc
slurm_plugindir ?= $(libdir)/slurm
includedir      ?= $(prefix)/include
pkgconfigdir    ?= $(libdir)/pkgconfig
mandir          ?= $(prefix)/share/man
docdir          ?= $(prefix)/share/doc/synctrain

CC      ?= cc
OBJCOPY ?= objcopy
CSTD     = -std=gnu17
WARN     = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wno-sign-conversion -Wvla $(if $(WERROR),-Werror)
OPT     ?= -O2 -g
HARDEN   = -fstack-protector-strong -fPIC -fvisibility=hidden
LDHARDEN = -Wl,-z,relro,-z,now,-z,noexecstack
# The bits of a training run are part of the contract: no contraction of a*b+c behind the programmer's back.
FPMATH   = -ffp-contract=off

B := build
ifdef SAN
comma := ,
B := build/san-$(subst $(comma),-,$(SAN))
SANFLAGS = -fsanitize=$(SAN) -fno-omit-frame-pointer -O1
endif
FORTIFY = $(if $(SAN)$(FUZZ),,-D_FORTIFY_SOURCE=2)

# `make fuzz` comes back here with FUZZ=1.  Clang can't compile the vector kernels, where there is nothing to find for a fuzzer.
ifdef FUZZ
B := build/fuzz
CLANG ?= clang
CC := $(CLANG)
SANFLAGS = -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1
$(B)/obj/libcomm/reduc%.o $(B)/obj/trainer/kernels.o: CC := cc
$(B)/obj/libcomm/reduc%.o $(B)/obj/trainer/kernels.o: SANFLAGS :=
endif

PKGS     = json-c libcrypto libxxhash pmix
PKGFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKGLIBS   = $(shell pkg-config --libs $(PKGS) 2>/dev/null)

VERSION  := 0.1.0
BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo $(VERSION))

CPPFLAGS_ALL = -D_GNU_SOURCE -I. $(FORTIFY) $(PKGFLAGS) $(CPPFLAGS)
CFLAGS_ALL   = $(CSTD) $(WARN) $(OPT) $(HARDEN) $(FPMATH) $(SANFLAGS) $(CFLAGS)
LDFLAGS_ALL  = $(LDHARDEN) $(SANFLAGS) $(LDFLAGS)

COMMON_SRC   := $(wildcard common/*.c)
TOPOLOGY_SRC := $(wildcard topology/*.c)
LIBCOMM_SRC  := $(wildcard libcomm/*.c)
TRAINER_SRC  := $(filter-out trainer/synctrain.c,$(wildcard trainer/*.c))
PLUGIN_SRC   := $(wildcard spank-plugin/*.c)
HELPER_SRC   := $(wildcard spank-plugin/helpers/*.c)
HELPERS      := $(HELPER_SRC:spank-plugin/helpers/%.c=$(B)/libexec/synctrain/%)
UNIT_SRC     := $(wildcard tests/unit/test_*.c)
UNIT_TESTS   := $(UNIT_SRC:tests/unit/%.c=$(B)/tests/%)
FUZZ_NAMES   := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_TESTS   := $(FUZZ_NAMES:%=$(B)/tests/test_fuzz_%)

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
LIBS := $(B)/lib/libtrainer.a $(B)/lib/libcomm.a $(B)/lib/libtopology.a $(B)/lib/libcommon.a
SYSLIBS = $(PKGLIBS) -ldnnl -lm -ldl -lpthread

# One short line per file; `make V=1` prints the commands.
Q    := $(if $(V),,@)
note  = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

PLUGIN := $(if $(SAN),,$(if $(PLUGIN_SRC),$(B)/lib/slurm/synctrain.so))

# libcomm for other programs. The soname changes when a program built against the version before could go wrong with this one.
COMM_SONAME  := libsynctrain-comm.so.0
COMM_SHARED  := $(B)/lib/libsynctrain-comm.so.$(VERSION)
COMM_STATIC  := $(B)/lib/libsynctrain-comm.a
COMM_OBJ      = $(call obj,$(filter-out libcomm/cmd_% libcomm/launcher_%,$(LIBCOMM_SRC)))
COMM_HEADERS := libcomm/comm.h libcomm/bootstrap.h common/status.h
COMM_PKGS     = libcrypto libxxhash pmix
MANUAL       := $(B)/man/synctrain.1
FOR_USERS    := $(if $(SAN),,$(COMM_SHARED) $(COMM_STATIC) $(MANUAL))

.PHONY: all
all: $(B)/bin/synctrain $(PLUGIN) $(HELPERS) $(FOR_USERS)

$(B)/lib/libcommon.a:   $(call obj,$(COMMON_SRC))
$(B)/lib/libtopology.a: $(call obj,$(TOPOLOGY_SRC))
$(B)/lib/libcomm.a:     $(call obj,$(LIBCOMM_SRC))
$(B)/lib/libtrainer.a:  $(call obj,$(TRAINER_SRC))
$(B)/lib/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(call note,AR,$@)
	$(Q)$(AR) rcs $@ $^

# Vectors of 64 bytes as arguments of functions that are all inlined: no calling convention is at stake.
$(B)/obj/trainer/kernels.o: CFLAGS_ALL += -Wno-psabi

# The build id sits in one object only, so that a commit does not rebuild the world.
$(B)/obj/common/version.o: CPPFLAGS_ALL += -DSYNCTRAIN_VERSION='"$(VERSION)"' -DSYNCTRAIN_BUILD_ID='"$(BUILD_ID)"'
$(B)/obj/common/version.o: $(B)/build-id
$(B)/build-id: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION) $(BUILD_ID)' | cmp -s - $@ || echo '$(VERSION) $(BUILD_ID)' > $@
.PHONY: FORCE
FORCE:

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call note,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -MMD -MP -c $< -o $@

$(B)/bin/synctrain: $(B)/obj/trainer/synctrain.o $(LIBS)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -pie -o $@ $^ $(SYSLIBS)

# libc only, and nothing exported but slurm_spank_* and the plugin's identity: tests/slurm reads its dynamic section.
$(B)/lib/slurm/synctrain.so: $(call obj,$(PLUGIN_SRC)) spank-plugin/exports.map
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,--version-script=spank-plugin/exports.map -o $@ $(filter %.o,$^)

$(COMM_SHARED): $(COMM_OBJ) $(B)/lib/libtopology.a $(B)/lib/libcommon.a libcomm/exports.map
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,$(COMM_SONAME) -Wl,--version-script=libcomm/exports.map -Wl,-z,defs -Wl,--as-needed \
		-o $@ $(COMM_OBJ) $(B)/lib/libtopology.a $(B)/lib/libcommon.a $(PKGLIBS) -lm -lpthread
	$(Q)ln -sf $(@F) $(@D)/$(COMM_SONAME) && ln -sf $(COMM_SONAME) $(@D)/libsynctrain-comm.so

# One object in which everything but the interface is local, so that a program may have a st_log() of its own.
$(COMM_STATIC): $(COMM_OBJ) $(B)/lib/libtopology.a $(B)/lib/libcommon.a
	@mkdir -p $(@D)
	@rm -f $@
	$(call note,AR,$@)
	$(Q)$(LD) -r -o $(B)/lib/synctrain-comm.o $^ && $(OBJCOPY) --localize-hidden $(B)/lib/synctrain-comm.o && $(AR) rcs $@ $(B)/lib/synctrain-comm.o

# The manual is what the program says with --help.
$(MANUAL): $(B)/bin/synctrain etc/man/pages
	$(call note,MAN,$@)
	$(Q)etc/man/pages $(B)/bin/synctrain $(@D)

# Where the plugin looks when plugstack.conf does not say.
$(B)/obj/spank-plugin/submit.o: CPPFLAGS_ALL += -DSYNCTRAIN_LIBEXECDIR='"$(libexecdir)/synctrain"' -DSYNCTRAIN_SLURM_PLUGINDIR='"$(slurm_plugindir)"'
$(B)/obj/spank-plugin/submit.o: $(B)/plugin-paths
$(B)/plugin-paths: FORCE
	@mkdir -p $(@D)
	@echo '$(libexecdir) $(slurm_plugindir)' | cmp -s - $@ || echo '$(libexecdir) $(slurm_plugindir)' > $@

# Programs that the plugin starts: what needs a library is done there.
$(HELPERS): $(B)/libexec/synctrain/%: $(B)/obj/spank-plugin/helpers/%.o $(B)/obj/spank-plugin/options.o $(B)/lib/libcommon.a
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -Wl,--as-needed -pie -o $@ $^ $(PKGLIBS)

# ThreadSanitizer knows memory by its address: see one_mapping.c.
ifeq ($(SAN),thread)
ONE_MAPPING := $(B)/obj/tests/unit/one_mapping.o
ONE_MAPPING_FLAGS := -Wl,--wrap=mmap,--wrap=munmap
endif
$(UNIT_TESTS): $(B)/tests/%: $(B)/obj/tests/unit/%.o $(ONE_MAPPING) $(LIBS)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(ONE_MAPPING_FLAGS) -o $@ $^ $(SYSLIBS)

# Fuzz targets as tests: seeds and drawn mutations, with any compiler.
$(FUZZ_TESTS): $(B)/tests/test_fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(LIBS)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(SYSLIBS)

# The programs of the fault campaign, which tests/slurm/test_faults.sh runs.
FAULT_PROGRAMS := $(B)/tests/faults/campaign $(B)/tests/faults/fault_rank
$(FAULT_PROGRAMS): $(B)/tests/faults/%: $(B)/obj/tests/faults/%.o $(LIBS)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(SYSLIBS)

.PHONY: unit-tests
unit-tests: $(UNIT_TESTS) $(FUZZ_TESTS) $(FAULT_PROGRAMS)

$(B)/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(LIBS)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -fsanitize=fuzzer -o $@ $^ $(SYSLIBS)

SECONDS ?= 60
.PHONY: fuzz
fuzz: $(FUZZ_TESTS)
	+@$(MAKE) --no-print-directory FUZZ=1 $(foreach name,$(FUZZ_NAMES),$(if $(findstring $(T),$(name)),build/fuzz/fuzz_$(name)))
	@tests/fuzz/run $(SECONDS) $(foreach name,$(FUZZ_NAMES),$(if $(findstring $(T),$(name)),$(name)))

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

.PHONY: packages
packages:
	@etc/quickstart/install-packages build run

.PHONY: check check-long
check: packages
	+@tests/run SAN='$(SAN)' T='$(T)'
check-long: packages
	+@tests/run LONG=1 SAN='$(SAN)' T='$(T)'

.PHONY: demo
demo:
	@etc/quickstart/install-packages build run demo
	+@$(MAKE) --no-print-directory -j$(shell getconf _NPROCESSORS_ONLN) all
	@etc/quickstart/demo

.PHONY: bench
bench:
	@etc/quickstart/install-packages build run bench
	+@$(MAKE) --no-print-directory -j$(shell getconf _NPROCESSORS_ONLN) all
	@tests/peers/bench

# A public header includes "common/status.h" here and "status.h", which lies beside it, there.
.PHONY: install
install: all
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(slurm_plugindir) $(DESTDIR)$(sysconfdir)/synctrain $(DESTDIR)$(libexecdir)/synctrain \
		$(DESTDIR)$(includedir)/synctrain $(DESTDIR)$(pkgconfigdir) $(DESTDIR)$(mandir)/man1 $(DESTDIR)$(docdir)/examples
	install -m 755 $(B)/bin/synctrain $(DESTDIR)$(bindir)/synctrain
	install -m 755 $(B)/lib/slurm/synctrain.so $(DESTDIR)$(slurm_plugindir)/synctrain.so
	install -m 755 $(HELPERS) $(DESTDIR)$(libexecdir)/synctrain
	sed 's|@slurm_plugindir@|$(slurm_plugindir)|; s|@libexecdir@|$(libexecdir)|; s|@sysconfdir@|$(sysconfdir)|' etc/synctrain/plugstack.conf.in > $(DESTDIR)$(sysconfdir)/synctrain/plugstack.conf
	chmod 644 $(DESTDIR)$(sysconfdir)/synctrain/plugstack.conf
	install -m 755 $(COMM_SHARED) $(DESTDIR)$(libdir)
	ln -sf $(notdir $(COMM_SHARED)) $(DESTDIR)$(libdir)/$(COMM_SONAME)
	ln -sf $(COMM_SONAME) $(DESTDIR)$(libdir)/libsynctrain-comm.so
	install -m 644 $(COMM_STATIC) $(DESTDIR)$(libdir)
	for header in $(COMM_HEADERS); do \
		sed 's|^#include "common/|#include "|' $$header > $(DESTDIR)$(includedir)/synctrain/$${header##*/} && \
		chmod 644 $(DESTDIR)$(includedir)/synctrain/$${header##*/} || exit 1; done
	sed 's|@prefix@|$(prefix)|; s|@libdir@|$(libdir)|; s|@includedir@|$(includedir)|; s|@version@|$(VERSION)|; s|@private@|$(shell pkg-config --libs $(COMM_PKGS)) -lm -lpthread|' \
		libcomm/synctrain-comm.pc.in > $(DESTDIR)$(pkgconfigdir)/synctrain-comm.pc
	chmod 644 $(DESTDIR)$(pkgconfigdir)/synctrain-comm.pc
	install -m 644 $(B)/man/*.1 $(DESTDIR)$(mandir)/man1
	install -m 644 etc/examples/* $(DESTDIR)$(docdir)/examples
	$(if $(DESTDIR),,[ "$$(id -u)" != 0 ] || ldconfig)

.PHONY: uninstall
uninstall:
	rm -f $(DESTDIR)$(bindir)/synctrain $(DESTDIR)$(slurm_plugindir)/synctrain.so $(DESTDIR)$(sysconfdir)/synctrain/plugstack.conf \
		$(patsubst %,$(DESTDIR)$(libexecdir)/synctrain/%,$(notdir $(HELPERS))) \
		$(patsubst %,$(DESTDIR)$(libdir)/%,$(notdir $(COMM_SHARED) $(COMM_STATIC)) $(COMM_SONAME) libsynctrain-comm.so) \
		$(patsubst %,$(DESTDIR)$(includedir)/synctrain/%,$(notdir $(COMM_HEADERS))) $(DESTDIR)$(pkgconfigdir)/synctrain-comm.pc \
		$(DESTDIR)$(mandir)/man1/synctrain.1 $(DESTDIR)$(mandir)/man1/synctrain-*.1 \
		$(patsubst etc/%,$(DESTDIR)$(docdir)/%,$(wildcard etc/examples/*))
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(sysconfdir)/synctrain $(DESTDIR)$(libexecdir)/synctrain $(DESTDIR)$(includedir)/synctrain \
		$(DESTDIR)$(docdir)/examples $(DESTDIR)$(docdir)

.PHONY: clean
clean:
	rm -rf build
