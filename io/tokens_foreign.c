/* Files that people have their data in and that hold no tokens as they lie: what each is, and the command that makes a
 * text or tokens of it. */
#include "base/text.h"
#include "io/tokens_format.h"

#include <string.h>

#define PYTHON(code) "python3 -c 'import sys, " code "' @"
#define TABLE(module, table)                                                                                 \
  "make data.txt of it: " PYTHON(module "; open(\"data.txt\", \"w\").writelines(t + \"\\n\" for t in " table \
                                        "[\"text\"].to_pylist())")

/* A row with head and extension needs both. */
typedef struct foreign {
  const char *what;
  const char *head; /* the bytes at `at`; NULL: known by its name alone */
  size_t head_bytes, at;
  const char *extension;
  const char *packed; /* the extension that its name loses when it is unpacked */
  const char *way;    /* "@" stands for the file, "#" for the name of what is unpacked, both as a shell's word */
} foreign;

static const foreign rows[] = {
    {"compressed (gzip)", "\x1f\x8b\x08", 3, 0, NULL, ".gz", "make # of it: gzip -dc < @ > #"},
    {"compressed (zstd)", "\x28\xb5\x2f\xfd", 4, 0, NULL, ".zst", "make # of it: zstd -dc < @ > #"},
    {"compressed (xz)",
     "\xfd"
     "7zXZ",
     6, 0, NULL, ".xz", "make # of it: xz -dc < @ > #"},
    {"compressed (bzip2)", "1AY&SY", 6, 4, NULL, ".bz2", "make # of it: bzip2 -dc < @ > #"},
    {"several arrays of numpy", "PK\x03\x04", 4, 0, ".npz", NULL,
     "make data.npy of the one with the tokens, here called NAME: " PYTHON(
         "numpy; numpy.save(\"data.npy\", numpy.load(sys.argv[1])[\"NAME\"])")},
    {"a file of torch", "PK\x03\x04", 4, 0, ".pt", NULL,
     "when it is one tensor, make data.npy of it: " PYTHON(
         "numpy, torch; numpy.save(\"data.npy\", torch.load(sys.argv[1], weights_only=True).numpy())")},
    {"an archive (zip, as torch writes too)", "PK\x03\x04", 4, 0, NULL, NULL,
     "unpack it and name a file of it: unzip @"},
    {"an archive (tar)", "ustar", 5, 257, NULL, NULL, "unpack it and name a file of it: tar -xf @"},
    {"an array of numpy", "\x93NUMPY", 6, 0, NULL, NULL,
     "when it is one dimension of integers, make data.h5 of it: " PYTHON(
         "h5py, numpy; a = numpy.load(sys.argv[1], mmap_mode=\"r\"); a.ndim == 1 and a.dtype.kind in \"iu\" or "
         "sys.exit(f\"one dimension of integers is needed, not {a.dtype} {a.shape}\"); "
         "h5py.File(\"data.h5\", \"w\")[\"tokens\"] = a")},
    {"a table (Parquet)", "PAR1", 4, 0, NULL, NULL, TABLE("pyarrow.parquet as p", "p.read_table(sys.argv[1])")},
    {"a table (Arrow file)", "ARROW1", 6, 0, NULL, NULL,
     TABLE("pyarrow as p", "p.ipc.open_file(sys.argv[1]).read_all()")},
    {"a table (Arrow stream)", NULL, 0, 0, ".arrow", NULL,
     TABLE("pyarrow as p", "p.ipc.open_stream(sys.argv[1]).read_all()")},
    {"json", NULL, 0, 0, ".json", NULL,
     "when it is a list of objects, make data.jsonl of it, one a line: " PYTHON(
         "json; open(\"data.jsonl\", \"w\").writelines(json.dumps(r) + \"\\n\" for r in "
         "json.load(open(sys.argv[1])))")},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* What x.jsonl.gz holds is x.jsonl, whose name says its kind; a name that says nothing of packing must not be written
 * over. */
static void add_unpacked(ts_text *to, const char *packed, const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
  size_t length = strlen(name), rest = strlen(packed);
  ts_text word = {0};
  if (ts_tokens_is_called(name, packed) && length > rest) {
    ts_text_append(&word, name, length - rest);
  } else {
    ts_text_add(&word, "unpacked-%s", name);
  }
  ts_text_add_shell(to, word.text);
  ts_text_free(&word);
}

static ts_status refuse_foreign(const foreign *row, const char *path, ts_error *err) {
  ts_text way = {0};
  for (const char *c = row->way; *c != 0; ++c) {
    if (*c == '@') {
      ts_text_add_shell(&way, path);
    } else if (*c == '#') {
      add_unpacked(&way, row->packed, path);
    } else {
      ts_text_append(&way, c, 1);
    }
  }
  ts_status status = ts_error_add(err,
                                  "%s: is %s, not a text or tokens; %s (data.format = \"text\" would take its "
                                  "bytes as they are)",
                                  path, row->what, way.text);
  ts_text_free(&way);
  return status;
}

ts_status ts_tokens_check_head(const char *path, const ts_mapping *file, ts_error *err) {
  for (int i = 0; i < N_ROWS; ++i) {
    const foreign *row = &rows[i];
    if (row->head != NULL && file->size >= row->at + row->head_bytes &&
        memcmp(file->bytes + row->at, row->head, row->head_bytes) == 0 &&
        (row->extension == NULL || ts_tokens_is_called(path, row->extension))) {
      return refuse_foreign(row, path, err);
    }
  }
  return TS_OK;
}

ts_status ts_tokens_check_name(const char *path, ts_error *err) {
  for (int i = 0; i < N_ROWS; ++i) {
    if (rows[i].head == NULL && ts_tokens_is_called(path, rows[i].extension)) {
      return refuse_foreign(&rows[i], path, err);
    }
  }
  return TS_OK;
}
