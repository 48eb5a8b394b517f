# Sourced by check and quickstart from the top of the source tree: what they need before they can build; and by
# run_test.

# Open MPI by default refuses root and more ranks than cores, and binds a rank to one core; MPICH does none of this.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# One row per need: Debian package | command that succeeds when it is there.
needs='
gcc              | command -v gcc && printf "#include <stdio.h>\n" | gcc -E -
make             | command -v make
pkg-config       | command -v pkg-config
autoconf         | command -v autoreconf
automake         | command -v automake
mpich            | command -v mpiexec
libmpich-dev     | command -v mpicc
libhdf5-mpich-dev| pkg-config --exists hdf5-mpich || pkg-config --exists hdf5
libconfig-dev    | pkg-config --exists libconfig
libjansson-dev   | pkg-config --exists jansson
libpcre2-dev     | pkg-config --exists libpcre2-8
libutf8proc-dev  | pkg-config --exists libutf8proc
libhwloc-dev     | pkg-config --exists hwloc
libdnnl-dev      | printf "#include <dnnl.h>\n" | gcc -E -
libxxhash-dev    | printf "#include <xxhash.h>\n" | gcc -E -
'
# Ubuntu 24.04 built its MPICH for a launcher it does not have: mpiexec -n 2 starts two worlds of one rank.
if grep -qs '^PRETTY_NAME="Ubuntu 24.04' /etc/os-release; then
  needs=$(printf '%s\n' "$needs" | sed 's/^mpich /openmpi-bin /; s/^libmpich-dev/libopenmpi-dev/; s/-mpich-dev/-openmpi-dev/')
fi
check_need='
libpmix-dev      | pkg-config --exists pmix
liburing-dev     | pkg-config --exists liburing
g++              | command -v g++
hdf5-tools       | command -v h5dump && command -v h5diff
libjs-dygraphs   | test -f /usr/share/javascript/dygraphs/dygraph.min.js
libxml2-utils    | command -v xmllint
'
# For regression/slurm/jobs.sh, which is skipped without them.
slurm_need='
munge            | PATH=$PATH:/usr/sbin; command -v munged
slurmctld        | PATH=$PATH:/usr/sbin; command -v slurmctld
slurmd           | PATH=$PATH:/usr/sbin; command -v slurmd
slurm-client     | command -v sbatch
'
bible_need='
bible-kjv        | command -v bible
'

# Print the packages whose test fails; $1 is a table of needs.
list_missing() {
  printf '%s\n' "$1" | while IFS='|' read -r package probe; do
    if [ -n "$probe" ] && ! (eval "$probe") > /dev/null 2>&1; then
      echo "$package" | tr -d ' '
    fi
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Install by apt what is missing of the table $1 where that is possible; else name it and stop.
install_missing() {
  missing=$(list_missing "$1" | tr '\n' ' ')
  if [ -z "$missing" ]; then
    return 0
  fi
  if command -v apt-get > /dev/null && as_root true 2> /dev/null; then
    echo "installing $missing"
    # gcc without its recommended C library headers compiles nothing
    case $missing in *gcc*) missing="$missing libc6-dev" ;; esac
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq < /dev/null > /dev/null || true
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing \
      < /dev/null > /dev/null || true
    missing=$(list_missing "$1" | tr '\n' ' ')
  fi
  if [ -n "$missing" ]; then
    echo "missing, please install (names of the Debian packages): $missing" >&2
    exit 1
  fi
}

# Bootstrap, configure in directory $1 and build there.  Further arguments go to configure, which then runs again.
build() {
  directory=$1
  shift
  if [ ! -f configure ] || [ ! -f Makefile.in ] || [ ! -f build-aux/tap-driver.sh ]; then
    said=$(autoreconf -i 2>&1) || { echo "$said" >&2; exit 1; }
  fi
  if [ ! -f "$directory/config.status" ] || [ $# -gt 0 ]; then
    mkdir -p "$directory"
    (top=$(pwd) && cd "$directory" && "$top/configure" --quiet "$@")
  fi
  make -s -j2 -C "$directory"
}
