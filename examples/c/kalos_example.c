/* kalos_example.c: a client of Kalos in C, written from docs/abi.md and kalos/abi.h alone.
 *
 * It opens a lane, opens or creates a collection, upserts three rows, waits until they are on disk, and searches the
 * nearest two. "Section" in a comment is one of docs/abi.md. One slot, one thread, messages of one part: what a real
 * client adds is in section 3. Every wait has a deadline; what goes wrong is told in words, with exit code 1. */
#define _GNU_SOURCE /* sem_clockwait (glibc 2.30): no change of the wall clock moves its deadline */
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <inttypes.h>
#include <kalos/abi.h>
#include <poll.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ROWS = 3, DIMENSION = 3, NEAREST = 2, TIMEOUT_S = 5 };
#define SECOND_NS INT64_C(1000000000)

struct client {
  int control;   /* the socket; its end of file says that kalosd died */
  bool absolute; /* deadline_ns is a point in time, else a duration */
  unsigned char *memory, *payload;
  size_t memory_bytes, payload_bytes;
  struct kalos_slot_header* slot; /* slot 0, the only one */
  sem_t *request, *reply;
  uint64_t sequence;         /* of the last post */
  unsigned char body[65536]; /* the last frame or reply: a private copy, which nobody changes while it is read */
};

/* To exit is enough to clean up: at the end of file kalosd drops the lane, and its names if they are there still. */
static _Noreturn void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("kalos_example: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * SECOND_NS + time.tv_nsec;
}

/* ---- JSON, as much of it as kalosd's answers need ---- */

/* The value of a member of the outermost object; NULL where there is none. */
static const char* member(const char* object, const char* key) {
  int depth = 0;
  for (const char* at = object; *at != 0; at++) {
    depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
    if (*at != '"') continue;
    const char* name = ++at;
    while (*at != 0 && *at != '"') at += *at == '\\' && at[1] != 0 ? 2 : 1;
    if (*at == 0) break;
    size_t bytes = (size_t)(at - name);
    const char* colon = at + 1 + strspn(at + 1, " \t\r\n");
    if (depth == 1 && *colon == ':' && bytes == strlen(key) && memcmp(name, key, bytes) == 0)
      return colon + 1 + strspn(colon + 1, " \t\r\n");
  }
  return NULL;
}

/* The text of a string; false for none, and for control characters, which nothing here is called by. */
static bool string(const char* value, char* text, size_t capacity) {
  if (value == NULL || *value++ != '"') return false;
  for (; *value != '"'; value++) {
    if (*value == '\\' && *++value != '"' && *value != '\\') return false;
    if (*value == 0 || capacity-- < 2) return false;
    *text++ = *value;
  }
  *text = 0;
  return true;
}

static uint64_t number(const char* value) { return value == NULL ? 0 : strtoull(value, NULL, 10); }

/* ---- the control socket ---- */

/* Section 1. The lock need not be tried: a socket that accepts says enough, and whoever holds the lock keeps a kalosd
 * from starting. */
static void find_and_connect(struct client* client) {
  const char *set = getenv("KALOS_DATA_DIR"), *data = getenv("XDG_DATA_HOME");
  const char *base = getenv("HOME"), *below = "/.local/share/kalos";
  if (data != NULL && *data == '/') base = data, below = "/kalos";
  if (set != NULL && *set != 0) base = set, below = "";
  char name[4096], content[4097] = {0};
  snprintf(name, sizeof name, "%s%s/kalosd.lock", base != NULL ? base : "", below);
  FILE* file = fopen(name, "re");
  size_t bytes = file != NULL ? fread(content, 1, sizeof content - 1, file) : 0;
  if (file != NULL) fclose(file);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (bytes == 0 || !string(member(content, "socket"), address.sun_path, sizeof address.sun_path))
    fail("no kalosd runs there: %s names none; start one with `kalos serve`", name);

  struct timeval limit = {.tv_sec = TIMEOUT_S}; /* of connecting and sending, and of receiving */
  client->control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (client->control < 0 || setsockopt(client->control, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
      setsockopt(client->control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
    fail("there is no socket to be had: %s", strerror(errno));
  if (connect(client->control, (struct sockaddr*)&address, sizeof address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) /* the lock file outlives a kalosd that was killed */
      fail("no kalosd runs there: nobody listens on %s; start one with `kalos serve`", address.sun_path);
    fail("cannot connect to %s: %s", address.sun_path, strerror(errno));
  }
}

static void send_frame(struct client* client, enum kalos_control type, const char* json) {
  struct kalos_control_header header = {KALOS_CONTROL_MAGIC, (uint16_t)type, 0, (uint32_t)strlen(json), 0};
  if (send(client->control, &header, sizeof header, MSG_NOSIGNAL) != (ssize_t)sizeof header ||
      send(client->control, json, strlen(json), MSG_NOSIGNAL) != (ssize_t)strlen(json))
    fail("kalosd takes no frame: %s", strerror(errno));
}

static void receive_bytes(struct client* client, void* to, size_t bytes) {
  ssize_t got = -1;
  do got = recv(client->control, to, bytes, MSG_WAITALL);
  while (got < 0 && errno == EINTR); /* a debugger, or Ctrl-Z */
  if (got == (ssize_t)bytes) return;
  if (got < 0 && errno == EAGAIN) fail("kalosd took the connection and does not answer: it is stopped or stuck");
  fail("kalosd ended, or closed the connection%s%s", got < 0 ? ": " : "", got < 0 ? strerror(errno) : "");
}

/* Section 2: the frame that is waited for, its JSON in client->body. An ERROR or a DRAINING may come in its place. */
static const char* receive_frame(struct client* client, enum kalos_control wanted) {
  struct kalos_control_header header;
  char words[4096];
  const char* json = (const char*)client->body;
  receive_bytes(client, &header, sizeof header);
  if (header.magic != KALOS_CONTROL_MAGIC) fail("whoever listens there is not a kalosd");
  if (header.body_bytes >= sizeof client->body) fail("a frame of %" PRIu32 " bytes is too long", header.body_bytes);
  if (header.body_bytes > 0) receive_bytes(client, client->body, header.body_bytes);
  client->body[header.body_bytes] = 0;
  if (header.type == KALOS_CONTROL_ERROR)
    fail("kalosd refuses this client: %s", string(member(json, "message"), words, sizeof words) ? words : json);
  if (header.type == KALOS_CONTROL_DRAINING) fail("kalosd is ending and takes no new request; connect again");
  if (header.type != wanted) fail("a frame of type %d came, %d was expected", header.type, (int)wanted);
  return json;
}

/* ---- the lane ---- */

static sem_t* open_semaphore(const char* value) {
  char name[256];
  sem_t* semaphore = string(value, name, sizeof name) ? sem_open(name, 0) : SEM_FAILED;
  if (semaphore == SEM_FAILED) fail("a semaphore of the lane cannot be opened: do both sides see one /dev/shm?");
  return semaphore;
}

/* Section 2: HELLO, WELCOME, ATTACHED, READY. */
static void attach(struct client* client) {
  char hello[512], name[256], deadline[16];
  snprintf(hello, sizeof hello,
           "{\"abi_major\":%d,\"abi_minor\":%d,\"libc\":\"glibc %s\",\"client\":\"kalos_example.c\",\"pid\":%ld,"
           "\"slot_count\":1,\"slot_bytes\":%u,\"monotonic_ns\":%" PRId64 "}",
           KALOS_ABI_MAJOR, KALOS_ABI_MINOR, gnu_get_libc_version(), (long)getpid(), KALOS_DEFAULT_SLOT_BYTES, now());
  send_frame(client, KALOS_CONTROL_HELLO, hello);
  const char *welcome = receive_frame(client, KALOS_CONTROL_WELCOME), *lane = member(welcome, "lane");
  const char* replies = lane != NULL ? member(lane, "reply_semaphores") : NULL;
  if (replies == NULL || number(member(welcome, "abi_major")) != KALOS_ABI_MAJOR ||
      !string(member(lane, "name"), name, sizeof name) ||
      !string(member(welcome, "deadline"), deadline, sizeof deadline))
    fail("the welcome is not one of ABI %d: %s", KALOS_ABI_MAJOR, welcome);
  client->absolute = strcmp(deadline, "absolute") == 0;
  client->memory_bytes = number(member(lane, "lane_bytes"));

  int fd = shm_open(name, O_RDWR, 0); /* never O_CREAT, never a size: the object is kalosd's */
  struct stat object;
  if (fd < 0 || fstat(fd, &object) != 0)
    fail("kalosd answers, but its shared memory cannot be opened: %s", strerror(errno));
  if ((size_t)object.st_size != client->memory_bytes || client->memory_bytes < KALOS_LANE_HEADER_BYTES)
    fail("the lane has %jd bytes, kalosd said %zu", (intmax_t)object.st_size, client->memory_bytes);
  client->memory = mmap(NULL, client->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (client->memory == MAP_FAILED) fail("the lane cannot be mapped: %s", strerror(errno));
  const struct kalos_lane_header* header = (const void*)client->memory;
  if (__atomic_load_n(&header->magic, __ATOMIC_ACQUIRE) != KALOS_LANE_MAGIC || header->abi_major != KALOS_ABI_MAJOR ||
      header->lane_bytes != client->memory_bytes || header->slot_count != 1 ||
      (uint64_t)header->header_bytes + header->slot_bytes > client->memory_bytes ||
      header->slot_header_bytes < sizeof *client->slot || header->slot_header_bytes >= header->slot_bytes)
    fail("the header of the lane does not agree with the welcome");
  client->slot = (void*)(client->memory + header->header_bytes);
  client->payload = client->memory + header->header_bytes + header->slot_header_bytes;
  client->payload_bytes = header->slot_bytes - header->slot_header_bytes;
  client->request = open_semaphore(member(lane, "request_semaphore"));
  client->reply = open_semaphore(strchr(replies, '"')); /* the first of the list is slot 0's */
  send_frame(client, KALOS_CONTROL_ATTACHED, "{}");
  receive_frame(client, KALOS_CONTROL_READY);
}

/* Section 3. A semaphore does not tell that the other side died, so the wait is cut into pieces, and the socket looked
 * at before each: what kalosd posted just before its end still counts. */
static void wait_for_reply(struct client* client, int64_t deadline) {
  while (true) {
    struct pollfd control = {.fd = client->control};
    bool dead = poll(&control, 1, 0) > 0; /* with no event asked for: hung up, or broken */
    int64_t until = now() + SECOND_NS / 20;
    struct timespec time = {until / SECOND_NS, until % SECOND_NS};
    if (sem_clockwait(client->reply, CLOCK_MONOTONIC, &time) == 0) { /* a token is no proof: the sequence is */
      if (__atomic_load_n(&client->slot->reply_sequence, __ATOMIC_ACQUIRE) == client->sequence) return;
    } else if (dead && errno == ETIMEDOUT) {
      fail("kalosd ended before it answered; a write may or may not be on disk");
    } else if (now() >= deadline) {
      fail("kalosd did not answer within %d s: it is overloaded, stopped or stuck", TIMEOUT_S);
    }
  }
}

/* Section 3: one request, and its reply in client->body. Asks again while kalosd still loads the collection. */
static size_t ask(struct client* client, enum kalos_opcode opcode, const void* message, size_t bytes) {
  int64_t deadline = now() + TIMEOUT_S * SECOND_NS;
  struct kalos_slot_header* slot = client->slot;
  if (bytes > client->payload_bytes) fail("a message of %zu bytes goes in parts, which this client cannot", bytes);
  while (true) {
    slot->request_state = KALOS_REQUEST_FILLING;
    memcpy(client->payload, message, bytes);
    slot->opcode = (uint16_t)opcode;
    slot->request_flags = KALOS_FLAG_BEGIN | KALOS_FLAG_COMMIT;
    slot->message_id = ++client->sequence;
    slot->message_bytes = bytes;
    slot->part_offset = 0;
    slot->part_bytes = (uint32_t)bytes;
    slot->reply_semaphore = 0;
    slot->deadline_ns = client->absolute ? deadline : deadline - now();
    slot->request_state = KALOS_REQUEST_POSTED;
    __atomic_store_n(&slot->request_sequence, client->sequence, __ATOMIC_RELEASE); /* last: now it is there */
    sem_post(client->request);
    wait_for_reply(client, deadline + SECOND_NS); /* longer than kalosd has: EXPIRED is an answer too */

    uint16_t status = slot->status, flags = slot->reply_flags;
    size_t got = slot->reply_part_bytes;
    if (got > client->payload_bytes || got >= sizeof client->body || (flags & KALOS_REPLY_MORE) != 0)
      fail("the reply goes on in parts, which this client does not read");
    memcpy(client->body, client->payload, got);
    client->body[got] = 0;
    slot->request_state = KALOS_REQUEST_FREE;
    if (status == KALOS_STATUS_OK) return got;
    if (status != KALOS_STATUS_LOADING || now() >= deadline)
      fail("kalosd refuses request %d with status %d: %s", (int)opcode, status, (const char*)client->body);
    nanosleep(&(struct timespec){.tv_nsec = SECOND_NS / 100}, NULL);
  }
}

/* ---- what is asked ---- */

/* Section 5: the fixed struct, then what its spans point at; vectors at a multiple of 8. */
struct upsert {
  struct kalos_upsert_request fixed;
  float vectors[ROWS][DIMENSION];
  struct kalos_span ids[ROWS], texts[ROWS], metadatas[ROWS];
  char strings[1024];
};
struct search {
  struct kalos_search_request fixed;
  float vectors[1][DIMENSION];
};
#define COLUMN(type, name) {offsetof(type, name), sizeof(((type*)0)->name)}

/* Section 4. */
static uint64_t open_collection(struct client* client, const char* name) {
  char request[512];
  int bytes = snprintf(request, sizeof request, "{\"name\":\"%s\",\"dimension\":%d}", name, DIMENSION);
  ask(client, KALOS_OP_OPEN_COLLECTION, request, (size_t)bytes);
  return number(member((const char*)client->body, "id"));
}

static struct kalos_span add(struct upsert* message, size_t* used, const char* text) {
  struct kalos_span span = {(uint32_t)(offsetof(struct upsert, strings) + *used), (uint32_t)strlen(text)};
  if (span.bytes > sizeof message->strings - *used) fail("the strings do not fit");
  memcpy(message->strings + *used, text, span.bytes);
  *used += span.bytes;
  return span;
}

static void upsert(struct client* client, uint64_t collection) {
  static const char* const rows[ROWS][3] = {
      {"allergy", "Alice is allergic to peanuts.", "{\"topic\": \"health\"}"},
      {"sister", "Her sister Bea lives in Lisbon.", "{\"topic\": \"family\"}"},
      {"staging", "The staging server restarts at four.", "{\"topic\": \"work\", \"hour\": 4}"}};
  struct upsert message = {.fixed = {.collection_id = collection,
                                     .durability = KALOS_DURABILITY_COMMIT, /* acknowledged once on disk */
                                     .row_count = ROWS,
                                     .dimension = DIMENSION,
                                     .ids = COLUMN(struct upsert, ids),
                                     .texts = COLUMN(struct upsert, texts),
                                     .metadatas = COLUMN(struct upsert, metadatas),
                                     .vectors = COLUMN(struct upsert, vectors)},
                           .vectors = {{1, 0, 0}, {0.6F, 0.8F, 0}, {0, 0, 1}}};
  size_t used = 0;
  for (size_t row = 0; row < ROWS; row++) {
    message.ids[row] = add(&message, &used, rows[row][0]);
    message.texts[row] = add(&message, &used, rows[row][1]);
    message.metadatas[row] = add(&message, &used, rows[row][2]);
  }
  if (getrandom(message.fixed.write_id, sizeof message.fixed.write_id, 0) != sizeof message.fixed.write_id)
    fail("there are no random bytes for a write id: %s", strerror(errno));
  struct kalos_write_reply reply;
  if (ask(client, KALOS_OP_UPSERT, &message, sizeof message) < sizeof reply) fail("the reply is too short");
  memcpy(&reply, client->body, sizeof reply);
  printf("rows on disk: %" PRIu64 "\n", reply.count);
}

/* What a span of the reply points at; a reply is not trusted to stay within its bytes. */
static const char* within(const struct client* client, size_t reply, struct kalos_span span, size_t expected) {
  if (span.offset > reply || span.bytes > reply - span.offset || span.bytes < expected)
    fail("a span of the reply leaves it, or is too short");
  return (const char*)client->body + span.offset;
}

static void search(struct client* client, uint64_t collection) {
  struct search message = {.fixed = {.collection_id = collection,
                                     .include = KALOS_INCLUDE_TEXT,
                                     .query_count = 1,
                                     .dimension = DIMENSION,
                                     .k = NEAREST,
                                     .vectors = COLUMN(struct search, vectors)},
                           .vectors = {{0.8F, 0.6F, 0}}};
  struct kalos_hits_reply hits;
  size_t bytes = ask(client, KALOS_OP_SEARCH, &message, sizeof message);
  if (bytes < sizeof hits) fail("the reply is too short");
  memcpy(&hits, client->body, sizeof hits);
  const char* scores = within(client, bytes, hits.scores, hits.row_count * sizeof(double));
  const char* fields = within(client, bytes, hits.fields, hits.row_count * sizeof(struct kalos_hit_fields));
  for (size_t row = 0; row < hits.row_count; row++) {
    double score;
    struct kalos_hit_fields hit;
    memcpy(&score, scores + row * sizeof score, sizeof score);
    memcpy(&hit, fields + row * sizeof hit, sizeof hit);
    printf("%.*s %.4f %.*s\n", (int)hit.id.bytes, within(client, bytes, hit.id, 0), score, (int)hit.text.bytes,
           within(client, bytes, hit.text, 0));
  }
}

int main(void) {
  static struct client client; /* too large for the stack */
  find_and_connect(&client);
  attach(&client);
  uint64_t collection = open_collection(&client, "c-example");
  upsert(&client, collection);
  search(&client, collection);
  sem_close(client.request);
  sem_close(client.reply);
  munmap(client.memory, client.memory_bytes);
  close(client.control); /* there is no goodbye: the end of file tells kalosd (section 2) */
  return fflush(stdout) == 0 ? 0 : 1;
}
