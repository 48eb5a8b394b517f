#!/bin/sh
# Print C that holds files as strings: embed.sh NAME FILE [NAME FILE]...  A FILE of "-" is the empty string.
set -eu
echo '#include "report/assets.h"'
while [ $# -gt 1 ]; do
  echo
  echo "const char ts_asset_$1[] = {"
  if [ "$2" != - ]; then
    od -An -v -tu1 "$2" | sed 's/  */,/g; s/^,//; s/$/,/'
  fi
  echo "0};"
  shift 2
done
