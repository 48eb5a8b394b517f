/* tokenizer [--peers PYTHON] FILE DIRECTORY...: encoding a text with the tokenizer.json of each directory.
 *
 * The text is cut at ends of lines into pieces of some 10 kB, which are encoded one by one by one thread and shared out
 * to two, each with its own encoder that has seen no word.  A row: tokenizer, MB/s of one thread, of two, their ratio;
 * with --peers MB/s of Hugging Face's tokenizers for the same pieces in the same run (encode_batch_fast of PYTHON,
 * which has seen the words after its first round), on one thread and two, and ours over theirs.  The best of five
 * rounds; the ids of both must be as many. */
#include "tokenizer/tokenizer.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 10000, ROUNDS = 5, MOST_THREADS = 2 };

typedef struct share {
  const ts_tokenizer *tokenizer;
  const char *text;
  size_t n;
  int64_t n_ids;
  pthread_t thread;
} share;

static size_t end_of_piece(const char *text, size_t n, size_t begin) {
  size_t least = begin + PIECE;
  const char *line = least < n ? memchr(text + least, '\n', n - least) : NULL;
  return line != NULL ? (size_t) (line - text) + 1 : n;
}

static void *encode_share(void *of) {
  share *s = of;
  ts_encoder *encoder = ts_encoder_create(s->tokenizer);
  ts_ids ids = {0};
  for (size_t begin = 0, end; begin < s->n; begin = end) {
    end = end_of_piece(s->text, s->n, begin);
    ts_error err = {0};
    TS_CHECK(ts_encode(encoder, s->text + begin, end - begin, false, &ids, &err) == TS_OK, "%s", err.text);
    s->n_ids += ids.n;
    ids.n = 0;
  }
  ts_free(ids.id);
  ts_encoder_destroy(&encoder);
  return NULL;
}

/* MB/s of the best round. */
static double measure(const ts_tokenizer *tokenizer, const char *text, size_t n, int threads, int64_t *n_ids) {
  double best = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    share s[MOST_THREADS] = {{0}};
    double began = ts_seconds();
    *n_ids = 0;
    for (size_t k = 0, begin = 0, end; k < (size_t) threads; ++k, begin = end) {
      end = begin;
      while (end < n && end < n * (k + 1) / (size_t) threads) {
        end = end_of_piece(text, n, end);
      }
      s[k] = (share){.tokenizer = tokenizer, .text = text + begin, .n = end - begin};
      TS_CHECK(pthread_create(&s[k].thread, NULL, encode_share, &s[k]) == 0, "no thread");
    }
    for (int k = 0; k < threads; ++k) {
      pthread_join(s[k].thread, NULL);
      *n_ids += s[k].n_ids;
    }
    double rate = 1e-6 * (double) n / (ts_seconds() - began);
    best = rate > best ? rate : best;
  }
  return best;
}

static const char peer[] =
    "import sys, time\n"
    "from tokenizers import Tokenizer\n"
    "t = Tokenizer.from_file(sys.argv[1] + '/tokenizer.json')\n"
    "t.no_padding(); t.no_truncation()\n"
    "data = open(sys.argv[2], 'rb').read(); pieces = []; begin = 0\n"
    "while begin < len(data):\n"
    "    end = data.find(b'\\n', begin + int(sys.argv[3])) + 1 or len(data)\n"
    "    pieces.append(data[begin:end].decode()); begin = end\n"
    "best = 1e9\n"
    "for _ in range(int(sys.argv[4])):\n"
    "    began = time.perf_counter(); made = t.encode_batch_fast(pieces, add_special_tokens=False)\n"
    "    best = min(best, time.perf_counter() - began)\n"
    "print(1e-6 * len(data) / best, sum(len(m.ids) for m in made))\n";

static double measure_peer(const char *python, const char *directory, const char *file, int threads, int64_t *n_ids) {
  ts_text command = {0};
  ts_text_add(&command, "TOKENIZERS_PARALLELISM=true RAYON_NUM_THREADS=%d ", threads);
  const char *words[] = {python, "-c", peer, directory, file};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    ts_text_add_shell(&command, words[i]);
    ts_text_append(&command, " ", 1);
  }
  ts_text_add(&command, "%d %d", PIECE, ROUNDS);
  FILE *out = popen(command.text, "r");
  double rate = 0;
  long long count = 0;
  TS_CHECK(out != NULL && fscanf(out, "%lf %lld", &rate, &count) == 2 && pclose(out) == 0, "%s does not run", python);
  ts_text_free(&command);
  *n_ids = count;
  return rate;
}

static void measure_one(const char *python, const char *file, const char *text, size_t n, const char *directory) {
  ts_tokenizer *tokenizer = NULL;
  ts_error err = {0};
  TS_CHECK(ts_tokenizer_open(directory, &tokenizer, &err) == TS_OK, "%s", err.text);
  int64_t ids[2], peer_ids[2];
  double one = measure(tokenizer, text, n, 1, &ids[0]), two = measure(tokenizer, text, n, 2, &ids[1]);
  printf("%-40s %7.1f %7.1f %5.2f", directory, one, two, two / one);
  if (python != NULL) {
    double first = measure_peer(python, directory, file, 1, &peer_ids[0]);
    double second = measure_peer(python, directory, file, 2, &peer_ids[1]);
    TS_CHECK(peer_ids[0] == ids[0], "%lld ids, and theirs are %lld", (long long) ids[0], (long long) peer_ids[0]);
    printf(" %7.1f %7.1f %6.1f %6.1f", first, second, one / first, two / second);
  }
  TS_CHECK(ids[0] == ids[1], "two threads make other ids");
  printf("\n");
  fflush(stdout);
  ts_tokenizer_close(&tokenizer);
}

int main(int argc, char **argv) {
  bool peers = argc > 2 && strcmp(argv[1], "--peers") == 0;
  int at = peers ? 3 : 1;
  char *text = NULL;
  size_t n = 0;
  if (argc < at + 2 || ts_read_file(argv[at], (size_t) 1 << 30, &text, &n, NULL) != TS_OK) {
    fprintf(stderr, "usage: tokenizer [--peers PYTHON] FILE DIRECTORY...\n");
    return 2;
  }
  printf("%-40s %7s %7s %5s%s\n", "MB/s", "1", "2", "2:1", peers ? "  peer 1  peer 2   1:1    2:2" : "");
  for (int i = at + 1; i < argc; ++i) {
    measure_one(peers ? argv[2] : NULL, argv[at], text, n, argv[i]);
  }
  ts_free(text);
  return 0;
}
