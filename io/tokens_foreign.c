/* Files that people have their data in and that hold no tokens as they lie: what each is, and the command that makes a
 * text or tokens of it. */
#include "base/text.h"
#include "io/tokens_format.h"

#include <string.h>

#define PYTHON(code) "python3 -c '" code "'"

typedef struct foreign {
  const char *what;
  const char *head; /* the bytes at `at`; NULL: known by its name alone */
  size_t head_bytes, at;
  const char *extension;
  const char *command; /* "@" stands for the file */
  const char *makes;
} foreign;

static const foreign rows[] = {
    {"compressed (gzip)", "\x1f\x8b", 2, 0, NULL, "gzip -dc @ > data", "data"},
    {"compressed (zstd)", "\x28\xb5\x2f\xfd", 4, 0, NULL, "zstd -dc @ > data", "data"},
    {"compressed (xz)", "\xfd" "7zXZ", 6, 0, NULL, "xz -dc @ > data", "data"},
    {"compressed (bzip2)", "1AY&SY", 6, 4, NULL, "bzip2 -dc @ > data", "data"},
    {"an archive (zip)", "PK\x03\x04", 4, 0, NULL, "unzip -p @ > data", "data"},
    {"an array of numpy", "\x93NUMPY", 6, 0, NULL,
     PYTHON("import h5py, numpy; h5py.File(\"data.h5\", \"w\")[\"tokens\"] = numpy.load(\"@\", mmap_mode=\"r\")"),
     "data.h5"},
    {"a table (Parquet)", "PAR1", 4, 0, NULL,
     PYTHON("import pyarrow.parquet as p; open(\"data.txt\", \"w\").writelines(t + \"\\n\" for t in "
            "p.read_table(\"@\")[\"text\"].to_pylist())"), "data.txt"},
    {"a table (Arrow)", NULL, 0, 0, ".arrow",
     PYTHON("import pyarrow as p; open(\"data.txt\", \"w\").writelines(t + \"\\n\" for t in "
            "p.ipc.open_stream(\"@\").read_all()[\"text\"].to_pylist())"), "data.txt"},
    {"json, an object a line", NULL, 0, 0, ".jsonl",
     PYTHON("import json; open(\"data.txt\", \"w\").writelines(json.loads(l)[\"text\"] + \"\\n\" "
            "for l in open(\"@\"))"),
     "data.txt"},
    {"json", NULL, 0, 0, ".json",
     PYTHON("import json; open(\"data.txt\", \"w\").writelines(r[\"text\"] + \"\\n\" for r in json.load(open(\"@\")))"),
     "data.txt"},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static ts_status refuse(const foreign *row, const char *path, ts_error *err) {
  ts_text command = {0};
  for (const char *c = row->command; *c != 0; ++c) {
    ts_text_add(&command, *c == '@' ? "%s" : "%.1s", *c == '@' ? path : c);
  }
  ts_status status = ts_error_add(err, "%s: is %s, not a text or tokens; make %s of it: %s (data.format = \"text\" "
                                       "would take its bytes as they are)", path, row->what, row->makes, command.text);
  ts_text_free(&command);
  return status;
}

ts_status ts_tokens_check_head(const char *path, const ts_mapping *file, ts_error *err) {
  for (int i = 0; i < N_ROWS; ++i) {
    const foreign *row = &rows[i];
    if (row->head != NULL && file->size >= row->at + row->head_bytes &&
        memcmp(file->bytes + row->at, row->head, row->head_bytes) == 0) {
      return refuse(row, path, err);
    }
  }
  return TS_OK;
}

ts_status ts_tokens_check_name(const char *path, ts_error *err) {
  for (int i = 0; i < N_ROWS; ++i) {
    if (ts_tokens_is_called(path, rows[i].extension)) {
      return refuse(&rows[i], path, err);
    }
  }
  return TS_OK;
}
