# synctrain: build, check, demo, bench, install.  Everything made goes under build/.
#
#   make                 programs, libraries and the SPANK plugin
#   make demo            sets up a private one-box Slurm cluster and trains on it
#   make check           sets up everything and passes all tests;  T=name runs the tests whose name holds it
#   make check-long      the long forms as well
#   make check SAN=address,undefined | SAN=thread
#   make bench           ratios against peers in the same run
#   make install DESTDIR= prefix= libexecdir= sysconfdir= slurm_plugindir=

prefix          ?= /usr/local
bindir          ?= $(prefix)/bin
libdir          ?= $(prefix)/lib
libexecdir      ?= $(prefix)/libexec
sysconfdir      ?= /etc
slurm_plugindir ?= $(libdir)/slurm

CC      ?= cc
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
FORTIFY = $(if $(SAN),,-D_FORTIFY_SOURCE=2)

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

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
LIBS := $(B)/lib/libtrainer.a $(B)/lib/libcomm.a $(B)/lib/libtopology.a $(B)/lib/libcommon.a
SYSLIBS = $(PKGLIBS) -ldnnl -lm -ldl -lpthread

# One short line per file; `make V=1` prints the commands.
Q    := $(if $(V),,@)
note  = $(if $(V),,@printf '  %-5s %s\n' '$(1)' '$(2)')

PLUGIN := $(if $(SAN),,$(if $(PLUGIN_SRC),$(B)/lib/slurm/synctrain.so))

.PHONY: all
all: $(B)/bin/synctrain $(PLUGIN) $(HELPERS)

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

$(UNIT_TESTS): $(B)/tests/%: $(B)/obj/tests/unit/%.o $(LIBS)
	@mkdir -p $(@D)
	$(call note,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(SYSLIBS)

.PHONY: unit-tests
unit-tests: $(UNIT_TESTS)

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

.PHONY: install
install: all
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(slurm_plugindir) $(DESTDIR)$(sysconfdir)/synctrain \
		$(DESTDIR)$(libexecdir)/synctrain
	install -m 755 $(B)/bin/synctrain $(DESTDIR)$(bindir)/synctrain
	install -m 755 $(B)/lib/slurm/synctrain.so $(DESTDIR)$(slurm_plugindir)/synctrain.so
	install -m 755 $(HELPERS) $(DESTDIR)$(libexecdir)/synctrain
	sed 's|@slurm_plugindir@|$(slurm_plugindir)|; s|@libexecdir@|$(libexecdir)|; s|@sysconfdir@|$(sysconfdir)|' etc/synctrain/plugstack.conf.in > $(DESTDIR)$(sysconfdir)/synctrain/plugstack.conf
	chmod 644 $(DESTDIR)$(sysconfdir)/synctrain/plugstack.conf

.PHONY: clean
clean:
	rm -rf build
