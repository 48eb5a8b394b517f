/* tessera keys, plot: one call each. */
#include "base/memory.h"
#include "io/plot.h"
#include "main/command.h"

#include <string.h>

int ts_main_keys(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  const char *format = ts_argument(arguments, "--format");
  bool man = strcmp(format, "man") == 0;
  if (!man && strcmp(format, "text") != 0) {
    return ts_error_add(err, "--format %s: text or man is accepted", format);
  }
  ts_text text = {0};
  if (man) {
    ts_text_add(
        &text,
        ".TH TESSERA\\-DECK 5 \"\" \"Tessera %s\"\n.SH NAME\ntessera\\-deck \\- the input deck\n"
        ".SH DESCRIPTION\nA deck is a file in libconfig's syntax.  Its keys are DeepSpeed's and Hugging Face's; "
        "each can be changed on the command line with \\-\\-set KEY=VALUE.\n.SH KEYS\n",
        PACKAGE_VERSION);
  }
  ts_deck_manual(&text, man ? TS_DECK_MAN : TS_DECK_TEXT);
  fputs(text.text, stdout);
  ts_text_free(&text);
  return 0;
}

int ts_main_plot(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  return ts_plot_losses(arguments->positional[0], err);
}
