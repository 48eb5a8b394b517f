#!/bin/sh
# TAP: what sites are given: module file, pkg-config file, Spack's recipe; and that the documents name keys, messages
# and files that there are.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2013,SC2016,SC2317
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
status=0
: > "$scratch/out"
: > "$scratch/err"

# empty TEXT: else TEXT is what is wrong.
empty() { [ -z "$1" ] || { echo "$1"; false; }; }

# ---- files that configure makes ----

# What a file of Tcl makes of its paths, where the commands of a module system only print their arguments.
load_module() {
  cat > load.tcl << 'END'
foreach command {conflict prereq module-whatis prepend-path append-path setenv} {
  proc $command args "puts \"$command \$args\""
}
source [lindex $argv 0]
ModulesHelp
END
  run tclsh load.tcl "$made/tessera.module"
}

made=$build/slurm
config() { PKG_CONFIG_PATH=$made pkg-config "$@" tessera; }

test_made() {
  ok "nothing is left to be replaced" empty "$(grep -n '@[A-Za-z_]*@' "$build/slurm/tessera.module" "$build/slurm/tessera.pc")"
  version=$(sed -n 's/^PACKAGE_VERSION = //p' "$build/Makefile")
  ok "pkg-config: it is valid" config --validate
  ok "pkg-config: the version" is "$(config --modversion)" "$version"
  prefix=$(sed -n 's/^prefix = //p' "$build/Makefile")
  ok "pkg-config: the job scripts" is "$(config --variable=jobscriptsdir)" "$prefix/share/tessera/slurm"
  if ! command -v tclsh > /dev/null; then
    skip "the module file is loaded" "tclsh is not installed (Debian: tcl)"
    return
  fi
  load_module
  ok "module file: PATH" printed "^prepend-path PATH $(config --variable=bindir)\$"
  ok "module file: MANPATH, without hiding the system's" both "^prepend-path MANPATH $prefix" "^append-path MANPATH"
  ok "module file: the job scripts" printed "^setenv TESSERA_JOBSCRIPTS $prefix/share/tessera/slurm\$"
  ok "module file: help" grep -q "Tessera $version" "$scratch/err"
}
both() { printed "$1" && printed "$2"; }

# ---- a prefix with blanks ----

long() {
  timeout -k 5 500 nice env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}

# Tcl puts braces around a word with blanks; some versions of pkg-config a backslash before each.
test_blanks_made() {
  mkdir other
  (cd other && long "$top/configure" -q --prefix="$work/a place" --without-cuda --without-pmix; exit $status)
  ok "a prefix with blanks: configure" is $? 0
  made=$work/other/slurm
  ok "pkg-config: the programs" is "$(config --variable=bindir | tr -d '\\')" "$work/a place/bin"
  if command -v tclsh > /dev/null; then
    load_module
    ok "module file: PATH and the job scripts" both "^prepend-path PATH [{]$work/a place/bin[}]\$" \
      "^setenv TESSERA_JOBSCRIPTS [{]$work/a place/share/tessera/slurm[}]\$"
  else
    skip "module file: PATH and the job scripts" "tclsh is not installed (Debian: tcl)"
  fi
}

# installed PREFIX DESTDIR: what `make install` puts there, by name.
installed() {
  long make -s -C "$build" install prefix="$1" DESTDIR="$2"
  [ "$status" -eq 0 ] || return
  (cd "$2$1" && find . | sort)
}

test_blanks_installed() {
  installed /plain "$work/one" > plain.files
  ok "make install" both_files plain.files
  installed "/a place" "$work/a stage" > blanks.files
  ok "make install to a place with blanks" both_files blanks.files
  ok "the same files" cmp plain.files blanks.files
  run "$work/a stage/a place/bin/zero_to_fp32" --help
  ok "zero_to_fp32 is there, and is the program" printed "^usage: tessera zero_to_fp32"
  long make -s -C "$build" uninstall prefix="/a place" DESTDIR="$work/a stage"
  ok "make uninstall" gave 0
  ok "leaves no file" is "$(find "$work/a stage" ! -type d)" ""
}
both_files() { gave 0 && grep -qx ./bin/tessera "$1" && grep -q '^./share/modulefiles/tessera/' "$1"; }

# ---- Spack's recipe ----

# The recipe in a Spack of a few lines, for a spec of which every condition holds: its options must be configure's.
recipe_options() {
  cat > recipe.py << 'END'
import importlib.util, sys, types

class Anything:
    mpicc = prefix = "/p"
    value = ("90a",)
    def __getitem__(self, name): return self
    def satisfies(self, condition): return sys.argv[2] in condition

def module(name, **members):
    m = types.ModuleType(name)
    m.__dict__.update(members)
    m.__all__ = list(members)
    sys.modules[name] = m

class AutotoolsPackage:
    spec = Anything()
    spec.variants = {"cuda_arch": Anything()}
    def with_or_without(self, name, activation_value=None):
        return [f"--with-{name}={activation_value or 'yes'}"]

class CudaPackage: pass
def directive(*args, **kwargs): pass

module("spack_repo"), module("spack_repo.builtin"), module("spack_repo.builtin.build_systems")
module("spack_repo.builtin.build_systems.autotools", AutotoolsPackage=AutotoolsPackage)
module("spack_repo.builtin.build_systems.cuda", CudaPackage=CudaPackage)
module("spack")
module("spack.package", version=directive, variant=directive, depends_on=directive, conflicts=directive, InstallError=Exception)
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("package", sys.argv[1])
package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
print("\n".join(package.Tessera().configure_args()))
END
  run python3 recipe.py "$top/slurm/spack/package.py" "$1"
}

known_options() {
  options=$(sed -n 's/^\(--[a-z-]*\).*/\1/p; s/^\([A-Z_]*\)=.*/\1/p' "$scratch/out")
  "$top/configure" --help > configure.help
  for option in $options; do
    grep -Eq "^ *$(echo "$option" | sed 's/^--without-/--with(out)?-/; s/^--with-/--with(out)?-/')([ =]|\$)" configure.help ||
      echo "configure has no $option"
  done
}

test_recipe() {
  if ! command -v python3 > /dev/null; then
    skip "the recipe" "python3 is not installed"
    return
  fi
  recipe_options '~cuda'
  ok "Spack: for processors" printed '^--without-cuda$'
  ok "Spack: configure knows the options" empty "$(known_options)"
  recipe_options '+cuda'
  ok "Spack: for GPUs" printed '^NVCC_GENCODE=-gencode arch=compute_90a,code=sm_90a$'
  ok "Spack: configure knows those, too" empty "$(known_options)"
}

# ---- documents ----

documents="README.md CONTRIBUTING.md regression/README.md doc/api.md doc/cluster.md doc/deepspeed.md doc/design.md doc/migrate.md
  doc/offload.md doc/precision.md slurm/README.md cuda/README.md"

unknown_keys() {
  for document in $documents; do
    grep -oE '`(run|debug|data|profile|elasticity|zero_optimization)\.[a-z_.0-9]+[`=]' "$top/$document" | tr -d '`=' | sort -u |
      while read -r key; do
        grep -q "^${key}[[ ]" deck.keys || echo "$document: $key is no key of a deck"
      done
  done
}

dead_links() {
  for document in $documents; do
    grep -oE '\]\([^)#]*\)' "$top/$document" | tr -d ']()' | while read -r link; do
      [ -e "$top/$(dirname "$document")/$link" ] || echo "$document: there is no $link"
    done
  done
}

# Tests are named as files or as programs; those of shim/ are built from other rooms' sources.
lost_tests() {
  for document in $documents; do
    grep -oE '\bregression/[A-Za-z0-9_./]*[A-Za-z0-9_]' "$top/$document" | sed '/FAMILY/d; s/[.]np[1-9]$//; s/[.]seed[1-9]$//; s/_shim$//' | sort -u |
      while read -r name; do
        case $name in regression/shim/test_*) set -- "$top"/regression/*/"${name##*/}.c" ;; *) set -- "$top/$name.c" ;; esac
        [ -e "$1" ] || [ -e "$top/$name" ] || echo "$document: there is no $name"
      done
  done
  for room in "$top"/regression/*/; do
    grep -q "^| .$(basename "$room")/. |" "$top/regression/README.md" || echo "regression/README.md: nothing of $(basename "$room")"
  done
}

# Variables of the scripts that their manual must have, and the other way round.
untold_variables() {
  for variable in $(sed -n 's/^# *\(TESSERA[A-Z_]*\) .*/\1/p' "$top/slurm/train.sbatch"); do
    grep -q "^| \`$variable\`" "$top/slurm/README.md" || echo "slurm/README.md: nothing of $variable"
  done
  for variable in $(sed -n 's/^| `\(TESSERA[A-Z_]*\)`.*/\1/p' "$top/slurm/README.md"); do
    grep -q "{$variable:" "$top/slurm/train.sbatch" || echo "slurm/README.md: train.sbatch does not know $variable"
  done
}

# Every quoted text of the table "What you may read".
unknown_messages() {
  cat "$top"/src/*/*.c "$top"/slurm/*.c "$top"/io/*.c "$top"/slurm/*.sbatch | tr -d '\n"' | tr -s ' ' > said
  sed -n '/^## What you may read/,/^## By hand/p' "$top/slurm/README.md" | sed -n 's/^| \([^|]*`[^|]*\) |.*/\1/p' |
    grep -o '`[^`]*`' | tr -d '`' | while read -r text; do
      grep -qF -e "$text" said || echo "nobody says: $text"
    done
}

# What the first line of ./quickstart promises is what its deck says.
promised() {
  parameters=$("$tessera" plan "$top/inputs/quickstart.cfg" --format json | sed 's/.*"parameters": \([0-9]*\).*/\1/')
  echo "$(awk "BEGIN { printf \"%.1f\", $parameters / 1e6 }") million parameters for $(
    "$tessera" deck "$top/inputs/quickstart.cfg" --key run.steps) steps"
}

untold_columns() {
  for column in $(sed -n '/define TS_METRICS_COLUMNS/,/^$/s/^  X([a-z0-9_]*, \([a-z_]*\)) .*/\1/p' "$top/io/metrics.h"); do
    grep -q "^|.*\`$column\`" "$top/README.md" || echo "README.md: nothing of the column $column"
  done
}

test_documents() {
  "$tessera" keys > deck.keys
  ok "keys that documents name are there" empty "$(unknown_keys)"
  ok "links of documents lead somewhere" empty "$(dead_links)"
  ok "tests that documents name are there, and rooms of tests are told" empty "$(lost_tests)"
  ok "the variables of train.sbatch are told" empty "$(untold_variables)"
  ok "quickstart says what it will do: $(promised)" grep -qF "$(promised)" "$top/quickstart"
  TESSERA_ISA=generic run "$tessera" plan "$top/inputs/quickstart.cfg"
  ok "and computes in fp32 where bf16 would be widened" printed 'parameters, fp32, '
  ok "columns of metrics.csv are told" empty "$(untold_columns)"
  ok "messages that documents quote are said" empty "$(unknown_messages)"
}

test_made
test_blanks_made
test_blanks_installed
test_recipe
test_documents
finish
