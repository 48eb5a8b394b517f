#!/bin/sh
# TAP: reports as people call them, of a run that was resumed and observed, of several runs, of hostile, damaged and long
# ones; the page is well-formed, loads nothing, and a browser draws it without a complaint.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

report() { run "$tessera" report "$@"; }
holds() { grep -q -e "$1" "$page"; }
lacks() { ! holds "$1"; }

well_formed() {
  if command -v xmllint > /dev/null; then
    ok "$1 is well-formed" xmllint --noout "$page"
  else
    skip "$1 is well-formed" "xmllint is not installed (Debian: libxml2-utils)"
  fi
}

# browse [FRAGMENT]: a browser with no names to resolve: what it has drawn (data-drawn) and the page as it stands then; the page's own requests
# and complaints of its console are on standard error.
browse() {
  timeout 90 "$browser" --headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update \
    --no-first-run --disable-sync --user-data-dir="$scratch/profile" --host-resolver-rules="MAP * ~NOTFOUND" \
    --enable-logging=stderr --v=0 --virtual-time-budget=3000 --dump-dom "file://$(pwd)/$page${1:-}" > "$scratch/dom" 2> "$scratch/console"
}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)

# drawn NAME [EMPTY]: every chart of the page has a curve, but for so many.
drawn() {
  if [ -z "$browser" ]; then
    skip "$1: a browser draws it" "no Chromium (Debian: chromium)"
  elif ! grep -q dygraphs-js "$page" && ! grep -q 'id="data"' "$page"; then
    skip "$1: a browser draws its curves" "built without dygraphs (Debian: libjs-dygraphs)"
  else
    browse
    charts=$(grep -c 'class="plot"' "$page")
    empty=$(sed -n 's/.*data-empty="\([0-9]*\)".*/\1/p' "$scratch/dom")
    ok "$1: a browser draws its $charts curves${2:+, of which $2 has no numbers}" both "is '$empty' '${2:-0}'" \
      "grep -q 'data-drawn=\"$((charts - ${2:-0}))\"' '$scratch/dom'"
    ok "$1: without a complaint" sh -c "! grep -q CONSOLE '$scratch/console'"
    echo "# drawn after $(sed -n 's/.*data-milliseconds="\([0-9]*\)".*/\1/p' "$scratch/dom") ms"
  fi
}

test_run() {
  run "$tessera" train tiny.cfg --set run.steps=8 --set run.save_every=4 --set profile.timeline=run/timeline.json
  run "$tessera" train tiny.cfg --set run.steps=12 --resume auto
  ok "a run that was resumed" gave 0
  report run
  ok "report" both clean "printed '^run/report.html: [0-9.]+ kB$'"
  page=run/report.html
  well_formed "the page"
  for part in "Over the run" "Memory over a step" "The observed step" "Jobs" "Decks"; do
    ok "it has: $part" holds "<h2>$part</h2>"
  done
  ok "nothing on one rank was slowest" lacks "Which rank was slowest"
  peak=$("$tessera" plan tiny.cfg --format json | sed 's/.*"peak_bytes": \([0-9]*\).*/\1/')
  ok "the largest row of memory.csv is the plan's peak" is "$peak" \
    "$(awk -F, 'NR > 1 { s = 0; for (i = 3; i <= NF; i++) s += $i; if (s > m) m = s } END { printf "%d", m }' run/memory.csv)"
  ok "N of a token is the plan's" is "$(sed -n '1s/.*"active": \([0-9]*\),.*/\1/p' run/jobs.jsonl)" \
    "$("$tessera" plan tiny.cfg --format json | sed 's/.*"active_parameters": \([0-9]*\).*/\1/')"
  ok "its saves are marked where they were made" holds '"saves":{"step":\[4,8,12\]'
  ok "and where it went on" holds '"restarts":{"step":\[8\]'
  ok "two jobs" is "$(wc -l < run/jobs.jsonl)" 2
  ok "the second goes on behind step 8" sh -c 'tail -n 1 run/jobs.jsonl | grep -q "\"step\": 8,"'
  ok "one step was observed" is "$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "observed") c = i }
    NR > 1 { n += $c } END { print n }' run/metrics.csv)" 1
  ok "nothing is loaded" sh -c "! grep -qE ' src=|<link|@import|url\\(' run/report.html"
  drawn "the page of a run"
  test_axes
}

# chosen FRAGMENT COLUMN LOG: the first curve lies over that column of metrics.csv, an axis of logarithms or not.
chosen() {
  browse "$1"
  extent=$(awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i }
    NR > 1 { x = $c; if (NR == 2) first = x } END { print first, x }' run/metrics.csv)
  grep -q "data-x=\"$extent\"" "$scratch/dom" && grep -q "data-log=\"$3\"" "$scratch/dom" && ! grep -q CONSOLE "$scratch/console"
}

# The first curve's extent, in hours.
spans_minutes() {
  sed -n 's/.*data-x="\([^"]*\)".*/\1/p' "$scratch/dom" | awk '{ good = $1 >= 0 && $2 > 0 && $2 < 1 } END { exit !good }'
}

# What is chosen in the page stands in its address.
test_axes() {
  if [ -z "$browser" ] || ! grep -q 'id="data"' "$page"; then
    skip "curves by tokens and by time" "no Chromium (Debian: chromium), or built without dygraphs (Debian: libjs-dygraphs)"
    return
  fi
  ok "curves by step" chosen "" step false
  ok "by tokens" chosen "#tokens" tokens false
  ok "with logarithms" chosen "#tokens,log" tokens true
  browse "#hours,log"
  ok "by time, less than an hour" spans_minutes
}

test_several() {
  run "$tessera" train tiny.cfg --set run.directory=other --set optimizer.params.lr=0.003
  report run other
  page=report.html
  ok "a page of two runs, here" clean
  ok "what differs in their decks" holds 'optimizer.params.lr: 0.01, now 0.003'
  well_formed "the page of two runs"
  drawn "the page of two runs"
  report run other --table
  ok "a table" both "printed '^run +devices +steps +Tokens/sec/device'" "printed '^other +1 +6 '"
  mv other 'o|th"er'
  report run 'o|th"er' --table markdown
  ok "as markdown" both "printed '^. o.[|]th\"er '" "is '$(awk -F'[^\\\\][|]' '{ print NF }' "$scratch/out" | sort -u | wc -l)' 1"
  report 'o|th"er' --table csv
  ok "a quote in csv" printed '^"o[|]th""er",causal,1,6,'
  mv 'o|th"er' other
  report run other --table csv --mfu 6n
  ok "as csv" printed '^run,flops_convention,devices,steps,tokens_per_second_per_device,step_seconds,'
  ok "by the convention that was asked for" printed '^"other",6n,1,6,'
  report --table json other
  ok "as json" printed '^\[\{"run": "other", "flops_convention": "6N \+ 6LCT", "devices": 1,'
  report run --table --peak 312
  ok "a peak of one's own" printed 'MFU \(6N \+ 6LCT\)'
}

# Without a script: a picture a curve, with what the runs are called.
test_plain() {
  report run other --plain -o plain.html
  page=plain.html
  ok "a page without a script" both clean "! grep -q '<script' plain.html"
  ok "its curves are pictures" holds '<polyline '
  ok "with their names" holds '>other: running mean</text>'
  well_formed "the page without a script"
  report run --plain -o plain.html
  ok "the loss has a notch for each of its 3 saves" is "$(sed '/<\/svg>/q' plain.html | grep -c 'y1="320" y2="328"')" 3
  ok "and a dashed line where the run went on" holds 'stroke-dasharray="5 4"'
}

test_refused() {
  cp run/metrics.csv kept
  report run -o run/metrics.csv
  ok "a page over another file" both "said 2 'run/metrics.csv is there and is no report'" "cmp kept run/metrics.csv"
  report run
  ok "over an earlier page" clean
  report nowhere
  ok "no such run" said 2 'nowhere/metrics.csv: '
  report run --mfu 7n
  ok "a convention that is none" said 2 '--mfu 7n: 6n, causal or full is accepted'
  report run --peak fast
  ok "a peak that is none" said 2 '--peak fast: TFLOP/s of a device are expected'
  report run --table=xml
  ok "a format that is none" said 2 '--table xml: text, markdown, csv or json is accepted'
  report run -o missing/page.html
  ok "a page that cannot be written" said 2 'missing/page.html'
}

# Names, messages and files of others: nothing of them is markup, or runs.
test_hostile() {
  hostile='<img src=x onerror=alert(1)>"'"'"'&'
  cp -r run "$hostile"
  rm -f "$hostile/report.html"
  printf '</pre></script><script>alert(2)</script>\033[31m\377\n' >> "$hostile/deck.cfg"
  sed -i 's|"device": "|&</td><script>alert(3)</script>|; s|"job": "|&]]><img src=y>|' "$hostile/jobs.jsonl"
  sed -i '1s|activations|</title><meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/"/><title>|' "$hostile/memory.csv"
  printf '9,9,nan,inf,-inf\n' >> "$hostile/metrics.csv"
  report "$hostile" run -o hostile.html
  ok "a row that is none is an error" said 2 'metrics.csv:[0-9]+: '
  sed -i '$d' "$hostile/metrics.csv"
  printf '13,9' >> "$hostile/metrics.csv"
  report "$hostile" run -o hostile.html
  ok "a row that was cut is left out" gave 0
  page=hostile.html
  well_formed "a hostile page"
  ok "names and texts are no markup" sh -c "! grep -qE '<img|<script>|http-equiv=.refresh|alert\\(3\\)</script>' hostile.html"
  drawn "a hostile page"
  [ -z "$browser" ] || ok "in the browser neither" sh -c "! grep -q '<img' '$scratch/dom'"
}

# Files that never begin, or never end: nothing waits for them, and the rest of the run is shown.
test_endless() {
  cp -r run endless
  cp -r run pipe
  rm endless/report.html endless/timeline.json endless/memory.csv endless/validation.csv endless/deck.cfg pipe/metrics.csv
  ln -s /dev/zero endless/timeline.json
  ln -s /dev/zero endless/memory.csv
  mkfifo endless/validation.csv endless/deck.cfg endless/page.html pipe/metrics.csv
  report endless
  page=endless/report.html
  ok "a run with pipes and devices" gave 0
  for file in timeline.json memory.csv validation.csv deck.cfg; do
    ok "its page names $file" holds "endless/$file: is no regular file"
  done
  well_formed "the page of a run with pipes and devices"
  report endless -o endless/page.html
  ok "a page over a pipe" said 2 'endless/page.html is no regular file: choose another name with -o'
  report pipe
  ok "metrics of a pipe" said 2 'pipe/metrics.csv: is no regular file'
  rm pipe/metrics.csv
  cp run/metrics.csv pipe/metrics.csv
  cp run/metrics.csv endless/digests.csv
  mkfifo pipe/digests.csv
  run "$tessera" compare pipe endless
  ok "digests of a pipe are none" gave 0
}

test_empty() {
  mkdir -p empty
  : > empty/metrics.csv
  report empty
  page=empty/report.html
  ok "a run without a step" both "gave 0" "holds 'metrics.csv is empty'"
  well_formed "the page of nothing"
  drawn "the page of nothing" 1
}

# A million steps.
test_long() {
  mkdir -p long
  cp run/jobs.jsonl long
  head -n 1 run/metrics.csv > long/metrics.csv
  awk 'BEGIN { for (s = 1; s <= 1000000; s++) 
    printf "%d,%d,%.5f,0.5,1e-3,0.1,9000,1.5,0.4,47362048,0.01,0.005,0.001,0,1,0,0,0,0.03,0.05,0.01,0,0.08,0,nan,0\n",
      s, s * 1000, 2 + 3 / sqrt(s) }' >> long/metrics.csv
  report long
  page=long/report.html
  ok "a million steps" gave 0
  ok "in at most 3 MB" [ "$(wc -c < long/report.html)" -lt 3000000 ]
  drawn "the page of a million steps"
}

test_run
test_several
test_plain
test_refused
test_hostile
test_empty
test_long
test_endless
finish
