/* Binding, on machines that are described: parts are disjoint, whole cores and near their GPU. */
#include "base/memory.h"
#include "regression/tap.h"
#include "slurm/binding.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

/* Two packages with a NUMA node and two cores each; a GPU on the second. */
static const char gpu_machine[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                                  "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
                                  "<topology version=\"2.0\">\n"
                                  " <object type=\"Machine\" os_index=\"0\" cpuset=\"0xf\" complete_cpuset=\"0xf\" "
                                  "allowed_cpuset=\"0xf\" nodeset=\"0x3\" "
                                  "complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"1\">\n"
#define SOCKET(n, set, node)                                                                                        \
  "  <object type=\"Package\" os_index=\"" #n "\" cpuset=\"" set "\" complete_cpuset=\"" set "\" nodeset=\"" node   \
  "\" complete_nodeset=\"" node "\" gp_index=\"1" #n "\">\n"                                                        \
  "   <object type=\"NUMANode\" os_index=\"" #n "\" cpuset=\"" set "\" complete_cpuset=\"" set "\" nodeset=\"" node \
  "\" complete_nodeset=\"" node "\" gp_index=\"2" #n "\" local_memory=\"1073741824\"/>\n"
#define CORE(n, set, node)                                                                                      \
  "   <object type=\"Core\" os_index=\"" #n "\" cpuset=\"" set "\" complete_cpuset=\"" set "\" nodeset=\"" node \
  "\" complete_nodeset=\"" node "\" gp_index=\"3" #n "\"><object type=\"PU\" os_index=\"" #n "\" cpuset=\"" set \
  "\" complete_cpuset=\"" set "\" nodeset=\"" node "\" complete_nodeset=\"" node "\" gp_index=\"4" #n           \
  "\"/></object>\n"
    SOCKET(0, "0x3", "0x1") CORE(0, "0x1", "0x1") CORE(1, "0x2", "0x1") "  </object>\n" SOCKET(1, "0xc", "0x2")
        CORE(2, "0x4", "0x2")
            CORE(3, "0x8", "0x2") "   <object type=\"Bridge\" gp_index=\"50\" bridge_type=\"0-1\" depth=\"0\" "
                                  "bridge_pci=\"0000:[80-9f]\">\n"
                                  "    <object type=\"PCIDev\" gp_index=\"51\" pci_busid=\"0000:9b:00.0\" "
                                  "pci_type=\"0302 [10de:2335] [10de:0001] a1\" "
                                  "pci_link_speed=\"31.5\"/>\n"
                                  "   </object>\n"
                                  "  </object>\n"
                                  " </object>\n"
                                  "</topology>\n";

static bool is(char *text, const char *expected) {
  bool same = text == NULL ? expected == NULL : expected != NULL && strcmp(text, expected) == 0;
  if (!same) {
    tap_note("%s instead of %s", text != NULL ? text : "NULL", expected != NULL ? expected : "NULL");
  }
  ts_free(text);
  return same;
}

static void test_parts(void) {
  ts_machine *m = ts_machine_create("package:2 core:4 pu:1");
  tap_ok(is(ts_binding_part(m, "0-7", 0, 1), "0-7"), "one rank has all");
  tap_ok(is(ts_binding_part(m, "0-7", 0, 2), "0-3") && is(ts_binding_part(m, "0-7", 1, 2), "4-7"),
         "two ranks: a package each");
  tap_ok(is(ts_binding_part(m, "2-5", 0, 2), "2-3") && is(ts_binding_part(m, "2-5", 1, 2), "4-5"),
         "only the processors of the allocation are divided");
  tap_ok(is(ts_binding_part(m, "0-2", 2, 3), "2"), "three cores, three ranks");
  tap_ok(is(ts_binding_part(m, "0-2", 0, 4), NULL), "more ranks than cores share all");
  ts_text text = {0};
  ts_binding_describe(m, "0-3", &text);
  tap_ok(strcmp(text.text, "4 cores, processors 0-3 (NUMA node 0)") == 0, "\"%s\"", text.text);
  ts_text_free(&text);
  ts_machine_destroy(&m);
}

static void test_threads(void) {
  ts_machine *m = ts_machine_create("core:4 pu:2(indexes=0,4,1,5,2,6,3,7)");
  bool whole = is(ts_binding_part(m, "0-7", 0, 4), "0,4") && is(ts_binding_part(m, "0-7", 3, 4), "3,7");
  tap_ok(whole, "a core's threads stay together");
  tap_ok(is(ts_binding_part(m, "0-7", 0, 8), NULL), "half a core is none");
  ts_machine_destroy(&m);
}

/* Every number of ranks on an uneven allocation: together all, no processor twice. */
static void test_all(void) {
  ts_machine *m = ts_machine_create("package:2 numa:2 core:6 pu:1");
  bool right = true;
  for (int parts = 1; parts <= 19; ++parts) {
    int owner[24] = {0}, covered = 0;
    for (int i = 0; i < parts; ++i) {
      char *part = ts_binding_part(m, "1-3,7-22", i, parts);
      for (char *at = part; at != NULL && *at != 0;) {
        int n, first, last, read = sscanf(at, "%d-%d%n", &first, &last, &n);
        if (read < 2) {
          right = sscanf(at, "%d%n", &first, &n) == 1 && right;
          last = first;
        }
        for (int p = first; p <= last; ++p) {
          right = right && p < 24 && owner[p]++ == 0;
          ++covered;
        }
        at += n + (at[n] == ',');
      }
      ts_free(part);
    }
    right = right && covered == 19;
  }
  tap_ok(right, "1 to 19 ranks on 19 cores of 4 NUMA nodes: each core has one owner");
  ts_machine_destroy(&m);
}

static void test_near(void) {
  ts_machine *m = ts_machine_create(gpu_machine);
  tap_ok(m != NULL, "a machine with a GPU");
  tap_ok(is(ts_binding_near(m, "0-3", "0000:9b:00.0"), "2-3"), "near the GPU is its package");
  tap_ok(is(ts_binding_near(m, "0,3", "0000:9b:00.0"), "3"), "of what the rank may use");
  tap_ok(is(ts_binding_near(m, "0-1", "0000:9b:00.0"), "0-1"), "the allocation is elsewhere: all of it");
  tap_ok(is(ts_binding_near(m, "0-3", "0000:01:00.0"), "0-3") && is(ts_binding_near(m, "0-3", ""), "0-3"),
         "no such device, and none: all");
  ts_machine_destroy(&m);
  tap_ok(ts_machine_create("no such:thing") == NULL, "a description that is none");
}

static void test_this(void) {
  ts_machine *m = ts_machine_create(NULL);
  char *now = ts_binding_now(m), *one = now != NULL ? ts_binding_part(m, now, 0, 1) : NULL;
  tap_ok(one != NULL && now != NULL && strcmp(one, now) == 0, "this machine: all of %s is one part",
         now != NULL ? now : "?");
  char first[16] = "0";
  if (now != NULL) {
    snprintf(first, sizeof first, "%.*s", (int) strcspn(now, "-,"), now);
  }
  bool bound = ts_binding_apply(m, first);
  tap_ok(bound && is(ts_binding_now(m), first), "bound to %s", first);
  cpu_set_t set;
  tap_ok(sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1, "as the system sees it");
  ts_free(one);
  ts_free(now);
  ts_machine_destroy(&m);
}

int main(void) {
  test_parts();
  test_threads();
  test_all();
  test_near();
  test_this();
  return tap_done();
}
