#!/bin/sh
# Draw doc/precision.svg: inputs/precision.cfg with fp32 masters, without, and without but rounded by chance, on the
# text of the documents.  Some seconds.  Usage, from the top of the tree: doc/precision.sh [TESSERA]
set -eu
tessera=$(realpath "${1:-build/tessera}")
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat "$top"/doc/*.md > "$work/text.txt"

# curve NAME [WORD]...: a line "step loss" for each step, in $work/NAME.
curve() {
  name=$1
  shift
  "$tessera" train "$top/inputs/precision.cfg" --set "data.path=$work/text.txt" --set "run.directory=$work/run.$name" \
    --set run.save_every=0 "$@" > /dev/null
  sed 1d "$work/run.$name/metrics.csv" | cut -d, -f1,3 | tr , ' ' > "$work/$name"
}

low="--set bf16.bf16_master_weights_and_grads=true --set bf16.bf16_optimizer_states=true"
curve aligned
# shellcheck disable=SC2086
{
  curve low $low
  curve chance $low --set bf16.stochastic_rounding=true
}

# A running mean over 20 steps of each; labels at the ends of the lines.
awk -v low="$work/low" -v aligned="$work/aligned" -v chance="$work/chance" '
function x(step) { return sprintf("%.1f", left + (right - left) * step / last) }
function y(loss) { return sprintf("%.1f", bottom - (bottom - top) * (loss - least) / (most - least)) }
function text(at_x, at_y, anchor, colour, what) {
  printf "<text x=\"%s\" y=\"%s\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", at_x, at_y, anchor, colour, what
}
function read_curve(name, file, step, loss, line, f) {
  while ((getline line < file) > 0) {
    split(line, f, " ")
    step = f[1]
    loss = f[2]
    raw[name, step] = loss
    sum[name] += loss - (step > 20 ? raw[name, step - 20] : 0)
    mean[name, step] = sum[name] / (step > 20 ? 20 : step)
    last = step > last ? step : last
  }
}
function draw(name, style, colour, what, dy, step) {
  printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\" %s points=\"", colour, style
  for (step = 1; step <= last; step += 2) printf "%s,%s ", x(step), y(mean[name, step])
  printf "\"/>\n"
  text(right + 8, y(mean[name, last]) + dy, "start", colour, what)
}
BEGIN {
  left = 60; right = 560; top = 56; bottom = 330; least = 3; most = 6; ink = "#24292f"; soft = "#57606a"
  read_curve("low", low); read_curve("aligned", aligned); read_curve("chance", chance)
  print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 390\" font-family=\"sans-serif\" font-size=\"14\">"
  print "<!-- made by doc/precision.sh -->"
  print "<rect width=\"800\" height=\"390\" fill=\"white\"/>"
  text(left, 28, "start", ink, "Loss in bf16 at a learning rate of 4e-5 (inputs/precision.cfg, mean of 20 steps)")
  for (tick = least; tick <= most; tick += 0.5) {
    printf "<line x1=\"%d\" x2=\"%d\" y1=\"%s\" y2=\"%s\" stroke=\"#e4e7eb\"/>\n", left, right, y(tick), y(tick)
    text(left - 8, y(tick) + 5, "end", soft, sprintf("%.1f", tick))
  }
  for (tick = 0; tick <= last; tick += 100) text(x(tick), bottom + 22, "middle", soft, tick)
  text((left + right) / 2, bottom + 46, "middle", soft, "step")
  draw("low", "", "#d9480f", "no masters, to nearest", 5)
  draw("aligned", "", "#2f6fdb", "fp32 masters", 14)
  draw("chance", "stroke-dasharray=\"7 5\"", "#2b8a3e", "no masters, by chance", -6)
  print "</svg>"
}' > "$top/doc/precision.svg"
