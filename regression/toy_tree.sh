# Sourced by tests that add something to a copy of the tree, which is links to this one's sources and objects: in $tree, to be made in
# $made.  Expects cli_common.sh, and the build directory as $build.
status=0
tree=$work/tree
made=$tree/made
mkdir "$tree"
for part in "$top"/*; do
  [ -f "$part/config.status" ] || cp -as "$part" "$tree"
done
cp -as "$build" "$made"
: > listed
: > touched

# after FILE PATTERN: the lines on stdin behind the first line that begins with PATTERN; at FILE's end without one.
after() {
  echo "$1" >> touched
  cat > lines
  awk -v pattern="${2:-}" '
    { print }
    pattern != "" && !found && index($0, pattern) == 1 { found = 1; while ((getline line < "lines") > 0) { print line } }
    END { if (pattern == "") { while ((getline line < "lines") > 0) { print line } } else if (!found) { exit 1 } }' \
    "$tree/$1" > changed || echo "$1 has no line $2" >> misplaced
  mkdir -p "toy/$(dirname "$1")"
  mv changed "toy/$1"
  put "$1" "toy/$1"
}
# put FILE FROM: FILE of the tree is FROM, as old as it was: what must be made again is removed instead (made_from).
put() {
  rm -f "$tree/$1"
  cp "$2" "$tree/$1"
  touch -r "$top/$1" "$tree/$1"
}


# make_toy PROGRAM...: with what was put into the tree; objects that have to be made again are gone (removed by the caller).
make_toy() {
  env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -j2 -C "$made" srcdir="$tree" top_srcdir="$tree" VPATH="$tree" CFLAGS=-O0 \
    AUTOCONF=: AUTOMAKE=: ACLOCAL=: "$@" < /dev/null
}
